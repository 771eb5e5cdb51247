"""Curves at full resolution, as CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from plumbline_web.curves.compared import TITLES, Source

HEADER = ("run", "quantity", "step", "value")


def render_points_csv(sources: Sequence[Source]) -> str:
    """One line a point; numbers with every digit, "nan", "inf" and "-inf" as such."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(HEADER)
    for source in sources:
        for name in TITLES:
            if (curve := source.curves.get(name)) is not None:
                points = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
                writer.writerows((source.label, name, step, repr(value)) for step, value in points)
    return buffer.getvalue()


def list_points(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """One entry a curve; numbers that JSON does not know are the texts "nan", "inf" and "-inf" (docs/json.md)."""
    return [
        {
            "run": source.label,
            "quantity": name,
            "steps": curve.steps.tolist(),
            "values": [value if math.isfinite(value) else str(value) for value in curve.values.tolist()],
        }
        for source in sources
        for name in TITLES
        if (curve := source.curves.get(name)) is not None
    ]
