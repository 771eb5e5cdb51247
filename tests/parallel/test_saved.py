"""checkpoint.roundtrip over two ranks: what both hold together is what the file holds, and what both load."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from checks.captures.capture import Capture, open_capture
from checks.lifecycle import checkpoint_roundtrip
from checks.material import Material, RunOutcome
from checks.parallel.scope import why_not_over_ranks
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.parallel.making import Held, RankPart, cut, make_capture

LARGE, SMALL = "model.layers.0.mlp.down_proj.weight", "model.norm.weight"
RECORDED = {"parameter_before": ("sketch", "sample", "row_norms"), "optimizer_state_before": ("sample",)}
SPEC = RunSpec("automodel", Path("m"), Path("d"), steps=2, dp_size=2, sharding="fsdp2")


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHTS = {LARGE: draw(128, 64, seed=1), SMALL: draw(6, seed=2)}
MOMENTS = {LARGE: draw(128, 64, seed=3), SMALL: draw(6, seed=4)}


def hold(rank: int) -> tuple[Held, ...]:
    """What one of two ranks records before a step: half of each weight and moment, and the count of steps whole."""
    found = []
    for kind, wholes, field in (("parameter_before", WEIGHTS, None), ("optimizer_state_before", MOMENTS, "exp_avg")):
        for name, whole in wholes.items():
            half = whole.shape[0] // 2
            where = [(rank * half, (rank + 1) * half), *((0, size) for size in whole.shape[1:])]
            kept = RECORDED[kind] if name == LARGE else ("full",)
            found.append(cut(whole, name, where, kind=kind, field=field, kept=kept, placement={"dp": "shard"}))
    steps = Held(LARGE, torch.tensor(1.0), kind="optimizer_state_before", field="step", kept=("full",))
    return (*found, steps)


def save(moments: dict[str, torch.Tensor]) -> tuple[Held, ...]:
    """What is read of the checkpoint."""
    weights = tuple(Held(name, whole, kind="checkpoint") for name, whole in WEIGHTS.items())
    states = tuple(Held(name, whole, kind="checkpoint_state", field="exp_avg") for name, whole in moments.items())
    return (*weights, *states, Held(LARGE, torch.tensor(1.0), kind="checkpoint_state", field="step"))


def judge(tmp_path: Path, moments: dict[str, torch.Tensor], *, ranks: tuple[int, ...] = (0, 1)) -> Verdict:
    """Two ranks save after step 1 of 2, the file holds `moments`, and `ranks` are recorded when they load it."""
    run = make_capture(tmp_path / "run", [RankPart(rank, hold(rank), steps=(2,)) for rank in (0, 1)])
    loaded = [RankPart(rank, (*hold(rank), *(save(moments) if rank == 0 else ()))) for rank in ranks]
    resumed = describe_checkpoint(make_capture(tmp_path / "resumed", loaded))
    outcomes = [RunOutcome("completed", 0, 1.0, None, capture, None) for capture in (run, resumed)]
    return checkpoint_roundtrip.judge(Material(SPEC, outcomes[0], {Role.RESUMED: outcomes[1]}))


def describe_checkpoint(capture: Capture) -> Capture:
    """State the checkpoint in the manifest; its tensors belong to no step."""
    file = capture.path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["checkpoints"] = [{"directory": "/runs/epoch_0_step_0/model/consolidated"}]
    for entry in manifest["tensors"]:
        if entry["kind"].startswith("checkpoint"):
            entry["step"] = 0
    file.write_text(json.dumps(manifest))
    return open_capture(capture.path)


def test_what_two_ranks_hold_together_is_saved_and_loaded_bit_by_bit(tmp_path: Path) -> None:
    verdict = judge(tmp_path, MOMENTS)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "2 parameters and 3 optimizer states are saved as the run held them, and 2 parameters are loaded as saved"
    )
    assert {m.name: m.value for m in verdict.measurements if "state" in m.name} == {
        "largest difference of a saved optimizer state": 0.0
    }


def test_a_moment_that_is_altered_in_the_second_ranks_half_is_named(tmp_path: Path) -> None:
    altered = MOMENTS[LARGE].clone()
    altered[64:] *= 1.02
    verdict = judge(tmp_path, {**MOMENTS, LARGE: altered})
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.STATE_TRANSFER)
    assert verdict.first_wrong == f"exp_avg of {LARGE}"
    assert verdict.sentence.startswith(f"exp_avg of {LARGE} is saved wrong: differs from the run's by 0.01")


def test_a_rank_that_left_no_record_leaves_it_open(tmp_path: Path) -> None:
    verdict = judge(tmp_path, MOMENTS, ranks=(0,))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the run that is saved and resumed: 1 of 2 ranks left a record"


def test_only_layouts_that_were_measured_are_saved_and_taken_up_again_by_several_ranks() -> None:
    assert why_not_over_ranks("checkpoint.roundtrip", SPEC) is None
    for axis in ("tp_size", "pp_size", "ep_size"):
        assert why_not_over_ranks("checkpoint.resume", RunSpec("automodel", Path("m"), Path("d"), **{axis: 2})) is None
    for spec in (
        RunSpec("automodel", Path("m"), Path("d"), dp_size=2, sharding="ddp"),
        RunSpec("transformers", Path("m"), Path("d"), dp_size=2, sharding="fsdp2"),
    ):
        assert str(why_not_over_ranks("checkpoint.roundtrip", spec)).startswith("the run is of 2 processes and this ch")
    assert why_not_over_ranks("step.loss", SPEC) is not None
