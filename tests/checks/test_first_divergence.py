"""The first wrong module, on small modules with known faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from checks.captures.capture import Capture, open_capture
from checks.diagnosis.first_divergence import Divergence, find_first_divergence, first_tensor, slice_document
from checks.references.batch import Document, MicroBatch

WIDTH, LENGTH, SPLIT = 8, 10, 6
DOCUMENTS = (Document(0, 0, SPLIT), Document(0, SPLIT, LENGTH), Document(1, 0, LENGTH))


class Mix(nn.Module):
    """The running mean over the tokens of a document; `starts`: where documents begin."""

    starts: tuple[tuple[int, ...], ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for index, row in enumerate(x):
            edges = [*(self.starts[index] if self.starts else (0,)), row.shape[0]]
            parts = [row[a:b] for a, b in pairwise(edges)]
            rows.append(torch.cat([p.cumsum(0) / torch.arange(1, p.shape[0] + 1).to(p.dtype)[:, None] for p in parts]))
        return torch.stack(rows)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = Mix()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.residual = 1.0

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.residual * x + scale * self.up(self.mix(self.norm(x))), None


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 32, bias=False)

    def block(self, index: int) -> Block:
        layer = self.layers[index]
        assert isinstance(layer, Block)
        return layer

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, position_ids: Any = None) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x, _ = layer(x=x, scale=torch.tensor(0.5, dtype=x.dtype))
        logits: torch.Tensor = self.head(x)
        return logits


def build(dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.7, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.to(dtype)


def build_framework(dtype: torch.dtype = torch.float64) -> Model:
    """The model as a packing framework runs it: told where documents begin."""
    model = build(dtype)
    model.block(0).mix.starts = model.block(1).mix.starts = ((0, SPLIT), (0,))
    return model


@pytest.fixture
def batch() -> MicroBatch:
    ids = torch.randint(0, 32, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    counted = torch.ones_like(ids, dtype=torch.bool)
    return MicroBatch(ids, ids, counted, None, None, DOCUMENTS, "data", None)


def record(
    model: nn.Module,
    batch: MicroBatch,
    out: Path,
    *,
    change: Callable[[str, torch.Tensor], torch.Tensor | None] | None = None,
) -> Capture:
    """What the recorder keeps of every module: its first tensor argument and its output."""
    tensors: dict[str, torch.Tensor] = {}
    entries: list[dict[str, Any]] = []

    def keep(kind: str, path: str, tensor: torch.Tensor) -> None:
        changed = tensor if change is None else change(f"{kind} {path}", tensor)
        if changed is None:
            return
        key = f"{kind}/0/{path}/full"
        tensors[key] = changed.detach().clone().contiguous()
        entry = {"step": 1, "rank": 0, "micro_batch": 0, "kind": kind, "name": path, "field": None}
        entry |= {"dtype": str(changed.dtype), "global_shape": list(changed.shape), "file": "step.safetensors"}
        entries.append({**entry, "representations": {"full": key}, "stats": {"norm": 0.0, "nonfinite": 0}})

    def hook(path: str) -> Callable[..., None]:
        def after(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
            keep("module_input", path, given)
            keep("module_output", path, output[0] if isinstance(output, tuple) else output)

        return after

    handles = [m.register_forward_hook(hook(p), with_kwargs=True) for p, m in model.named_modules() if p != "layers"]
    with torch.no_grad():
        model(batch.input_ids)
    for handle in handles:
        handle.remove()
    out.mkdir()
    save_file(tensors, out / "step.safetensors")
    size = (out / "step.safetensors").stat().st_size
    manifest = {"format": "plumbline-capture", "version": 1, "ranks": [], "tensors": entries}
    manifest["files"] = [{"path": "step.safetensors", "bytes": size}]
    (out / "manifest.json").write_text(json.dumps(manifest))
    return open_capture(out)


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
    assert slice_document(torch.ones(3), second, shape) is None
    assert slice_document(torch.ones(2, LENGTH - 1, 3), second, shape) is None
    assert slice_document(torch.ones(()), second, shape) is None
