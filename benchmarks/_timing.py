"""Ratios of times that survive a busy machine: interleaved rounds, processor time, minimum, median and maximum."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of some rounds' figures."""

    minimum: float
    median: float
    maximum: float

    def __str__(self) -> str:
        return f"min {self.minimum:.3f}  median {self.median:.3f}  max {self.maximum:.3f}"


def spread(values: list[float]) -> Spread:
    """Return minimum, median and maximum of the values."""
    return Spread(min(values), statistics.median(values), max(values))


def processor_seconds(action: Callable[[], object]) -> float:
    """Return the processor time that an action takes in this process, system time included, in seconds."""
    start = time.process_time()
    action()
    return time.process_time() - start


def interleave(actions: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each action reports, one figure a round; each round runs every action once, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            seconds[name].append(action())
    return seconds


def ratios(seconds: list[float], base: list[float]) -> list[float]:
    """Return, round by round, the ratio of one action's time to another's."""
    return [one / other for one, other in zip(seconds, base, strict=True)]
