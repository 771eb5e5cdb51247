"""Losses and advantages of the papers: values by hand, gradients by finite differences, and identities between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.references.objectives import VARIANTS, Computed, GroupRelative, OddsRatio, Prospect, Samples, Span
from checks.references.objectives.advantages import (
    generalised_advantages,
    group_advantages,
    normalise_over_batch,
    token_returns,
)
from checks.references.objectives.group_relative import Reduction, weigh
from checks.references.objectives.odds_ratio import log_odds, odds_ratio_losses
from checks.references.objectives.prospect import estimate_reference_point, value_losses
from checks.references.objectives.proximal import policy_loss, value_loss
from checks.references.objectives.ratios import (
    clipped_losses,
    estimate_kl,
    is_clipped,
    sequence_ratios,
    token_ratios,
)

EXACT = 1e-12
Scalar = Callable[[torch.Tensor], torch.Tensor]


def draw(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_gradient(function: Scalar, at: torch.Tensor, *, step: float = 1e-6) -> torch.Tensor:
    """Autograd's gradient, once it has been held against central differences."""
    point = at.clone().requires_grad_(True)
    function(point).backward()  # type: ignore[no-untyped-call]
    assert point.grad is not None
    numeric = torch.zeros_like(at)
    for index in range(at.numel()):
        shift = torch.zeros_like(at).flatten()
        shift[index] = step
        up, down = (float(function(at + sign * shift.view_as(at))) for sign in (1, -1))
        numeric.view(-1)[index] = (up - down) / (2 * step)
    assert torch.allclose(point.grad, numeric, atol=1e-8, rtol=1e-6)
    return point.grad


def lay(losses: torch.Tensor, *, micro: int = 0, offset: int = 0, start: int = 0) -> Computed:
    """One forward that holds all rows of a micro-batch, at a column of its own."""
    rows, width = losses.shape
    padded = torch.nn.functional.pad(losses, (offset, 0))
    span = Span(offset, start, start + width)
    return Computed(padded, tuple((micro, row) for row in range(rows)), (span,) * rows)


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


# ORPO


def test_the_odds_of_three_quarters_are_three_and_their_logarithm_keeps_its_digits_near_one() -> None:
    assert log_odds(torch.tensor(0.75, dtype=torch.float64).log()).exp().item() == pytest.approx(3.0, rel=1e-14)
    tiny = torch.tensor(-1e-12, dtype=torch.float64)
    assert log_odds(tiny).item() == pytest.approx(-math.log(1e-12), rel=1e-12)


def test_orpo_adds_the_weighted_odds_ratio_of_mean_log_probabilities_to_the_mean_loss_of_preferred_rows() -> None:
    """Two pairs: prompts of one token, answers of one to three; the mean log-probabilities are taken by hand."""
    losses = torch.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0], [2.0, 5.0, 1.0], [2.0, 2.0, 0.0]], dtype=torch.float64)
    counted = torch.tensor([[True] * 3, [True, True, False], [False, True, True], [False, True, False]])
    answers = torch.tensor([[False, True, True], [False, True, False], [False, True, True], [False, True, False]])

    def odds(mean: float) -> float:
        return math.log(math.exp(mean) / (1.0 - math.exp(mean)))

    ratios = [odds(-3.0) - odds(-3.0), odds(-1.0) - odds(-2.0)]
    expected = (1 + 2 + 4 + 3 + 1) / 5 + 0.3 * sum(-math.log(sigmoid(ratio)) for ratio in ratios) / 2
    objective = OddsRatio(0.3, (answers,), (counted,))
    assert objective([lay(losses)]).item() == pytest.approx(expected, abs=EXACT)
    assert objective([lay(losses, offset=2)]).item() == pytest.approx(expected, abs=EXACT)
    apart = [
        Computed(losses[row : row + 1], ((0, row),), (Span(0, 0, 3),))
        for row in (2, 0, 3, 1)  # in any order
    ]
    assert objective(apart).item() == pytest.approx(expected, abs=EXACT)
    assert odds_ratio_losses(torch.tensor([-1.0]), torch.tensor([-1.0])).item() == pytest.approx(math.log(2.0))


