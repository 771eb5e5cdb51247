"""Which preference two rows of a micro-batch are, and in which way they are none: told by content, tolerant of faults.

The rows of a micro-batch are its preferred answers, then the rejected ones in the same order
(https://huggingface.co/docs/trl/dpo_trainer#trl.trainer.dpo_trainer.DataCollatorForPreference).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

from checks.references.conversation import NoPieces
from checks.references.dataset import Dataset
from checks.references.deviation import Deviation, explain
from checks.references.matching import LEAST_SHARE, Found, find_nearest, find_runs, share_of
from checks.references.rows import Row

CHOSEN, REJECTED = "chosen", "rejected"


class Kind(StrEnum):
    """A way in which two rows are no pair; the value is how a sentence names it."""

    SWAPPED = "chosen and rejected are swapped"
    TORN = "answers of different pairs stand together"
    SAME = "both rows hold the same answer"
    PROMPT = "the prompts of the two are cut differently"
    EATEN = "truncation leaves nothing of an answer"


@dataclass(frozen=True)
class Side:
    """One row in its place: `name` says whether it is trained as chosen or as rejected.

    `deviation`: how it differs from the sample that it was found to be; None where it does not, or is none.
    """

    name: str
    found: Found
    deviation: Deviation | None

    @property
    def place(self) -> str:
        return f"{self.found.row.place} ({self.name})"


@dataclass(frozen=True)
class Pair:
    """Two rows that are trained as a pair; `kind`: how they are none, None where they are one."""

    chosen: Side
    rejected: Side
    kind: Kind | None

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.chosen, self.rejected


def match_pairs(rows: Iterable[Row], dataset: Dataset) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """Lay the rows of every micro-batch into pairs; beside them, micro-batches whose rows cannot be paired."""
    owners: dict[tuple[int, ...], list[int]] = {}
    for index in range(len(dataset.documents)):
        owners.setdefault(dataset.cut(index), []).append(index)
    pairs: list[Pair] = []
    reasons: list[str] = []
    for (step, rank, micro_batch), group in groupby(rows, key=lambda row: (row.step, row.rank, row.micro_batch)):
        held = list(group)
        half, odd = divmod(len(held), 2)
        if odd:
            where = f"step {step}, rank {rank}, micro-batch {micro_batch}"
            reasons.append(f"{where} holds {len(held)} rows, which are no pairs")
            continue
        pairs += [_match(one, other, owners, dataset) for one, other in zip(held[:half], held[half:], strict=True)]
    return tuple(pairs), tuple(reasons)


def _match(first: Row, second: Row, owners: Mapping[tuple[int, ...], list[int]], dataset: Dataset) -> Pair:
    known = [_find_exact(row, owners) for row in (first, second)]
    numbers = [sorted({index // 2 for index in one}) for one in known]
    for number in numbers[0]:
        if 2 * number in known[0] and 2 * number + 1 in known[1]:
            return _make((first, second), (2 * number, 2 * number + 1), dataset, kind=None)
    for number in numbers[0]:
        if 2 * number + 1 in known[0] and 2 * number in known[1]:
            return _make((first, second), (2 * number + 1, 2 * number), dataset, kind=Kind.SWAPPED)
    if known[0] and known[1]:
        kind = Kind.SAME if set(known[0]) & set(known[1]) else Kind.TORN
        return _make((first, second), (known[0][0], known[1][0]), dataset, kind=kind)
    return _match_by_content((first, second), known, numbers, dataset)


def _find_exact(row: Row, owners: Mapping[tuple[int, ...], list[int]]) -> list[int]:
    """Samples that the row is, cut at seq_len; of rows without a mask, whatever of their end is padding."""
    for stop in range(len(row.ids), len(row.ids) - row.loose - 1, -1):
        if row.ids[:stop] in owners:
            return owners[row.ids[:stop]]
    return []


def _match_by_content(
    rows: tuple[Row, Row], known: Sequence[Sequence[int]], numbers: Sequence[Sequence[int]], dataset: Dataset
) -> Pair:
    """A row that is no sample: the pair, and the order of its answers, that the two have most in common with."""
    nearest = find_nearest([row.ids for row in rows], dataset)
    tried = {*numbers[0], *numbers[1], *(index // 2 for index, _ in nearest if index is not None)}
    best: tuple[float, tuple[int, int]] | None = None
    for number in sorted(tried):
        for ordered in ((2 * number, 2 * number + 1), (2 * number + 1, 2 * number)):
            fits = zip(rows, ordered, known, strict=True)
            score = sum(1.0 if sample in exact else _overlap(row, sample, dataset) for row, sample, exact in fits)
            if best is None or score > best[0]:
                best = (score, ordered)
    own = tuple(
        (exact[0] if exact else index, 1.0 if exact else share)
        for exact, (index, share) in zip(known, nearest, strict=True)
    )
    if any(share < LEAST_SHARE for _, share in own) or best is None:
        samples = tuple(None if share < LEAST_SHARE else index for index, share in own)
        return _make(rows, (samples[0], samples[1]), dataset, kind=None)
    ordered = best[1]
    together = sum(share_of(row.ids, dataset.documents[sample]) for row, sample in zip(rows, ordered, strict=True))
    # Answers of one pair have their prompt in common; of two pairs, one of them fits neither's.
    if sum(share for _, share in own) - together > LEAST_SHARE / 2:
        return _make(rows, (own[0][0], own[1][0]), dataset, kind=Kind.TORN)
    return _make(rows, ordered, dataset, kind=Kind.SWAPPED if ordered[0] % 2 else None)


def _overlap(row: Row, sample: int, dataset: Dataset) -> float:
    """Share of the longer one's tokens that stand in common runs: what is missing or added counts against it."""
    document = dataset.cut(sample)
    longer = max(len(row.ids), len(document))
    return sum(block.size for block in find_runs(row.ids, document)) / longer if longer else 0.0


