"""The framework's run ends by itself, without an error, with finite numbers, and was recorded whole.

Reference: an identity (exit code 0; every recorded loss, gradient and parameter is finite).
Catches: crashes, hangs, out-of-memory, NaN and infinity, a run that never takes an optimizer step.
Cannot see: numbers that are finite and wrong.
Cost: nothing beyond the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from plumbline_capture.manifest import NOT_REACHED

from checks.captures.capture import Capture
from checks.captures.records import Missing
from checks.check import Check
from checks.material import Material, RunOutcome
from checks.verdict import Measurement, Status, Verdict

NAME = "run.completes"

ENDINGS = {
    "timed_out": "did not end within its time limit and was stopped",
    "out_of_memory": "went over its memory limit and was stopped",
    "cancelled": "was cancelled",
}


CALLED_AGAIN = "module of "
"""So begins the recorder's note of a module that ran twice in a micro-batch: the first call is kept, and compared."""


def judge(material: Material) -> Verdict:
    for outcome in (material.run, *material.others.values()):
        verdict = _judge_run(outcome, steps=material.spec.steps)
        if verdict.status is not Status.PASS:
            return verdict
    return _judge_run(material.run, steps=material.spec.steps)


def _judge_run(run: RunOutcome, *, steps: int) -> Verdict:
    evidence = {"ending": run.ending, "exit_code": run.exit_code, "last_output": run.last_output}
    if run.ending == "cancelled":
        return Verdict(NAME, Status.INCONCLUSIVE, "the run was cancelled before it ended", evidence=evidence)
    if run.ending != "completed" or run.exit_code != 0:
        how = ENDINGS.get(run.ending, f"ended with exit code {run.exit_code}")
        said = run.last_error or (f"last output: {run.last_output}" if run.last_output else "it printed nothing")
        return Verdict(
            NAME, Status.FAIL, f"the framework's run {how} after {run.seconds:.0f} s ({said})", evidence=evidence
        )
    if run.capture is None:
        why = run.unreadable or "no optimizer step was seen"
        # The launcher writes a manifest whatever the framework does: without one, it is the recording that failed.
        return Verdict(NAME, Status.INCONCLUSIVE, f"the run ended without a usable capture: {why}", evidence=evidence)
    lost = [note for note in run.capture.missing if note.why != NOT_REACHED]
    if not run.capture.steps and lost:
        # A full disk, say: nothing is known of what the framework did.
        sentence = f"the run ended, but none of its steps was recorded ({_describe_lost(lost)})"
        return Verdict(NAME, Status.INCONCLUSIVE, sentence, evidence=evidence)
    if not run.capture.steps:
        return Verdict(NAME, Status.FAIL, "the run ended without taking an optimizer step", evidence=evidence)
    nonfinite = _nonfinite(run.capture)
    if nonfinite:
        sentence = f"{len(nonfinite)} recorded values are not finite, first {nonfinite[0]}"
        return Verdict(
            NAME, Status.FAIL, sentence, first_wrong=nonfinite[0], evidence=evidence | {"nonfinite": nonfinite}
        )
    lost = [note for note in run.capture.missing if not note.what.startswith(CALLED_AGAIN)]
    if lost:
        sentence = f"the run ended but was not recorded whole ({_describe_lost(lost)})"
        return Verdict(NAME, Status.INCONCLUSIVE, sentence, evidence=evidence)
    count = sum(len(run.capture.tensors(step, "gradient")) for step in run.capture.steps)
    numbers = (Measurement("non-finite values", 0.0, 0.0, True, unit="count"),)
    sentence = f"ended with exit code 0 after {run.seconds:.0f} s; {count} gradients recorded, all finite"
    return Verdict(NAME, Status.PASS, sentence, numbers, evidence=evidence)


def _describe_lost(missing: Sequence[Missing]) -> str:
    return "; ".join(
        f"{note.what}: {note.why}" if note.step is None else f"{note.what} of step {note.step}: {note.why}"
        for note in missing[:3]
    )


def _nonfinite(capture: Capture) -> list[str]:
    """Names of recorded tensors and scalars that hold a NaN or an infinity, in order of step."""
    found = []
    for step in capture.steps:
        for micro in capture.micro_batches(step):
            for label, value in (("model loss", micro.model_loss), ("back-propagated loss", micro.backward)):
                if value is not None and not abs(value) < float("inf"):
                    found.append(f"{label} of micro-batch {micro.index}, step {step}")
        for kind in ("gradient", "parameter_after"):
            found += [f"{kind} {n}, step {step}" for n, r in capture.tensors(step, kind).items() if r.nonfinite]
    return found


CHECK = Check(NAME, "the run ends by itself, with finite numbers, recorded whole", __doc__ or "", judge)