def test_orpo_averages_over_micro_batches_and_its_gradient_is_that_of_the_definition() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    objective = OddsRatio(0.5, (mask, mask), (mask, mask))
    both = draw(4, 3, seed=1).abs() + 0.5

    def merged(losses: torch.Tensor) -> torch.Tensor:
        return objective([lay(losses[:2]), lay(losses[2:], micro=1)])

    check_gradient(merged, both)
    alone = objective([lay(both[:2])]) + objective([lay(both[2:], micro=1)])
    assert merged(both).item() == pytest.approx(alone.item(), abs=EXACT)


# KTO


def test_kto_values_gains_above_the_reference_point_and_losses_below_it() -> None:
    gains, desirable = torch.tensor([2.0, 2.0], dtype=torch.float64), torch.tensor([True, False])
    found = value_losses(gains, desirable, beta=0.5, reference_point=1.0, weights=(1.0, 3.0))
    assert found.tolist() == pytest.approx([1.0 - sigmoid(0.5), 3.0 * (1.0 - sigmoid(-0.5))], abs=EXACT)
    same = value_losses(torch.zeros(2), desirable, beta=0.5, reference_point=0.0)
    assert same.tolist() == [0.5, 0.5]


def test_ktos_reference_point_is_a_mean_that_is_never_negative_and_has_no_gradient() -> None:
    gains = torch.tensor([3.0, 1.0], requires_grad=True)
    point = estimate_reference_point(gains)
    assert (point.item(), point.requires_grad) == (2.0, False)
    assert estimate_reference_point(torch.tensor([-3.0, 1.0])).item() == 0.0


def test_kto_averages_over_the_rows_of_a_micro_batch_and_then_over_micro_batches() -> None:
    reference = {(micro, row): torch.tensor(-1.0, dtype=torch.float64) for micro in (0, 1) for row in (0, 1)}
    labels = (torch.tensor([True, False]), torch.tensor([True, True]))
    objective = Prospect(0.4, reference, (torch.tensor(0.5), torch.tensor(0.0)), labels)
    losses = draw(4, 2, seed=3).abs()

    def merged(values: torch.Tensor) -> torch.Tensor:
        return objective([lay(values[:2]), lay(values[2:], micro=1)])

    rows = [float(-row.sum()) + 1.0 for row in losses]
    first = [1.0 - sigmoid(0.4 * (rows[0] - 0.5)), 1.0 - sigmoid(0.4 * (0.5 - rows[1]))]
    second = [1.0 - sigmoid(0.4 * rows[2]), 1.0 - sigmoid(0.4 * rows[3])]
    assert merged(losses).item() == pytest.approx((sum(first) / 2 + sum(second) / 2) / 2, abs=EXACT)
    check_gradient(merged, losses)


# ratios


def test_the_clip_bounds_what_an_advantage_can_earn_and_never_what_it_costs() -> None:
    ratios = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1], dtype=torch.float64)
    advantages = torch.tensor([2.0, 2.0, -2.0, -2.0, 2.0], dtype=torch.float64)
    found = clipped_losses(ratios, advantages, low=0.1, high=0.3)
    assert found.tolist() == pytest.approx([-2.6, -1.0, 3.0, 1.8, -2.2], abs=EXACT)
    flags = is_clipped(ratios, advantages, low=0.1, high=0.3)
    assert flags.tolist() == [True, False, False, True, False]
    point = ratios.clone().requires_grad_(True)
    clipped_losses(point, advantages, low=0.1, high=0.3).sum().backward()  # type: ignore[no-untyped-call]
    assert point.grad is not None
    assert (point.grad == 0.0).tolist() == flags.tolist()


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens() -> None:
    policy, old = torch.tensor([[0.0, -1.0, 9.0]]), torch.tensor([[-0.5, -1.7, 0.0]])
    mask = torch.tensor([[True, True, False]])
    assert sequence_ratios(policy, old, mask).tolist() == [[pytest.approx(math.exp((0.5 + 0.7) / 2), rel=1e-6)]]
    assert sequence_ratios(policy, old, torch.zeros_like(mask)).tolist() == [[1.0]]
    assert token_ratios(policy, old)[0, 0].item() == pytest.approx(math.exp(0.5))


@given(st.floats(-4.0, 4.0))
@settings(max_examples=40, deadline=None)
def test_the_estimate_of_kl_is_never_negative_and_is_zero_where_the_policies_agree(gap: float) -> None:
    policy = torch.tensor(-1.0, dtype=torch.float64)
    found = estimate_kl(policy, policy + gap).item()
    assert found == pytest.approx(math.exp(gap) - gap - 1.0, abs=1e-12)
    assert found >= 0.0


