"""What the address of a comparison says: which validations, along which axis, on which scale."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.http import QueryDict

from plumbline_web.curves.charts import LINEAR, LOG, SYMLOG
from plumbline_web.validations.stepdiff.tensors import QUESTIONS

X_AXES = {"step": "optimizer step", "tokens": "tokens seen", "samples": "samples seen", "seconds": "wall time, s"}

SCALES = (LINEAR, LOG, SYMLOG)

MOST_SMOOTHING = 0.999

MOST_VALIDATIONS = 100

MOST_TRACES = 20
"""Drawn until more are asked for."""

DEFAULT_TOLERANCE = 0.01
"""Half width of the band in a difference panel, relative to the first curve: a reading aid, no verdict."""

LARGEST_ID = 2**63 - 1

_NUMBER = re.compile(r"^(?:V-)?(\d{1,19})$", re.IGNORECASE)


@dataclass(frozen=True)
class Selection:
    """`validations`: ids in the order in which they are shown; the first is what differences are taken from."""

    validations: tuple[int, ...] = ()
    x: str = "step"
    scale: str = LINEAR
    smoothing: float = 0.0
    tolerance: float = DEFAULT_TOLERANCE
    kind: str = QUESTIONS[0].key
    """what the tensors' heatmaps show"""
    all_runs: bool = False
    all_traces: bool = False
    all_settings: bool = False
    errors: tuple[str, ...] = ()

    def query(self) -> str:
        """The address's query; what is as usual is left out."""
        usual = Selection()
        pairs: list[tuple[str, object]] = [("v", pk) for pk in self.validations]
        pairs += [
            (key, getattr(self, key)) for key in ("x", "scale", "kind") if getattr(self, key) != getattr(usual, key)
        ]
        if self.smoothing:
            pairs.append(("smoothing", f"{self.smoothing:g}"))
        if self.tolerance != usual.tolerance:
            pairs.append(("tolerance", f"{self.tolerance:g}"))
        switches = (("runs", self.all_runs), ("traces", self.all_traces), ("settings", self.all_settings))
        pairs += [(key, "all") for key, on in switches if on]
        return urlencode(pairs)

    def without(self, validation: int) -> Selection:
        return replace(self, validations=tuple(pk for pk in self.validations if pk != validation))

    def led_by(self, validation: int) -> Selection:
        """The same with another first."""
        return replace(self, validations=(validation, *self.without(validation).validations))


def read_selection(query: QueryDict) -> Selection:
    """Read an address; what it says wrongly is named in `errors`, and the usual stands in its place."""
    errors: list[str] = []
    numbers = tuple(dict.fromkeys(_read_numbers(query, errors)))
    if len(numbers) > MOST_VALIDATIONS:
        errors.append(f"v: {len(numbers):,} validations are too many; compare at most {MOST_VALIDATIONS} at once")
        numbers = numbers[:MOST_VALIDATIONS]
    return Selection(
        validations=numbers,
        x=_choose(query, "x", tuple(X_AXES), errors),
        scale=_choose(query, "scale", SCALES, errors),
        smoothing=_read_number(query, "smoothing", 0.0, MOST_SMOOTHING, errors),
        tolerance=_read_number(query, "tolerance", DEFAULT_TOLERANCE, 1e6, errors),
        kind=_choose(query, "kind", tuple(question.key for question in QUESTIONS), errors),
        all_runs=query.get("runs") == "all",
        all_traces=query.get("traces") == "all",
        all_settings=query.get("settings") == "all",
        errors=tuple(errors),
    )


def rearrange(selection: Selection, query: QueryDict) -> Selection:
    """What the buttons of a form ask for: one validation first, or one less."""
    for name, change in (("first", selection.led_by), ("without", selection.without)):
        number = query.get(name, "")
        if number.isascii() and number.isdigit() and int(number) in selection.validations:
            return change(int(number))
    return selection


def _read_numbers(query: QueryDict, errors: list[str]) -> Iterator[int]:
    for text in query.getlist("v"):
        for part in re.split(r"[,;\s]+", text):
            if not part:
                continue
            match = _NUMBER.match(part)
            if match is None or int(match[1]) > LARGEST_ID:
                errors.append(f"v: {part[:40]!r} is no validation; give numbers such as V-12")
            else:
                yield int(match[1])


def _choose(query: QueryDict, name: str, choices: tuple[str, ...], errors: list[str]) -> str:
    value = query.get(name) or choices[0]
    if value in choices:
        return value
    errors.append(f"{name}: {value[:40]!r} is none of its values; use {', '.join(choices)}")
    return choices[0]


def _read_number(query: QueryDict, name: str, usual: float, at_most: float, errors: list[str]) -> float:
    text = query.get(name)
    if not text:
        return usual
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if 0.0 <= number <= at_most:
        return number
    errors.append(f"{name}: {text[:40]!r} is out of bounds; give a number from 0 to {at_most:g}")
    return usual
