"""Two ranks: each writes its own file, sharded parameters with their place, and the launcher merges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from plumbline_capture.sketch import sketch

from tests.capture.plain_lm import PlainLM, loss_of, tokens_of
from tests.capture.running import PLAIN_LM, run_recorded
from workers.frameworks.interpreter import framework_python


def gradients_of_both_ranks() -> dict[str, torch.Tensor]:
    """Return the mean of the gradients that the two ranks' tokens give."""
    torch.manual_seed(0)
    model = PlainLM()
    for rank in range(2):
        tokens = tokens_of(torch.Generator().manual_seed(10 + rank))
        (loss_of(model(tokens), tokens) / 2).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_torchrun_workers_are_recorded_and_merged_though_one_was_killed(tmp_path: Path) -> None:
    torchrun = (framework_python(), "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    options = ("--steps", "1")
    recorded = run_recorded(tmp_path / "capture", *torchrun, str(PLAIN_LM), "replicated", options=options)
    assert recorded.code == 1
    manifest = recorded.manifest
    assert (manifest["world_size"], manifest["missing"]) == (2, [])
    assert [(entry["rank"], entry["local_rank"]) for entry in manifest["ranks"]] == [(0, 0), (1, 1)]
    expected = gradients_of_both_ranks()["head.weight"]
    for rank in range(2):
        tokens = recorded.tensor("full", kind="batch", rank=rank, name="tokens")
        assert torch.equal(tokens, tokens_of(torch.Generator().manual_seed(10 + rank)))
        (entry,) = recorded.entries(kind="gradient", rank=rank, name="head.weight")
        assert entry["source_name"] == "module.head.weight"
        found = recorded.tensor("sketch", kind="gradient", rank=rank, name="head.weight")
        torch.testing.assert_close(found, sketch(expected, "head.weight"), rtol=1e-4, atol=1e-6)


def test_the_sketches_of_fsdp_shards_add_up_to_that_of_the_whole(tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path / "capture", sys.executable, str(PLAIN_LM), "sharded", options=("--steps", "1"))
    assert (recorded.code, recorded.manifest["world_size"]) == (0, 2)
    assert recorded.manifest["missing"] == []
    for name, expected in gradients_of_both_ranks().items():
        parts = [recorded.entries(kind="gradient", rank=rank, name=name)[0] for rank in range(2)]
        assert all(part["placement"] == {"dp": "shard"} for part in parts)
        assert all(part["global_shape"] == list(expected.shape) for part in parts)
        (start, middle), (middle_again, stop) = (part["slice"][0] for part in parts)
        assert (start, middle, stop) == (0, middle_again, expected.shape[0])
        whole = sum(recorded.tensor("sketch", kind="gradient", rank=rank, name=name) for rank in range(2))
        torch.testing.assert_close(whole, sketch(expected, name), rtol=1e-4, atol=1e-6)
    assert recorded.step(1)["model"]["class"] == "PlainLM"
    squares = sum(entry["stats"]["norm"] ** 2 for entry in recorded.entries(kind="gradient"))
    for rank in range(2):
        (clip,) = recorded.step(1, rank=rank)["clips"]
        assert clip["total_norm"] == pytest.approx(squares**0.5, rel=1e-6)
        assert clip["factor_error"] < 1e-6