def test_the_estimate_of_kl_has_the_expectation_of_kl() -> None:
    p, q = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    expected = (p * (p / q).log()).sum().item()
    assert (p * estimate_kl(p.log(), q.log())).sum().item() == pytest.approx(expected, abs=EXACT)


# GRPO and its variants

MASK = torch.tensor([[False, True, True, True], [False, True, False, False]])
OTHER = torch.tensor([[False, True, True, False], [False, True, True, True]])


def make_samples(seed: int, mask: torch.Tensor = MASK, *, old: bool = True) -> Samples:
    policy = draw(2, 4, seed=seed, scale=0.3)
    return Samples(
        mask=mask,
        advantages=draw(2, seed=seed + 1),
        old=policy - 1.0 if old else None,
        reference=draw(2, 4, seed=seed + 2, scale=0.3) - 1.0,
    )


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        # 3 and 1 tokens in the first micro-batch, 2 and 3 in the second; 8 tokens may be generated.
        ("sequence_mean", [[1 / 12, 1 / 4], [1 / 8, 1 / 12]]),
        ("token_mean", [[1 / 9, 1 / 9], [1 / 9, 1 / 9]]),
        ("micro_token_mean", [[1 / 8, 1 / 8], [1 / 10, 1 / 10]]),
        ("constant", [[1 / 32, 1 / 32], [1 / 32, 1 / 32]]),
    ],
)
def test_each_reduction_weighs_tokens_as_it_says(reduction: str, expected: list[list[float]]) -> None:
    found = weigh([make_samples(1), make_samples(2, OTHER)], reduction=reduction, max_tokens=8)  # type: ignore[arg-type]
    assert [part.tolist() for part in found] == [pytest.approx(part, abs=EXACT) for part in expected]


def test_a_variants_loss_is_the_sum_of_weighted_terms_by_hand() -> None:
    """One micro-batch; every token's term is written out, with its clip and its penalty."""
    given_ = make_samples(5)
    losses = (draw(2, 4, seed=7).abs() + 0.2).masked_fill(~MASK, 0.0)
    found = GroupRelative(VARIANTS["grpo"], 0.1, (given_,), 8)([lay(losses, offset=3)]).item()
    assert given_.old is not None
    assert given_.reference is not None
    total = 0.0
    for row in (0, 1):
        terms = []
        for token in MASK[row].nonzero().flatten().tolist():
            policy, advantage = -float(losses[row, token]), float(given_.advantages[row])
            ratio = math.exp(policy - float(given_.old[row, token]))
            gap = float(given_.reference[row, token]) - policy
            clipped = min(max(ratio, 0.8), 1.2)
            terms.append(-min(ratio * advantage, clipped * advantage) + 0.1 * (math.exp(gap) - gap - 1.0))
        total += sum(terms) / len(terms) / 2
    assert found == pytest.approx(total, abs=EXACT)


@pytest.mark.parametrize("name", list(VARIANTS))
def test_gradients_of_every_variant_are_those_of_finite_differences(name: str) -> None:
    samples = (make_samples(11), make_samples(12, OTHER))
    objective = GroupRelative(VARIANTS[name], 0.05, samples, 8)
    losses = torch.stack([(1.0 - draw(2, 4, seed=seed, scale=0.3)) for seed in (11, 12)]) + draw(2, 2, 4, seed=9) * 0.05

    def scalar(values: torch.Tensor) -> torch.Tensor:
        return objective([lay(values[0]), lay(values[1], micro=1)])

    gradient = check_gradient(scalar, losses, step=1e-7)
    assert (gradient[0][~MASK] == 0.0).all()


