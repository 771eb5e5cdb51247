"""The first wrong module, on small modules with known faults."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checks.captures.capture import Capture
from checks.diagnosis import first_divergence, resynchronised
from checks.diagnosis.first_divergence import Divergence, find_first_divergence
from checks.diagnosis.resynchronised import first_tensor, slice_document
from checks.references.batch import Document, MicroBatch
from tests.checks.small_model import DOCUMENTS, LENGTH, SPLIT, build, build_framework, record


@pytest.fixture
def batch() -> MicroBatch:
    ids = torch.randint(0, 32, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    counted = torch.ones_like(ids, dtype=torch.bool)
    return MicroBatch(ids, ids, counted, None, None, DOCUMENTS, "data", None)


def find(
    capture: Capture,
    batch: MicroBatch,
    *,
    own_precision: Sequence[nn.Module] = (),
    multiple: float = 8.0,
    epsilon: float = 1e-9,
    autocast: torch.dtype | None = None,
) -> Divergence:
    return find_first_divergence(
        build(),
        own_precision,
        capture,
        [batch],
        step=1,
        multiple=multiple,
        epsilon=epsilon,
        deterministic=True,
        exact_mode=nullcontext(),
        autocast=autocast,
    )


def wrong(divergence: Divergence) -> list[str]:
    return [module.module for module in divergence.modules if not module.holds]


COMPLETED = [
    "embed",
    *(f"layers.{layer}{part}" for layer in (0, 1) for part in (".norm", ".mix", ".up", "")),
    "head",
]


def test_a_right_model_has_no_wrong_module_and_parts_come_before_their_whole(batch: MicroBatch, tmp_path: Path) -> None:
    found = find(record(build_framework(), batch, tmp_path / "c"), batch)
    assert found.first is None
    assert [m.module for m in found.modules] == COMPLETED
    assert [m.class_name for m in found.modules][:3] == ["Embedding", "LayerNorm", "Mix"]
    assert max(m.error for m in found.modules) < 1e-14
    assert found.deterministic
    assert found.not_comparable == ("",)


def test_a_wrong_leaf_is_found_and_nothing_after_it_is_blamed(batch: MicroBatch, tmp_path: Path) -> None:
    model = build_framework()
    model.block(0).up.weight.data *= 1.01
    found = find(record(model, batch, tmp_path / "c"), batch)
    assert found.first is not None
    assert (found.first.module, found.first.class_name) == ("layers.0.up", "Linear")
    assert found.first.error == pytest.approx(0.01, rel=1e-6)
    assert wrong(found) == ["layers.0.up", "layers.0"]


def test_a_module_whose_parts_are_right_is_found_by_itself(batch: MicroBatch, tmp_path: Path) -> None:
    model = build_framework()
    model.block(1).residual = 1.001
    assert wrong(find(record(model, batch, tmp_path / "c"), batch)) == ["layers.1"]


@pytest.mark.parametrize(("factor", "blamed"), [(2.0, []), (1.9, ["embed"])])
def test_what_the_framework_does_beside_its_module_is_no_fault_of_the_module(
    factor: float, blamed: list[str], batch: MicroBatch, tmp_path: Path
) -> None:
    """As of an embedding that scales its output in one release, and is scaled by the model in another."""
    model = build_framework()
    model.embed.weight.data /= 2.0

    def scale(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return args, {**kwargs, "x": factor * kwargs["x"]}

    model.block(0).register_forward_pre_hook(scale, with_kwargs=True)
    found = find(record(model, batch, tmp_path / "c"), batch)
    assert wrong(found) == blamed
    assert found.not_comparable == (("",) if blamed else ("embed", ""))


def test_a_module_that_lets_documents_see_each_other_is_found(batch: MicroBatch, tmp_path: Path) -> None:
    model = build_framework()
    model.block(1).mix.starts = ((0,), (0,))
    assert wrong(find(record(model, batch, tmp_path / "c"), batch)) == ["layers.1.mix", "layers.1"]


def test_a_fault_in_one_row_only_is_found(batch: MicroBatch, tmp_path: Path) -> None:
    def change(label: str, tensor: torch.Tensor) -> torch.Tensor:
        if label != "module_output head":
            return tensor
        changed = tensor.clone()
        changed[1, LENGTH - 1, 0] += 1.0
        return changed

    assert wrong(find(record(build_framework(), batch, tmp_path / "c", change=change), batch)) == ["head"]


def scaled_head(batch: MicroBatch, path: Path, factor: float) -> Capture:
    model = build_framework()
    model.head.weight.data *= factor
    return record(model, batch, path)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_error_is_held_to_a_multiple_of_the_floor(batch: MicroBatch, tmp_path: Path, sign: float) -> None:
    noisy = build()
    noisy.head.weight.data *= 1.002
    quieter = build()
    quieter.head.weight.data *= 0.999

    def judged(error: float, name: str) -> Divergence:
        capture = scaled_head(batch, tmp_path / name, 1.0 + sign * error)
        return find(capture, batch, own_precision=[noisy, quieter], multiple=4.0, epsilon=0.001)

    held, failed = judged(0.01199, "below"), judged(0.01201, "above")
    head = held.modules[-1]
    assert head.module == "head"
    assert [head.floor, head.threshold] == pytest.approx([0.003, 0.012])
    assert head.error == pytest.approx(0.01199)
    assert held.first is None
    assert wrong(failed) == ["head"]
    # Where no variant moves, round-off is the floor.
    assert held.modules[0].floor == 0.001


def test_without_variants_the_floor_is_round_off(batch: MicroBatch, tmp_path: Path) -> None:
    found = find(scaled_head(batch, tmp_path / "c", 1.0), batch, epsilon=0.5, multiple=3.0)
    assert {(m.floor, m.threshold) for m in found.modules} == {(0.5, 1.5)}


def test_the_floor_is_that_of_the_runs_precision_on_the_same_inputs(batch: MicroBatch, tmp_path: Path) -> None:
    capture = record(build_framework(torch.float32), batch, tmp_path / "c")
    single = find(capture, batch, own_precision=[build(torch.float32)], epsilon=2.0**-24)
    assert single.first is None
    assert 2.0**-24 < single.modules[-1].floor < 1e-6
    mixed = find(capture, batch, own_precision=[build(torch.float32)], epsilon=2.0**-24, autocast=torch.bfloat16)
    assert 1e-4 < mixed.modules[-1].floor < 1e-2


def test_modules_that_cannot_be_compared_are_listed(batch: MicroBatch, tmp_path: Path) -> None:
    def change(label: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if label == "module_output layers.0.up":
            return tensor[:, :-1]
        return None if label == "module_output layers.0.norm" else tensor

    model = build_framework()
    extra = nn.Identity()
    model.block(1).add_module("extra", extra)
    model.block(1).mix.register_forward_hook(lambda module, args, output: extra(output))
    found = find(record(model, batch, tmp_path / "c", change=change), batch)
    assert found.not_comparable == ("layers.0.up", "", "layers.1.extra")
    assert "layers.0.norm" not in [m.module for m in found.modules]
    assert found.first is None


def test_a_module_without_a_recorded_input_keeps_the_references(batch: MicroBatch, tmp_path: Path) -> None:
    def change(label: str, tensor: torch.Tensor) -> torch.Tensor | None:
        return None if label == "module_input head" else tensor

    model = build_framework()
    model.embed.weight.data *= 1.5
    found = find(record(model, batch, tmp_path / "c", change=change), batch)
    # The head is judged on the reference's own input, which the framework's differs from.
    assert wrong(found) == ["embed", "head"]


def test_integer_inputs_are_left_to_the_document() -> None:
    assert first_tensor(torch.tensor([1])) is None


def test_the_first_floating_tensor_of_an_output_is_found_wherever_it_is() -> None:
    tensor = torch.ones(2)
    for output in (tensor, (None, tensor), [torch.tensor([1]), (tensor,)], {"ids": torch.tensor([1]), "x": tensor}):
        assert first_tensor(output) is tensor
    assert first_tensor(None) is None
    assert first_tensor(()) is None


def test_a_documents_part_is_cut_from_every_layout() -> None:
    rows = torch.arange(2 * LENGTH * 3).reshape(2, LENGTH, 3)
    shape = torch.Size((2, LENGTH))
    second, third = DOCUMENTS[1], DOCUMENTS[2]

    def cut(tensor: torch.Tensor, document: Document) -> torch.Tensor:
        found = slice_document(tensor, document, shape)
        assert found is not None
        return found

    assert torch.equal(cut(rows, second), rows[:1, SPLIT:])
    assert torch.equal(cut(rows, third), rows[1:])
    assert torch.equal(cut(rows[..., 0], second), rows[:1, SPLIT:, 0])
    flat = rows.reshape(2 * LENGTH, 3)
    assert torch.equal(cut(flat, second), rows[0, SPLIT:])
    assert torch.equal(cut(flat, third), rows[1])
    assert torch.equal(cut(flat[:, 0], third), rows[1, :, 0])
    shared = rows[:1]
    assert torch.equal(cut(shared, second), rows[:1, SPLIT:])
    assert torch.equal(cut(shared, third), rows[:1])
    assert torch.equal(cut(shared[..., 0], second), rows[:1, SPLIT:, 0])
    assert slice_document(torch.ones(3), second, shape) is None
    assert slice_document(torch.ones(2, LENGTH - 1, 3), second, shape) is None
    assert slice_document(torch.ones(()), second, shape) is None


def test_modules_are_fed_level_by_level_and_no_level_nests_in_itself() -> None:
    paths = {"a", "a.b", "a.b.c", "a.d", "ab", "e"}
    assert resynchronised._levels(paths) == [{"a.b.c", "a.d", "ab", "e"}, {"a.b"}, {"a"}]


def test_an_output_of_nothing_is_right_only_as_nothing() -> None:
    nothing, one = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    assert first_divergence._relative([(nothing, nothing)]) == 0.0
    assert first_divergence._relative([(one, nothing)]) == float("inf")
    assert first_divergence._relative([(2.0 * one, one), (nothing, nothing)]) == 1.0
