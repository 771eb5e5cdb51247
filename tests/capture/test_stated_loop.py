"""A loop that its framework's hooks state: what they say is recorded, and nothing that the recorder sees beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.capture.running import Recorded, run_recorded
from workers.frameworks.interpreter import framework_python

HOOKS = """
def install(recorder):
    import torch
    torch.recorder = recorder
"""

TRAINING = """
import torch
from plumbline_capture.framework import adopt, keep_batch, keep_clip, keep_losses, keep_own_gradients
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
recorder = torch.recorder
model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
adopt(recorder, model, optimizers=[optimizer], mesh={"dp": 0, "pp": 1})
ids = torch.tensor([[1, 2, 3], [3, 4, 0]])
for _ in range(2):  # each half of a micro-batch goes through the model by itself
    index = keep_batch(recorder, {"input_ids": ids, "labels": ids})
    total = 0.0
    for row in ids:
        loss = cross_entropy(model(row), row, reduction="sum")
        loss.backward()
        total += float(loss)
    losses = torch.full(ids.shape, 0.5)
    keep_losses(recorder, index, target=ids, losses=losses, scalar=total, dtype=torch.float32)
parameters = list(model.parameters())
keep_own_gradients(recorder, [(p, p.grad) for p in parameters], divided_by=12.0)
norm = float(torch.nn.utils.clip_grad_norm_(parameters, 1e9))
optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("stated")
    (folder / "hooks.py").write_text(HOOKS)
    (folder / "train.py").write_text(TRAINING)
    options = ("--steps", "1", "--hooks", str(folder / "hooks.py"))
    return run_recorded(folder / "capture", framework_python(), str(folder / "train.py"), options=options)


def test_the_micro_batches_are_those_that_were_stated(recorded: Recorded) -> None:
    (rank,) = recorded.manifest["ranks"]
    (step,) = rank["steps"]
    assert rank["mesh"] == {"dp": 0, "pp": 1}
    assert recorded.manifest["missing"] == []
    assert [each["index"] for each in step["micro_batches"]] == [0, 1]
    assert {each["loss_source"] for each in step["micro_batches"]} == {"token_losses"}
    assert {each["divided_by"] for each in step["micro_batches"]} == {12.0}
    assert all(each["cross_entropy"] == [] and each["backward"] > 0 for each in step["micro_batches"])
    assert len(recorded.entries(kind="batch", name="input_ids", step=1)) == 2


def test_the_losses_are_those_that_were_stated(recorded: Recorded) -> None:
    for index in (0, 1):
        losses = recorded.tensor("full", kind="token_loss", name="token_loss", step=1, micro_batch=index)
        assert torch.equal(losses, torch.full((2, 3), 0.5, dtype=torch.float64))


def test_states_of_flat_stretches_are_not_kept(tmp_path: Path) -> None:
    flat = 'mesh={"dp": 0, "pp": 1}, flat=True)'
    stretches = "[torch.cat([p.detach().flatten() for p in model.parameters()]).requires_grad_()]"
    changed = TRAINING.replace('mesh={"dp": 0, "pp": 1})', flat).replace("SGD(model.parameters()", f"SGD({stretches}")
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "train.py").write_text(changed)
    options = ("--steps", "1", "--hooks", str(tmp_path / "hooks.py"))
    recorded = run_recorded(tmp_path / "capture", framework_python(), str(tmp_path / "train.py"), options=options)
    kept = {(entry["kind"], entry["name"]) for entry in recorded.manifest["tensors"]}
    names = ("0.weight", "1.weight", "1.bias")
    kinds = {"parameter_before", "gradient"}
    assert {each for each in kept if each[0] not in ("batch", "target", "token_loss")} == {
        (kind, name) for kind in kinds for name in names
    }