def test_where_every_token_has_the_same_ratio_the_sequence_and_token_levels_agree() -> None:
    """GSPO is GRPO there: in value, and in the gradient."""
    same = replace(make_samples(21), advantages=torch.tensor([1.0, -2.0], dtype=torch.float64))
    losses = (draw(2, 4, seed=22).abs() + 0.2).masked_fill(~MASK, 0.0)
    same = replace(same, old=-losses - 1e-4)  # a ratio of e^1e-4 everywhere: inside either clip
    token, sequence = (replace(VARIANTS["gspo"], level=level) for level in ("token", "sequence"))
    found = []
    for variant in (token, sequence):
        point = losses.clone().requires_grad_(True)
        value = GroupRelative(variant, 0.0, (same,), 8)([lay(point)])
        value.backward()  # type: ignore[no-untyped-call]
        assert point.grad is not None
        found.append((value.item(), point.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=EXACT)
    assert torch.allclose(found[0][1], found[1][1], atol=EXACT)


def test_one_token_a_sample_and_a_ratio_of_one_give_the_policy_gradient() -> None:
    """∂L/∂log π = −A / n: REINFORCE with the group's mean as its baseline."""
    mask = torch.tensor([[True], [True], [True]])
    advantages = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    losses = torch.tensor([[0.3], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    samples = Samples(mask, advantages, None, None)
    for name in ("grpo", "dapo", "bnpo", "gspo"):
        losses.grad = None
        GroupRelative(VARIANTS[name], 0.0, (samples,), 1)([lay(losses)]).backward()  # type: ignore[no-untyped-call]
        assert losses.grad is not None
        assert losses.grad.flatten().tolist() == pytest.approx((advantages / 3).tolist(), abs=EXACT)


def test_samples_of_one_length_make_the_means_over_tokens_and_over_samples_equal() -> None:
    even = torch.tensor([[False, True, True, False], [False, True, True, False]])
    samples = replace(make_samples(31), mask=even)
    losses = (1.0 - draw(2, 4, seed=31, scale=0.3)).masked_fill(~even, 0.0)
    base = VARIANTS["grpo"]
    reductions: tuple[Reduction, ...] = ("sequence_mean", "token_mean", "micro_token_mean", "constant")
    values = [
        GroupRelative(replace(base, reduction=name), 0.1, (samples,), 2)([lay(losses)]).item() for name in reductions
    ]
    assert values == pytest.approx([values[0]] * 4, abs=EXACT)


def test_the_published_variants_are_told_apart_by_what_their_papers_changed() -> None:
    assert {name: (v.level, v.reduction, v.scaled) for name, v in VARIANTS.items()} == {
        "grpo": ("token", "sequence_mean", True),
        "dr_grpo": ("token", "constant", False),
        "dapo": ("token", "token_mean", True),
        "bnpo": ("token", "micro_token_mean", True),
        "gspo": ("sequence", "sequence_mean", True),
    }
    clips = {name: (v.low, v.high) for name, v in VARIANTS.items()}
    assert clips["grpo"] == clips["dr_grpo"] == clips["bnpo"] == (0.2, 0.2)
    assert (clips["dapo"], clips["gspo"]) == ((0.2, 0.28), (3e-4, 4e-4))


# advantages


def test_advantages_are_centred_in_their_group_and_divided_by_its_sample_deviation() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 10.0]])
    found = group_advantages(rewards, epsilon=0.0)
    assert found[0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=EXACT)
    assert found[1].tolist() == pytest.approx([-2.0 / math.sqrt(12.0)] * 2 + [4.0 / math.sqrt(12.0)], abs=EXACT)
    population = group_advantages(rewards, ddof=0, epsilon=0.0)
    assert population[0, 2].item() == pytest.approx(1.0 / math.sqrt(2.0 / 3.0), abs=EXACT)
    over_all = group_advantages(rewards, scale="batch", epsilon=0.0)
    spread = rewards.double().std().item()
    assert over_all[1].tolist() == pytest.approx([-2.0 / spread, -2.0 / spread, 4.0 / spread], abs=EXACT)
    assert group_advantages(rewards, scale="none")[1].tolist() == [-2.0, -2.0, 4.0]
    assert group_advantages(rewards)[0, 2].item() == pytest.approx(1.0 / 1.0001, abs=EXACT)


def test_a_group_of_equal_rewards_has_no_advantage_and_one_sample_has_no_deviation() -> None:
    assert group_advantages(torch.tensor([[0.3, 0.3]])).tolist() == [[0.0, 0.0]]
    assert group_advantages(torch.tensor([[0.3]])).tolist() == [[0.0]]


