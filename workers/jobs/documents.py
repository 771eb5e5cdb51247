"""What passes between a worker and its computing process: JSON documents, and how values are read back from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from checks.captures.capture import open_capture
from checks.errors import CaptureError
from checks.material import RunOutcome
from checks.spec import LISTS, RunSpec

_PATHS = ("model", "data")


def read_spec(document: Mapping[str, Any]) -> RunSpec:
    """The run spec from what `to_plain` made of it."""
    known = {field.name for field in fields(RunSpec)}
    values = {name: value for name, value in document.items() if name in known}
    for name in _PATHS:
        values[name] = Path(values[name])
    if values.get("synced") is not None:
        values["synced"] = Path(values["synced"])
    values |= {name: tuple(values[name]) for name in LISTS if name in values}
    return RunSpec(**values)


@dataclass(frozen=True)
class StoredOutcome:
    """How one framework run ended, with the directory of its capture."""

    ending: str
    exit_code: int | None
    seconds: float
    last_error: str | None
    last_output: str
    capture: str | None
    """directory; None where there is no capture, and `unreadable` says why"""
    unreadable: str | None

    def open(self) -> RunOutcome:
        """The outcome as judges read it."""
        capture, unreadable = None, self.unreadable
        if self.capture is not None:
            try:
                capture = open_capture(Path(self.capture))
            except CaptureError as error:
                unreadable = str(error)
        return RunOutcome(
            ending=self.ending,
            exit_code=self.exit_code,
            seconds=self.seconds,
            last_error=self.last_error,
            capture=capture,
            unreadable=unreadable,
            last_output=self.last_output,
        )


@dataclass(frozen=True)
class ReferenceOrder:
    """Compute the references of a run's captured steps into `references`, a directory of `ReferenceStore`."""

    spec: Mapping[str, Any]
    revision: str
    run: StoredOutcome
    references: str


@dataclass(frozen=True)
class ReferenceAnswer:
    """`used`: step → key; `held`: steps that were stored already; `none`: step → why there is no reference."""

    used: Mapping[str, str]
    held: Sequence[str]
    none: Mapping[str, str]


@dataclass(frozen=True)
class StoredPass:
    """A further pass that was run to trace a failure; `capture` is None where it recorded nothing."""

    label: str
    capture: str | None


@dataclass(frozen=True)
class JudgeOrder:
    """Judge `checks` on stored captures and references, with the passes that have been run since."""

    spec: Mapping[str, Any]
    revision: str
    checks: Sequence[str] | None
    runs: Mapping[str, StoredOutcome]
    """by role"""
    references: str
    passes: Sequence[StoredPass]
    pushed: bool = False
    """the capture was recorded elsewhere: no further run can be made for it"""


@dataclass(frozen=True)
class JudgeAnswer:
    """`verdicts`: as docs/json.md describes them, in reading order. `wanted`: the pass to run before judging again."""

    verdicts: Sequence[Mapping[str, Any]]
    wanted: Mapping[str, Any] | None
    packages: Mapping[str, str]
    warnings: Sequence[str]


def read_judge_order(document: Mapping[str, Any]) -> JudgeOrder:
    runs = {role: StoredOutcome(**outcome) for role, outcome in document["runs"].items()}
    passes = [StoredPass(**entry) for entry in document["passes"]]
    return JudgeOrder(**{**document, "runs": runs, "passes": passes})


def read_reference_order(document: Mapping[str, Any]) -> ReferenceOrder:
    return ReferenceOrder(**{**document, "run": StoredOutcome(**document["run"])})
