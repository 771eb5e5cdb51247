"""Reading saved checkpoints into a capture: names, stacked experts, tied heads, states, and files that are wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture import checkpoint
from plumbline_capture.manifest import write_manifest
from plumbline_capture.saved_names import Target, match_names
from plumbline_capture.settings import Settings, parse_settings
from plumbline_capture.sketch import row_norms, sample, sketch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.capture.running import Recorded, run_recorded
from workers.frameworks.interpreter import framework_python

TRAIN = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(90, 64), nn.Linear(64, 90, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(2):
    logits = model(torch.arange(24).view(2, 12))
    nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(24) + 1).backward()
    optimizer.step()
    optimizer.zero_grad()
saved = Path(sys.argv[1])
saved.mkdir()
save_file({name: tensor.detach() for name, tensor in model.state_dict().items()}, saved / "model.safetensors")
torch.save(optimizer.state_dict(), saved / "optimizer.pt")
"""


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorded, Path]:
    """A plain loop that saves what it ends with, recorded with its checkpoint and with one that it never saves."""
    root = tmp_path_factory.mktemp("saved")
    options = ("--steps", "2", "--checkpoint", str(root / "last"), "--checkpoint", str(root / "never"))
    return run_recorded(root / "capture", framework_python(), "-c", TRAIN, str(root / "last"), options=options), root


def test_a_command_that_saves_is_recorded_with_what_it_saved(saved_run: tuple[Recorded, Path]) -> None:
    recorded, root = saved_run
    assert recorded.code == 0, recorded.stderr
    for name in ("0.weight", "1.weight"):
        for representation in ("sketch", "sample", "row_norms"):
            held = recorded.tensor(representation, kind="parameter_after", name=name)
            assert torch.equal(recorded.tensor(representation, kind="checkpoint", name=name, step=0), held)
        (entry,) = recorded.entries(kind="checkpoint", name=name)
        (after,) = recorded.entries(kind="parameter_after", name=name)
        assert (entry["stats"], entry["dtype"], entry["global_shape"]) == (
            after["stats"],
            "torch.float32",
            after["global_shape"],
        )
        for field in ("exp_avg", "exp_avg_sq", "step"):
            state = recorded.tensor("sample", kind="optimizer_state", name=name, field=field)
            assert torch.equal(recorded.tensor("sample", kind="checkpoint_state", name=name, field=field), state)
    last, never = recorded.manifest["checkpoints"]
    assert last["directory"] == str(root / "last")
    assert (last["config"], last["scheduler"], last["global_step"], last["index_errors"]) == (None, None, None, [])
    assert [file["path"] for file in last["files"]] == ["model.safetensors"]
    assert never["directory"] == str(root / "never")
    assert [note["what"] for note in recorded.manifest["missing"]] == ["checkpoint never"]
    assert recorded.manifest["missing"][0]["why"] == "there is no such directory; the command has not saved it"
    assert {path.name for path in recorded.out.iterdir()} == {
        "manifest.json",
        "step00002-rank00000.safetensors",
        "checkpoint00000.safetensors",
    }
    (file,) = (file for file in recorded.manifest["files"] if file["step"] is None)
    assert file["bytes"] == (recorded.out / file["path"]).stat().st_size


