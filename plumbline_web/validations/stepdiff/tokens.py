"""Per-token losses of one row of the captured batch, with its mask and its documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from plumbline_web.curves.series import Curve
from plumbline_web.validations.stepdiff.documents import Judged, read_number


@dataclass(frozen=True)
class Document:
    """Tokens `start` to `stop` of the row; `error` is its largest token error in nats, None where unknown."""

    start: int
    stop: int
    error: float | None


@dataclass(frozen=True)
class Token:
    """One position: its loss in framework and reference, in nats; None where there is no such number."""

    position: int
    token: int
    counted: bool
    asked: bool | None
    document: int | None
    framework: float | None
    reference: float | None
    difference: float | None


@dataclass(frozen=True)
class TokenRow:
    """One row of one micro-batch. `threshold` is what a counted token's error may not exceed, in nats."""

    micro: int
    row: int
    tokens: tuple[Token, ...]
    documents: tuple[Document, ...]
    floor: float | None
    threshold: float | None

    @cached_property
    def counted(self) -> int:
        return sum(token.counted for token in self.tokens)

    @cached_property
    def wrong(self) -> int:
        """Counted tokens beyond the threshold, or whose difference is no number."""
        if self.threshold is None:
            return 0
        return sum(
            token.difference is not None and not abs(token.difference) <= self.threshold for token in self.tokens
        )

    @cached_property
    def misread(self) -> int:
        """Positions that the loss counts and the labels do not ask for, or the other way round."""
        return sum(token.asked is not None and token.asked != token.counted for token in self.tokens)

    def difference(self) -> Curve:
        """framework − reference over the counted tokens."""
        found = [token for token in self.tokens if token.difference is not None]
        return Curve(
            np.array([token.position for token in found], dtype=np.int64),
            np.array([token.difference for token in found], dtype=np.float64),
        )

    def masked_spans(self) -> Iterator[tuple[int, int]]:
        """Stretches of positions that the loss does not count, stop excluded."""
        start: int | None = None
        for token in self.tokens:
            if not token.counted and start is None:
                start = token.position
            if token.counted and start is not None:
                yield start, token.position
                start = None
        if start is not None:
            yield start, len(self.tokens)


def list_rows(judged: Judged | None) -> tuple[tuple[int, int], ...]:
    """(micro-batch, row) of each captured row."""
    batches = judged.evidence.get("tokens") or () if judged is not None else ()
    return tuple((micro, row) for micro, batch in enumerate(batches) for row in range(len(batch["input_ids"])))


def read_row(judged: Judged | None, packing: Judged | None, *, micro: int, row: int) -> TokenRow | None:
    """One row of `step.loss`'s evidence, with the documents' own errors where `data.packing` has them."""
    if judged is None or (micro, row) not in list_rows(judged):
        return None
    batch = judged.evidence["tokens"][micro]
    documents = tuple(_read_documents(batch, packing, micro, row))
    largest = next((m for m in judged.measurements if m.name == "largest token error"), None)
    return TokenRow(
        micro=micro,
        row=row,
        tokens=tuple(_read_tokens(batch, row, documents)),
        documents=documents,
        floor=largest.floor if largest else None,
        threshold=largest.threshold if largest else None,
    )


def find_worst_row(judged: Judged | None) -> tuple[int, int]:
    """The row with the largest token error: what is shown unasked."""
    best, where = -1.0, (0, 0)
    for micro, row in list_rows(judged):
        assert judged is not None
        batch = judged.evidence["tokens"][micro]
        errors = np.abs(_numbers(batch, "framework", row) - _numbers(batch, "reference", row))
        errors = errors[np.array(batch["counted"][row], dtype=bool)]
        worst = float("inf") if np.isnan(errors).any() and batch.get("reference") else float(errors.max(initial=0.0))
        if worst > best:
            best, where = worst, (micro, row)
    return where


def _read_documents(batch: Mapping[str, Any], packing: Judged | None, micro: int, row: int) -> Iterator[Document]:
    known = packing.evidence.get("documents") or () if packing is not None else ()
    errors = {(entry[2], entry[3]): read_number(entry[4]) for entry in known if tuple(entry[:2]) == (micro, row)}
    for owner, start, stop in batch["documents"]:
        if owner == row:
            yield Document(start, stop, errors.get((start, stop)))


def _read_tokens(batch: Mapping[str, Any], row: int, documents: Sequence[Document]) -> Iterator[Token]:
    counted = batch["counted"][row]
    asked = batch["asked"][row] if batch.get("asked") else [None] * len(counted)
    framework, reference = _numbers(batch, "framework", row), _numbers(batch, "reference", row)
    has = (batch.get("framework") is not None, batch.get("reference") is not None)
    for position, token in enumerate(batch["input_ids"][row]):
        ours, theirs = float(framework[position]), float(reference[position])
        yield Token(
            position=position,
            token=token,
            counted=counted[position],
            asked=asked[position],
            document=next((i for i, d in enumerate(documents) if d.start <= position < d.stop), None),
            framework=ours if has[0] and counted[position] else None,
            reference=theirs if has[1] and counted[position] else None,
            difference=ours - theirs if all(has) and counted[position] else None,
        )


def _numbers(batch: Mapping[str, Any], key: str, row: int) -> npt.NDArray[np.float64]:
    """(S,) float64; NaN throughout where the verdict has no such losses."""
    rows = batch.get(key)
    if rows is None:
        return np.full(len(batch["input_ids"][row]), np.nan)
    return np.array([read_number(value) for value in rows[row]], dtype=np.float64)
