"""The loss, against hand-computed values and torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from checks.references.loss import count, objective, shift_labels, token_losses


def draw(seed: int, *shape: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_targets_are_the_next_labels() -> None:
    labels = torch.tensor([[1, 2, -100, 4], [5, 6, 7, 8]])
    assert shift_labels(labels).tolist() == [[2, -100, 4, -100], [6, 7, 8, -100]]
    assert labels.tolist() == [[1, 2, -100, 4], [5, 6, 7, 8]]


def test_a_token_loss_is_minus_log_of_the_targets_probability() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0], [5.0, 5.0]]], dtype=torch.float64)
    losses = token_losses(logits, torch.tensor([[1, 1, -100]]))
    assert losses.tolist()[0] == pytest.approx([math.log(4 / 3), math.log(5.0), 0.0], rel=1e-15)


def test_the_objective_is_the_sum_over_the_denominator() -> None:
    targets = torch.tensor([[3, -100, 4]])
    losses = torch.tensor([[1.0, 100.0, 2.0]], dtype=torch.float64)
    assert count(targets) == 2
    assert objective(losses, targets, denominator=2).item() == 1.5
    assert objective(losses, targets, denominator=6).item() == 0.5


def rounding_of_gradients(logits: torch.Tensor, counted: int) -> torch.Tensor:
    """How far two ways to (p − 1[target]) / counted may lie apart in float64, entry by entry, (B, S, V).

    Each takes p = exp(x − L) with L = log Σ exp(x): the roundings of L, of x − L and of the sum's V terms come back as
    relative errors of p, one u each times |L|, |x − L| and V; exp, log, the maximum's subtraction and its return are
    four more. Subtracting one and dividing round the result twice.
    """
    unit = torch.finfo(torch.float64).eps / 2
    log_sum = torch.logsumexp(logits, dim=-1, keepdim=True)
    distance = logits - log_sum
    of_p = distance.exp() * (log_sum.abs() + distance.abs() + logits.shape[-1] + 4)
    return 2 * unit * (2 + of_p) / counted


@settings(max_examples=25, deadline=None)
@example(seed=17, vocabulary=17, masked=0.875)  # one counted token, log Σ exp ≈ 8: 1.1e-15 apart
@given(seed=st.integers(0, 10**6), vocabulary=st.integers(2, 40), masked=st.floats(0, 0.9))
def test_loss_and_gradient_equal_torchs_cross_entropy_in_float64(seed: int, vocabulary: int, masked: float) -> None:
    logits = draw(seed, 2, 7, vocabulary).requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, vocabulary, (2, 7), generator=generator)
    targets[torch.rand(2, 7, generator=generator) < masked] = -100
    targets[0, 0] = 1
    ours = objective(token_losses(logits, targets), targets, denominator=count(targets))
    theirs = F.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-13)
    (our_gradient,) = torch.autograd.grad(ours, logits)
    (their_gradient,) = torch.autograd.grad(theirs, logits)
    assert ((our_gradient - their_gradient).abs() <= rounding_of_gradients(logits.detach(), count(targets))).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), shift=st.floats(-1e3, 1e3))
def test_a_constant_added_to_the_logits_changes_nothing(seed: int, shift: float) -> None:
    logits, targets = draw(seed, 1, 4, 9), torch.tensor([[0, 8, 3, -100]])
    assert torch.allclose(token_losses(logits + shift, targets), token_losses(logits, targets), rtol=0, atol=1e-11)


def test_micro_batches_add_up_to_the_batch_under_a_global_denominator() -> None:
    logits, targets = draw(0, 4, 6, 11), torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(1))
    targets[1:, 2:] = -100
    whole = objective(token_losses(logits, targets), targets, denominator=count(targets))
    parts = [
        objective(token_losses(logits[rows], targets[rows]), targets[rows], denominator=count(targets))
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_own_precision_is_float32(dtype: torch.dtype) -> None:
    logits = draw(0, 1, 5, 7).to(dtype)
    targets = torch.tensor([[1, 2, 3, 4, -100]])
    losses = token_losses(logits, targets)
    assert losses.dtype == torch.float32
    assert torch.allclose(losses.double(), token_losses(logits.double(), targets), rtol=0, atol=1e-6)


def test_a_target_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="targets reach from 0 to 7, the vocabulary has 7"):
        token_losses(torch.zeros(1, 2, 7), torch.tensor([[0, 7]]))
    with pytest.raises(ValueError, match="targets reach from -1"):
        token_losses(torch.zeros(1, 2, 7), torch.tensor([[-1, 6]]))


def test_shapes_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets have shape \(1, 3\), logits \(1, 2, 7\)"):
        token_losses(torch.zeros(1, 2, 7), torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize("denominator", [0, -1, float("nan")])
def test_a_denominator_that_is_not_positive_is_refused(denominator: float) -> None:
    with pytest.raises(ValueError, match="nothing is counted"):
        objective(torch.zeros(1, 1), torch.full((1, 1), -100), denominator=denominator)