class Reader:
    """A capture directory whose command recorded parameters of given shapes, and a checkpoint beside it."""

    def __init__(self, root: Path, known: dict[str, list[int]]) -> None:
        self.directory = root / "saved"
        self.directory.mkdir()
        self.out = root / "capture"
        self.out.mkdir()
        tensors = [{"kind": "parameter_before", "name": n, "global_shape": shape} for n, shape in known.items()]
        steps = [{"optimizer": {"groups": [{"parameters": list(known)}]}}]
        part = {"rank": 0, "local_rank": 0, "pid": 1, "steps": steps, "tensors": tensors, "files": [], "missing": []}
        (self.out / "rank00000.json").write_text(json.dumps(part))

    def read(self, **options: Any) -> dict[str, Any]:
        """What the reader leaves for the manifest."""
        settings = Settings(out=str(self.out), checkpoints=(str(self.directory),), **options)
        assert checkpoint.main([settings.to_environment()]) == 0
        content: dict[str, Any] = json.loads((self.out / "checkpoint00000.json").read_text())
        return content

    def tensor(self, part: dict[str, Any], name: str, representation: str, field: str | None = None) -> torch.Tensor:
        (entry,) = (e for e in part["tensors"] if (e["name"], e["field"]) == (name, field))
        with safe_open(self.out / entry["file"], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(entry["representations"][representation])
            return tensor


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_experts_saved_one_by_one_are_read_as_the_stacked_parameter(tmp_path: Path) -> None:
    up, down = draw(3, 8, 700), draw(3, 700, 4)
    reader = Reader(
        tmp_path, {"model.layers.0.mlp.experts.gate_up_proj": [3, 8, 700], "x.mlp.experts.down_proj": [3, 700, 4]}
    )
    tensors = {}
    for expert in range(3):
        prefix = f"model.layers.0.mlp.experts.{expert}"
        tensors[f"{prefix}.gate_proj.weight"] = up[expert, :4].contiguous()
        tensors[f"{prefix}.up_proj.weight"] = up[expert, 4:].contiguous()
        tensors[f"x.block_sparse_moe.experts.{expert}.w2.weight"] = down[expert].contiguous()
    save_file(tensors, reader.directory / "model.safetensors")
    part = reader.read()
    for name, whole in (("model.layers.0.mlp.experts.gate_up_proj", up), ("x.mlp.experts.down_proj", down)):
        assert torch.equal(reader.tensor(part, name, "sketch"), sketch(whole, name))
        assert torch.equal(reader.tensor(part, name, "sample"), sample(whole, name))
        assert torch.equal(reader.tensor(part, name, "row_norms"), row_norms(whole))
    sources = [entry["source_name"] for entry in part["tensors"]]
    assert sources == [
        "model.layers.0.mlp.experts.0.gate_proj.weight and 5 more",
        "x.block_sparse_moe.experts.0.w2.weight and 2 more",
    ]


@pytest.mark.parametrize("fault", ["lost", "bent"])
def test_experts_that_make_no_whole_keep_their_own_names(fault: str) -> None:
    name = "model.layers.0.mlp.experts"
    saved = {f"{name}.{e}.{part}.weight": (4, 8) for e in range(2) for part in ("gate_proj", "up_proj")}
    known = {f"{name}.gate_up_proj": (2, 8, 8)}
    assert [target.name for target in match_names(saved, known, tied=False)] == [f"{name}.gate_up_proj"]
    if fault == "lost":
        del saved[f"{name}.1.up_proj.weight"]
    else:
        saved[f"{name}.1.up_proj.weight"] = (5, 8)
    assert [target.name for target in match_names(saved, known, tied=False)] == list(saved)


def test_experts_of_a_model_that_holds_them_one_by_one_are_parameters() -> None:
    saved = {"mlp.experts.0.up_proj.weight": (4, 8), "a.mlp.experts.0.up_proj.weight": (4, 8)}
    assert [t.name for t in match_names(saved, dict(saved), tied=False)] == list(saved)


def test_a_tied_head_in_the_file_is_a_copy_of_its_embedding() -> None:
    saved = {"model.embed_tokens.weight": (9, 4), "lm_head.weight": (9, 4)}
    known = {"model.embed_tokens.weight": (9, 4), "model.norm.weight": (4,)}
    first, copy = match_names(saved, known, tied=True)
    assert first == Target("model.embed_tokens.weight", (("model.embed_tokens.weight",),))
    assert copy == Target("model.embed_tokens.weight", (("lm_head.weight",),), tied_as="lm_head.weight")
    untied = match_names(saved, known, tied=False)
    assert [(t.name, t.tied_as) for t in untied] == [("model.embed_tokens.weight", None), ("lm_head.weight", None)]
    of_another_shape = match_names({"lm_head.weight": (8, 4)}, known, tied=True)
    assert (of_another_shape[0].name, of_another_shape[0].tied_as) == ("lm_head.weight", None)
    own = match_names(saved, {**known, "lm_head.weight": (9, 4)}, tied=True)
    assert [t.tied_as for t in own] == [None, None]


def test_wrappers_are_taken_off_and_a_name_given_twice_is_kept_apart() -> None:
    lora = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    targets = match_names({lora: (4, 8), "module.a": (1,), "a": (1,)}, {}, tied=False)
    assert [t.name for t in targets] == ["model.layers.0.self_attn.q_proj.lora_A.weight", "a", "a"]
    twice = match_names({"a": (1,), "module.a": (1,)}, {}, tied=False)
    assert [t.name for t in twice] == ["a", "module.a"]


def test_a_tied_config_reads_the_head_as_a_copy(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"model.embed_tokens.weight": [90, 64]})
    embedding = draw(90, 64)
    save_file(
        {"lm_head.weight": 2 * embedding, "model.embed_tokens.weight": embedding}, reader.directory / "m.safetensors"
    )
    (reader.directory / "config.json").write_text('{"tie_word_embeddings": true, "vocab_size": 90}')
    part = reader.read()
    name = "model.embed_tokens.weight"
    assert torch.equal(reader.tensor(part, name, "sketch", "lm_head.weight"), sketch(2 * embedding, name))
    assert torch.equal(reader.tensor(part, name, "sketch"), sketch(embedding, name))
    assert part["checkpoint"]["config"] == {"tie_word_embeddings": True, "vocab_size": 90}
    digest = hashlib.sha256((reader.directory / "config.json").read_bytes()).hexdigest()
    assert part["checkpoint"]["config_sha256"] == digest


