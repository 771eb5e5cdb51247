"""step.precision: each dtype, each rounding that values show, and a forward that a lower precision explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_precision
from checks.diagnosis.first_divergence import Divergence, ModuleError
from checks.diagnosis.rounding import Rounding
from checks.material import Material
from checks.precision.findings import compare_tables
from checks.precision.rounded import FEWEST, held_by, rounded_from
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap

NORM = "model.norm.weight"
UP = "model.layers.1.mlp.up_proj.weight"
ROTARY = "model.rotary_emb"


def judge(material: Material, editing: Edit) -> Verdict:
    return step_precision.judge(swap(material, editing.save()))


def to_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float()


def to_fp16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half().float()


def set_dtype(editing: Edit, kind: str, name: str, dtype: str, *, field: str | None = None, step: int = 1) -> None:
    editing.entry(kind, name, step=step, field=field)["dtype"] = dtype


def test_a_healthy_run_is_in_the_precision_asked(healthy: Material) -> None:
    verdict = step_precision.judge(healthy)
    numbers = verdict.evidence["compared"]["numbers of modules' settings"]
    assert numbers > 8
    assert (verdict.status, verdict.sentence) == (
        Status.PASS,
        "25 parameters, 25 gradients, 50 optimizer states, 3 settings of the forward and the loss, "
        "25 gradients' values, 50 optimizer states' values, 25 updated weights' values, 25 weights' values, "
        f"{numbers} numbers of modules' settings are in the precision asked (float32)",
    )
    (count,) = verdict.measurements
    assert (count.value, count.threshold, count.holds, count.limit) == (0.0, 0.0, True, 1.0)
    assert verdict.evidence["findings"] == []


def test_without_a_reference_dtypes_and_values_are_judged_and_the_rest_is_said(healthy: Material) -> None:
    verdict = step_precision.judge(replace(healthy, references={}, no_reference={1: "dropout is on"}))
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith("; the forward and the weights are not compared: dropout is on")
    assert "weights' values" not in verdict.evidence["compared"]


def test_a_run_without_a_capture_is_inconclusive(healthy: Material) -> None:
    verdict = step_precision.judge(replace(healthy, run=replace(healthy.run, capture=None)))
    assert verdict.status is Status.INCONCLUSIVE


@pytest.mark.parametrize(
    ("kind", "name", "field", "where", "said"),
    [
        ("parameter_before", NORM, None, f"dtype of {NORM}", f"{NORM} is held in bfloat16, asked float32 (1 of 25 par"),
        ("gradient", UP, None, f"dtype of {UP}", f"{UP} is held in bfloat16, asked float32 (1 of 25 gradients)"),
        (
            *("optimizer_state", UP, "exp_avg", f"dtype of exp_avg of {UP}"),
            f"exp_avg of {UP} is held in bfloat16, asked float32 (1 of 50 optimizer states)",
        ),
    ],
)
def test_a_tensor_in_another_dtype_is_named(
    healthy: Material, edit: Editor, kind: str, name: str, field: str | None, where: str, said: str
) -> None:
    editing = edit(healthy.capture)
    set_dtype(editing, kind, name, "torch.bfloat16", field=field)
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.PRECISION, where)
    assert verdict.sentence.startswith(said)


def test_the_counter_of_steps_may_have_any_dtype(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    set_dtype(editing, "optimizer_state", UP, "torch.float64", field="step")
    assert judge(healthy, editing).status is Status.PASS


def bf16_params(material: Material, editing: Edit, *, float32: tuple[str, ...]) -> Verdict:
    """The run as one of bfloat16 parameters, but for some that stay in float32."""
    for entry in editing.manifest["tensors"]:
        held = entry["kind"] in ("parameter_before", "gradient", "optimizer_state")
        if held and entry["field"] != "step" and entry["name"] not in float32:
            entry["dtype"] = "torch.bfloat16"
    for step in (1, 3):
        editing.step(step)["model"]["compute_dtype"] = "torch.bfloat16"
    material = replace(material, references={}, spec=replace(material.spec, precision="bf16_params"))
    return step_precision.judge(
        replace(
            material, float32_names=frozenset({NORM}), run=replace(material.run, capture=editing.save()), batches={}
        )
    )


def test_what_the_class_keeps_in_float32_is_as_asked_and_nothing_else_is(healthy: Material, edit: Editor) -> None:
    assert bf16_params(healthy, edit(healthy.capture), float32=(NORM,)).status is Status.PASS
    rounded = bf16_params(healthy, edit(healthy.capture), float32=())
    assert rounded.sentence.startswith(f"{NORM} is held in bfloat16, asked float32 (1 of 25 parameters)")
    wide = bf16_params(healthy, edit(healthy.capture), float32=(NORM, UP))
    assert wide.sentence.startswith(f"{UP} is held in float32, asked bfloat16 (1 of 25 parameters)")


def _autocast(editing: Edit) -> None:
    editing.step(3)["model"].update(autocast="torch.bfloat16")


def _compute(editing: Edit) -> None:
    editing.step()["model"].update(compute_dtype="torch.float16")


def _logits(editing: Edit) -> None:
    editing.step()["micro_batches"][1]["cross_entropy"][0]["dtype"] = "torch.bfloat16"


def _loss(editing: Edit) -> None:
    editing.step()["micro_batches"][0]["backward_dtype"] = "torch.bfloat16"


@pytest.mark.parametrize(
    ("change", "where", "said"),
    [
        (_autocast, "autocast", "autocast is bfloat16, asked none"),
        (_compute, "dtype of matrix products", "matrix products are computed in float16, asked float32"),
        (
            *(_logits, "dtype of the logits that the loss is computed from"),
            "the logits that the loss is computed from is in bfloat16, not in float32",
        ),
        (
            *(_loss, "dtype of the loss that is back-propagated"),
            "the loss that is back-propagated is in bfloat16, not in float32",
        ),
    ],
)
def test_a_setting_of_the_forward_or_the_loss_is_named(
    healthy: Material, edit: Editor, change: Callable[[Edit], None], where: str, said: str
) -> None:
    editing = edit(healthy.capture)
    change(editing)
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.first_wrong, verdict.sentence) == (Status.FAIL, where, said)


def test_bf16_asks_for_autocast_and_leaves_gradients_that_it_rounds(healthy: Material, edit: Editor) -> None:
    asked = replace(healthy, spec=replace(healthy.spec, precision="bf16"))
    missing = step_precision.judge(asked)
    assert missing.sentence.startswith(
        "autocast is off, asked bfloat16; matrix products are computed in float32, asked bfloat16"
    )
    editing = edit(healthy.capture).change("gradient", UP, to_bf16)
    for step in (1, 3):
        editing.step(step)["model"].update(autocast="torch.bfloat16", compute_dtype="torch.bfloat16")
    verdict = judge(asked, editing)
    assert verdict.status is Status.PASS, verdict.sentence
    assert "gradients' values" not in verdict.evidence["compared"]


@pytest.mark.parametrize(("change", "dtype"), [(to_bf16, "bfloat16"), (to_fp16, "float16")])
def test_a_weight_that_is_the_checkpoints_rounded_is_named(
    healthy: Material, edit: Editor, change: Callable[[torch.Tensor], torch.Tensor], dtype: str
) -> None:
    verdict = judge(healthy, edit(healthy.capture).change("parameter_before", UP, change))
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.PRECISION, UP)
    assert verdict.sentence == f"{UP} is the checkpoint's in {dtype} (1 of 25 weights)"


def test_a_weight_that_is_wrong_otherwise_is_none_of_this_check(healthy: Material, edit: Editor) -> None:
    for change in (lambda w: 1.01 * w, lambda w: to_bf16(1.02 * w), torch.zeros_like):
        assert judge(healthy, edit(healthy.capture).change("parameter_before", UP, change)).status is Status.PASS


@pytest.mark.parametrize(
    ("kind", "field", "said"),
    [
        ("gradient", None, f"the gradient of {UP} is float32 and holds only numbers of bfloat16 (1 of 25 gradients)"),
        (
            *("optimizer_state", "exp_avg_sq"),
            f"exp_avg_sq of {UP} is float32 and holds only numbers of bfloat16 (1 of 50 optimizer states)",
        ),
        (
            *("parameter_after", None),
            f"{UP} holds, where the update moved it, only numbers of bfloat16 (1 of 25 weights)",
        ),
    ],
)
def test_float32_numbers_that_a_lower_precision_holds_are_named(
    healthy: Material, edit: Editor, kind: str, field: str | None, said: str
) -> None:
    editing = edit(healthy.capture)
    value = to_bf16(_sample(healthy, kind, field))
    editing.put_sample(kind, UP, value, field=field)
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.sentence) == (Status.FAIL, said)


def _sample(material: Material, kind: str, field: str | None) -> torch.Tensor:
    assert material.capture is not None
    values = material.capture.tensors(1, kind, field=field)[UP].read("sample")
    assert values is not None
    return values


def test_a_table_that_is_the_configs_rounded_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    table = editing.step()["scalars"][ROTARY]["inv_freq"]
    editing.step()["scalars"][ROTARY]["inv_freq"] = torch.tensor(table).bfloat16().tolist()
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, f"{ROTARY}.inv_freq")
    assert verdict.sentence == f"inv_freq of {ROTARY} is rounded to bfloat16"


def test_scalars_are_compared_by_their_nearest_rounding() -> None:
    asked = {"a": {"eps": 1e-6, "heads": 4, "on": True}, "b": {"eps": 1e-6}}
    rounded = float(torch.tensor(1e-6).bfloat16())
    count, found = compare_tables({"a": {"eps": rounded, "heads": 3, "on": False}, "b": {"eps": rounded}}, asked)
    assert count == 2
    assert [(f.where, f.sentence, f.count) for f in found] == [("a.eps", "eps of a is rounded to bfloat16", 2)]
    assert compare_tables({"a": {"eps": 1e-5}, "b": {"eps": 1e-6}}, asked) == (2, ())


def test_values_are_held_only_if_enough_of_them_say_so() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert held_by(values) is None
    assert held_by(to_bf16(values)) == "bfloat16"
    assert held_by(to_fp16(values)) == "float16"
    assert held_by(torch.cat([to_bf16(values), values[:1]])) is None
    assert held_by(torch.zeros(100)) is None
    few = to_bf16(values[:FEWEST])
    assert (held_by(few), held_by(few[1:]), FEWEST) == ("bfloat16", None, 16)


def test_many_values_may_be_rounded_towards_zero_and_few_only_to_the_nearest() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0)).abs()
    cut = (values.view(torch.int32) & ~0xFFFF).view(torch.float32)
    assert rounded_from(cut, values) == "bfloat16"
    assert rounded_from(cut[:4], values[:4]) is None
    assert rounded_from(to_bf16(values[:4]), values[:4]) == "bfloat16"
    assert rounded_from(values, values) is None
    assert rounded_from(to_bf16(1.01 * values), values) is None
    assert rounded_from(to_bf16(values), values[:50]) is None


MODULE = ModuleError("model.layers.0.self_attn", "SelfAttention", 0.004, 5e-7, 4e-6)


def with_wrong_forward(material: Material, edit: Editor, divergence: Divergence | None) -> Verdict:
    editing = edit(material.capture)
    losses = first_reference(material).token_losses[0] + 1.0
    editing.put("token_loss", "token_loss", losses, micro_batch=0)
    return step_precision.judge(replace(swap(material, editing.save()), divergence=divergence))


def test_a_forward_that_a_lower_precision_explains_is_one(healthy: Material, edit: Editor) -> None:
    found = Divergence((MODULE,), (), True, rounding=Rounding("softmax", "bfloat16", 0.01))
    verdict = with_wrong_forward(healthy, edit, found)
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.PRECISION, MODULE.module)
    assert verdict.sentence == (
        "the forward first differs in model.layers.0.self_attn (SelfAttention), and what it gives is the reference's "
        "with its softmax in bfloat16 (which leaves 0.01 of the error)"
    )


@pytest.mark.parametrize(("unsteady", "status"), [(1.01, Status.FAIL), (0.99, Status.INCONCLUSIVE)])
def test_a_step_that_does_not_repeat_is_one_beyond_the_noise(
    healthy: Material, edit: Editor, unsteady: float, status: Status
) -> None:
    verdict = with_wrong_forward(healthy, edit, Divergence((MODULE,), (), False, unsteady=unsteady))
    assert verdict.status is status
    if status is Status.FAIL:
        assert (verdict.pattern, verdict.first_wrong) == (Pattern.PRECISION, MODULE.module)
        assert "gave other gradients, by 1.01 times what is allowed" in verdict.sentence


def test_a_forward_that_is_wrong_for_another_reason_leaves_its_precision_open(healthy: Material, edit: Editor) -> None:
    verdict = with_wrong_forward(healthy, edit, Divergence((MODULE,), (), True))
    assert (verdict.status, verdict.pattern) == (Status.INCONCLUSIVE, None)
    assert verdict.sentence.endswith("no lower precision explains it")
    assert with_wrong_forward(healthy, edit, None).sentence.endswith("and no second pass traced it")


def test_token_losses_that_were_not_recorded_leave_the_forward_open(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).drop("token_loss", "token_loss", micro_batch=0)
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("so the forward is not compared")


def test_more_than_three_findings_are_counted(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    names = list(first_reference(healthy).weights)[:2]
    for name in names:
        set_dtype(editing, "gradient", name, "torch.float16")
    _autocast(editing)
    _compute(editing)
    _loss(editing)
    verdict = judge(healthy, editing)
    assert verdict.sentence.startswith(f"{names[0]} is held in float16, asked float32 (2 of 25 gradients); ")
    assert verdict.sentence.endswith(" (and 1 more)")
    assert len(verdict.evidence["findings"]) == 4
