"""The run's data set, rendered and tokenised without the framework, and what of each document is to be learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import jinja2

from checks.references.batch import Corpus
from checks.references.conversation import ANSWERING, Part, Piece, find_pieces
from checks.references.template import ChatTokenizer, load_tokenizer, render_document, render_messages
from checks.samples import Preference, Sample, read_preferences, read_prompts, read_samples
from checks.spec import POLICY_OBJECTIVES, PREFERENCE_OBJECTIVES, RunSpec


@dataclass(frozen=True)
class Marked:
    """One document, a token each: the piece of the rendering that it begins in, and whether a run is to learn it.

    `expected`: None where conventions differ, so that either is right. The first token has nothing before it that
    could predict it and is None too.
    """

    pieces: tuple[Piece, ...]
    expected: tuple[bool | None, ...]


@dataclass(frozen=True)
class Dataset:
    """The samples with their texts and token lists, each whole; a run cuts them to their first `seq_len` tokens.

    Of preferences each has two samples beside each other: that of its preferred answer, and that of its rejected one.
    """

    samples: tuple[Sample, ...]
    texts: tuple[str, ...]
    documents: tuple[tuple[int, ...], ...]
    tokenizer: ChatTokenizer
    seq_len: int
    assistant_only: bool
    preferences: tuple[Preference, ...] = ()
    row_count: int | None = None
    """rows of an epoch where they are neither samples nor pairs of them"""

    @property
    def rows(self) -> int:
        """How many rows, or pairs of rows, an epoch has."""
        if self.row_count is not None:
            return self.row_count
        return len(self.preferences) or len(self.documents)

    @property
    def corpus(self) -> Corpus:
        """The documents as the packed rows' boundaries are looked for in."""
        return Corpus(self.documents, self.seq_len, self.tokenizer.pad_token_id, all_learned=not self.assistant_only)

    def cut(self, index: int) -> tuple[int, ...]:
        """The tokens of a sample that a run trains on."""
        return self.documents[index][: self.seq_len]

    def place(self, index: int) -> str:
        """Where a sample stands in the file, for a person."""
        line = self.samples[index].line
        name = f"pair {index // 2 + 1}" if self.preferences else f"sample {index + 1}"
        placed = name if line is None else f"{name} (line {line})"
        return f"{placed}, {'rejected' if index % 2 else 'chosen'}" if self.preferences else placed

    def mark(self, index: int) -> Marked:
        """Say which tokens of a sample's document are to be learned.

        Raises:
            NoPieces: the turns' contents cannot be found in the rendering.
        """
        sample, text, ids = self.samples[index], self.texts[index], self.documents[index]
        pieces = find_pieces(sample, text, self.tokenizer)
        own = sample.form == "messages"
        encoding = self.tokenizer.tokenizer.encode(text, add_special_tokens=not own)
        found = [_find_overlap(pieces, start, stop) for start, stop in encoding.offsets]
        # A special token of the tokenizer's own (a BOS) covers no character.
        owners = tuple(overlap[0] if overlap else pieces[0] for overlap in found)
        if not self.assistant_only:
            return Marked(owners, (None, *[True] * (len(ids) - 1))[: len(ids)])
        expected = [_agree([_is_learned(piece, sample) for piece in overlap]) for overlap in found]
        if self.preferences or sample.form == "prompt_completion":
            # The last word of the prompt may be cut into other tokens when the completion follows.
            shared = self.count_context(index)
            expected = [None if i >= shared and kept is False else kept for i, kept in enumerate(expected)]
        return Marked(owners, (None, *expected[1:]))

    def count_context(self, index: int) -> int:
        """Number of tokens that a sample has in common with its prompt alone: all of the prompt, or up to where the
        tokens of the two part. Of a preference it is that of the answer that parts first, for both have one prompt.
        """
        sample = self.samples[index]
        if sample.form == "messages":
            try:
                asked = render_messages(
                    sample.messages[: sample.prompt_turns], self.tokenizer, add_generation_prompt=True
                )
            except (jinja2.TemplateError, TypeError, ValueError):
                return len(self.documents[index])  # a template that refuses a prompt alone says nothing of its tokens
            alone = self.tokenizer.tokenizer.encode(asked, add_special_tokens=False).ids
        else:
            alone = self.tokenizer.tokenizer.encode(sample.prompt).ids
        both = (index - index % 2, index - index % 2 + 1) if self.preferences else (index,)
        return min(_count_shared(alone, self.documents[one]) for one in both)


def read_dataset(spec: RunSpec, *, now: datetime | None = None) -> Dataset:
    """Read and render every sample of a run's data; `now` is what a template is told that asks for the time.

    Raises:
        BadRequest: the checkpoint has no template or tokenizer to render with, or the template fails on a row.
    """
    tokenizer = load_tokenizer(spec.model, now=now)
    if spec.objective in POLICY_OBJECTIVES:
        # The rows are what the model generates; each prompt begins a group of them.
        rows = len(read_prompts(spec.data)) * spec.num_generations
        return Dataset((), (), (), tokenizer, spec.seq_len, assistant_only=True, row_count=rows)
    preferences = read_preferences(spec.data) if spec.objective in PREFERENCE_OBJECTIVES else ()
    sides = tuple(side for one in preferences for side in one.sides)
    samples = sides or read_samples(spec.data)
    rendered = [render_document(sample, tokenizer) for sample in samples]
    return Dataset(
        samples=samples,
        texts=tuple(document.text for document in rendered),
        documents=tuple(document.token_ids for document in rendered),
        tokenizer=tokenizer,
        seq_len=spec.seq_len,
        assistant_only=spec.assistant_only or bool(preferences),
        preferences=preferences,
        row_count=len(samples) if spec.objective == "kto" else None,
    )


def _is_learned(piece: Piece, sample: Sample) -> bool | None:
    """Whether the tokens of a piece are to be learned; of a preference's prompt none is, whoever speaks in it.

    Frameworks differ in whether a preference's later turns of others, and their headers, belong to the answer.
    """
    if piece.turn < sample.prompt_turns:
        return False
    later = sample.prompt_turns and piece.turn > sample.prompt_turns
    if later and (piece.role not in ANSWERING or piece.part is Part.HEADER):
        return None
    return piece.learned


def _count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _find_overlap(pieces: tuple[Piece, ...], start: int, stop: int) -> list[Piece]:
    return [piece for piece in pieces if piece.start < stop and piece.stop > start]


def _agree(votes: list[bool | None]) -> bool | None:
    """What a token of several pieces is: what all say that say anything, None where they contradict."""
    said = {vote for vote in votes if vote is not None}
    return said.pop() if len(said) == 1 else None
