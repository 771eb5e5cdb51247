"""Which sample each row of a run was, told by fingerprints, and how the samples divide over epochs and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from plumbline_capture.fingerprints import fingerprint

from checks.captures.row_prints import Forward, Print
from checks.references.conversation import NoPieces
from checks.references.dataset import Dataset

LEAST_FOR_ORDER = 8
"""Samples from which on two epochs in the same order are no accident: the chance is 1 in 8! = 40,320."""


@dataclass(frozen=True)
class Unit:
    """One row, or one document of a packed row, as it was trained on. `sample`: None where no sample is like it."""

    step: int
    rank: int
    micro_batch: int
    sample: int | None


@dataclass(frozen=True)
class Epoch:
    """A stretch of the run in which every sample is due once, or as far as the run went (`whole` False)."""

    units: tuple[Unit, ...]
    whole: bool
    missing: tuple[int, ...]
    """samples that are due and were not seen; empty where the run ended before"""
    repeated: tuple[int, ...]
    """samples seen more often than they are due, once for each time too often"""


@dataclass(frozen=True)
class Coverage:
    """`due`: how often each sample is due an epoch (samples of equal tokens are one); `left_out`: those without a token
    to learn, which were never trained on. `shared`: (step, micro-batch, sample) that two ranks had at once.
    """

    units: tuple[Unit, ...]
    due: Mapping[int, int]
    left_out: tuple[int, ...]
    epochs: tuple[Epoch, ...]
    shared: tuple[tuple[int, int, int], ...] = ()
    same_order: tuple[tuple[int, int], ...] = ()
    """pairs of whole epochs, counted from 1, in which the samples came in the same order"""

    @property
    def size(self) -> int:
        """Rows that an epoch is due to have."""
        return sum(self.due.values())

    @property
    def unknown(self) -> int:
        return sum(unit.sample is None for unit in self.units)


@dataclass
class _Prints:
    """Fingerprint → sample; those of rows that were padded without a mask are made for each width when asked for."""

    dataset: Dataset
    plain: dict[str, int] = field(default_factory=dict)
    padded: dict[int, dict[str, int]] = field(default_factory=dict)

    def find(self, one: Print, *, width: int, masked: bool) -> int | None:
        found = self.plain.get(one[0])
        pad = self.dataset.tokenizer.pad_token_id
        if found is not None or masked or pad is None:
            return found
        if width not in self.padded:
            self.padded[width] = {
                fingerprint((*self.dataset.cut(index), *[pad] * (width - len(self.dataset.cut(index))))): index
                for index in set(self.plain.values())
                if len(self.dataset.cut(index)) < width
            }
        return self.padded[width].get(one[0])


def follow(forwards: Sequence[Forward], dataset: Dataset, *, packing: bool, batch: int) -> Coverage:
    """Tell the samples of all forwards apart and lay them into epochs.

    `batch`: rows of a rank's micro-batch; loaders may fill the last batches of an epoch with its first rows so that
    every rank has as many.
    """
    prints = _Prints(dataset)
    due: Counter[int] = Counter()
    for index in range(len(dataset.documents)):
        due[prints.plain.setdefault(fingerprint(dataset.cut(index)), index)] += 1
    units = tuple(_tell_units(forwards, prints, packing=packing))
    left_out = _find_left_out(units, due, dataset)
    for index in left_out:
        del due[index]
    ranks = len({unit.rank for unit in units})
    lengths = _list_lengths(sum(due.values()), ranks=ranks, batch=batch, packing=packing)
    epochs = _choose_epochs(units, due, lengths, filled=ranks * batch)
    whole = [tuple(unit.sample for unit in epoch.units) for epoch in epochs if epoch.whole]
    same = [
        (number, number + 1)
        for number, (one, next_) in enumerate(pairwise(whole), start=1)
        if one == next_ and len(due) >= LEAST_FOR_ORDER
    ]
    return Coverage(units, due, left_out, epochs, tuple(_find_shared(units, due)), tuple(same))


def _tell_units(forwards: Sequence[Forward], prints: _Prints, *, packing: bool) -> Iterator[Unit]:
    pad = prints.dataset.tokenizer.pad_token_id
    padding = None if pad is None else fingerprint([pad])
    for one in forwards:
        rows = one.documents if packing and one.documents is not None else tuple((row,) for row in one.rows)
        for row in rows:
            documents = list(row)
            while packing and len(documents) > 1 and documents[-1][0] == padding:
                documents.pop()  # position ids of padding are zeros
            for document in documents:
                sample = prints.find(document, width=one.width, masked=one.masked)
                yield Unit(one.step, one.rank, one.micro_batch, sample)


def _find_left_out(units: Sequence[Unit], due: Mapping[int, int], dataset: Dataset) -> tuple[int, ...]:
    """Samples that were never seen and of which truncation leaves nothing to learn: frameworks leave them out."""
    if not dataset.assistant_only:
        return ()
    seen = {unit.sample for unit in units}
    cut = [index for index in due if index not in seen and len(dataset.documents[index]) > dataset.seq_len]
    if len(units) < sum(due.values()) - sum(due[index] for index in cut):
        return ()  # no epoch is whole, whatever was left out
    return tuple(index for index in cut if not _teaches(index, dataset))


def _teaches(index: int, dataset: Dataset) -> bool:
    try:
        return any(dataset.mark(index).expected[: dataset.seq_len])
    except NoPieces:
        return True


def _list_lengths(size: int, *, ranks: int, batch: int, packing: bool) -> tuple[int, ...]:
    """How many rows an epoch may have: each sample once, or filled up to whole samplers' shares or batches."""
    if ranks <= 1 or packing:
        return (size,)
    return tuple(dict.fromkeys(-(-size // unit) * unit for unit in (1, ranks, ranks * batch)))


def _choose_epochs(
    units: Sequence[Unit], due: Mapping[int, int], lengths: Sequence[int], *, filled: int
) -> tuple[Epoch, ...]:
    """Epochs of the first length that leaves nothing to say, else of the samples' number.

    Of a longer one the last `filled` rows may hold samples again: they fill up the last batches.
    """
    size = sum(due.values())
    cuts = [_cut_epochs(units, due, n, filled=0 if n == size else filled) for n in lengths if n > 0]
    clean = [epochs for epochs in cuts if not any(epoch.missing or epoch.repeated for epoch in epochs)]
    return (clean or cuts or [()])[0]


def _cut_epochs(units: Sequence[Unit], due: Mapping[int, int], length: int, *, filled: int) -> tuple[Epoch, ...]:
    epochs: list[Epoch] = []
    for start in range(0, len(units), length):
        part = tuple(units[start : start + length])
        seen = Counter(unit.sample for unit in part if unit.sample is not None)
        whole = len(part) == length
        missing = tuple(index for index in due if seen[index] < due[index]) if whole else ()
        once = part[: length - filled] if whole else part
        again = Counter(unit.sample for unit in once if unit.sample is not None) - Counter(due)
        repeated = tuple(again.elements())
        epochs.append(Epoch(part, whole, missing, repeated))
    return tuple(epochs)


def _find_shared(units: Sequence[Unit], due: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Samples that two ranks trained on in the same micro-batch, more often than the data hold them."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for unit in units:
        if unit.sample is not None:
            groups.setdefault((unit.step, unit.micro_batch, unit.sample), []).append(unit.rank)
    for (step, micro_batch, sample), ranks in groups.items():
        if len(set(ranks)) > 1 and len(ranks) > due.get(sample, 1):
            yield step, micro_batch, sample
