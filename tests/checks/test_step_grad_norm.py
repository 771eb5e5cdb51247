"""step.grad_norm: the norm of all ranks' parts, what is left out of it by name, and what leaves it open."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checks.architecture import step_grad_norm
from checks.captures.capture import open_capture
from checks.captures.log import LogRecord, keep_log
from checks.material import Material, RunOutcome
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict
from tests.parallel.making import Held, RankPart, cut, make_capture

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
FLOOR = 2.0**-24 * (2.0 + math.log2(24))
"""of float32 and a largest gradient of 24 elements"""


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WHOLE = {EMBEDDING: draw(6, 4, seed=1), HEAD: draw(6, 4, seed=2), NORM: draw(4, seed=3)}
TRUE = math.sqrt(sum(float(value.double().norm()) ** 2 for value in WHOLE.values()))


def square(name: str, rows: slice = slice(None)) -> float:
    return float(WHOLE[name][rows].double().norm()) ** 2


def one_rank(norm: float | None) -> list[RankPart]:
    return [RankPart(0, tuple(Held(name, value) for name, value in WHOLE.items()), norm=norm)]


def two_ranks(norm: float | None) -> list[RankPart]:
    """Embedding and head divided by rows, the norm's weight on both."""
    found = []
    for rank in range(2):
        rows = [(3 * rank, 3 * rank + 3), (0, 4)]
        shards = tuple(cut(WHOLE[name], name, rows) for name in (EMBEDDING, HEAD))
        found.append(RankPart(rank, (*shards, Held(NORM, WHOLE[NORM])), norm=norm))
    return found


def judge(
    directory: Path, ranks: Sequence[RankPart], *, logged: float | None = None, ending: str = "completed"
) -> Verdict:
    capture = make_capture(directory / "run", ranks)
    if logged is not None:
        keep_log(capture.path, [LogRecord(1, 2.0, logged, None)])
    spec = RunSpec("plain", Path("model"), Path("data"), tp_size=len(ranks))
    return step_grad_norm.judge(Material(spec, RunOutcome(ending, 0, 1.0, None, capture, None)))


def test_the_norm_of_one_process_passes_with_its_limit(tmp_path: Path) -> None:
    verdict = judge(tmp_path, one_rank(TRUE), logged=TRUE)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith(
        f"the logged norm and the norm that rank 0 clips by at step 1 are that of the captured gradients, {TRUE:.6g}"
    )
    assert [each.name for each in verdict.measurements] == ["logged norm", "norm that rank 0 clips by"]
    assert verdict.measurements[0].floor == pytest.approx(FLOOR, rel=1e-12)
    assert verdict.measurements[0].threshold == pytest.approx(8.0 * FLOOR, rel=1e-12)
    assert verdict.detection_limits == {"gradient norm": pytest.approx(9.0 * FLOOR, rel=1e-12)}