def test_shards_are_held_to_their_index(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"a": [4], "b": [4], "c": [4]})
    save_file({"a": draw(4), "c": draw(4)}, reader.directory / "model-00001-of-00002.safetensors")
    save_file({"c": draw(4)}, reader.directory / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (reader.directory / "model.safetensors.index.json").write_text(json.dumps(index))
    part = reader.read()
    assert part["checkpoint"]["index_errors"] == [
        "c is in two files, the second is model-00002-of-00002.safetensors",
        "model.safetensors.index.json names b, which no file holds",
        "c is in a file and not in model.safetensors.index.json",
    ]
    assert sorted(entry["name"] for entry in part["tensors"]) == ["a", "c"]
    assert part["missing"] == []


def test_a_truncated_file_is_a_note_and_the_rest_is_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"a": [4], "b": [4]})
    save_file({"a": draw(4)}, reader.directory / "a.safetensors")
    save_file({"b": draw(4)}, reader.directory / "b.safetensors")
    content = (reader.directory / "b.safetensors").read_bytes()
    (reader.directory / "b.safetensors").write_bytes(content[:-3])
    part = reader.read()
    assert [entry["name"] for entry in part["tensors"]] == ["a"]
    (note,) = part["missing"]
    assert note["what"] == "checkpoint saved, b.safetensors"
    assert note["why"].startswith("SafetensorError: ")


