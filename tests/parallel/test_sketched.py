"""Two FSDP2 ranks that sketch their shards give the verdict, and the figures, of whole tensors on one rank."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plumbline_capture.represent import keep_tensor
from plumbline_capture.settings import Settings
from plumbline_capture.state import Recorder
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode

from checks.captures.capture import Capture, open_capture
from checks.material import Material
from checks.parallel import parallel_gradients
from checks.roles import Role
from checks.verdict import Measurement, Pattern, Status, Verdict
from tests.parallel.conftest import Divided

EMBEDDING = "model.embed_tokens.weight"
WITHIN = 0.03
"""A sketch of 4,093 sums tells a norm within 1.1 % (docs/tolerance.md): three deviations, of 25 tensors."""


@pytest.fixture(scope="module")
def healthy(divided: Divided) -> Material:
    """The run of two FSDP2 ranks and that of one process, both with whole tensors beside their sketches."""
    return divided.material("fsdp2")


def scale_shard(capture: Capture, out: Path, factor: float) -> Capture:
    """The capture as rank 1 would have recorded it, had it scaled its shard of the embedding's gradient."""
    shutil.copytree(capture.path, out)
    manifest = json.loads((out / "manifest.json").read_text())
    (entry,) = (e for e in manifest["tensors"] if (e["kind"], e["name"], e["rank"]) == ("gradient", EMBEDDING, 1))
    with safe_open(out / entry["file"], "pt") as file:
        scaled = {key: file.get_tensor(key) * factor for key in entry["representations"].values()}
    save_file(scaled, out / "scaled.safetensors")
    entry["file"] = "scaled.safetensors"
    entry["stats"] |= {name: factor * entry["stats"][name] for name in ("mean", "rms", "norm", "min", "max")}
    size = (out / "scaled.safetensors").stat().st_size
    manifest["files"].append({"path": "scaled.safetensors", "rank": 1, "step": 1, "bytes": size, "sha256": ""})
    (out / "manifest.json").write_text(json.dumps(manifest))
    return open_capture(out)


def keep_sketches(capture: Capture, out: Path) -> Capture:
    """What the recorder keeps of large tensors, of all of them: no rank's part of a parameter is there whole."""
    shutil.copytree(capture.path, out)
    manifest = json.loads((out / "manifest.json").read_text())
    for entry in manifest["tensors"]:
        if len(entry["representations"]) > 1:
            entry["representations"].pop("full", None)
    (out / "manifest.json").write_text(json.dumps(manifest))
    return open_capture(out)


def swap(material: Material, change: Callable[[Capture, str], Capture], *, single: bool) -> Material:
    """The material with another capture of the asked run, and of that of one process too if `single`."""
    assert material.capture is not None
    run = replace(material.run, capture=change(material.capture, "run"))
    others = dict(material.others)
    if single:
        alone = others[Role.SINGLE]
        assert alone.capture is not None
        others[Role.SINGLE] = replace(alone, capture=change(alone.capture, "single"))
    return replace(material, run=run, others=others)


def figures(verdict: Verdict) -> dict[str, Measurement]:
    return {measurement.name: measurement for measurement in verdict.measurements}


@pytest.mark.parametrize("factor", [None, 1.02])
def test_sketches_of_two_ranks_give_the_verdict_and_the_figures_of_whole_tensors(
    healthy: Material, tmp_path: Path, factor: float | None
) -> None:
    whole = healthy
    if factor is not None:
        whole = swap(
            whole, lambda capture, name: scale_shard(capture, tmp_path / f"scaled-{name}", factor), single=False
        )
    sketched = swap(whole, lambda capture, name: keep_sketches(capture, tmp_path / name), single=True)
    full, bare = parallel_gradients.judge(whole), parallel_gradients.judge(sketched)
    assert (bare.status, bare.pattern, bare.first_wrong) == (full.status, full.pattern, full.first_wrong)
    assert bare.evidence["ranks"] == full.evidence["ranks"]
    ours, theirs = figures(bare), figures(full)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name].holds is not theirs[name].holds] == []
    gradients = [name for name in ours if name.endswith(".weight")]
    assert len(gradients) == 25
    large = {
        record.name
        for record in whole.others[Role.SINGLE].capture.tensors(1, "gradient").values()  # type: ignore[union-attr]
        if math.prod(record.global_shape) > 4096
    }
    for name in gradients:
        assert ours[name].value == pytest.approx(theirs[name].value, rel=WITHIN if name in large else 1e-3), name
    # The scale that all tensors have in common is a quotient of inner products, told within 3 % of the largest error.
    scales = [figure["pooled scale"].value for figure in (ours, theirs)]
    assert abs(scales[0] - scales[1]) < WITHIN * max(theirs[name].value for name in gradients)
    if factor is None:
        assert full.status is Status.PASS
        assert max(ours[name].value for name in gradients) < 1e-6
        return
    assert (bare.status, bare.pattern) == (Status.FAIL, Pattern.PARALLELISM)
    assert bare.evidence["ranks"] == [1]
    assert [name for name in gradients if not ours[name].holds] == [EMBEDDING]
    shards = healthy.capture.tensors(1, "gradient", rank=1), healthy.capture.tensors(1, "gradient", rank=0)  # type: ignore[union-attr]
    mine, other = (shard[EMBEDDING].norm for shard in shards)
    share = mine / math.hypot(mine, other)
    assert theirs[EMBEDDING].value == pytest.approx((factor - 1.0) * share, rel=1e-3)


def test_no_rank_keeps_more_of_a_parameter_than_its_own_part(healthy: Material) -> None:
    assert healthy.capture is not None
    for rank in (0, 1):
        for kind in ("gradient", "parameter_before", "parameter_after", "optimizer_state"):
            for record in healthy.capture.all_tensors(1, kind, rank=rank):
                if not record.global_shape:
                    continue
                part = tuple(stop - start for start, stop in record.where)
                assert record.representations["full"].shape == part
                assert math.prod(part) == math.prod(record.global_shape) // 2


@pytest.fixture
def second_of_two() -> Iterator[Any]:
    """A device mesh on which every collective is counted and none is answered: this process is rank 1 of two."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    finally:
        torch.distributed.destroy_process_group()


def test_a_shard_is_sketched_where_it_lies_without_any_communication(second_of_two: Any, tmp_path: Path) -> None:
    recorder = Recorder(Settings(out=str(tmp_path), steps=(1,)))
    local = torch.arange(32.0 * 300).view(32, 300)
    shard = DTensor.from_local(local, second_of_two, [Shard(0)], run_check=False)
    with CommDebugMode() as counted:
        entry = keep_tensor(recorder, shard, kind="gradient", name="w")
    assert counted.get_total_counts() == 0
    assert (entry.global_shape, entry.slice, entry.placement) == ([64, 300], [[32, 64], [0, 300]], {"dp": "shard"})
    with CommDebugMode() as counted:
        shard.full_tensor()
    assert counted.get_total_counts() == 1  # what gathering would have been
