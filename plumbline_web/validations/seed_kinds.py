"""The ways in which made-up validations end, and what each check says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from checks import verdict as verdicts
from checks.registry import CHECKS, DEFAULT_CHECKS
from checks.verdict import Measurement, Verdict
from plumbline_web.validations.enums import State, Status
from workers.report.as_json import to_plain


@dataclass(frozen=True)
class Fault:
    """Which checks a fault makes fail, and what they say."""

    checks: tuple[str, ...]
    pattern: str
    sentence: str
    first_wrong: str


FAULTS = (
    Fault(
        ("step.loss", "step.denominator", "step.gradients"),
        "objective-scale",
        "the loss is divided by 336, and 335 tokens count in the step",
        "loss denominator",
    ),
    Fault(("step.loss", "step.gradients"), "loss-mask", "the targets are shifted twice", "labels"),
    Fault(("step.settings",), "model-definition", "eps is 1e-05 where the config says 1e-06", "model.norm.eps"),
    Fault(
        ("step.gradients",), "precision", "gradients differ from layer 1 down to the input", "model.layers.1.self_attn"
    ),
    Fault(("data.packing",), "sequence-length", "differs from the second packed document on", "position_ids"),
    Fault(("step.update",), "objective-scale", "norms are decayed, which the optimizer's groups exclude", "model.norm"),
)


@dataclass(frozen=True)
class Kind:
    """One way in which validations end, and how often."""

    outcome: State | Status
    weight: float
    fault: Fault | None = None
    packing: bool = False

    def status_of(self, check: str) -> Status:
        """An inconclusive or broken validation has its one odd verdict at step.update."""
        if self.fault is not None and check in self.fault.checks:
            return Status.FAIL
        if check == "data.packing" and not self.packing:
            return Status.SKIPPED
        if check == "step.update" and self.outcome in (Status.INCONCLUSIVE, Status.ERROR):
            return Status(self.outcome)
        return Status.PASS


KINDS = (
    Kind(Status.PASS, 0.60),
    Kind(Status.PASS, 0.20, packing=True),
    *(Kind(Status.FAIL, 0.02, fault=fault, packing="data.packing" in fault.checks) for fault in FAULTS),
    Kind(Status.INCONCLUSIVE, 0.05),
    Kind(Status.ERROR, 0.01),
    Kind(State.CANCELLED, 0.02),
    Kind(State.FAILED, 0.01),
    # the newest few, and no others
    Kind(State.QUEUED, 0.0),
    Kind(State.RUNNING, 0.0),
)

SENTENCES = {
    Status.SKIPPED: "the run does not pack (packing=false)",
    Status.INCONCLUSIVE: "the learning rate is 0 at every captured step; set steps=4",
    Status.ERROR: "Plumbline's judge broke; report this with the JSON output",
}


def count_statuses(kind: Kind) -> tuple[int, ...]:
    """passed, failed, inconclusive, errors, skipped."""
    if not isinstance(kind.outcome, Status):
        return (0,) * len(Status)
    found = [kind.status_of(name) for name in DEFAULT_CHECKS]
    return tuple(found.count(status) for status in Status)


def judge(number: int, kind: Kind) -> Iterator[tuple[Any, ...]]:
    """Rows of `seeded_verdicts`: every check's verdict, with a document as docs/json.md has it."""
    for position, name in enumerate(DEFAULT_CHECKS):
        status = kind.status_of(name)
        fault = kind.fault if kind.fault is not None and status == Status.FAIL else None
        sentence = fault.sentence if fault else SENTENCES.get(status, f"agrees: {CHECKS[name].claim}")
        value = 3e-3 if fault else 2e-7
        verdict = Verdict(
            check=name,
            status=verdicts.Status(status.value),
            sentence=sentence,
            measurements=(Measurement("pooled scale", value, 1e-6, fault is None, floor=1e-7, limit=1.1e-6),),
            detection_limits={"lm_head": 3.5e-4},
            pattern=verdicts.Pattern(fault.pattern) if fault else None,
            first_wrong=fault.first_wrong if fault else None,
            elapsed_s=0.01,
        )
        document = json.dumps(to_plain(verdict) | {"detection_limit": verdict.detection_limit})
        pattern, first_wrong = (fault.pattern, fault.first_wrong) if fault else ("", "")
        yield number, position, name, status, sentence, pattern, first_wrong, value, 1e-6, 3.5e-4, document
