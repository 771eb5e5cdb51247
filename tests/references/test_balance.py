"""The load-balancing loss, against hand-computed values and transformers' own in float64."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from checks.references.balance import load_balancing_loss
from checks.references.hf import lift_casts


def draw_logits(layers: int = 3, tokens: int = 14, experts: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(tokens, experts, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(layers)
    )


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("padded", [False, True])
def test_value_and_gradient_equal_transformers_in_float64(padded: bool, top_k: int) -> None:
    logits = draw_logits()
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 4:], mask[1, :2] = 0, 0
    given = mask if padded else None
    ours = load_balancing_loss(logits, top_k=top_k, attention_mask=given)
    with lift_casts():
        theirs = load_balancing_loss_func(logits, 5, top_k, given)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    for a, b in zip(torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, logits), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-13)


def test_the_value_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.25]], dtype=torch.float64))
    share, mean = (0.75, 0.25), (0.625, 0.375)
    expected = 2 * (share[0] * mean[0] + share[1] * mean[1])
    assert load_balancing_loss([logits], top_k=1).item() == pytest.approx(expected, rel=1e-15)


def test_even_routing_costs_top_k() -> None:
    logits = torch.eye(4, dtype=torch.float64) * 3.0
    assert load_balancing_loss([logits], top_k=1).item() == pytest.approx(1.0, rel=1e-15)
    assert load_balancing_loss([logits], top_k=4).item() == pytest.approx(4.0, rel=1e-15)


def test_recorded_choices_are_replayed() -> None:
    logits = [torch.zeros(2, 3, dtype=torch.float64) + torch.tensor([1.0, 0.0, -1.0])]
    chosen = [torch.tensor([[2], [2]])]
    probability = torch.softmax(logits[0][0], -1)
    replayed = load_balancing_loss(logits, top_k=1, selected=chosen).item()
    assert replayed == pytest.approx(3 * probability[2].item(), rel=1e-15)
    assert load_balancing_loss(logits, top_k=1).item() == pytest.approx(3 * probability[0].item(), rel=1e-15)


def test_nothing_routed_and_masks_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="no router logits"):
        load_balancing_loss([], top_k=1)
    with pytest.raises(ValueError, match="attention_mask has 3 positions, the router logits 14"):
        load_balancing_loss(draw_logits(), top_k=1, attention_mask=torch.ones(1, 3))
