"""How numbers look in a report: three significant digits, and no more words than needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from checks.verdict import Measurement

DEFAULT_UNIT = "relative error"


def format_number(value: float) -> str:
    """Three significant digits; whole numbers whole.

    >>> format_number(0.000123456), format_number(77.0), format_number(float("inf"))
    ('1.23e-04', '77', 'inf')
    """
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 1e-2 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.2e}"


def format_seconds(seconds: float) -> str:
    """0.42 s, 12.3 s, 3 min 05 s."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def pick_largest(measurements: Sequence[Measurement]) -> Measurement | None:
    """The measurement that is nearest to its threshold or farthest beyond; one that does not hold before any other."""
    return max(measurements, key=lambda each: (not each.holds, _read_ratio(each)), default=None)


def _read_ratio(measurement: Measurement) -> float:
    if math.isnan(measurement.value):
        return math.inf
    if measurement.threshold == 0:
        return 0.0 if measurement.value == 0 else math.inf
    return abs(measurement.value / measurement.threshold)


def format_measurement(measurement: Measurement | None) -> str:
    """value / threshold, with the unit where it is not the usual one."""
    if measurement is None:
        return "–"
    unit = "" if measurement.unit == DEFAULT_UNIT else f" {measurement.unit}"
    return f"{format_number(measurement.value)} / {format_number(measurement.threshold)}{unit}"


def format_limit(limits: Mapping[str, float]) -> str:
    """The largest detection limit, with the block it belongs to."""
    if not limits:
        return "–"
    block = max(limits, key=lambda name: math.inf if math.isnan(limits[name]) else limits[name])
    return f"{format_number(limits[block])} in {block}"
