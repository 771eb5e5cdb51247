"""What the model that a run began as says of the answers in a batch, for objectives that compare with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from checks.probes.choices import ambiguous_from, watch_choices
from checks.references.batch import MicroBatch
from checks.references.kept import IGNORED
from checks.references.loss import token_losses
from checks.references.model import AUTOCAST, ModelSource, State, build_model, float64_mode
from checks.references.moving import move_inputs
from checks.references.routing import Choices, Replay
from checks.references.selection import SelectionReplay, Selections
from checks.references.step import Layout, forward_logits, lay_out
from checks.spec import Attention, RunSpec
from checks.tolerance import EPSILON

FORMS: tuple[Layout, ...] = ("documents", "right", "left")
"""Ways to lay out the rows that must not matter; their deviation from float64 is the noise."""
SEEDS = (None, 1)
"""Of the forms of a model that chooses for itself: as it is, and with its inputs moved by ε."""


class CannotCompare(ValueError):
    """The batch does not say what is compared; `str()` is the reason, one sentence without a full stop."""


@dataclass(frozen=True)
class InitialAnswers:
    """Of one captured step, (rows,) float64 a micro-batch each: log π_ref of the answers in float64, and how far its
    forms in the run's own precision lie from that.

    `undecided`: (rows,) bool, where the run's precision does not decide which experts the row's tokens go to.
    """

    log_probs: tuple[torch.Tensor, ...]
    noise: tuple[torch.Tensor, ...]
    undecided: tuple[torch.Tensor, ...]


def chooses_alone(spec: RunSpec, *, choices: Choices, keys: Selections, step: int) -> bool:
    """Whether the experts that the run chose, `choices` and `keys`, need not be those of the model that it began as.

    They are at the first step of a whole model, where the two are one.
    """
    return bool(choices or keys) and (step > 1 or spec.lora)


def check_pairs(micro_batches: Sequence[MicroBatch], *, step: int) -> None:
    """Refuse batches whose rows are no pairs of answers.

    Raises:
        CannotCompare: an odd number of rows, or as `check_answers`.
    """
    for index, micro in enumerate(micro_batches):
        if micro.input_ids.shape[0] % 2:
            raise CannotCompare(f"micro-batch {index} of step {step} has {micro.input_ids.shape[0]} rows, no pairs")
    check_answers(micro_batches, step=step)


def check_answers(micro_batches: Sequence[MicroBatch], *, step: int) -> None:
    """Refuse batches whose rows are not one answer each.

    Raises:
        CannotCompare: a row of several documents, or an answer of which nothing counts.
    """
    for index, micro in enumerate(micro_batches):
        if sorted(document.row for document in micro.documents) != list(range(micro.input_ids.shape[0])):
            raise CannotCompare(f"the rows of micro-batch {index} of step {step} are not one document each")
        if not bool((micro.targets != IGNORED).any(dim=1).all()):
            raise CannotCompare(f"a row of micro-batch {index} of step {step} counts no token of its answer")


def refer_answers(
    initial: nn.Module,
    micro_batches: Sequence[MicroBatch],
    *,
    layout: Layout = "documents",
    autocast: torch.dtype | None = None,
    choices: Choices | None = None,
    keys: Selections | None = None,
    cuts: dict[tuple[int, int], list[torch.Tensor]] | None = None,
) -> dict[tuple[int, int], torch.Tensor]:
    """(micro-batch, row) → log-probability of the row's counted tokens, () of the computation's dtype, no gradient.

    `choices`, `keys`: replayed; at the first step of a whole model those of the run are the initial model's own.
    `cuts`: is given the scores of each row's own choices, of rows that are laid out one by one.
    """
    replays = (Replay(choices or {}, micro_batches), SelectionReplay(keys or {}, micro_batches))
    for replay in replays:
        replay.attach(initial)
    found: dict[tuple[int, int], torch.Tensor] = {}
    with torch.no_grad():
        for batch in (batch for group in lay_out(micro_batches, layout) for batch in group):
            for replay in replays:
                replay.begin(batch)
            precise = nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)
            with precise, nullcontext() if cuts is None else watch_choices(batch.input_ids.numel()) as scores:
                logits = forward_logits(initial, batch)
            if cuts is not None and scores is not None:
                cuts[batch.pieces[0].micro, batch.pieces[0].document.row] = scores
            wide = logits if logits.dtype == torch.float64 else logits.float()
            sums = -token_losses(wide, batch.targets).sum(dim=1)
            for piece, value in zip(batch.pieces, sums, strict=True):
                found[piece.micro, piece.document.row] = value
    for replay in replays:
        replay.detach()
    return found


def compute_initial_answers(
    spec: RunSpec,
    source: ModelSource,
    micro_batches: Sequence[MicroBatch],
    *,
    choices: Choices,
    keys: Selections,
    step: int,
) -> InitialAnswers:
    """What the checkpoint's own weights say of every answer of a step.

    Where it chose experts that need not be the run's it chooses for itself, and rows whose choices are too close to
    call are told.

    Raises:
        CannotCompare: as `check_answers`, and as `check_pairs` where the objective is one of pairs.
    """
    (check_answers if spec.objective == "kto" else check_pairs)(micro_batches, step=step)
    chooses = chooses_alone(spec, choices=choices, keys=keys, step=step)
    given = (micro_batches, {} if chooses else choices, {} if chooses else keys)
    exact_model = build_model(source, spec, State({}, {}), dtype=torch.float64, attention="eager")
    with float64_mode(source):
        exact = _answer(exact_model, *given, layout="documents", autocast=None, watched=chooses)
    noise = [torch.zeros_like(values) for values in exact.log_probs]
    undecided = [torch.zeros_like(values, dtype=torch.bool) for values in exact.log_probs]
    for form in _list_forms(spec, source, given, chooses=chooses):
        for index, (true, other) in enumerate(zip(exact.log_probs, form.log_probs, strict=True)):
            noise[index] = torch.maximum(noise[index], (other - true).abs())
        for (micro, row), cuts in exact.cuts.items():
            length = next(d.stop - d.start for d in micro_batches[micro].documents if d.row == row)
            undecided[micro][row] |= ambiguous_from(cuts, form.cuts[micro, row]) < length
    return InitialAnswers(tuple(exact.log_probs), tuple(noise), tuple(undecided))


@dataclass(frozen=True)
class _Answered:
    """`log_probs`: (rows,) float64 a micro-batch; `cuts`: (micro-batch, row) → the scores of its choices."""

    log_probs: list[torch.Tensor]
    cuts: dict[tuple[int, int], list[torch.Tensor]]


_Given = tuple[Sequence[MicroBatch], Choices, Selections]


def _list_forms(spec: RunSpec, source: ModelSource, given: _Given, *, chooses: bool) -> Iterator[_Answered]:
    """The answers in the run's own precision. Where the model chooses for itself each row is computed alone, so that
    its choices can be laid beside each other.
    """
    own = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    autocast = AUTOCAST[spec.precision]
    for attention in _list_attentions(spec, source):
        model = build_model(source, spec, State({}, {}), dtype=own, attention=attention)
        if not chooses:
            for layout in FORMS:
                yield _answer(model, *given, layout=layout, autocast=autocast, watched=False)
            continue
        for seed in SEEDS:
            moved = None if seed is None else move_inputs(model, EPSILON[spec.precision], seed)
            yield _answer(model, *given, layout="documents", autocast=autocast, watched=True)
            if moved is not None:
                moved.remove()


def _answer(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    choices: Choices,
    keys: Selections,
    *,
    layout: Layout,
    autocast: torch.dtype | None,
    watched: bool,
) -> _Answered:
    cuts: dict[tuple[int, int], list[torch.Tensor]] = {}
    found = refer_answers(
        model,
        micro_batches,
        layout=layout,
        autocast=autocast,
        choices=choices,
        keys=keys,
        cuts=cuts if watched else None,
    )
    together = [
        torch.stack([found[index, row].double() for row in range(micro.input_ids.shape[0])])
        for index, micro in enumerate(micro_batches)
    ]
    return _Answered(together, cuts)


def _list_attentions(spec: RunSpec, source: ModelSource) -> Iterator[Attention]:
    yield spec.attention
    if source.plain or spec.attention != "eager":
        yield "eager" if spec.attention == "sdpa" else "sdpa"
