"""The captured batch as the references read it: rows, their documents, and the targets that the loss counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from checks.captures.capture import Capture, TensorRecord
from checks.references.documents import NoBoundaries, split_documents
from checks.references.given import join_pair_labels, read_given
from checks.references.kept import IGNORED, lay_labels, lay_targets, lay_unpadded, read_kept


class UnreadableBatch(ValueError):
    """The capture does not say which batch reached the model, or which targets its loss counted."""


@dataclass(frozen=True)
class Corpus:
    """The token lists that the data set implies, each whole, with the length at which a run cuts them.

    `all_learned`: every token of a document is to be learned.
    """

    documents: tuple[tuple[int, ...], ...]
    seq_len: int
    pad_token_id: int | None
    all_learned: bool = False


@dataclass(frozen=True)
class Document:
    """Tokens `start` to `stop` of one row: what must be computed as if it stood alone."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True)
class MicroBatch:
    """One forward's input and what its loss counted.

    `input_ids`, `targets_seen`: (B, S) int64; `counted`: (B, S) bool, True where the loss at position t counts;
    `token_losses_seen`: (B, S) float64 as the framework computed them, None when not recorded. `boundaries`: where the
    documents come from ("data": found by their tokens; "mask": one document a row, trimmed by the attention mask).
    """

    input_ids: torch.Tensor
    targets_seen: torch.Tensor
    counted: torch.Tensor
    token_losses_seen: torch.Tensor | None
    position_ids: torch.Tensor | None
    documents: tuple[Document, ...]
    boundaries: str
    unbounded: str | None
    """why the data did not give the boundaries"""
    asked: torch.Tensor | None = None
    """(B, S) bool: the positions that the batch's own labels ask to count; None when they do not say"""
    mean_losses_seen: torch.Tensor | None = None
    """(B, S) float64: −log p in the mean over the vocabulary, where the framework computed its loss out of sight; then
    the targets are those that the data imply, and `token_losses_seen` follows from the framework's logits"""
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """what the trainer's loss was given beside the model's batch"""
    answers: torch.Tensor | None = None
    """(B, S) bool: the positions that predict a token of an answer, where the loss counts prompts too"""
    scored: bool = False
    """each row has one score, at its last token: `counted` is where, `token_losses_seen` is less the score"""

    @property
    def next_tokens(self) -> torch.Tensor:
        """(B, S) int64: the token after each position, −100 after the last token of a document."""
        targets = torch.full_like(self.input_ids, IGNORED)
        for document in self.documents:
            row = self.input_ids[document.row, document.start : document.stop]
            targets[document.row, document.start : document.stop - 1] = row[1:]
        return targets

    @property
    def targets(self) -> torch.Tensor:
        """(B, S) int64: the next token where the loss counted the position, else −100; 0 where a score is."""
        if self.scored:
            return torch.full_like(self.input_ids, IGNORED).masked_fill(self.counted, 0)
        return torch.where(self.counted, self.next_tokens, torch.full_like(self.input_ids, IGNORED))


def read_step(capture: Capture, step: int, *, corpus: Corpus | None) -> tuple[MicroBatch, ...]:
    """Read all micro-batches of one step; boundaries between documents are looked for in `corpus`.

    Raises:
        UnreadableBatch: no input_ids, or no targets that can be laid along them.
    """
    records = capture.micro_batches(step)
    if not records:
        raise UnreadableBatch(f"the capture of step {step} holds no forward pass")
    return tuple(_read_micro_batch(capture, step, record.index, corpus) for record in records)


def _read_micro_batch(capture: Capture, step: int, index: int, corpus: Corpus | None) -> MicroBatch:
    batch = capture.micro_batch_tensors(step, "batch", index)
    fields = {name.rsplit("/", 1)[-1]: record for name, record in batch.items()}
    input_ids = fields["input_ids"].read("full") if "input_ids" in fields else None
    if input_ids is None:
        raise UnreadableBatch(f"micro-batch {index} of step {step} holds no input_ids")
    mask = fields["attention_mask"].read("full") if "attention_mask" in fields else None
    if mask is not None and mask.shape != input_ids.shape:
        mask = None
    found, source, reason = _documents(input_ids, mask, corpus)
    position_ids = fields["position_ids"].read("full") if "position_ids" in fields else None
    targets = _aligned(capture, step, index, "target", input_ids, mask=mask)
    given = read_given(capture, step, index)
    labels = join_pair_labels(given, input_ids)
    scores = capture.micro_batch_tensors(step, "score", index)
    if targets is None and scores:
        return _read_scored(scores["score"], input_ids, found, source, given=given)
    if targets is None and labels is not None:
        return _read_pairs(capture, step, index, input_ids, found, source, labels=labels, given=given)
    if targets is None:
        return _read_unlabelled(
            capture, step, index, input_ids, found, source, all_learned=corpus is not None and corpus.all_learned
        )
    return MicroBatch(
        input_ids=input_ids,
        targets_seen=targets,
        counted=targets != IGNORED,
        token_losses_seen=_aligned(capture, step, index, "token_loss", input_ids, mask=mask),
        asked=_asked(_read_labels(capture, step, index, fields.get("labels"), input_ids), input_ids, found),
        position_ids=position_ids,
        documents=found,
        boundaries=source,
        unbounded=reason,
        given=given,
    )


