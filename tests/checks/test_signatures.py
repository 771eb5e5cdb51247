"""Which sentence, pattern and place a failing comparison is read as."""

from __future__ import annotations

import pytest
import torch

from checks.captures.differences import Difference
from checks.diagnosis.signatures import Signature, read_gradients, scale_spread
from checks.tolerance import Floor, ScaleJudgement, TensorJudgement, judge_tensor
from checks.verdict import Pattern

NONE = torch.empty(0, dtype=torch.float64)
RIGHT = ScaleJudgement(1.0, 0.001, 0.01)
NAMES = tuple(
    f"model.layers.{layer}.{part}.weight"
    for layer in range(3)
    for part in ("self_attn.q_proj", "mlp.up_proj", "input_layernorm")
)


def judged(name: str, *, scale: float = 1.0, beside: float = 0.0) -> TensorJudgement:
    """A tensor of norm 1 that is scale · b plus something orthogonal of norm `beside`; its threshold is 0.08."""
    error = ((scale - 1.0) ** 2 + beside**2) ** 0.5
    square = scale**2 + beside**2
    d = Difference(error, 1.0, square**0.5, scale, 1.0, square, NONE, NONE)
    return judge_tensor(name, d, Floor(0.01, 0.0, NONE), multiple=8.0)


def read(wrong: dict[str, float], *, forward_agrees: bool | None = None) -> Signature:
    """The reading when each named tensor is off by so much in direction, and the others are right."""
    judgements = [judged(name, beside=wrong.get(name, 0.0)) for name in NAMES]
    return read_gradients(judgements, RIGHT, forward_agrees=forward_agrees)


def test_tensors_that_all_hold_leave_the_pooled_scale() -> None:
    found = read_gradients([judged(n) for n in NAMES], ScaleJudgement(1.0125, 0.0, 0.01), forward_agrees=True)
    assert found == Signature("the pooled scale of all gradients is 1.0125, not 1", Pattern.OBJECTIVE_SCALE)


@pytest.mark.parametrize("c", [0.5, 3.0])
def test_one_factor_on_every_gradient_is_a_wrong_count(c: float) -> None:
    judgements = [judged(name, scale=c, beside=0.05) for name in NAMES]
    found = read_gradients(judgements, ScaleJudgement(c, 0.001, 0.01), forward_agrees=True)
    assert found.sentence.startswith(f"every gradient is {c:g}× the reference, cosine 1.000")
    assert found.pattern is Pattern.OBJECTIVE_SCALE


def test_nine_tenths_of_the_tensors_make_every() -> None:
    names = [f"a.{index}.weight" for index in range(10)]
    scale = ScaleJudgement(0.5, 0.001, 0.01)

    def reading(strange: int) -> str:
        judgements = [judged(n, scale=0.5, beside=0.5 if i < strange else 0.0) for i, n in enumerate(names)]
        return read_gradients(judgements, scale, forward_agrees=None).sentence

    assert reading(1).startswith("every gradient is 0.5×")
    assert not reading(2).startswith("every gradient")


def test_what_is_left_of_a_large_scale_may_be_as_much_larger() -> None:
    def reading(beside: float) -> str:
        judgements = [judged(n, scale=4.0, beside=beside) for n in NAMES]
        return read_gradients(judgements, ScaleJudgement(4.0, 0.001, 0.01), forward_agrees=None).sentence

    assert reading(0.31).startswith("every gradient is 4×")
    assert not reading(0.33).startswith("every gradient")


def test_neither_a_scale_that_holds_nor_one_that_is_not_positive_is_a_wrong_count() -> None:
    judgements = [judged(name, scale=1.5) for name in NAMES]
    held = read_gradients(judgements, ScaleJudgement(1.5, 1.0, 8.0), forward_agrees=None)
    assert not held.sentence.startswith("every gradient")
    flipped = [judged(name, scale=-1.0) for name in NAMES]
    reading = read_gradients(flipped, ScaleJudgement(-1.0, 0.001, 0.01), forward_agrees=None)
    assert not reading.sentence.startswith("every gradient")


def test_gradients_that_are_zero_are_missing() -> None:
    judgements = [judged(n, scale=0.0 if n in NAMES[:4] else 1.0) for n in NAMES]
    found = read_gradients(judgements, RIGHT, forward_agrees=None)
    assert found.sentence == f"{', '.join(NAMES[:3])} and 1 more received no gradient"
    assert found.where == NAMES[0]
    judgements[5] = judged(NAMES[5], beside=0.5)
    assert "received no gradient" not in read_gradients(judgements, RIGHT, forward_agrees=None).sentence


def test_three_missing_gradients_are_all_named() -> None:
    judgements = [judged(n, scale=0.0 if n in NAMES[:3] else 1.0) for n in NAMES]
    found = read_gradients(judgements, RIGHT, forward_agrees=None)
    assert found.sentence == f"{', '.join(NAMES[:3])} received no gradient"


