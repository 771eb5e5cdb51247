"""Rows that the recorder should have printed and that the capture does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from checks.captures.capture import Capture
from checks.captures.row_prints import Forward

TOKENS = ("input_ids", "tokens")
"""arguments of the model's forward whose rows are printed"""

SHOWN_SPANS = 3


def find_unprinted(capture: Capture, forwards: Sequence[Forward], *, ranks: Sequence[int], size: int) -> str | None:
    """What is not there of the prints of `ranks`, None where each forward of each step has its own.

    `size`: rows of an epoch, at whose end a step may take fewer micro-batches than the captured ones; 0 where it is not
    known.
    """
    for rank in ranks:
        own = [one for one in forwards if one.rank == rank]
        due = {step: _count_batches(capture, step, rank) for step in capture.records[rank]}
        if not own and not any(due.values()):
            continue  # a later stage of a pipeline is given no tokens
        where = f" on rank {rank}" if len(capture.ranks) > 1 else ""
        spans = _find_gaps({one.step for one in own}, last=_find_last_step(capture, rank))
        if spans:
            return f"no rows of {_name_spans(spans)} were recorded{where}"
        counts = Counter(one.step for one in own)
        inner = _find_steps_within_epoch(forwards, size)
        usual = min((count for count in due.values() if count), default=0)
        for step, count in sorted(counts.items()):
            least = due.get(step, usual if step in inner else 0)
            if count < least:
                return f"only the rows of {count} of {least} micro-batches of step {step} were recorded{where}"
    return None


def _count_batches(capture: Capture, step: int, rank: int) -> int:
    """Micro-batches of a captured step whose tokens were recorded, as (rows, positions)."""
    given = {
        record.micro_batch
        for record in capture.all_tensors(step, "batch", rank=rank)
        if record.name in TOKENS and len(record.global_shape) == 2
    }
    return len(given)


def _find_last_step(capture: Capture, rank: int) -> int:
    """The last step that was asked for and reached: up to it the recorder prints rows."""
    recorder = capture.manifest.get("recorder") or {}
    lost = {note.step for note in capture.missing if note.what == "step" and note.rank in (None, rank)}
    asked = [step for step in recorder.get("steps") or () if step not in lost]
    return max((*asked, *capture.records[rank]), default=0)


def _find_gaps(printed: set[int], *, last: int) -> list[tuple[int, int]]:
    """Spans of steps from 1 to `last` that are not printed, both ends included."""
    edges = [0, *sorted(step for step in printed if step <= last), last + 1]
    return [(before + 1, after - 1) for before, after in pairwise(edges) if after - before > 1]


def _find_steps_within_epoch(forwards: Sequence[Forward], size: int) -> set[int]:
    """Steps of the first epoch after which a batch of every rank is still to come."""
    largest: dict[int, int] = {}
    taken: Counter[int] = Counter()
    for one in forwards:
        largest[one.rank] = max(largest.get(one.rank, 0), len(one.rows))
        taken[one.step] += len(one.rows)
    found, seen = set(), 0
    for step, rows in sorted(taken.items()):
        seen += rows
        if seen + sum(largest.values()) < size:
            found.add(step)
    return found


def _name_spans(spans: Sequence[tuple[int, int]]) -> str:
    named = [f"step {first}" if first == last else f"steps {first} to {last}" for first, last in spans]
    return ", ".join(named[:SHOWN_SPANS]) + (" …" if len(named) > SHOWN_SPANS else "")