def _read_pairs(
    capture: Capture,
    step: int,
    index: int,
    input_ids: torch.Tensor,
    documents: tuple[Document, ...],
    boundaries: str,
    *,
    labels: torch.Tensor,
    given: Mapping[str, torch.Tensor],
) -> MicroBatch:
    """A micro-batch whose loss counts all tokens of the preferred rows, its first half, and the others' answers."""
    losses = _aligned(capture, step, index, "next_token", input_ids, field="loss")
    if losses is None:
        raise UnreadableBatch(
            f"micro-batch {index} of step {step}: the log-probabilities of its rows were not recorded"
        )
    empty = torch.full_like(input_ids, IGNORED)
    micro = MicroBatch(input_ids, empty, empty != IGNORED, None, None, documents, boundaries, None)
    inside = micro.next_tokens != IGNORED
    asked = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    answers = (asked != IGNORED) & inside
    counted = answers.clone()
    counted[: input_ids.shape[0] // 2] = inside[: input_ids.shape[0] // 2]
    return replace(
        micro,
        targets_seen=torch.where(answers, asked, micro.next_tokens).masked_fill(~counted, IGNORED),
        counted=counted,
        token_losses_seen=losses.masked_fill(~counted, 0.0),
        given=given,
        answers=answers,
    )


def _read_scored(
    record: TensorRecord,
    input_ids: torch.Tensor,
    documents: tuple[Document, ...],
    boundaries: str,
    *,
    given: Mapping[str, torch.Tensor],
) -> MicroBatch:
    """A micro-batch of which a model of one output says a score a row: that of its last token."""
    scores = record.read("full")
    if scores is None or scores.shape != input_ids.shape[:1]:
        raise UnreadableBatch("the scores of the rows were not recorded whole")
    counted = torch.zeros_like(input_ids, dtype=torch.bool)
    losses = torch.zeros(input_ids.shape, dtype=torch.float64)
    for document in documents:
        counted[document.row, document.stop - 1] = True
        losses[document.row, document.stop - 1] = -scores[document.row].double()
    empty = torch.full_like(input_ids, IGNORED)
    seen = empty.masked_fill(counted, 0)
    return MicroBatch(input_ids, seen, counted, losses, None, documents, boundaries, None, given=given, scored=True)


def _read_unlabelled(
    capture: Capture,
    step: int,
    index: int,
    input_ids: torch.Tensor,
    documents: tuple[Document, ...],
    boundaries: str,
    *,
    all_learned: bool,
) -> MicroBatch:
    """A micro-batch whose loss was computed out of sight: every token of the data's documents is its target."""
    losses = _aligned(capture, step, index, "next_token", input_ids, field="loss")
    if losses is None or boundaries != "data" or not all_learned:
        raise UnreadableBatch(f"micro-batch {index} of step {step} does not say which targets its loss counted")
    empty = torch.full_like(input_ids, IGNORED)
    micro = MicroBatch(input_ids, empty, empty != IGNORED, losses, None, documents, boundaries, None)
    counted = micro.next_tokens != IGNORED
    return replace(
        micro,
        targets_seen=micro.next_tokens,
        counted=counted,
        token_losses_seen=losses.masked_fill(~counted, 0.0),
        mean_losses_seen=_aligned(capture, step, index, "next_token", input_ids, field="mean"),
    )


def _aligned(
    capture: Capture,
    step: int,
    index: int,
    kind: str,
    input_ids: torch.Tensor,
    *,
    field: str | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """A recorded tensor of targets or losses laid along input_ids; None where not exactly one was recorded.

    `mask`: of attention, by which one with padding left out can be laid.
    """
    records = capture.micro_batch_tensors(step, kind, index).values()
    parts = [record.read("full") for record in records if record.field == field]
    tensors = [part for part in parts if part is not None]
    if len(tensors) != 1:
        return None
    laid = lay_targets(tensors[0], input_ids, read_kept(capture, step, index, length=input_ids.shape[1]))
    return lay_unpadded(tensors[0], mask) if laid is None else laid


def _read_labels(
    capture: Capture, step: int, index: int, record: TensorRecord | None, input_ids: torch.Tensor
) -> torch.Tensor | None:
    labels = None if record is None else record.read("full")
    if labels is None:
        return None
    return lay_labels(labels, input_ids, read_kept(capture, step, index, length=input_ids.shape[1]))


def _asked(
    labels: torch.Tensor | None, input_ids: torch.Tensor, documents: tuple[Document, ...]
) -> torch.Tensor | None:
    """Which positions the labels at the model's door ask to count, in either convention: as tokens, or shifted already.

    None where they are neither, so that another fault is not read as a mask.
    """
    if labels is None or labels.shape != input_ids.shape:
        return None
    real = labels != IGNORED
    following = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    if bool((labels == input_ids)[real].all()):
        asked = following != IGNORED
    elif bool((labels == torch.roll(input_ids, -1, dims=1))[real].all()):
        asked = real
    else:
        return None
    inside = torch.zeros_like(real)
    for document in documents:
        inside[document.row, document.start : document.stop - 1] = True
    return asked & inside


def _documents(
    input_ids: torch.Tensor, mask: torch.Tensor | None, corpus: Corpus | None
) -> tuple[tuple[Document, ...], str, str | None]:
    reason: str | None = "no data set to find documents in"
    if corpus is not None:
        try:
            found = tuple(
                Document(row, part.start, part.stop)
                for row, ids in enumerate(input_ids.tolist())
                for part in split_documents(
                    ids, corpus.documents, seq_len=corpus.seq_len, pad_token_id=corpus.pad_token_id
                )
            )
            return found, "data", None
        except NoBoundaries as error:
            reason = str(error)
    if mask is None:
        mask = torch.ones_like(input_ids)
    spans = []
    for row, kept in enumerate(mask.bool()):
        positions = kept.nonzero().flatten()
        if positions.numel():
            spans.append(Document(row, int(positions[0]), int(positions[-1]) + 1))
    return tuple(spans), "mask", reason