def _make(
    rows: tuple[Row, Row], samples: tuple[int | None, int | None], dataset: Dataset, *, kind: Kind | None
) -> Pair:
    sides = []
    for name, row, sample in zip((CHOSEN, REJECTED), rows, samples, strict=True):
        stop = len(row.ids)
        exact = False
        if sample is not None:
            document = dataset.cut(sample)
            exact = row.ids[: len(document)] == document and len(row.ids) - len(document) <= row.loose
            stop = len(document) if exact else stop
        found = Found(row, 0, stop, sample, exact)
        deviation = None if sample is None or exact else explain(found.ids, sample, dataset)
        sides.append(Side(name, found, deviation))
    pair = Pair(sides[0], sides[1], kind)
    if kind is None and _prompts_differ(pair, dataset):
        return replace(pair, kind=Kind.PROMPT)
    return replace(pair, kind=Kind.EATEN) if kind is None and find_eaten(pair, dataset) else pair


def _prompts_differ(pair: Pair, dataset: Dataset) -> bool:
    """Whether the two rows of a pair have other tokens before their answers."""
    if all(side.deviation is None for side in pair.sides):
        return False
    whole = []
    for side in pair.sides:
        if side.found.sample is None:
            return False
        prompt = dataset.documents[side.found.sample][: dataset.count_context(side.found.sample)][: dataset.seq_len]
        whole.append(side.found.ids[: len(prompt)] == prompt)
    if any(whole):
        return not all(whole)
    own = [_read_own_prompt(side.found.row) for side in pair.sides]
    return None not in own and own[0] != own[1]


def _read_own_prompt(row: Row) -> tuple[int, ...] | None:
    """The tokens before the first that the row's own labels ask for."""
    if row.trained is None or True not in row.trained:
        return None
    return row.ids[: row.trained.index(True)]


def find_eaten(pair: Pair, dataset: Dataset) -> Side | None:
    """The side of which no token of its answer is left, None where both have one."""
    for side in pair.sides:
        sample = side.found.sample
        if sample is None or len(side.found.ids) >= len(dataset.documents[sample]):
            continue
        try:
            expected = dataset.mark(sample).expected
        except NoPieces:
            continue
        if not any(expected[: len(side.found.ids)]):
            return side
    return None
