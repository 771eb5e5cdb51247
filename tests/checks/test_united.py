"""What several ranks recorded of a step on completions, as of one process: on captures of real runs."""

from __future__ import annotations

import math
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checks.captures.capture import Capture, open_capture
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.parallel.scope import why_not_over_ranks
from checks.parallel.tensors import NotJoined
from checks.parallel.united import unite
from checks.references.kept import IGNORED
from checks.registry import CHECKS
from checks.samples import resolve_data
from checks.spec import RunSpec
from checks.verdict import Status
from tests.recorded.packing import ROOT
from workers.judging import judge


def recorded(case: str, directory: Path) -> Capture:
    with tarfile.open(ROOT / "miles" / f"{case}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return open_capture(directory / "run")


def read(capture: Capture, kind: str, index: int, name: str, *, rank: int = 0) -> torch.Tensor:
    value = capture.micro_batch_tensors(1, kind, index, rank=rank)[name].read("full")
    assert value is not None
    return value


def test_context_parallel_ranks_positions_and_shares_add_up(tmp_path: Path) -> None:
    divided = recorded("cp2_whitening", tmp_path)
    whole = unite(divided, processes=2, dp_size=1)
    assert (whole.ranks, whole.steps, len(whole.micro_batches(1))) == ((0,), (1,), 2)
    for index in range(2):
        target = read(whole, "target", index, "target")
        parts = [read(divided, "target", index, "target", rank=rank) for rank in (0, 1)]
        assert sum(int((part != IGNORED).sum()) for part in parts) == int((target != IGNORED).sum())
        assert int((target != IGNORED).sum()) == int(read(whole, "loss_input", index, "completion_mask").sum())
        losses = read(whole, "token_loss", index, "token_loss")
        assert bool((losses[target != IGNORED] > 0.0).all())
        assert not bool(losses[target == IGNORED].any())
        shares = [divided.micro_batches(1, rank=rank)[index].backward for rank in (0, 1)]
        assert whole.micro_batches(1)[index].backward == math.fsum(share for share in shares if share is not None)
        ids = read(whole, "batch", index, "input_ids")
        assert torch.equal(ids, read(divided, "batch", index, "input_ids"))
    rollout = {name: record.read("full") for name, record in whole.tensors(1, "rollout").items()}
    old, mask = rollout["old_per_token_logps"], rollout["completion_mask"]
    assert old is not None
    assert mask is not None
    assert torch.equal(old != 0.0, mask.bool())


def test_gradients_of_tensor_parallel_ranks_are_put_together_and_of_replicas_taken_once(tmp_path: Path) -> None:
    divided = recorded("tp2_grpo", tmp_path)
    gradients = unite(divided, processes=2, dp_size=1).tensors(1, "gradient")
    head, norm = gradients["lm_head.weight"], gradients["model.norm.weight"]
    parts = [divided.tensors(1, "gradient", rank=rank)["lm_head.weight"] for rank in (0, 1)]
    assert head.norm == pytest.approx(math.hypot(*(part.norm for part in parts)), rel=1e-12)
    assert head.where == tuple((0, size) for size in head.global_shape)
    sketches = [part.read("sketch") for part in parts]
    found = head.read("sketch")
    assert found is not None
    assert sketches[0] is not None
    assert sketches[1] is not None
    assert torch.allclose(found, sketches[0] + sketches[1])
    assert norm.norm == divided.tensors(1, "gradient")["model.norm.weight"].norm
    assert head.read("sample") is None


def test_one_process_is_its_own_whole_and_a_missing_rank_is_said(tmp_path: Path) -> None:
    divided = recorded("tp2_grpo", tmp_path)
    assert unite(divided, processes=1, dp_size=1) is divided
    with pytest.raises(NotJoined, match="2 of 4 ranks left a record"):
        unite(divided, processes=4, dp_size=1)


@pytest.mark.usefixtures("_shared_cache")
def test_a_material_says_why_its_ranks_have_no_whole(tmp_path: Path) -> None:
    outcome = RunOutcome("completed", 0, 0.0, None, recorded("tp2_grpo", tmp_path), None)
    model, data = resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample")
    material = Material(RunSpec("miles", model, data, objective="grpo", tp_size=4), outcome)
    assert material.whole is None
    assert material.why_not() == "2 of 4 ranks left a record"


@pytest.mark.usefixtures("_shared_cache")
def test_more_ranks_than_were_asked_for_are_nobodys_whole(tmp_path: Path) -> None:
    outcome = RunOutcome("completed", 0, 0.0, None, recorded("tp2_grpo", tmp_path), None)
    model, data = resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample")
    material = Material(RunSpec("plain", model, data), outcome)
    verdicts = judge([CHECKS[name] for name in ("run.completes", "step.update", "step.gradients")], material)
    assert verdicts["run.completes"].status is Status.PASS
    for name in ("step.update", "step.gradients"):
        assert verdicts[name].status is Status.INCONCLUSIVE
        assert verdicts[name].sentence.startswith(
            "2 processes were recorded in a run that was asked to have 1; say how they divide it: dp_size with"
        )
    asked = Material(RunSpec("plain", model, data, tp_size=2), outcome)
    assert asked.extra_ranks == ""


def test_a_run_that_has_no_run_of_one_process_beside_it_is_held_against_the_reference() -> None:
    spec = RunSpec("plain", Path(), Path(), dp_size=2, sharding="fsdp2")
    assert why_not_over_ranks("step.gradients", spec, alone=True) is None
    beside = str(why_not_over_ranks("step.gradients", spec))
    assert beside.endswith("parallel.gradients holds their step against a run of one process")
    alone = str(why_not_over_ranks("step.loss", spec, alone=True))
    assert alone.endswith("step.gradients holds what they made together against the reference")


def test_checks_of_a_step_on_completions_read_all_ranks_unless_these_are_data_parallel() -> None:
    spec = RunSpec("miles", Path(), Path(), objective="grpo", cp_size=2)
    assert why_not_over_ranks("step.advantages", spec) is None
    assert why_not_over_ranks("step.gradients", replace(spec, objective="sft")) is not None
    assert why_not_over_ranks("step.gradients", replace(spec, cp_size=1, dp_size=2)) is not None
    assert why_not_over_ranks("step.update", spec) is not None
