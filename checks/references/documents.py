"""Where the documents of a row begin, told from the tokens alone: neither position_ids nor a mask is consulted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

MAX_CUT_LENGTHS = 64
"""lengths at which documents may have been cut that are tried for one row, when the length is not stated"""

_Tokens = tuple[int, ...]


class NoBoundaries(ValueError):
    """The row cannot be told apart into documents; `str()` is the reason, one sentence without a full stop."""


def split_documents(
    input_ids_row: Sequence[int],
    documents: Sequence[Sequence[int]],
    *,
    seq_len: int | None = None,
    pad_token_id: int | None = None,
) -> tuple[range, ...]:
    """Split a row into the documents it was joined from, and leave its padding out.

    `documents` are the token lists of the whole data set, uncut. A row holds documents end to end, whole or cut to
    their first `seq_len` tokens, then padding; that is what TRL's best-fit packing writes (`trl/data_utils.py`,
    `_pack_bfd`) and what truncation without packing leaves. Without `seq_len`, whole documents are tried first, then
    the one length that explains the row is sought. Without `pad_token_id` a row has no padding.

    Raises NoBoundaries when no way of joining documents gives the row, or more than one does.

    >>> split_documents([5, 6, 5, 7, 8, 0, 0], [[5, 6], [5, 7, 8, 9]], seq_len=3, pad_token_id=0)
    (range(0, 2), range(2, 5))
    """
    row = tuple(input_ids_row)
    known = {tuple(document) for document in documents} - {()}
    if not row:
        raise NoBoundaries("the row is empty")
    if not known:
        raise NoBoundaries("there is no document to find in the row")
    padding = _find_padding(row, pad_token_id)
    found = _join(row, _cut(known, seq_len), padding)
    if seq_len is None and not found:
        for length in _find_cut_lengths(row, known, padding):
            found |= _join(row, _cut(known, length), padding)
    if len(found) > 1:
        raise NoBoundaries("more than one way of joining documents gives the row")
    if not found:
        raise NoBoundaries("no way of joining documents of the data, whole or cut to one length, gives the row")
    return tuple(range(start, stop) for start, stop in pairwise(found.pop()))


def _cut(documents: Collection[_Tokens], length: int | None) -> set[_Tokens]:
    return {document[:length] for document in documents}


def _find_padding(row: _Tokens, pad_token_id: int | None) -> int:
    """First position of the trailing run that may be padding; documents may end in the padding token themselves."""
    start = len(row)
    while start and row[start - 1] == pad_token_id:
        start -= 1
    return start


def _find_stops(row: _Tokens, pieces: Collection[_Tokens]) -> dict[int, set[int]]:
    """start → the ends of the pieces that may begin there, for every start that pieces joined from 0 on reach."""
    stops: dict[int, set[int]] = {}
    pending = {0}
    while pending:
        start = pending.pop()
        stops[start] = {start + len(piece) for piece in pieces if row[start : start + len(piece)] == piece}
        pending |= stops[start] - stops.keys()
    return stops


def _join(row: _Tokens, pieces: Collection[_Tokens], padding: int) -> set[tuple[int, ...]]:
    """Edges of up to two different ways of joining pieces into the row."""
    stops = _find_stops(row, pieces)
    ways: dict[int, list[tuple[int, ...]]] = {}
    for start in sorted(stops, reverse=True):
        # The row may end here: what remains is padding, or nothing.
        tails: list[tuple[int, ...]] = [(start,)] if start and start >= padding else []
        for stop in stops[start]:
            tails += [(start, *tail) for tail in ways[stop]]
        ways[start] = tails[:2]
    return set(ways[0])


def _find_cut_lengths(row: _Tokens, documents: Collection[_Tokens], padding: int) -> set[int]:
    """Every length at which the row's first cut document could end.

    It begins where whole documents end, and what follows it begins a document or is padding.
    """
    beginnings = {document[0] for document in documents}
    ends = {stop for stop in range(1, len(row) + 1) if stop >= padding or row[stop] in beginnings}
    lengths = {
        stop - start
        for start in _find_stops(row, documents)
        for shared in {_count_shared(row[start:], document) for document in documents}
        for stop in range(start + 1, start + shared + 1)
        if stop in ends
    }
    if len(lengths) > MAX_CUT_LENGTHS:
        raise NoBoundaries(f"documents may have been cut at {len(lengths)} lengths; state seq_len")
    return lengths


def _count_shared(one: _Tokens, other: _Tokens) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (first, second) in pairs if first != second), min(len(one), len(other)))
