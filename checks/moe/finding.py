"""What one part of `step.moe` found."""

from __future__ import annotations

from dataclasses import dataclass, field

from checks.verdict import Measurement, Pattern


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: in words, with its pattern and where it is."""

    sentence: str
    pattern: Pattern
    where: str


@dataclass(frozen=True)
class Part:
    """`said`: what was compared, for the sentence of a pass; `open_questions`: what could not be, and why."""

    measurements: tuple[Measurement, ...] = ()
    problems: tuple[Problem, ...] = ()
    said: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, object] = field(default_factory=dict)