def test_generalised_advantages_are_the_discounted_errors_by_hand() -> None:
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.2, 0.4]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    deltas = [0.9 * 0.2 - 0.5, 0.9 * 0.4 - 0.2, 1.0 - 0.4]
    last = deltas[2]
    middle = deltas[1] + 0.9 * 0.8 * last
    first = deltas[0] + 0.9 * 0.8 * middle
    found, returns = generalised_advantages(rewards, values, mask, gamma=0.9, lam=0.8)
    assert found[0].tolist() == pytest.approx([first, middle, last], abs=1e-7)
    assert returns[0].tolist() == pytest.approx([first + 0.5, middle + 0.2, last + 0.4], abs=1e-7)
    monte_carlo, _ = generalised_advantages(rewards, values, mask, gamma=1.0, lam=1.0)
    assert monte_carlo[0].tolist() == pytest.approx([0.5, 0.8, 0.6], abs=1e-7)


def test_padding_after_a_row_changes_none_of_its_generalised_advantages() -> None:
    rewards, values = draw(1, 3, seed=1), draw(1, 3, seed=2)
    longer, more = (torch.nn.functional.pad(part, (0, 2), value=7.0) for part in (rewards, values))
    mask = torch.tensor([[True, True, True, False, False]])
    alone, _ = generalised_advantages(rewards, values, mask[:, :3], gamma=0.99, lam=0.95)
    found, returns = generalised_advantages(longer, more, mask, gamma=0.99, lam=0.95)
    assert torch.allclose(found[:, :3], alone, atol=EXACT)
    assert found[0, 3:].tolist() == returns[0, 3:].tolist() == [0.0, 0.0]


def test_reinforce_takes_the_reward_less_the_penalty_to_come_and_normalises_over_all_tokens() -> None:
    kl, mask = torch.tensor([[1.0, 2.0], [4.0, 9.0]]), torch.tensor([[True, True], [True, False]])
    returns = token_returns(torch.tensor([1.0, -1.0]), kl, mask, beta=0.1)
    assert returns.tolist() == [pytest.approx([0.7, 0.8]), pytest.approx([-1.4, 0.0])]
    found = normalise_over_batch(returns, mask)
    mean = (0.7 + 0.8 - 1.4) / 3
    spread = math.sqrt(((0.7 - mean) ** 2 + (0.8 - mean) ** 2 + (-1.4 - mean) ** 2) / 3)
    assert found[mask].tolist() == pytest.approx([(v - mean) / spread for v in (0.7, 0.8, -1.4)], abs=1e-7)
    assert found[1, 1].item() == 0.0
    # The rows of one rank alone have another mean and another deviation.
    assert abs(normalise_over_batch(returns[:1], mask[:1])[0, 0] - found[0, 0]) > 1.0
    assert normalise_over_batch(returns, torch.zeros_like(mask)).abs().max().item() == 0.0


# PPO


def test_ppos_loss_is_a_mean_over_tokens_and_its_gradient_that_of_the_clip() -> None:
    policy, old = draw(2, 4, seed=41, scale=0.2), draw(2, 4, seed=42, scale=0.2)
    advantages = draw(2, 4, seed=43)
    terms = clipped_losses(token_ratios(policy, old), advantages, low=0.2, high=0.2)
    found = policy_loss(policy, old, advantages, MASK)
    assert found.item() == pytest.approx(float(terms[MASK].sum()) / 4, abs=EXACT)
    check_gradient(lambda point: policy_loss(point, old, advantages, MASK), policy, step=1e-7)


def test_ppos_token_mean_is_that_of_dapo_with_a_symmetric_clip() -> None:
    samples = make_samples(51)
    assert samples.old is not None
    losses = (1.0 - draw(2, 4, seed=51, scale=0.3)).masked_fill(~MASK, 0.0)
    dapo = GroupRelative(replace(VARIANTS["dapo"], high=0.2), 0.0, (samples,), 8)([lay(losses)])
    ppo = policy_loss(-losses, samples.old, samples.advantages[:, None].expand(2, 4), MASK)
    assert dapo.item() == pytest.approx(ppo.item(), abs=EXACT)


def test_the_value_loss_takes_the_larger_of_the_plain_and_the_clipped_error() -> None:
    values, old = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 0.0]]).double()
    returns, mask = torch.tensor([[1.5, 1.0]]).double(), torch.tensor([[True, True]])
    # 1.0 is clipped to 0.2: (0.2 − 1.5)² = 1.69 is more than (1 − 1.5)² = 0.25.
    assert value_loss(values, old, returns, mask).item() == pytest.approx(0.5 * (1.69 + 1.0) / 2, abs=EXACT)
