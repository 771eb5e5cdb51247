"""Which tokens of a sample count, also where conventions differ: there as the captured steps counted them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checks.references.batch import MicroBatch
from checks.references.conversation import NoPieces, Piece
from checks.references.dataset import Dataset

Kind = tuple[str, str, bool]
"""(part, role, whether of the last turn) of a token that either convention may count"""


class NoConvention(ValueError):
    """The captured steps do not say whether a kind of token counts; `str()` is one sentence without a full stop."""


@dataclass(frozen=True)
class Convention:
    """What the captured steps counted of the tokens at which conventions differ."""

    dataset: Dataset
    votes: dict[Kind, frozenset[bool]]

    def counted(self, index: int) -> tuple[bool, ...]:
        """A token each of the sample, cut to seq_len: whether the loss counts it as a target.

        Raises:
            NoConvention: a token of a kind that no captured row holds, or that was counted in one and not in another.
        """
        if not self.dataset.assistant_only:
            return tuple(position > 0 for position in range(len(self.dataset.cut(index))))
        try:
            marked = self.dataset.mark(index)
        except NoPieces as error:
            raise NoConvention(f"{self.dataset.place(index)} cannot be told apart into turns: {error}") from error
        last = max(piece.turn for piece in marked.pieces)
        pairs = list(zip(marked.expected, marked.pieces, strict=True))[: self.dataset.seq_len]
        return tuple(
            position > 0 and (self._look_up(piece, last, index) if expected is None else expected)
            for position, (expected, piece) in enumerate(pairs)
        )

    def _look_up(self, piece: Piece, last: int, index: int) -> bool:
        votes = self.votes.get(_kind(piece, last), frozenset())
        if len(votes) == 1:
            return next(iter(votes))
        found = "no captured row says" if not votes else "captured rows do not agree on"
        raise NoConvention(
            f"{found} whether the {piece.part} of a turn of {piece.role} counts, as in {self._at(index)}"
        )

    def _at(self, index: int) -> str:
        return self.dataset.place(index)


def learn_convention(dataset: Dataset, micro_batches: Iterable[MicroBatch]) -> Convention:
    """Read off the captured rows that are samples whether the tokens counted at which conventions differ."""
    votes: dict[Kind, set[bool]] = {}
    if dataset.assistant_only:
        samples = {dataset.cut(index): index for index in range(len(dataset.documents))}
        for micro in micro_batches:
            for document in micro.documents:
                ids = tuple(micro.input_ids[document.row, document.start : document.stop].tolist())
                if ids in samples:
                    _vote(votes, dataset, samples[ids], micro.counted[document.row, document.start :].tolist())
    return Convention(dataset, {kind: frozenset(seen) for kind, seen in votes.items()})


def _vote(votes: dict[Kind, set[bool]], dataset: Dataset, index: int, counted: list[bool]) -> None:
    """`counted`: a position each, whether the loss there counts: its target is the token after it."""
    try:
        marked = dataset.mark(index)
    except NoPieces:
        return
    last = max(piece.turn for piece in marked.pieces)
    for position in range(1, len(dataset.cut(index))):
        if marked.expected[position] is None:
            votes.setdefault(_kind(marked.pieces[position], last), set()).add(counted[position - 1])


def _kind(piece: Piece, last: int) -> Kind:
    return piece.part.value, piece.role, piece.turn == last
