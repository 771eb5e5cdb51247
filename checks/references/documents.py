"""Where the documents of a row begin, told from the tokens alone: neither position_ids nor a mask is consulted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MAX_DOCUMENT_CANDIDATES = 64
"""lengths at which documents may have been cut that are tried for one row, when the length is not stated"""


class NoBoundaries(ValueError):
    """The row cannot be told apart into documents; `str()` is the reason, one sentence without a full stop."""


@dataclass
class _Node:
    """A trie over documents: the tokens seen so far, and whether a document may end here."""

    children: dict[int, _Node] = field(default_factory=dict)
    ends: bool = False


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
    row = list(input_ids_row)
    if not row:
        raise NoBoundaries("the row is empty")
    root = _build_trie(documents)
    if not root.children:
        raise NoBoundaries("there is no document to find in the row")
    padding = _find_padding(row, pad_token_id)
    found = _join(row, root, padding, seq_len)
    for length in _cut_lengths(row, root, padding) if seq_len is None and not found else ():
        found |= _join(row, root, padding, length)
    if len(found) > 1:
        raise NoBoundaries("more than one way of joining documents gives the row")
    if not found:
        raise NoBoundaries("no way of joining documents of the data, whole or cut to one length, gives the row")
    edges = found.pop()
    return tuple(range(start, stop) for start, stop in pairwise(edges))


def _build_trie(documents: Sequence[Sequence[int]]) -> _Node:
    root = _Node()
    for document in documents:
        node = root
        for token in document:
            node = node.children.setdefault(token, _Node())
        node.ends = node is not root
    return root


def _find_padding(row: Sequence[int], pad_token_id: int | None) -> int:
    """First position of the trailing run that may be padding; documents may end in the padding token themselves."""
    start = len(row)
    while start and row[start - 1] == pad_token_id:
        start -= 1
    return start


def _walk(row: Sequence[int], root: _Node, start: int) -> Iterator[tuple[int, _Node]]:
    """(stop, node) for every stop at which row[start:stop] begins some document."""
    node = root
    for position in range(start, len(row)):
        following = node.children.get(row[position])
        if following is None:
            return
        node = following
        yield position + 1, node


def _stops(row: Sequence[int], root: _Node, start: int, length: int | None) -> Iterator[int]:
    """Ends of the documents that may begin at `start`, whole and no longer than `length`, or cut to it."""
    for stop, node in _walk(row, root, start):
        if node.ends or stop - start == length:
            yield stop
        if stop - start == length:
            return


def _cut_lengths(row: Sequence[int], root: _Node, padding: int) -> tuple[int, ...]:
    """Every length at which the first cut document of the row could end.

    It begins where whole ones end, and what follows it begins a document or is padding.
    """
    reachable, tried = [0], set[int]()
    seen = {0}
    while reachable:
        start = reachable.pop()
        for stop, node in _walk(row, root, start):
            if node.ends and stop not in seen:
                seen.add(stop)
                reachable.append(stop)
            if stop >= padding or row[stop] in root.children:
                tried.add(stop - start)
    if len(tried) > MAX_DOCUMENT_CANDIDATES:
        raise NoBoundaries(f"documents may have been cut at {len(tried)} lengths; state seq_len")
    return tuple(sorted(tried))


def _join(row: Sequence[int], root: _Node, padding: int, length: int | None) -> set[tuple[int, ...]]:
    """Edges of up to two different ways of joining documents, cut to `length`, into the row."""
    size = len(row)
    ways: list[list[tuple[int, ...]]] = [[] for _ in range(size + 1)]
    for start in range(size, -1, -1):
        # The row may end here: what remains is padding, or nothing.
        tails: list[tuple[int, ...]] = [(start,)] if start and start >= padding else []
        for stop in _stops(row, root, start, length) if start < size else ():
            tails += [(start, *tail) for tail in ways[stop]]
        ways[start] = tails[:2]
    return set(ways[0])
