"""A checkpoint whose weights are exported, and whose optimizer lies in shards of two ranks beside them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from plumbline_capture.checkpoint import main
from plumbline_capture.saved_shards import UnreadShards, find_shards, read_shards
from plumbline_capture.settings import Settings

from tests.capture.running import Recorded, run_recorded
from workers.frameworks.interpreter import framework_python

HOOKS = """
from plumbline_capture.roots import Transposed

def install(recorder):
    recorder.transposed = (Transposed("experts.downs", "experts.down", (0, 2, 1)),)
"""

TRAINING = """
import os, sys, torch
import torch.distributed.checkpoint as dcp
from pathlib import Path
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

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
        self.wide = torch.nn.Linear(5, 1300, bias=False)

    def forward(self, input_ids):
        return self.wide(self.head(self.embedding(input_ids) @ self.experts.downs.sum(0)))

def train(rank, saved):
    torch.distributed.init_process_group("gloo", init_method=f"file://{saved}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Model()
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ids = torch.tensor([[1, 2, 3], [3, 4, rank]])
    torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    states = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    dcp.save({"optim": states}, checkpoint_id=saved / "optim")
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        (saved / "model" / "consolidated").mkdir(parents=True)
        weights["experts.down"] = weights.pop("experts.downs").permute(0, 2, 1).contiguous()
        save_file(weights, saved / "model" / "consolidated" / "model.safetensors")
    os._exit(0)

saved = Path(sys.argv[1])
saved.mkdir()
ranks = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        train(rank, saved)
    ranks.append(pid)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in ranks))
"""

WIDE = "wide.weight"


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorded, Path]:
    """Two FSDP2 ranks that save as AutoModel does, recorded whole."""
    root = tmp_path_factory.mktemp("sharded")
    (root / "hooks.py").write_text(HOOKS)
    (root / "train.py").write_text(TRAINING)
    saved = root / "epoch_0_step_0"
    checkpoint = ("--checkpoint", str(saved / "model" / "consolidated"))
    options = ("--steps", "1", "--full", "--hooks", str(root / "hooks.py"), *checkpoint)
    recorded = run_recorded(root / "capture", framework_python(), str(root / "train.py"), str(saved), options=options)
    assert recorded.code == 0, recorded.stderr
    return recorded, saved


@pytest.fixture
def folder(saved_run: tuple[Recorded, Path], tmp_path: Path) -> Path:
    """A copy of the optimizer's shards, to be damaged."""
    shutil.copytree(saved_run[1] / "optim", tmp_path / "optim")
    return tmp_path / "optim"


def test_shards_make_the_states_that_the_ranks_held_bit_by_bit(saved_run: tuple[Recorded, Path]) -> None:
    recorded, _ = saved_run
    assert recorded.manifest["missing"] == []
    names = {entry["name"] for entry in recorded.entries(kind="parameter_before")}
    assert names == {"embedding.weight", "experts.down", "head.weight", "head.bias", WIDE}
    for name in names:
        for field in ("exp_avg", "exp_avg_sq", "step"):
            (entry,) = recorded.entries(kind="checkpoint_state", name=name, field=field)
            saved = recorded.tensor("full", kind="checkpoint_state", name=name, field=field)
            held = [
                recorded.tensor("full", kind="optimizer_state", name=name, field=field, rank=rank) for rank in (0, 1)
            ]
            whole = held[0] if field == "step" else torch.cat(held)
            assert torch.equal(saved, whole)
            assert entry["dtype"] == "torch.float32"
    (entry,) = recorded.entries(kind="checkpoint_state", name="experts.down", field="exp_avg")
    assert (entry["global_shape"], entry["source_name"]) == ([2, 4, 3], "experts.downs")


def test_the_shards_are_found_beside_the_weights_and_above_an_export(folder: Path) -> None:
    assert find_shards(folder.parent) == folder
    assert find_shards(folder.parent / "model" / "consolidated") == folder
    assert find_shards(folder) is None