@pytest.mark.parametrize(("factor", "status"), [(0.99, Status.PASS), (1.01, Status.FAIL)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_logged_norm_is_off_by_more_than_eight_floors_or_not(
    tmp_path: Path, factor: float, sign: float, status: Status
) -> None:
    logged = TRUE * (1.0 + sign * factor * 8.0 * FLOOR)
    assert judge(tmp_path, one_rank(None), logged=logged).status is status


def test_a_norm_without_one_parameter_names_it(tmp_path: Path) -> None:
    verdict = judge(tmp_path, one_rank(None), logged=math.sqrt(TRUE**2 - square(HEAD)))
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (
        Status.FAIL,
        Pattern.OBJECTIVE_SCALE,
        "gradient norm",
    )
    assert verdict.sentence.endswith(f"and the norm of the captured gradients is {TRUE:.6g}: lm_head is left out")


def test_ranks_whose_parts_together_have_the_norm_pass(tmp_path: Path) -> None:
    verdict = judge(tmp_path, two_ranks(TRUE))
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("the norm that ranks 0, 1 clip by at step 1 is")  # one norm, said once


def test_a_norm_that_counts_the_first_ranks_shards_alone_says_so(tmp_path: Path) -> None:
    lost = square(EMBEDDING, slice(3, 6)) + square(HEAD, slice(3, 6))
    verdict = judge(tmp_path, two_ranks(math.sqrt(TRUE**2 - lost)))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.PARALLELISM)
    assert verdict.sentence.endswith("the shards of embed_tokens and lm_head on every rank but the first are left out")


def test_a_norm_that_counts_copies_says_so(tmp_path: Path) -> None:
    verdict = judge(tmp_path, two_ranks(math.sqrt(TRUE**2 + square(NORM))))
    assert verdict.sentence.endswith(": norm is counted once for each rank that holds a copy")


def test_a_difference_that_no_part_makes_is_told_without_one(tmp_path: Path) -> None:
    verdict = judge(tmp_path, one_rank(2.0 * TRUE))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.endswith(f"the norm of the captured gradients is {TRUE:.6g}")


def test_a_nan_is_no_norm(tmp_path: Path) -> None:
    assert judge(tmp_path, one_rank(None), logged=math.nan).status is Status.FAIL


def test_what_was_printed_before_a_run_broke_off_is_too_coarse(tmp_path: Path) -> None:
    verdict = judge(tmp_path, one_rank(None), logged=9.0, ending="failed")
    assert verdict.status is Status.INCONCLUSIVE


def test_a_run_that_gives_no_norm_is_inconclusive_and_says_what_to_set(tmp_path: Path) -> None:
    verdict = judge(tmp_path, one_rank(None))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "the run clips by no norm that was recorded and logs none of step 1; set max_grad_norm above 0"
    )


def test_gradients_that_are_zero_tell_nothing(tmp_path: Path) -> None:
    zero = [RankPart(0, (Held(NORM, torch.zeros(4)),), norm=0.0)]
    assert judge(tmp_path, zero).sentence == "every gradient of step 1 is zero, so that the norm tells nothing"


@pytest.mark.parametrize("what", ["gradient", "name of decoder.layers.0.unknown.weight"])
def test_gradients_that_were_not_all_recorded_leave_it_open(tmp_path: Path, what: str) -> None:
    note = {"rank": 0, "step": 1, "what": what, "why": "the name map does not state it"}
    capture = make_capture(tmp_path / "run", one_rank(TRUE), missing=[note])
    spec = RunSpec("plain", Path("model"), Path("data"))
    verdict = step_grad_norm.judge(Material(spec, RunOutcome("completed", 0, 1.0, None, capture, None)))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        f"{what} was not recorded (the name map does not state it), so that the norm of all is not known; "
        "record the capture again"
    )


def test_partial_sums_that_were_recorded_as_sketches_leave_it_open(tmp_path: Path) -> None:
    halves = [
        RankPart(rank, (Held(NORM, WHOLE[NORM], placement={"dp": "partial"}, kept=("sketch",)),), norm=1.0)
        for rank in range(2)
    ]
    assert judge(tmp_path, halves).status is Status.INCONCLUSIVE


def test_lost_gradients_are_judged_by_the_reference_where_there_is_one(healthy: Material) -> None:
    assert step_grad_norm.judge(healthy).status is Status.PASS
    capture = healthy.capture
    assert capture is not None
    note = {"rank": 0, "step": 1, "what": "gradient", "why": "it was cut short"}
    manifest = {**capture.manifest, "missing": [note]}
    lost = replace(healthy, run=replace(healthy.run, capture=replace(capture, manifest=manifest)))
    verdict = step_grad_norm.judge(lost)
    assert verdict.status is Status.PASS
    assert "float64" in str(verdict.evidence["source"])


def test_a_capture_that_cannot_be_joined_is_inconclusive(tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "run", one_rank(TRUE))
    manifest = json.loads((capture.path / "manifest.json").read_text())
    manifest["ranks"] = []
    (capture.path / "manifest.json").write_text(json.dumps(manifest))
    spec = RunSpec("plain", Path("model"), Path("data"))
    outcome = RunOutcome("completed", 0, 1.0, None, open_capture(capture.path), None)
    assert step_grad_norm.judge(Material(spec, outcome)).sentence.startswith("no optimizer step of the run")
