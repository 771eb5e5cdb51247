"""Noise floors, thresholds and detection limits, by hand and as properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checks import tolerance
from checks.captures.blocks import WHOLE, Blocks
from checks.captures.differences import Difference, Projection, difference, project
from checks.tolerance import (
    Floor,
    ScaleJudgement,
    judge_scale,
    judge_tensor,
    limits_by_kind,
    measure_floor,
    pooled_scale,
)

EPS = 2.0**-9
NO_BLOCKS = torch.empty(0, dtype=torch.float64)
numbers = st.floats(min_value=-100.0, max_value=100.0, allow_subnormal=False)
vectors = st.lists(numbers, min_size=6, max_size=6)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def reference_of(*values: float, blocks: Blocks = WHOLE) -> Projection:
    return project("model.norm.weight", column(*values), blocks)


def plain(error: float, norm: float, *, scale: float = 1.0) -> Difference:
    """A difference without blocks whose scale is `scale`."""
    return Difference(error, norm, scale * norm, scale * norm**2, norm**2, (scale * norm) ** 2, NO_BLOCKS, NO_BLOCKS)


def test_the_constants_are_those_that_this_version_was_frozen_with() -> None:
    # Another constant is another version: verdicts of the two are not comparable.
    assert tolerance.VERSION == "2026.11"
    assert tolerance.MULTIPLES == {"float32": 8.0, "bf16": 4.0, "bf16_params": 4.0, "fp16": 4.0}
    assert tolerance.EPSILON == {"float32": 2.0**-24, "bf16": 2.0**-9, "bf16_params": 2.0**-9, "fp16": 2.0**-12}
    assert tolerance.USEFUL_SCALE_LIMIT == 0.05
    assert tolerance.USEFUL_TENSOR_LIMIT == 1.0
    assert tolerance.USEFUL_TOKEN_LIMIT == 0.25


def test_the_floor_is_the_largest_variant_plus_the_round_off_of_the_summands() -> None:
    b = reference_of(3.0, 4.0)
    variants = [difference(column(3.0, 4.1), b), difference(column(2.8, 4.0), b), difference(column(3.0, 4.0), b)]
    floor = measure_floor(b, variants, epsilon=EPS, mean_square=8.0)
    assert floor.error == pytest.approx(0.2, rel=1e-12)
    assert floor.absolute == pytest.approx(EPS * (5.0 + 4.0), rel=1e-15)
    assert floor.total == pytest.approx(0.2 + EPS * 9.0, rel=1e-12)
    assert floor.blocks.numel() == 0


def test_a_gradient_that_is_zero_in_exact_arithmetic_has_a_floor_from_the_other_tensors() -> None:
    floor = measure_floor(reference_of(0.0, 0.0), [], epsilon=EPS, mean_square=8.0)
    assert floor.error == 0.0
    assert floor.total == EPS * 4.0


def test_a_blocks_floor_is_its_own_worst_error_or_its_share_of_the_whole() -> None:
    b = reference_of(3.0, 4.0, 0.0, 12.0, blocks=Blocks("head", 2, 2))
    variants = [difference(column(3.0, 4.0, 0.0, 13.0), b), difference(column(3.0, 4.0, 0.0, 12.25), b)]
    floor = measure_floor(b, variants, epsilon=EPS, mean_square=9.0)
    share = math.sqrt(0.5)
    round_off = [EPS * (5.0 + 6.0 * share), EPS * (12.0 + 6.0 * share)]
    assert floor.error == 1.0
    assert floor.blocks.tolist() == pytest.approx([share + round_off[0], 1.0 + round_off[1]], rel=1e-14)


def test_a_tensor_holds_up_to_its_threshold_and_no_further() -> None:
    floor = Floor(0.5, 0.25, NO_BLOCKS)
    at = judge_tensor("a", plain(6.0, 10.0), floor, multiple=8.0)
    above = judge_tensor("a", plain(math.nextafter(6.0, 7.0), 10.0), floor, multiple=8.0)
    assert (at.threshold, at.ratio, at.holds) == (6.0, 1.0, True)
    assert not above.holds
    assert at.limit == 9.0 * 0.75 / 10.0
    assert (at.worst_block, at.block_ratio, at.block_limit) == (None, 0.0, None)


def test_a_tensor_fails_by_its_worst_block_although_the_whole_is_within_its_threshold() -> None:
    def judged(error: float) -> tolerance.TensorJudgement:
        blocks = torch.tensor([0.1, error, 0.2], dtype=torch.float64)
        norms = torch.tensor([5.0, 2.0, 0.01], dtype=torch.float64)
        floors = torch.tensor([0.5, 0.125, 0.05], dtype=torch.float64)
        d = Difference(1.0, 10.0, 10.0, 100.0, 100.0, 100.0, blocks, norms)
        return judge_tensor("a", d, Floor(1.0, 0.0, floors), multiple=8.0)

    assert judged(1.0).holds
    assert judged(1.0).worst_block == 1
    assert judged(1.0).block_ratio == 1.0
    assert not judged(1.0 + 1e-12).holds
    # The third block lies below its own floor: it carries no signal, so it has no limit. 9 · 0.5 / 5, 9 · 0.125 / 2.
    assert judged(1.0).block_limit == 9.0 * 0.5 / 5.0
    assert judged(0.5).ratio == 0.5


def test_blocks_without_signal_have_no_limit() -> None:
    one = torch.ones(1, dtype=torch.float64)
    d = Difference(0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0 * one, one)
    assert judge_tensor("a", d, Floor(1.0, 0.0, one), multiple=8.0).block_limit is None
    assert judge_tensor("a", d, Floor(1.0, 0.0, 0.5 * one), multiple=8.0).block_limit == 4.5


def test_without_any_noise_only_an_exact_tensor_holds() -> None:
    none = Floor(0.0, 0.0, NO_BLOCKS)
    exact, off = (
        judge_tensor("a", plain(0.0, 0.0), none, multiple=8.0),
        judge_tensor("a", plain(1e-300, 0.0), none, multiple=8.0),
    )
    assert (exact.ratio, exact.holds, exact.limit) == (0.0, True, math.inf)
    assert (off.ratio, off.holds) == (math.inf, False)
    zero = torch.zeros(2, dtype=torch.float64)
    block = Difference(0.0, 1.0, 1.0, 1.0, 1.0, 1.0, torch.tensor([0.0, 1e-18], dtype=torch.float64), zero)
    judged = judge_tensor("a", block, Floor(1.0, 0.0, zero), multiple=8.0)
    assert (judged.worst_block, judged.holds) == (1, False)


def test_an_error_that_is_not_a_number_never_holds() -> None:
    assert not judge_tensor("a", plain(math.nan, 1.0), Floor(1.0, 0.0, NO_BLOCKS), multiple=8.0).holds
    broken = {"a": plain(0.0, 1.0, scale=math.nan)}
    assert not judge_scale(broken, [], epsilon=EPS, multiple=8.0).holds


def test_the_scale_is_pooled_over_tensors_by_their_square() -> None:
    differences = {"a": plain(0.0, 3.0, scale=1.5), "b": plain(0.0, 1.0, scale=0.5)}
    assert pooled_scale(differences) == (9.0 * 1.5 + 1.0 * 0.5) / 10.0
    assert pooled_scale({"a": plain(0.0, 0.0)}) == 1.0


def test_the_scale_holds_within_a_multiple_of_the_worst_variant_and_round_off() -> None:
    variants = [{"a": plain(0.0, 2.0, scale=1.25)}, {"a": plain(0.0, 2.0, scale=0.5)}]
    judged = judge_scale({"a": plain(0.0, 2.0, scale=1.0)}, variants, epsilon=0.25, multiple=4.0)
    assert (judged.scale, judged.floor, judged.threshold, judged.limit) == (1.0, 0.5, 3.0, 3.5)
    for c, holds in ((4.0, True), (4.001, False), (-2.0, True), (-2.001, False)):
        assert judge_scale({"a": plain(0.0, 2.0, scale=c)}, variants, epsilon=0.25, multiple=4.0).holds is holds
    assert judge_scale({"a": plain(0.0, 1.0)}, [], epsilon=0.25, multiple=4.0).threshold == 1.0


def test_limits_are_the_worst_of_each_kind_and_leave_out_tensors_without_signal() -> None:
    floor = Floor(0.5, 0.0, NO_BLOCKS)
    blocks = torch.tensor([0.25], dtype=torch.float64)
    with_blocks = Difference(0.0, 9.0, 9.0, 81.0, 81.0, 81.0, 0.0 * blocks, 4.0 * blocks)
    judgements = [
        judge_tensor("model.layers.0.self_attn.q_proj.weight", plain(0.0, 5.0), floor, multiple=8.0),
        judge_tensor("model.layers.1.self_attn.q_proj.weight", plain(0.0, 3.0), floor, multiple=8.0),
        judge_tensor("model.layers.2.self_attn.q_proj.weight", plain(0.0, 0.5), floor, multiple=8.0),
        judge_tensor("lm_head.weight", with_blocks, Floor(0.5, 0.0, blocks), multiple=8.0),
    ]
    limits = limits_by_kind(judgements, ScaleJudgement(1.0, 0.25, 0.5))
    assert limits == {
        "scale of all": 0.75,
        "q_proj": 9.0 * 0.5 / 3.0,
        "lm_head": 0.5,
        "lm_head by block": 9.0 * 0.25 / 1.0,
    }


def test_a_small_limit_by_block_is_stated_as_it_is() -> None:
    block = torch.tensor([1.0], dtype=torch.float64)
    d = Difference(0.0, 9.0, 9.0, 81.0, 81.0, 81.0, 0.0 * block, 9.0 * block)
    judged = judge_tensor("lm_head.weight", d, Floor(0.5, 0.0, 0.25 * block), multiple=8.0)
    assert limits_by_kind([judged], ScaleJudgement(1.0, 0.0, 0.5))["lm_head by block"] == 0.25


def test_a_reference_whose_values_were_dropped_has_the_round_off_of_its_norm_alone() -> None:
    kept = reference_of(3.0, 4.0)
    dropped = Projection(kept.name, kept.blocks, None, kept.sketch, kept.norm, kept.block_norms)
    assert measure_floor(dropped, [], epsilon=EPS, mean_square=8.0).total == EPS * 5.0


@settings(deadline=None)
@given(vectors, vectors, st.sampled_from([2.0**-8, 2.0**-3, 2.0, 2.0**10]))
def test_a_change_of_unit_changes_floors_with_it_and_no_verdict(b: list[float], a: list[float], unit: float) -> None:
    blocks = Blocks("head", 3, 2)

    def judged(c: float) -> tuple[Floor, tolerance.TensorJudgement]:
        reference = project("a", c * column(*b), blocks)
        variant = difference(c * (column(*b) + 1e-3), reference)
        floor = measure_floor(reference, [variant], epsilon=EPS, mean_square=c * c)
        return floor, judge_tensor("a", difference(c * column(*a), reference), floor, multiple=8.0)

    (one, at_one), (other, at_other) = judged(1.0), judged(unit)
    assert other.total == pytest.approx(unit * one.total, rel=1e-9)
    assert (other.blocks / unit).tolist() == pytest.approx(one.blocks.tolist(), rel=1e-6)
    assert at_other.ratio == pytest.approx(at_one.ratio, rel=1e-6)


@settings(deadline=None)
@given(vectors, vectors, st.floats(min_value=0.0, max_value=1.0))
def test_an_error_within_the_floor_never_fails(b: list[float], direction: list[float], share: float) -> None:
    reference = project("a", column(*b), Blocks("head", 1, 6))
    step = column(*direction)
    assume(float(step.norm()) > 1e-3)
    noisy = difference(column(*b) + 1e-2 * step / step.norm(), reference)
    floor = measure_floor(reference, [noisy], epsilon=EPS, mean_square=1.0)
    within = difference(column(*b) + share * 1e-2 * step / step.norm(), reference)
    # A single block may move by the whole tensor's error, which is √blocks times its share.
    judged = judge_tensor("a", within, floor, multiple=math.sqrt(6.0) * (1 + 1e-9))
    assert judged.holds


@settings(deadline=None)
@given(vectors, st.floats(min_value=1e-6, max_value=0.5))
def test_a_fault_of_the_detection_limit_is_seen_whatever_the_noise_does(b: list[float], noise: float) -> None:
    reference = project("a", column(*b), WHOLE)
    assume(reference.norm > 1e-3)
    noisy = difference((1.0 + noise) * column(*b), reference)
    floor = measure_floor(reference, [noisy], epsilon=2.0**-24, mean_square=1.0)
    limit = judge_tensor("a", noisy, floor, multiple=8.0).limit
    for sign in (1.0, -1.0):
        faulty = (1.0 + 1.001 * limit + sign * noise) * column(*b)
        assert not judge_tensor("a", difference(faulty, reference), floor, multiple=8.0).holds
