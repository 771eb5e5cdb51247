"""The first wrong module: which lower precision explains it, and whether a second pass repeated the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checks.captures.capture import Capture
from checks.diagnosis.explained import explain_module
from checks.diagnosis.repetition import measure_repetition
from checks.material import Material
from checks.references.batch import MicroBatch
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, capture_of, first_reference
from tests.checks.exact import beside
from tests.checks.small_model import DOCUMENTS, LENGTH, build, build_framework, record

UP = "layers.0.up"
NORM = "model.norm.weight"


def batch_of() -> MicroBatch:
    ids = torch.randint(0, 32, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return MicroBatch(ids, ids, torch.ones_like(ids, dtype=torch.bool), None, None, DOCUMENTS, "data", None)


def record_changed(out: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Capture:
    """A second pass of the small model, with another output of one layer."""

    def at_one(label: str, tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor) if label == f"module_output {UP}" else tensor

    return record(build_framework(torch.float32), batch_of(), out, change=at_one)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda output: output.bfloat16().float(), "output in bfloat16"),
        (lambda output: output.half().float(), "output in float16"),
        (lambda output: 1.003 * output, None),
        (lambda output: output, None),
    ],
    ids=["bfloat16", "float16", "scaled", "right"],
)
def test_a_rounded_module_is_explained_and_another_is_not(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], said: str | None
) -> None:
    capture = record_changed(tmp_path / "capture", change)
    found = explain_module(build(torch.float32), UP, capture, [batch_of()], step=1)
    assert (None if found is None else str(found)) == said


def test_a_product_in_bfloat16_is_explained_on_the_inputs_that_it_received(tmp_path: Path) -> None:
    model = build_framework(torch.float32)
    # what came before is wrong too, and is not what is explained
    model.block(0).norm.weight.data *= 1.1
    up = model.block(0).up
    weight = up.weight.detach().bfloat16()
    up.forward = lambda input: (input.bfloat16() @ weight.T).float()  # type: ignore[method-assign]
    capture = record(model, batch_of(), tmp_path / "capture")
    found = explain_module(build(torch.float32), UP, capture, [batch_of()], step=1)
    assert found is not None
    assert str(found) == "matrix products in bfloat16"


def repeat(healthy: Material, edit: Editor, change: Callable[[Edit], object]) -> float:
    editing = edit(healthy.capture)
    change(editing)
    return measure_repetition(capture_of(healthy), editing.save(), first_reference(healthy), 8.0)


def test_a_pass_that_repeats_the_step_is_steady(healthy: Material, edit: Editor) -> None:
    assert repeat(healthy, edit, lambda editing: None) == 0.0


def move(healthy: Material, ratio: float) -> Callable[[Edit], object]:
    """Move one gradient by so many thresholds."""
    reference = first_reference(healthy)
    exact = beside(reference, NORM, 0.0)
    moved = beside(reference, NORM, ratio) - exact
    return lambda editing: editing.change("gradient", NORM, lambda gradient: gradient.double() + moved)


def test_how_unsteady_a_step_is_is_told_in_thresholds(healthy: Material, edit: Editor) -> None:
    assert repeat(healthy, edit, move(healthy, 5.0)) == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("part", ["batch", "weights", "random state"])
def test_two_passes_that_began_otherwise_need_not_repeat(healthy: Material, edit: Editor, part: str) -> None:
    def change(editing: Edit) -> None:
        move(healthy, 5.0)(editing)
        if part == "batch":
            editing.change("batch", "input_ids", lambda ids: ids.flip(0), micro_batch=0)
        elif part == "weights":
            editing.change("parameter_before", NORM, lambda weight: 1.1 * weight)
        else:
            editing.step()["rng"]["torch"] = "0" * 64

    assert repeat(healthy, edit, change) == 0.0
