"""The fingerprints of the rows that a run trained on, in every step and on every rank, as the manifest has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.captures.capture import RECORD_AGAIN, Capture
from checks.errors import CaptureError

Print = tuple[str, int]
"""(fingerprint, number of tokens)"""


@dataclass(frozen=True)
class Forward:
    """One training forward. `masked`: an attention mask told padding apart; else rows are printed with theirs.

    `documents`: those of each row, where position ids begin anew; None where no row holds two.
    """

    step: int
    rank: int
    micro_batch: int
    width: int
    masked: bool
    rows: tuple[Print, ...]
    documents: tuple[tuple[Print, ...], ...] | None


def read_forwards(capture: Capture) -> tuple[Forward, ...]:
    """Every training forward in the order of steps, micro-batches and ranks; empty where a recorder did not print any.

    Raises:
        CaptureError: the manifest's `rows` are of another form.
    """
    try:
        found = [
            _forward(entry, rank=int(rank["rank"]))
            for rank in capture.manifest["ranks"]
            for entry in rank.get("rows") or ()
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaptureError(str(capture.path), f"has rows without a valid {error}", RECORD_AGAIN) from error
    return tuple(sorted(found, key=lambda one: (one.step, one.micro_batch, one.rank)))


def _forward(entry: Mapping[str, Any], *, rank: int) -> Forward:
    documents = entry.get("documents")
    return Forward(
        step=int(entry["step"]),
        rank=rank,
        micro_batch=int(entry["micro_batch"]),
        width=int(entry["width"]),
        masked=bool(entry["masked"]),
        rows=tuple(_print(one) for one in entry["rows"]),
        documents=None if documents is None else tuple(tuple(_print(one) for one in row) for row in documents),
    )


def _print(raw: Any) -> Print:
    value, length = raw
    if not isinstance(value, str):
        raise TypeError("fingerprint")
    return value, int(length)