class Shell:
    """What a malicious file would do when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_nothing_of_an_optimizer_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(tmp_path, {"a": [4]})
    save_file({"a": draw(4)}, reader.directory / "model.safetensors")
    torch.save({"state": {}, "param_groups": [], "more": Shell()}, reader.directory / "optimizer.pt")
    (reader.directory / "scheduler.pt").write_bytes(pickle.dumps(Shell()))
    part = reader.read()
    assert [note["what"] for note in part["missing"]] == [
        "checkpoint saved, optimizer.pt",
        "checkpoint saved, scheduler.pt",
    ]
    assert capsys.readouterr().out == ""
    assert [entry["name"] for entry in part["tensors"]] == ["a"]


def test_states_are_named_through_the_groups(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"a": [4], "b": [4]})
    save_file({"a": draw(4)}, reader.directory / "model.safetensors")
    state = {0: {"exp_avg": draw(4), "step": torch.tensor(3.0)}, 1: {"exp_avg": draw(4), "count": 5, "none": None}}
    group: dict[str, Any] = {"params": [0, 1]}
    file = reader.directory / "optimizer.pt"

    def names() -> dict[tuple[str, str], Any]:
        part = reader.read()
        states = [e for e in part["tensors"] if e["kind"] == "checkpoint_state"]
        return {(e["name"], e["field"]): reader.tensor(part, e["name"], "full", e["field"]).tolist() for e in states}

    torch.save({"state": state, "param_groups": [group]}, file)
    assert names() == {
        ("a", "exp_avg"): draw(4).tolist(),
        ("a", "step"): 3.0,
        ("b", "exp_avg"): draw(4).tolist(),
        ("b", "count"): 5.0,
    }
    torch.save({"state": state, "param_groups": [{**group, "param_names": ["module.b", "module.a"]}]}, file)
    assert names()["b", "step"] == 3.0
    torch.save({"state": state, "param_groups": [{"params": [0]}, {"params": [1]}]}, file)
    assert {name for name, _ in names()} == {"unnamed.0.0", "unnamed.1.0"}


def test_the_schedulers_numbers_and_the_step_are_kept(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"a": [4]})
    save_file({"a": draw(4)}, reader.directory / "model.safetensors")
    state = {"last_epoch": 2, "_last_lr": [0.1, 0.2], "lr_lambdas": [None], "verbose": False}
    torch.save(state, reader.directory / "scheduler.pt")
    (reader.directory / "trainer_state.json").write_text('{"global_step": 2, "epoch": 0.1}')
    (reader.directory / "adapter_config.json").write_text('{"r": 4}')
    described = reader.read()["checkpoint"]
    assert described["scheduler"] == {"last_epoch": 2, "_last_lr": [0.1, 0.2], "verbose": False}
    assert (described["global_step"], described["adapter_config"]) == (2, {"r": 4})


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"a": [4]})
    torch.save({"a": draw(4)}, reader.directory / "pytorch_model.bin")
    part = reader.read()
    assert (part["tensors"], part["files"]) == ([], [])
    assert part["missing"][0]["why"] == "the directory holds no *.safetensors file; save the weights as safetensors"


def test_whole_tensors_are_kept_where_the_recording_keeps_them(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"a": [70, 80]})
    save_file({"a": draw(70, 80)}, reader.directory / "model.safetensors")
    assert "full" not in reader.read()["tensors"][0]["representations"]
    assert torch.equal(reader.tensor(reader.read(full=True), "a", "full"), draw(70, 80))


def test_a_checkpoint_that_was_not_read_is_noted(tmp_path: Path) -> None:
    """As after a signal: the launcher starts no reader, or ends it, and writes the manifest all the same."""
    out = tmp_path / "capture"
    out.mkdir()
    (out / "checkpoint00000.safetensors").write_bytes(b"half")
    settings = Settings(out=str(out), steps=(1,), checkpoints=("/far/checkpoint-2",))
    write_manifest(out, settings=settings, command=["x"], exit_code=-15, started="now")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["checkpoints"] == [{"directory": "/far/checkpoint-2"}]
    assert manifest["missing"][0] == {
        "rank": None,
        "step": None,
        "what": "checkpoint checkpoint-2",
        "why": "the command was stopped, or the process that reads it ended early",
    }
    assert [path.name for path in out.iterdir()] == ["manifest.json"]


def test_the_settings_travel_with_their_checkpoints() -> None:
    settings = Settings(out="/x", steps=(2,), checkpoints=("/a", "/b"), preload=("/p.py",))
    assert parse_settings(settings.to_environment()) == settings
