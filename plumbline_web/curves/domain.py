"""Writing and reading the curves of framework runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from django.db import transaction

from checks.captures.log import LogRecord
from plumbline_web.curves.models import CHUNK_POINTS, Chunk, Series
from plumbline_web.curves.series import Curve
from plumbline_web.validations.models import FrameworkRun

QUANTITIES = ("loss", "grad_norm", "learning_rate")
"""What is drawn, in this order."""

AXES = ("tokens", "samples", "seconds")
"""What a curve can be drawn along, beside steps."""


def store_curves(run: FrameworkRun, records: Iterable[LogRecord]) -> None:
    """Store what a run logged, in place of what was stored of it before.

    A step that was logged twice counts with its last record. Quantities that were never logged get no series.
    """
    by_step = {record.step: record for record in records}
    ordered = [by_step[step] for step in sorted(by_step)]
    with transaction.atomic():
        Series.objects.filter(run=run).delete()
        for name, points in _collect(run, ordered).items():
            series = Series.objects.create(run=run, name=name, points=len(points))
            Chunk.objects.bulk_create(_cut(series, points))


def read_curves(runs: Iterable[int], names: Sequence[str]) -> dict[int, dict[str, Curve]]:
    """Run id → quantity → whole curve, in two queries."""
    owners = {
        pk: (run, name)
        for pk, run, name in Series.objects.filter(run__in=list(runs), name__in=names).values_list(
            "pk", "run_id", "name"
        )
    }
    parts: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    rows = Chunk.objects.filter(series__in=list(owners)).order_by("series_id", "number")
    for series, steps, values in rows.values_list("series_id", "steps", "values"):
        parts[series].append((bytes(steps), bytes(values)))
    found: dict[int, dict[str, Curve]] = defaultdict(dict)
    for pk, pieces in parts.items():
        run, name = owners[pk]
        found[run][name] = Curve(
            np.frombuffer(b"".join(steps for steps, _ in pieces), dtype="<i8").astype(np.int64),
            np.frombuffer(b"".join(values for _, values in pieces), dtype="<f8").astype(np.float64),
        )
    return dict(found)


def _collect(run: FrameworkRun, records: Sequence[LogRecord]) -> Mapping[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for record in records:
        for name in (*QUANTITIES, "tokens", "seconds"):
            value = getattr(record, name)
            if value is not None:
                found[name].append((record.step, float(value)))
    rows = _rows_a_step(run)
    if rows is not None and records:
        found["samples"] = [(record.step, float(record.step * rows)) for record in records]
    return found


def _rows_a_step(run: FrameworkRun) -> int | None:
    """Rows of an optimizer step as the run spec asks; None for a run that has no such spec, such as an upload's."""
    batch, accumulation = run.spec.get("batch"), run.spec.get("accumulation")
    return batch * accumulation if isinstance(batch, int) and isinstance(accumulation, int) else None


def _cut(series: Series, points: Sequence[tuple[int, float]]) -> Iterator[Chunk]:
    for number, start in enumerate(range(0, len(points), CHUNK_POINTS)):
        part = points[start : start + CHUNK_POINTS]
        finite = [value for _, value in part if math.isfinite(value)]
        yield Chunk(
            series=series,
            number=number,
            steps=np.array([step for step, _ in part], dtype="<i8").tobytes(),
            values=np.array([value for _, value in part], dtype="<f8").tobytes(),
            count=len(part),
            minimum=min(finite, default=None),
            maximum=max(finite, default=None),
            nonfinite=len(part) - len(finite),
        )