def test_one_wrong_tensor_is_named_with_its_numbers() -> None:
    found = read({NAMES[4]: 0.25})
    assert found.sentence == (f"only {NAMES[4]} differs (worst {NAMES[4]}: error 0.25 of its norm, allowed 0.08)")
    assert (found.pattern, found.where) == (Pattern.MODEL_DEFINITION, NAMES[4])


def test_a_block_is_named_only_where_the_block_is_what_is_wrong() -> None:
    def block(error: float) -> str:
        errors = torch.tensor([0.0, error], dtype=torch.float64)
        d = Difference(0.5, 1.0, 1.0, 1.0, 1.0, 1.0, errors, torch.ones(2, dtype=torch.float64))
        floor = Floor(0.01, 0.0, torch.full((2,), 0.01, dtype=torch.float64))
        others = [judged(n) for n in NAMES[1:]]
        return read_gradients(
            [judge_tensor(NAMES[0], d, floor, multiple=8.0), *others], RIGHT, forward_agrees=None
        ).sentence

    assert block(0.081).startswith(f"only {NAMES[0]} differs, worst in block 1 (")
    assert block(0.08).startswith(f"only {NAMES[0]} differs (")
    assert block(0.079).startswith(f"only {NAMES[0]} differs (")


def test_one_kind_of_parameter_is_named() -> None:
    found = read({NAMES[0]: 0.2, NAMES[3]: 0.3, NAMES[6]: 0.1})
    assert found.sentence.startswith("only the gradients of q_proj differ (worst model.layers.1.self_attn.q_proj")
    assert (found.pattern, found.where) == (Pattern.MODEL_DEFINITION, NAMES[3])


def test_layers_below_one_that_is_wrong_point_to_its_backward() -> None:
    found = read(dict.fromkeys(NAMES[:6], 0.2), forward_agrees=True)
    assert found.sentence.startswith(
        "the forward agrees and the gradients differ from layer 1 down to the input (worst"
    )
    assert (found.pattern, found.where) == (Pattern.PRECISION, "model.layers.1")


def test_an_agreeing_forward_with_wrong_gradients_up_to_the_top_is_an_objective() -> None:
    found = read(dict.fromkeys(NAMES[5:], 0.2), forward_agrees=True)
    assert found.sentence.startswith("the forward agrees and 4 of 9 gradients differ (worst")
    assert (found.pattern, found.where) == (Pattern.OBJECTIVE_SCALE, None)


@pytest.mark.parametrize("forward_agrees", [False, None])
def test_a_forward_that_is_not_known_to_agree_leaves_the_direction(forward_agrees: bool | None) -> None:
    found = read(dict.fromkeys(NAMES[:6], 0.2), forward_agrees=forward_agrees)
    assert found.sentence.startswith("6 of 9 gradients differ in direction (worst")
    assert found.pattern is Pattern.MODEL_DEFINITION


def test_the_spread_of_scales_leaves_out_tensors_without_a_reference() -> None:
    differences = {"a": judged("a", scale=0.5).difference, "b": judged("b", scale=2.0).difference}
    noise = Difference(1.0, 0.0, 1.0, 0.0, 0.0, 1.0, NONE, NONE)
    assert scale_spread({"c": noise, **differences}) == (0.5, 2.0)
    assert scale_spread({"c": noise}) == (1.0, 1.0)


def test_gradients_that_are_all_zero_are_missing_and_no_multiple() -> None:
    judgements = [judged(name, scale=0.0) for name in NAMES]
    found = read_gradients(judgements, ScaleJudgement(0.0, 0.001, 0.01), forward_agrees=True)
    assert found.sentence == f"{', '.join(NAMES[:3])} and 6 more received no gradient"


def test_an_agreeing_forward_with_wrong_gradients_outside_the_layers_names_no_layer() -> None:
    names = ("model.embed_tokens.weight", *NAMES, "lm_head.weight")
    judgements = [judged(name, beside=0.0 if name in NAMES else 0.5) for name in names]
    found = read_gradients(judgements, RIGHT, forward_agrees=True)
    assert found.sentence.startswith("the forward agrees and 2 of 11 gradients differ (worst")


def test_what_is_allowed_is_relative_to_the_tensor() -> None:
    def reading(norm: float, error: float) -> str:
        d = Difference(error, norm, norm, norm**2, norm**2, norm**2, NONE, NONE)
        wrong = judge_tensor(NAMES[0], d, Floor(0.25, 0.0, NONE), multiple=8.0)
        return read_gradients([wrong, judged(NAMES[1])], RIGHT, forward_agrees=None).sentence

    assert reading(4.0, 3.0).endswith("error 0.75 of its norm, allowed 0.5)")
    assert reading(0.0, 3.0).endswith("error inf of its norm, allowed 0)")
