"""Parameters that a framework holds in another order of dimensions: recorded as the checkpoint has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plumbline_capture.sketch import row_norms, sketch

from tests.capture.running import Recorded, run_recorded
from workers.frameworks.interpreter import framework_python

HOOKS = """
from plumbline_capture.roots import Transposed

def install(recorder):
    recorder.transposed = (Transposed("experts.downs", "experts.down", (0, 2, 1)),)
"""

TRAINING = """
import torch

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.downs = torch.nn.Parameter(torch.arange(24.0).reshape(2, 3, 4) / 24)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.experts = Experts()
        self.head = torch.nn.Linear(4, 5)

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids) @ self.experts.downs.sum(0))

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(2):
    ids = torch.tensor([[1, 2, 3], [3, 4, 0]])
    torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("transposed")
    (folder / "hooks.py").write_text(HOOKS)
    (folder / "train.py").write_text(TRAINING)
    options = ("--steps", "1,2", "--full", "--hooks", str(folder / "hooks.py"))
    return run_recorded(folder / "capture", framework_python(), str(folder / "train.py"), options=options)


def test_what_belongs_to_the_parameter_has_the_checkpoints_name_and_shape(recorded: Recorded) -> None:
    kinds = ("gradient", "parameter_before", "parameter_after", "gradient_clipped", "optimizer_state")
    for kind in kinds:
        field = "exp_avg" if kind == "optimizer_state" else None
        (entry,) = (e for e in recorded.entries(kind=kind, name="experts.down", step=1) if e["field"] == field)
        assert (entry["source_name"], entry["global_shape"], entry["slice"]) == (
            *("experts.downs", [2, 4, 3]),
            [[0, 2], [0, 4], [0, 3]],
        )
        assert recorded.entries(kind=kind, name="experts.downs", step=1) == []
    (count,) = (
        e for e in recorded.entries(kind="optimizer_state", name="experts.down", step=1) if e["field"] == "step"
    )
    assert count["global_shape"] == []


def test_values_sketches_and_row_norms_are_those_of_the_transpose(recorded: Recorded) -> None:
    expected = (torch.arange(24.0).reshape(2, 3, 4) / 24).permute(0, 2, 1)
    where = {"kind": "parameter_before", "name": "experts.down", "step": 1}
    assert torch.equal(recorded.tensor("full", **where), expected)
    whole = [[0, size] for size in expected.shape]
    drawn = sketch(expected.contiguous(), "experts.down", where=whole, global_shape=tuple(expected.shape))
    assert torch.equal(recorded.tensor("sketch", **where), drawn)
    assert torch.equal(recorded.tensor("row_norms", **where), row_norms(expected.contiguous()))


def test_groups_and_clipping_know_the_parameter_by_that_name(recorded: Recorded) -> None:
    step = recorded.manifest["ranks"][0]["steps"][0]
    (group,) = step["optimizer"]["groups"]
    assert "experts.down" in group["parameters"]
    assert "experts.down" in step["trainable"]
    assert step["clips"][0]["factor_error"] < 1e-6
    assert recorded.manifest["missing"] == []


def test_a_part_of_a_divided_parameter_is_turned_with_its_slice(tmp_path: Path) -> None:
    from plumbline_capture.represent import Placed

    part = Placed(torch.zeros(1, 3, 4), (2, 3, 4), [[1, 2], [0, 3], [0, 4]], {"ep": "shard"})
    turned = part.permute((0, 2, 1))
    assert (tuple(turned.local.shape), turned.global_shape) == ((1, 4, 3), (2, 4, 3))
    assert (turned.where, turned.placement) == ([[1, 2], [0, 4], [0, 3]], {"ep": "shard"})
    assert turned.local.is_contiguous()
