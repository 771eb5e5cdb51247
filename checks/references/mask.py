"""Labels laid against what the conversation implies, token by token, and the ways in which the two differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checks.references.conversation import ANSWERING, NoPieces, Part, Piece
from checks.references.dataset import Dataset, Marked
from checks.references.matching import Found, find_runs
from checks.references.rows import Labels


class Kind(StrEnum):
    """A way in which labels are wrong; the value is how a sentence names it, the first that applies by itself."""

    OTHER_LABELS = "the labels are not the row's tokens"
    SHIFTED_TWICE = "the labels are shifted twice"
    NOT_SHIFTED = "the labels are not shifted"
    ALL_MASKED = "every label is masked"
    OFF_BY_ONE = "the mask is off by one token"
    TURNS_MASKED = "whole answers are not trained"
    END_MASKED = "end tokens of answers are not trained"
    ANSWER_MASKED = "parts of answers are not trained"
    REST_MASKED = "tokens outside the answers are not trained, and assistant_only=false asks for them"
    HEADER_TRAINED = "turn headers are trained"
    TOOL_TRAINED = "tool turns are trained"
    PROMPT_TRAINED = "prompts are trained"
    PADDING_TRAINED = "padding is trained"


@dataclass(frozen=True)
class Aligned:
    """One document's tokens: whether each is trained, is to be (None: either), and the piece that it begins in."""

    found: Found
    trained: tuple[bool, ...]
    expected: tuple[bool | None, ...]
    pieces: tuple[Piece | None, ...]

    @property
    def wrong(self) -> tuple[int, ...]:
        """The tokens, counted in the document, that are trained and are not to be, or the reverse."""
        pairs = zip(self.trained, self.expected, strict=True)
        return tuple(place for place, (is_, must) in enumerate(pairs) if must is not None and is_ is not must)

    @property
    def judged(self) -> int:
        """Tokens of which it is known whether they are to be trained."""
        return sum(must is not None for must in self.expected)


def align(found: Iterable[Found], dataset: Dataset) -> tuple[tuple[Aligned, ...], tuple[str, ...]]:
    """Lay the labels of every document along its sample's mask; beside them, why documents could not be judged."""
    marks: dict[int, Marked | str] = {}
    aligned: list[Aligned] = []
    reasons: list[str] = []
    for one in found:
        if one.sample is None:
            reasons.append(f"{one.place} is no sample of the data set (see data.template)")
            continue
        if one.row.trained is None:
            reasons.append(f"{one.place} has no labels that can be laid along its tokens")
            continue
        if one.sample not in marks:
            try:
                marks[one.sample] = dataset.mark(one.sample)
            except NoPieces as error:
                marks[one.sample] = f"{dataset.place(one.sample)}: {error}"
        marked = marks[one.sample]
        if isinstance(marked, str):
            reasons.append(marked)
            continue
        trained = one.row.trained[one.start : one.stop]
        aligned.append(Aligned(one, trained, *_carry_over(one, marked, dataset)))
    return tuple(aligned), tuple(reasons)


def _carry_over(
    one: Found, marked: Marked, dataset: Dataset
) -> tuple[tuple[bool | None, ...], tuple[Piece | None, ...]]:
    """The sample's mask for the document's own tokens; those that it has beside the sample's are left open."""
    assert one.sample is not None
    count = len(one.ids)
    if one.exact:
        return marked.expected[:count], marked.pieces[:count]
    expected: list[bool | None] = [None] * count
    pieces: list[Piece | None] = [None] * count
    for run in find_runs(one.ids, dataset.documents[one.sample]):
        expected[run.a : run.a + run.size] = marked.expected[run.b : run.b + run.size]
        pieces[run.a : run.a + run.size] = marked.pieces[run.b : run.b + run.size]
    return (None, *expected[1:]), tuple(pieces)


def name_wrong_targets(labels: Iterable[Labels]) -> tuple[Kind, Labels] | None:
    """Labels that are not the tokens they stand for, whatever their mask: the first micro-batch of such."""
    for one in labels:
        if one.found is None and one.ahead is None:
            return Kind.OTHER_LABELS, one
        if one.loss == 2:
            return Kind.SHIFTED_TWICE, one
        if one.loss == 0:
            return Kind.NOT_SHIFTED, one
    return None


def count_kinds(aligned: Sequence[Aligned], dataset: Dataset) -> Counter[Kind]:
    """How many tokens are wrong in which way; a way that explains all of them stands alone."""
    wrong = sum(len(one.wrong) for one in aligned)
    padding = sum({one.found.row.place: one.found.row.padding_trained for one in aligned}.values())
    kinds: Counter[Kind] = Counter({Kind.PADDING_TRAINED: padding} if padding else {})
    if not wrong:
        return kinds
    if not any(any(one.trained) for one in aligned):
        return Counter({Kind.ALL_MASKED: wrong})
    if dataset.assistant_only and any(_is_moved(aligned, by) for by in (-1, 1)):
        return kinds + Counter({Kind.OFF_BY_ONE: wrong})
    for one in aligned:
        kinds.update(_name_tokens(one))
    return kinds


def _is_moved(aligned: Sequence[Aligned], by: int) -> bool:
    """Whether what is trained is what should be, `by` tokens later, in every document."""
    if by < 0 and not any(one.trained[place] for one in aligned for place in one.wrong):
        return False  # an end that is masked looks like a mask that is early, but for what is trained before the answer
    for one in aligned:
        for place in range(1, len(one.trained)):
            origin = place - by
            if not 1 <= origin < len(one.trained):
                continue
            must = one.expected[origin]
            if must is not None and one.trained[place] is not must:
                return False
    return True


def _name_tokens(one: Aligned) -> Iterator[Kind]:
    silent = _find_silent_turns(one)
    for place in one.wrong:
        piece = one.pieces[place]
        role = "" if piece is None else piece.role
        answer = role in ANSWERING and piece is not None and piece.part in (Part.CONTENT, Part.END)
        if one.trained[place]:
            if role == "tool" and piece is not None and piece.part is not Part.HEADER:
                yield Kind.TOOL_TRAINED
            else:
                header = piece is None or piece.part is Part.HEADER
                yield Kind.HEADER_TRAINED if header else Kind.PROMPT_TRAINED
        elif not answer:
            yield Kind.REST_MASKED
        elif piece is not None and piece.turn in silent:
            yield Kind.TURNS_MASKED
        else:
            yield Kind.END_MASKED if piece is not None and piece.part is Part.END else Kind.ANSWER_MASKED


def _find_silent_turns(one: Aligned) -> frozenset[int]:
    """Answers of which no content token is trained although some is to be."""
    content = [
        (piece.turn, one.trained[place])
        for place, piece in enumerate(one.pieces)
        if piece is not None and piece.part is Part.CONTENT and piece.role in ANSWERING and one.expected[place]
    ]
    return frozenset(turn for turn, _ in content) - {turn for turn, trained in content if trained}
