"""Optimizer states as Megatron-core saves them: layers in one tensor, under names that the run's map translates."""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from plumbline_capture.checkpoint import main
from plumbline_capture.saved_megatron import find_iteration, read_states
from safetensors.torch import load_file
from torch.distributed.checkpoint.planner import SavePlan

from workers.frameworks.megatron_core.layout import Layout
from workers.frameworks.megatron_core.names import Shapes, build_name_map

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

FUSED = "decoder.layers.self_attention.linear_qkv.weight"
NORM = "decoder.final_layernorm.weight"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint after step 2 with the momenta of two layers' fused heads (two groups of four rows) and of a norm."""
    folder = tmp_path / "checkpoint-2" / "iter_0000002"
    states = {
        f"optimizer.state.exp_avg.{FUSED}": torch.arange(32.0).view(2, 8, 2),
        f"optimizer.state.exp_avg.{NORM}": torch.tensor([1.0, 2.0]),
        FUSED: torch.zeros(2, 8, 2),
    }
    dcp.save(states, checkpoint_id=folder, no_dist=True)
    with (folder / ".metadata").open("rb") as file:
        table = pickle.load(file)
    table.planner_data = SavePlan([])  # Megatron-core keeps its plan
    (folder / ".metadata").write_bytes(pickle.dumps(table))
    common = {"args": argparse.Namespace(seed=1), "optimizer": {"state": {"common_step": torch.tensor(2.0)}}}
    torch.save(common, folder / "common.pt")
    (folder.parent / "latest_checkpointed_iteration.txt").write_text("2")
    return folder.parent


def write_names(file: Path) -> None:
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (3, 2), "model.norm.weight": (2,)}
    for layer in range(2):
        path = f"model.layers.{layer}"
        tensors |= {f"{path}.{norm}.weight": (2,) for norm in ("input_layernorm", "post_attention_layernorm")}
        tensors |= {
            f"{path}.self_attn.{name}.weight": (4 if name == "q_proj" else 2, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        }
        tensors |= {f"{path}.self_attn.o_proj.weight": (2, 4), f"{path}.mlp.gate_proj.weight": (3, 2)}
        tensors |= {f"{path}.mlp.up_proj.weight": (3, 2), f"{path}.mlp.down_proj.weight": (2, 3)}
    shapes = Shapes(2, 4, 2, 1, 0, 3, 3, True, tensors)
    file.write_text(json.dumps(build_name_map(shapes, Layout(), style="te")))


def read(saved: Path, out: Path) -> tuple[dict[tuple[str, str], torch.Tensor], list[str]]:
    """(parameter, field) → its value, and what was not read."""
    out.mkdir()
    write_names(out / "names.json")
    settings: dict[str, Any] = {"out": str(out), "steps": [1], "full": True, "names": str(out / "names.json")}
    settings |= {"modules": None, "full_parameters": None, "preload": [], "probes": None, "checkpoints": [str(saved)]}
    assert main([json.dumps(settings)]) == 0
    content = json.loads((out / "checkpoint00000.json").read_text())
    stored = load_file(out / "checkpoint00000.safetensors") if content["files"] else {}
    states = [entry for entry in content["tensors"] if entry["kind"] == "checkpoint_state"]
    values = {(each["name"], each["field"]): stored[each["representations"]["full"]] for each in states}
    return values, [f"{note['what']}: {note['why']}" for note in content["missing"]]


def test_states_come_under_the_names_of_the_checkpoint(saved: Path, tmp_path: Path) -> None:
    values, missing = read(saved, tmp_path / "out")
    assert [note for note in missing if "optimizer" in note] == []
    fused = torch.arange(32.0).view(2, 8, 2)
    for layer in range(2):
        path = f"model.layers.{layer}.self_attn"
        assert torch.equal(values[f"{path}.q_proj.weight", "exp_avg"], fused[layer][[0, 1, 4, 5]])
        assert torch.equal(values[f"{path}.k_proj.weight", "exp_avg"], fused[layer][[2, 6]])
        assert torch.equal(values[f"{path}.v_proj.weight", "exp_avg"], fused[layer][[3, 7]])
    assert values["model.norm.weight", "exp_avg"].tolist() == [1.0, 2.0]
    assert {float(value) for (_, field), value in values.items() if field == "step"} == {2.0}
    assert len(values) == 14


def test_a_checkpoint_of_another_kind_has_no_iteration(saved: Path, tmp_path: Path) -> None:
    assert find_iteration(tmp_path) is None
    assert find_iteration(saved) == saved / "iter_0000002"
    (saved / "latest_checkpointed_iteration.txt").write_text("3")
    assert find_iteration(saved) is None


def test_a_lost_file_of_shards_is_told(saved: Path, tmp_path: Path) -> None:
    next((saved / "iter_0000002").glob("*.distcp")).unlink()
    values, missing = read(saved, tmp_path / "out")
    assert values == {}
    assert any(note.startswith("checkpoint checkpoint-2, optimizer of Megatron-core: ") for note in missing)
    with pytest.raises(ValueError, match="is missing, which holds"):
        list(read_states(saved / "iter_0000002"))
