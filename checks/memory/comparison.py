"""What a comparison of measured and implied memory gives: numbers with their thresholds, and findings."""

from __future__ import annotations

from dataclasses import dataclass

from checks.memory.measured import Group
from checks.verdict import Measurement, Pattern


@dataclass(frozen=True)
class Finding:
    """`where`: the module, or the thing, that takes the memory."""

    where: str
    sentence: str
    pattern: Pattern = Pattern.MODEL_DEFINITION


@dataclass(frozen=True)
class Comparison:
    """All that was compared, and what was found."""

    measurements: tuple[Measurement, ...]
    findings: tuple[Finding, ...]


def measure(name: str, value: int, threshold: float) -> Measurement:
    return Measurement(name, float(value), float(threshold), value <= threshold, limit=threshold + 1, unit="bytes")


def name_place(group: Group) -> str:
    return group.module or group.caller or f"the {group.phase} phase"
