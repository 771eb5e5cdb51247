"""step.scaler on a recorded loop whose second of five attempts overflows, and on edited records of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.architecture import step_scaler
from checks.captures.capture import open_capture
from checks.captures.scaling import Attempt, read_attempts
from checks.errors import BadRequest
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.references.model import AUTOCAST, PARAMETER_DTYPES
from checks.samples import resolve_data
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.capture.plain_lm import PlainLM
from tests.capture.running import Recorded, run_plain, run_recorded
from workers.frameworks import adapter
from workers.frameworks.trainer import build_arguments

SCRIPT = ("-m", "tests.capture.scaled_lm")
SPEC = RunSpec("plain", Path("model"), Path("data"), schedule="linear", lr=1e-2, steps=5, precision="fp16")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("scaled") / "capture"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])
        done = run_recorded(out, sys.executable, *SCRIPT, options=("--steps", "1,2,4", "--full"))
        plain = run_plain(sys.executable, *SCRIPT)
    assert done.code == 0, done.stderr[-2000:]
    assert done.stdout == plain.stdout
    return done


@pytest.fixture
def judge(recorded: Recorded, tmp_path: Path) -> Callable[..., Verdict]:
    """Judge the record after `edit` has changed its attempts."""

    def run(edit: Callable[[list[dict[str, Any]]], object] = lambda attempts: None, **spec: Any) -> Verdict:
        manifest = json.loads((recorded.out / "manifest.json").read_text())
        attempts = manifest["ranks"][0]["scaling"]
        edit(attempts)
        for file in recorded.out.glob("*.safetensors"):
            if not (tmp_path / file.name).exists():
                os.link(file, tmp_path / file.name)
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        outcome = RunOutcome("completed", 0, 1.0, None, open_capture(tmp_path), None)
        return step_scaler.judge(Material(replace(SPEC, **spec), outcome, total_steps=5))

    return run


def test_attempts_are_recorded_with_what_became_of_them(recorded: Recorded) -> None:
    attempts = read_attempts(open_capture(recorded.out))
    assert [(a.step, a.stepped, a.found_inf) for a in attempts] == [
        (1, True, 0.0),
        (2, False, 1.0),
        (2, True, 0.0),
        (3, True, 0.0),
        (4, True, 0.0),
    ]
    assert [a.scale for a in attempts] == [16.0, 16.0, 8.0, 8.0, 16.0]
    assert [a.next_scale for a in attempts] == [16.0, 8.0, 8.0, 16.0, 16.0]
    assert [(a.clips_before, a.clips_after) for a in attempts] == [(0, 1)] * 5
    assert [a.rate for a in attempts] == pytest.approx([1e-2, 8e-3, 8e-3, 6e-3, 4e-3])


def test_a_skipped_step_is_no_step_and_what_was_recorded_of_it_is_dropped(recorded: Recorded) -> None:
    assert recorded.manifest["missing"] == []
    for step in (1, 2, 4):
        micro_batches = recorded.step(step)["micro_batches"]
        assert [micro["index"] for micro in micro_batches] == [0, 1]
        assert {micro["loss_scale"] for micro in micro_batches} == {16.0 if step != 2 else 8.0}
        assert len(recorded.step(step)["clips"]) == 1


def test_the_scalar_is_told_without_its_scale_and_gradients_are_the_unscaled_ones(recorded: Recorded) -> None:
    capture = open_capture(recorded.out)
    micro = capture.micro_batches(1)[0]
    losses = recorded.tensor("full", kind="token_loss", step=1, micro_batch=0)
    assert micro.loss_scale == 16.0
    assert micro.backward == pytest.approx(float(losses.sum() / (losses != 0).sum()) / 2, rel=1e-3)
    squares = [record.norm**2 for record in capture.tensors(1, "gradient").values()]
    (clip,) = capture.step(1).clips
    assert clip.total_norm == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    assert len(squares) == len(list(PlainLM().parameters()))


def test_the_loop_passes_and_the_page_shows_every_attempt(judge: Callable[..., Verdict]) -> None:
    verdict = judge()
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "5 attempts at an update, 1 of them skipped, each with an infinity; the scale goes from 16 to 16 as its "
        "factors say, and clipping sees unscaled gradients"
    )
    assert [row["taken"] for row in verdict.evidence["attempts"]] == ["yes", "skipped", "yes", "yes", "yes"]
    scale, lost = verdict.evidence["plots"][0]["curves"]
    assert scale["y"] == [16.0, 16.0, 8.0, 8.0, 16.0]
    assert lost["y"] == [None, 16.0, None, None, None]
    assert [m.value for m in verdict.measurements] == [0.0, 0.0, 0.0, 0.0]


def test_without_an_overflow_it_says_that_no_step_had_to_be_skipped(judge: Callable[..., Verdict]) -> None:
    verdict = judge(lambda attempts: attempts.__delitem__(slice(1, None)))
    assert verdict.status is Status.PASS
    assert "none of them with an infinity, so that no step had to be skipped" in verdict.sentence


def clip_early(attempts: list[dict[str, Any]]) -> None:
    attempts[2]["clips"] = {"before_unscale": 1, "after_unscale": 0}


def take_the_overflow(attempts: list[dict[str, Any]]) -> None:
    attempts[1]["stepped"] = True
    attempts[2]["rates"], attempts[3]["rates"], attempts[4]["rates"] = [6e-3], [4e-3], [2e-3]


def skip_without_reason(attempts: list[dict[str, Any]]) -> None:
    attempts[3]["stepped"] = False
    attempts[4]["rates"] = attempts[3]["rates"]


def look_for_nothing(attempts: list[dict[str, Any]]) -> None:
    attempts[0]["found_inf"] = None


def keep_the_scale(attempts: list[dict[str, Any]]) -> None:
    attempts[1]["next_scale"] = 16.0


def grow_early(attempts: list[dict[str, Any]]) -> None:
    attempts[0] |= {"next_scale": 32.0, "next_growth_tracker": 0}


def forget_to_count(attempts: list[dict[str, Any]]) -> None:
    attempts[0]["next_growth_tracker"] = 0


def advance_on_the_skipped(attempts: list[dict[str, Any]]) -> None:
    attempts[2]["rates"] = [6e-3]


@pytest.mark.parametrize(
    ("edit", "where", "pattern", "sentence"),
    [
        (clip_early, "clipping before unscaling", Pattern.OBJECTIVE_SCALE, "at step 2 gradients are clipped while"),
        (take_the_overflow, "skipped steps", Pattern.OBJECTIVE_SCALE, "step 2 was taken although its gradients hold"),
        (skip_without_reason, "skipped steps", Pattern.OBJECTIVE_SCALE, "step 3 was skipped although all its"),
        (look_for_nothing, "skipped steps", Pattern.OBJECTIVE_SCALE, "at step 1 nobody looked for infinities"),
        (
            keep_the_scale,
            "loss scale",
            Pattern.PRECISION,
            "by its definition 8 and 0, for an infinity was found with 16",
        ),
        (grow_early, "loss scale", Pattern.PRECISION, "by its definition 16 and 1, for no infinity was found with 16"),
        (forget_to_count, "loss scale", Pattern.PRECISION, "the scale is 16 and 0 steps count for its growth"),
        (
            advance_on_the_skipped,
            "learning rate after a skipped step",
            Pattern.OBJECTIVE_SCALE,
            "after 1 updates the rate is 0.006, and the schedule gives 0.008 for the next",
        ),
    ],
)
def test_each_wrong_reaction_is_named(
    judge: Callable[..., Verdict], edit: Callable[..., None], where: str, pattern: Pattern, sentence: str
) -> None:
    verdict = judge(edit)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, where, pattern)
    assert sentence in verdict.sentence


def test_a_rate_is_judged_at_a_millionth_and_only_where_a_step_was_skipped(judge: Callable[..., Verdict]) -> None:
    def off_by(factor: float) -> Callable[[list[dict[str, Any]]], None]:
        return lambda attempts: attempts[2].update(rates=[8e-3 * (1.0 + factor)])

    assert judge(off_by(0.9e-6)).status is Status.PASS
    assert judge(off_by(1.1e-6)).status is Status.FAIL

    def without_the_skipped(attempts: list[dict[str, Any]]) -> None:
        off_by(0.5)(attempts)
        del attempts[1]

    assert judge(without_the_skipped).status is Status.PASS


def test_a_scale_that_the_caller_sets_is_his() -> None:
    attempt = Attempt(1, True, False, 0, 1, 0.1, 0.0, 16.0, 1, 4.0, 1, 4.0, 2.0, 0.5, 2)
    assert step_scaler.follow(attempt) == (4.0, 1)
    assert step_scaler.follow(replace(attempt, set_to=None)) == (32.0, 0)
    assert step_scaler.follow(replace(attempt, set_to=None, tracker=0)) == (16.0, 1)
    assert step_scaler.follow(replace(attempt, set_to=None, found_inf=2.0)) == (8.0, 0)
    largest = float(torch.finfo(torch.float32).max)
    assert step_scaler.follow(replace(attempt, set_to=None, scale=largest)) == (largest, 0)  # as torch has it


def test_without_a_scaler_it_is_skipped_unless_fp16_was_asked(judge: Callable[..., Verdict]) -> None:
    verdict = judge(lambda attempts: attempts.clear(), precision="bf16")
    assert verdict.status is Status.SKIPPED
    verdict = judge(lambda attempts: attempts.clear())
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, "loss scale", Pattern.PRECISION)


def test_a_fused_optimizer_and_an_unreadable_record_are_inconclusive(judge: Callable[..., Verdict]) -> None:
    verdict = judge(lambda attempts: attempts[0].update(fused=True))
    assert verdict.status is Status.INCONCLUSIVE
    assert "inside of its kernel" in verdict.sentence
    verdict = judge(lambda attempts: attempts[0].pop("scale"))
    assert verdict.status is Status.INCONCLUSIVE
    assert "misstates the field 'scale' of its loss scaling" in verdict.sentence
    nothing = RunOutcome("failed", 1, 1.0, None, None, "the recorder wrote no capture")
    assert step_scaler.judge(Material(SPEC, nothing)).status is Status.INCONCLUSIVE


def test_fp16_is_asked_of_the_trainer_and_of_the_plain_loop_on_one_process_only() -> None:
    spec = RunSpec("plain", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"), precision="fp16")
    adapter("plain").check(spec)
    with pytest.raises(BadRequest) as refused:
        adapter("plain").check(replace(spec, dp_size=2, sharding="ddp"))
    assert str(refused.value) == (
        "precision: the plain loop's ranks do not tell each other of an overflow, so that some would skip a step "
        "alone; set all degrees to 1 with fp16."
    )
    arguments = build_arguments(spec, output=Path("out"))
    assert (arguments["fp16"], arguments["bf16"]) == (True, False)
    assert (AUTOCAST["fp16"], PARAMETER_DTYPES["fp16"]) == (torch.float16, torch.float32)
