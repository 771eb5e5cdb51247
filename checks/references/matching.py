"""Which sample of the data set each row, or each document of a packed row, is: told by content, tolerant of faults.

A row that is a sample, cut to seq_len, is found by its tokens. Any other is compared with every sample: by the tokens
that both have in common, in runs, and where the tokens say nothing (another tokenisation) by the words of the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher

from checks.references.dataset import Dataset
from checks.references.documents import NoBoundaries, split_documents
from checks.references.rows import Row

GRAM = 3
"""Tokens that two lists must have in a row to be compared at all."""

CANDIDATES = 4
"""Samples with the most tokens in common that a row is compared with in full."""

LEAST_SHARE = 0.5
"""A row is a sample where half of the shorter one's tokens, or words, stand in common runs: headers alone do not."""


@dataclass(frozen=True)
class Found:
    """One document of a row: its tokens `start` to `stop` of `row.ids`, and the sample that they are.

    `sample`: its index, None for none; `nearest`: the sample that has most in common with it; `share`: how much, of
    the shorter one's tokens; `exact`: it is the sample's beginning, cut at seq_len.
    """

    row: Row
    start: int
    stop: int
    sample: int | None
    exact: bool
    nearest: int | None = None
    share: float = 1.0

    @property
    def ids(self) -> tuple[int, ...]:
        return self.row.ids[self.start : self.stop]

    @property
    def place(self) -> str:
        """Where it stands, for a person."""
        return f"{self.row.place}, token {self.row.first + self.start}" if self.start else self.row.place


def match_rows(rows: Iterable[Row], dataset: Dataset, *, packing: bool) -> tuple[Found, ...]:
    """Find the documents of every row, in order; of a row that is not packed there is one."""
    whole: dict[tuple[int, ...], int] = {}
    for index in range(len(dataset.documents)):
        whole.setdefault(dataset.cut(index), index)
    found: list[Found] = []
    for row in rows:
        found += _match_exactly(row, whole, dataset, packing=packing)
    unknown = [place for place, document in enumerate(found) if document.sample is None]
    for place, (nearest, share) in zip(unknown, find_nearest([found[p].ids for p in unknown], dataset), strict=True):
        one = found[place]
        sample = nearest if share >= LEAST_SHARE else None
        found[place] = Found(one.row, one.start, one.stop, sample, exact=False, nearest=nearest, share=share)
    return tuple(found)


def _match_exactly(row: Row, whole: Mapping[tuple[int, ...], int], dataset: Dataset, *, packing: bool) -> list[Found]:
    ids = row.ids
    for stop in range(len(ids), len(ids) - row.loose - 1, -1):
        if ids[:stop] in whole:
            return [Found(row, 0, stop, whole[ids[:stop]], exact=True)]
    pad = dataset.tokenizer.pad_token_id if row.loose else None
    if packing:
        try:
            parts = split_documents(ids, dataset.documents, seq_len=dataset.seq_len, pad_token_id=pad)
            return [Found(row, p.start, p.stop, whole[ids[p.start : p.stop]], exact=True) for p in parts]
        except NoBoundaries:
            pass
    edges = sorted({0, *row.restarts}) if packing else [0]
    stops = [*edges[1:], len(ids) - row.loose]
    pieces = [(start, stop) for start, stop in zip(edges, stops, strict=True) if start < stop]
    known = [(start, stop, whole.get(ids[start:stop])) for start, stop in pieces]
    return [Found(row, start, stop, sample, exact=sample is not None) for start, stop, sample in known]


def find_nearest(lists: Sequence[Sequence[int]], dataset: Dataset) -> list[tuple[int | None, float]]:
    """(index of the sample nearest to each list of tokens, share of the shorter one's tokens in common runs)."""
    if not lists:
        return []
    by_tokens = _nearest(lists, dataset.documents)
    poor = [place for place, (_, share) in enumerate(by_tokens) if share < LEAST_SHARE]
    if poor:
        decode = dataset.tokenizer.tokenizer.decode
        texts = [_words(decode(list(lists[place]), skip_special_tokens=False)) for place in poor]
        by_words = _nearest(texts, [_words(text) for text in dataset.texts])
        for place, other in zip(poor, by_words, strict=True):
            by_tokens[place] = max(by_tokens[place], other, key=lambda one: one[1])
    return by_tokens


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _nearest(
    lists: Sequence[Sequence[Hashable]], documents: Sequence[Sequence[Hashable]]
) -> list[tuple[int | None, float]]:
    """One pass over the documents, whatever the number of lists."""
    owners: dict[tuple[Hashable, ...], set[int]] = {}
    for place, tokens in enumerate(lists):
        for gram in _grams(tokens):
            owners.setdefault(gram, set()).add(place)
    shared: list[Counter[int]] = [Counter() for _ in lists]
    for index, document in enumerate(documents):
        for gram in _grams(document):
            for place in owners.get(gram, ()):
                shared[place][index] += 1
    found: list[tuple[int | None, float]] = []
    for tokens, counts in zip(lists, shared, strict=True):
        scored = [(index, share_of(tokens, documents[index])) for index, _ in counts.most_common(CANDIDATES)]
        found.append(max(scored, key=lambda one: one[1], default=(None, 0.0)))
    return found


def _grams(tokens: Sequence[Hashable]) -> set[tuple[Hashable, ...]]:
    return {tuple(tokens[start : start + GRAM]) for start in range(len(tokens) - GRAM + 1)}


def find_runs(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Match]:
    """The runs of `GRAM` tokens or more that both have in common, in order."""
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return [block for block in blocks if block.size >= GRAM]


def share_of(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Share of the shorter list's tokens that stand in common runs."""
    shorter = min(len(one), len(other))
    return sum(block.size for block in find_runs(one, other)) / shorter if shorter else 0.0
