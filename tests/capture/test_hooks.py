"""A framework that the recorder does not know by itself: hooks tell it of the loop, a name map of the names."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from checks.captures.capture import Capture, open_capture

TOY = '''
import torch
from torch import nn

class Model(nn.Module):
    """Gate and up are one matrix, and gradients lie in `main_grad`."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(8, 4))
        self.fused = nn.Parameter(torch.randn(6, 4))
    def forward(self, ids):
        hidden = self.table[ids] @ self.fused[:3].T * torch.sigmoid(self.table[ids] @ self.fused[3:].T)
        return hidden @ self.fused[:3] @ self.table.T

class Trainer:
    def __init__(self):
        self.model = Model()
        self.optimizers = [torch.optim.SGD([p], lr=0.1) for p in self.model.parameters()]
    def setup(self):
        pass
    def losses(self, ids, labels):
        return nn.functional.nll_loss(self.model(ids).log_softmax(-1).flatten(0, 1), labels.flatten(), reduction="none")
    def reduce(self, tokens):
        for p in self.model.parameters():
            p.main_grad = p.grad / tokens
            p.grad = None
    def clip(self, limit):
        norm = sum(float(p.main_grad.norm()) ** 2 for p in self.model.parameters()) ** 0.5
        for p in self.model.parameters():
            p.grad = p.main_grad * min(1.0, limit / (norm + 1e-6))
        return norm
    def train(self, steps):
        self.setup()
        for step in range(steps):
            for micro in range(2):
                ids = torch.arange(6).view(2, 3) + step + micro
                self.losses(ids % 8, (ids + 1) % 8).sum().backward()
            self.reduce(12)
            self.clip(0.5)
            for one in self.optimizers:
                one.step()
                one.zero_grad()
