"""A saved checkpoint against the model that was saved, and against the model that was loaded from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from checks.architecture.step_settings import SKETCH_ROUNDING
from checks.captures.capture import TensorRecord
from checks.captures.compare import TensorComparison, compare_tensors
from checks.captures.saved import SavedCheckpoint
from checks.repeats.allowance import Allowance

Key = tuple[str, str]
Records = Mapping[str, TensorRecord]

SAME_NUMBERS = 1e-12
"""relative: two norms of the same numbers, added in another order"""
SHUFFLED = 1e-3
"""relative: numbers that changed their places are further apart; less is a few of them that were changed"""
UNEXPLAINED = 1e-3
"""The part of a difference that a scale may leave unexplained: float32's rounding of scaled numbers is far below it."""


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be, and the parameter, state or setting that it is about."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Compared:
    """One tensor against its counterpart: relative difference, what was allowed, and what is wrong with it."""

    name: str
    apart: float
    allowed: float
    problem: Problem | None


def find_lost(expected: Iterable[str], saved: SavedCheckpoint) -> tuple[Problem, ...]:
    """Parameters that no file holds; a tied head is none of them, and one saved under the head's name alone is not."""
    lost = [name for name in expected if name not in saved.parameters and name not in saved.copies]
    return tuple(Problem(name, f"{name} is not in the saved files") for name in lost)


def compare_saved(
    run: Records, saved: SavedCheckpoint, expected: Iterable[str], at_first: Records, allowance: Allowance
) -> Iterator[Compared]:
    """Each parameter as the run held it against the file; `at_first`: the run's before step 1, to tell a stale one."""
    for name in expected:
        record = saved.parameters.get(name) or next(iter(saved.copies.get(name, ())), None)
        if record is None:
            continue
        allowed = allowance.tensor(name)
        found = _compare(record, run[name])
        if found.reason is None and record.dtype == run[name].dtype and found.relative <= allowed:
            yield Compared(name, found.relative, allowed, None)
            continue
        sentence = _say_saved(record, run[name], found, at_first.get(name))
        yield Compared(name, found.relative, allowed, Problem(name, sentence))


def compare_copies(saved: SavedCheckpoint) -> Iterator[Compared]:
    """A tied head that the file holds beside its embedding: the same numbers, or the load decides which of them win."""
    for name, copies in saved.copies.items():
        for copy in copies if name in saved.parameters else copies[1:]:
            found = _compare(copy, saved.parameters.get(name, copies[0]))
            problem = None
            if not found.relative <= SKETCH_ROUNDING:
                apart = f"differs from it by {found.relative:.3g} of its norm"
                problem = Problem(str(copy.field), f"{copy.field} is tied to {name} and saved apart, and {apart}")
            yield Compared(str(copy.field), found.relative, SKETCH_ROUNDING, problem)


def compare_loaded(resumed: Records, saved: SavedCheckpoint, run: Records, at_first: Records) -> Iterator[Compared]:
    """Each parameter of the file against what the resumed run held before its first step: reading rounds nothing.

    Another dtype is the load's where the file has the run's.
    """
    for name, record in saved.parameters.items():
        if name not in resumed:
            continue
        found = _compare(resumed[name], record)
        changed = name in run and record.dtype == run[name].dtype != resumed[name].dtype
        if found.reason is None and found.relative <= SKETCH_ROUNDING and not changed:
            yield Compared(name, found.relative, SKETCH_ROUNDING, None)
            continue
        if found.reason is not None:
            sentence = f"{name} was loaded in another shape: {found.reason}"
        elif changed:
            held = _short(resumed[name].dtype)
            sentence = f"{name} is held in {held} by the resumed run, saved in {_short(record.dtype)}"
        elif name in at_first and _compare(resumed[name], at_first[name]).relative <= SKETCH_ROUNDING:
            sentence = f"{name} was not loaded: the resumed run holds it as before step 1, not as saved"
        else:
            by = "is not a number" if math.isnan(found.relative) else f"is {found.relative:.3g} of its norm off"
            sentence = f"{name} {by} in the resumed run, although it loaded without an error"
        yield Compared(name, found.relative, SKETCH_ROUNDING, Problem(name, sentence))


def compare_states(run: Mapping[Key, TensorRecord], saved: SavedCheckpoint, allowance: Allowance) -> Iterator[Compared]:
    """Each optimizer state as the run held it against the file."""
    for key, record in run.items():
        name, field = key
        label = f"{field} of {name}"
        if key not in saved.states:
            yield Compared(label, math.inf, 0.0, Problem(label, f"{label} is not in the saved optimizer state"))
            continue
        allowed = allowance.tensor(name)
        found = _compare(saved.states[key], record)
        problem = None
        if found.reason is not None or not found.relative <= allowed:
            apart = found.reason or f"differs from the run's by {found.relative:.3g} of its norm"
            problem = Problem(label, f"{label} is saved wrong: {apart}")
        yield Compared(label, found.relative, allowed, problem)


def _say_saved(saved: TensorRecord, run: TensorRecord, found: TensorComparison, at_first: TensorRecord | None) -> str:
    """What is wrong with a saved parameter, as exactly as its numbers tell."""
    name = run.name
    if found.reason is not None:
        return f"{name} is saved in another shape: {saved.global_shape}, {run.global_shape} in the run"
    if saved.dtype != run.dtype:
        return f"{name} is saved in {_short(saved.dtype)}, held in {_short(run.dtype)}"
    if saved.norm == 0.0:
        return f"{name} is saved as zeros"
    if at_first is not None and _compare(saved, at_first).relative <= SKETCH_ROUNDING:
        return f"{name} is saved as it was before step 1, not as it was when it was saved"
    if abs(found.relative - abs(found.scale - 1.0)) <= UNEXPLAINED * found.relative:
        return f"{name} is saved as {found.scale:.6g}× what the run held"
    if found.relative > SHUFFLED and _same_numbers(saved, run):
        return f"{name} is saved with its numbers in another order: transposed or permuted"
    return f"{name} is saved {found.relative:.3g} of its norm off"


def _same_numbers(a: TensorRecord, b: TensorRecord) -> bool:
    ends = all(a.stats.get(end) == b.stats.get(end) for end in ("min", "max", "count"))
    return ends and abs(a.norm - b.norm) <= SAME_NUMBERS * b.norm


def _compare(a: TensorRecord, b: TensorRecord) -> TensorComparison:
    return compare_tensors(a, b, step=0)


def _short(dtype: str) -> str:
    return dtype.removeprefix("torch.")
