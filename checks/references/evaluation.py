"""The evaluation loss from its definition: the mean of −log p over the counted tokens of the evaluated rows.

Each row is computed alone, in evaluation mode, from the checkpoint's weights. Beside the mean over tokens stands the
other figure that trainers report under the same name: the mean over rows of the mean of each row's batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from plumbline_capture.probe import next_token_log_probs
from torch import nn

from checks.probes.choices import ambiguous_from, watch_choices
from checks.probes.plan import EVALUATED_ROWS
from checks.references.budget import check_memory
from checks.references.convention import Convention, NoConvention
from checks.references.model import AUTOCAST, ModelSource, State, build_model, float64_mode
from checks.references.moving import move_inputs
from checks.spec import Attention, RunSpec
from checks.tolerance import EPSILON

SEED = 1


@dataclass(frozen=True)
class EvaluatedRow:
    """A sample's tokens, and for each whether it counts as a target (never the first)."""

    ids: tuple[int, ...]
    counted: tuple[bool, ...]


@dataclass(frozen=True)
class Evaluation:
    """Means in nats: over tokens, and of the batches' means weighted by their rows; each with its noise floor.

    `tokens`: how many were counted; `batches`: (rows, counted tokens, mean of the tokens' losses) of each batch.
    """

    token_mean: float
    row_mean: float
    token_floor: float
    row_floor: float
    tokens: int
    batches: tuple[tuple[int, int, float], ...]
    undecided: int = 0
    """rows that hold an expert choice which the run's precision does not decide"""
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Row:
    losses: torch.Tensor
    """(counted tokens,) float64"""
    scores: list[torch.Tensor]


def choose_rows(convention: Convention) -> tuple[EvaluatedRow, ...]:
    """The first rows of the data, with what of them counts.

    Raises:
        NoConvention: what counts of a row is not known, or nothing does.
    """
    dataset = convention.dataset
    rows = []
    for index in range(min(EVALUATED_ROWS, len(dataset.documents))):
        row = EvaluatedRow(dataset.cut(index), convention.counted(index))
        if not any(row.counted):
            raise NoConvention(f"{dataset.place(index)} has no token to learn within seq_len; raise seq_len")
        rows.append(row)
    return tuple(rows)


def compute_evaluation(
    spec: RunSpec, source: ModelSource, state: State, rows: Sequence[EvaluatedRow], *, batch: int
) -> Evaluation:
    """Evaluate `rows` in batches of `batch`, in float64 and in the forms of the run's own precision.

    Raises:
        OverBudget: the float64 model would not fit into the free memory.
    """
    check_memory(source.checkpoint)
    model = build_model(source, spec, state, dtype=torch.float64, attention="eager").eval()
    with float64_mode(source):
        exact = [_forward(model, row, autocast=None) for row in rows]
    forms = list(_list_forms(spec, source, state, rows))
    undecided = sum(
        any(ambiguous_from(one.scores, form[index].scores) < len(row.ids) for form in forms)
        for index, (row, one) in enumerate(zip(rows, exact, strict=True))
    )
    figures = [_average([one.losses for one in form], batch=batch) for form in (exact, *forms)]
    (token_mean, row_mean, batches), *others = figures
    tokens = sum(count for _, count, _ in batches)
    scatter = _measure_scatter(exact, forms) / math.sqrt(tokens)
    epsilon = EPSILON["float32"]  # a loss is reported in float32, whatever it was computed in
    return Evaluation(
        token_mean=token_mean,
        row_mean=row_mean,
        token_floor=max([scatter, *(abs(other[0] - token_mean) for other in others)]) + epsilon * max(token_mean, 1.0),
        row_floor=max([scatter, *(abs(other[1] - row_mean) for other in others)]) + epsilon * max(row_mean, 1.0),
        tokens=tokens,
        batches=batches,
        undecided=undecided,
        shared=source.shared,
    )


def _average(losses: Sequence[torch.Tensor], *, batch: int) -> tuple[float, float, tuple[tuple[int, int, float], ...]]:
    """The mean over tokens, that of batch means weighted by rows, and each batch."""
    batches = []
    for start in range(0, len(losses), batch):
        group = losses[start : start + batch]
        joined = torch.cat(list(group))
        batches.append((len(group), joined.numel(), float(joined.mean())))
    by_token = math.fsum(count * mean for _, count, mean in batches) / sum(count for _, count, _ in batches)
    by_row = math.fsum(rows * mean for rows, _, mean in batches) / len(losses)
    return by_token, by_row, tuple(batches)


def _measure_scatter(exact: Sequence[_Row], forms: Sequence[Sequence[_Row]]) -> float:
    """The largest deviation of a single token: by luck, a mean over n may deviate by much less than 1/√n of it."""
    moved = [
        float((one.losses - other.losses).abs().max()) for form in forms for one, other in zip(exact, form, strict=True)
    ]
    return max(moved, default=0.0)


def _list_forms(spec: RunSpec, source: ModelSource, state: State, rows: Sequence[EvaluatedRow]) -> Iterator[list[_Row]]:
    own = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    attentions: tuple[Attention, ...] = ("sdpa", "eager")
    if spec.attention == "eager" and not source.plain:
        attentions = ("eager",)
    for attention in attentions:
        model = build_model(source, spec, state, dtype=own, attention=attention).eval()
        for seed in (None, SEED):
            moved = None if seed is None else move_inputs(model, EPSILON[spec.precision], seed)
            yield [_forward(model, row, autocast=AUTOCAST[spec.precision]) for row in rows]
            if moved is not None:
                moved.remove()


def _forward(model: nn.Module, row: EvaluatedRow, *, autocast: torch.dtype | None) -> _Row:
    ids = torch.tensor([row.ids])
    enabled = autocast is not None
    with torch.no_grad(), watch_choices(len(row.ids)) as scores, torch.autocast("cpu", autocast, enabled=enabled):
        out = model(input_ids=ids)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    losses = -next_token_log_probs(logits, ids)[0]
    return _Row(losses[torch.tensor(row.counted[1:], dtype=torch.bool)], scores)