'''

HOOKS = """
import functools
import torch
from plumbline_capture.framework import adopt, keep_batch, keep_clip, keep_losses, keep_own_gradients, keep_scalars
from plumbline_capture.posthook import after_import

def install(recorder):
    after_import("toy", functools.partial(wrap, recorder))

def wrap(recorder, toy):
    trainer = toy.Trainer
    setup, losses, reduce, clip = trainer.setup, trainer.losses, trainer.reduce, trainer.clip
    def new_setup(self):
        setup(self)
        adopt(recorder, self.model, optimizers=self.optimizers, mesh={"dp": 0, "tp": 1})
        keep_scalars(recorder, {"norm": {"eps": 0.25}})
    def new_losses(self, ids, labels):
        index = keep_batch(recorder, {"input_ids": ids, "labels": labels})
        found = losses(self, ids, labels)
        if index is not None:
            keep_losses(recorder, index, target=labels, losses=found.view(labels.shape), scalar=float(found.sum()),
                        dtype=found.dtype)
        return found
    def new_reduce(self, tokens):
        reduce(self, tokens)
        keep_own_gradients(recorder, ((p, p.main_grad) for p in self.model.parameters()), divided_by=tokens)
    def new_clip(self, limit):
        norm = clip(self, limit)
        keep_clip(recorder, list(self.model.parameters()), max_norm=limit, total_norm=norm)
        return norm
    trainer.setup, trainer.losses, trainer.reduce, trainer.clip = new_setup, new_losses, new_reduce, new_clip
"""


def box(*sides: int) -> list[list[int]]:
    return [[0, side] for side in sides]


NAMES = {
    "version": 1,
    "tensors": {"embed_tokens.weight": [8, 4], "gate_proj.weight": [3, 4], "up_proj.weight": [3, 4]},
    "ranks": [
        {
            "table": [{"name": "embed_tokens.weight", "source": box(8, 4), "target": box(8, 4)}],
            "fused": [
                {"name": "gate_proj.weight", "source": box(3, 4), "target": box(3, 4)},
                {"name": "up_proj.weight", "source": [[3, 6], [0, 4]], "target": box(3, 4)},
            ],
        }
    ],
}


def record(directory: Path, names: object = NAMES, *, hooks: str = HOOKS) -> tuple[Capture | None, str]:
    """Run the toy for two steps, recording the second; the capture, and what the command printed."""
    for name, text in (("toy.py", TOY), ("hooks.py", hooks), ("names.json", json.dumps(names))):
        (directory / name).write_text(text)
    options = ["--hooks", str(directory / "hooks.py"), "--names", str(directory / "names.json"), "--steps", "2"]
    command = [sys.executable, "-m", "plumbline_capture", "run", "--out", str(directory / "capture"), *options]
    script = "import torch, toy; toy.Trainer().train(2)"  # what is being imported already cannot be waited for
    ended = subprocess.run(
        [*command, "--", sys.executable, "-c", script], cwd=directory, capture_output=True, text=True
    )
    whole = (directory / "capture" / "manifest.json").is_file()
    return (open_capture(directory / "capture") if whole else None), ended.stderr


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    found, said = record(tmp_path_factory.mktemp("toy"))
    assert found is not None, said
    return found


def test_a_step_of_two_optimizers_is_one_step(capture: Capture) -> None:
    assert capture.missing == ()
    step = capture.step(2)
    assert [group.parameters for group in step.optimizer.groups] == [
        ("embed_tokens.weight",),
        ("gate_proj.weight", "up_proj.weight"),
    ]
    assert step.trainable == ("embed_tokens.weight", "gate_proj.weight", "up_proj.weight")
    for kind in ("gradient", "parameter_before", "parameter_after", "gradient_clipped"):
        assert set(capture.tensors(2, kind)) == set(NAMES["tensors"]), kind  # type: ignore[call-overload]


def test_gradients_are_those_of_the_frameworks_buffers_before_clipping(capture: Capture) -> None:
    (clip,) = capture.step(2).clips
    gradients = [record.read("full") for record in capture.tensors(2, "gradient").values()]
    norm = math.sqrt(sum(float(each.double().norm()) ** 2 for each in gradients if each is not None))
    assert clip.total_norm == pytest.approx(norm, rel=1e-6)
    assert (clip.max_norm, clip.after_backward) == (0.5, 2)
    assert clip.factor_error == pytest.approx(0.0, abs=1e-6)
    before = capture.tensors(2, "parameter_before")["up_proj.weight"].read("full")
    after = capture.tensors(2, "parameter_after")["up_proj.weight"].read("full")
    clipped = capture.tensors(2, "gradient_clipped")["up_proj.weight"].read("sample")
    assert before is not None
    assert after is not None
    assert clipped is not None
    assert torch.equal(after, before - 0.1 * clipped.view(3, 4))


def test_scalars_losses_and_rows_are_as_the_hooks_gave_them(capture: Capture) -> None:
    step = capture.step(2)
    assert step.scalars == {"norm": {"eps": 0.25}}
    assert capture.mesh == {0: {"dp": 0, "tp": 1}}
    for micro in step.micro_batches:
        losses = capture.micro_batch_tensors(2, "token_loss", micro.index)["token_loss"].read("full")
        assert losses is not None
        assert micro.divided_by == 12.0
        assert micro.backward == pytest.approx(float(losses.sum()) / 12.0, rel=1e-6)
    rows = capture.manifest["ranks"][0]["rows"]
    assert [(row["step"], row["micro_batch"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_parameter_that_the_map_leaves_out_keeps_its_name_and_is_told(tmp_path: Path) -> None:
    ranks = [{"table": NAMES["ranks"][0]["table"]}]  # type: ignore[index]
    found, _ = record(tmp_path, {**NAMES, "ranks": ranks})
    assert found is not None
    assert [(note.what, note.why) for note in found.missing] == [("name of fused", "the name map does not state it")]
    assert set(found.tensors(2, "gradient")) == {"embed_tokens.weight", "fused"}


def test_a_map_that_is_none_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    found, said = record(tmp_path, {"version": 1})
    assert found is None
    assert "--names: " in said
    assert "is no name map" in said


def test_hooks_that_fail_end_the_command(tmp_path: Path) -> None:
    _, said = record(tmp_path, hooks="def install(recorder):\n    raise RuntimeError('no such trainer')\n")
    assert "no such trainer" in said
    assert "the process ends with code 70" in said