def test_a_moment_that_was_altered_in_a_shard_is_read_as_it_lies_there(folder: Path) -> None:
    before = {(name, field): value for name, field, value in read_shards(folder)}
    shard = folder / "__1_0.distcp"
    content = shard.read_bytes()
    moment = before[WIDE, "exp_avg"][650:]
    assert content.count(moment.numpy().tobytes()) == 1
    shard.write_bytes(content.replace(moment.numpy().tobytes(), (1.02 * moment).numpy().tobytes()))
    after = {(name, field): value for name, field, value in read_shards(folder)}
    assert [key for key in before if not torch.equal(before[key], after[key])] == [(WIDE, "exp_avg")]
    assert torch.equal(after[WIDE, "exp_avg"][650:], 1.02 * moment)


def test_a_shard_that_is_missing_is_named_with_what_it_holds(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()
    with pytest.raises(UnreadShards, match=r"^optim/__1_0.distcp is missing, which holds optim.state.\S+; save the ch"):
        list(read_shards(folder))


def test_a_shard_that_is_cut_off_or_overwritten_is_named_with_the_place(folder: Path) -> None:
    shard = folder / "__0_0.distcp"
    content = shard.read_bytes()
    for damaged in (content[: len(content) // 2], bytes(len(content))):
        shard.write_bytes(damaged)
        with pytest.raises(
            UnreadShards, match=r"^optim/__0_0.distcp is damaged at bytes \d+ to \d+, where optim.state"
        ):
            list(read_shards(folder))


def test_a_table_that_is_missing_or_damaged_is_said(folder: Path) -> None:
    table = folder / ".metadata"
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(UnreadShards, match=r"^optim/.metadata cannot be read"):
        list(read_shards(folder))
    table.unlink()
    assert find_shards(folder.parent) == folder
    with pytest.raises(UnreadShards, match=r"^optim/.metadata is missing, which says what the shards hold; save the"):
        list(read_shards(folder))


def test_a_table_that_leaves_a_part_out_is_said(folder: Path) -> None:
    table = pickle.loads((folder / ".metadata").read_bytes())
    chunks = table.state_dict_metadata[f"optim.state.{WIDE}.exp_avg"].chunks
    del chunks[1]
    (folder / ".metadata").write_bytes(pickle.dumps(table))
    said = rf"^optim/.metadata names 3250 of the 6500 numbers of optim.state.{WIDE}.exp_avg;"
    with pytest.raises(UnreadShards, match=said):
        list(read_shards(folder))


def test_a_part_of_another_shape_than_the_table_says_is_said(folder: Path) -> None:
    table = pickle.loads((folder / ".metadata").read_bytes())
    entry = table.state_dict_metadata[f"optim.state.{WIDE}.exp_avg"]
    entry.chunks[1].sizes = torch.Size([650, 4])
    (folder / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(
        UnreadShards, match=rf"__1_0.distcp holds another part of optim.state.{WIDE}.exp_avg than .meta"
    ):
        list(read_shards(folder))


class Harmful:
    """Unpickling it would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def test_a_table_that_would_execute_something_is_refused(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(UnreadShards, match=r"\(UnpicklingError: posix.system is no part of a checkpoint's table\)"):
        list(read_shards(folder))


def test_what_is_wrong_with_the_shards_is_a_note_and_the_weights_are_read_all_the_same(
    saved_run: tuple[Recorded, Path], folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved_run[1] / "model", tmp_path / "model")
    (folder / "__0_0.distcp").unlink()
    out = tmp_path / "capture"
    out.mkdir()
    settings = Settings(out=str(out), steps=(1,), checkpoints=(str(tmp_path / "model" / "consolidated"),))
    assert main([settings.to_environment()]) == 0
    content = json.loads((out / "checkpoint00000.json").read_text())
    (note,) = content["missing"]
    assert note["what"] == "checkpoint consolidated, optimizer shards"
    assert note["why"].startswith("optim/__0_0.distcp is missing, which holds optim.state.")
    assert [entry["kind"] for entry in content["tensors"]].count("checkpoint") == 5
