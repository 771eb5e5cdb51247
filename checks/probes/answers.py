"""What the framework's model answered to each probe, beside what the float64 reference says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from plumbline_capture.probe import next_token_log_probs
from torch import nn

from checks.captures.capture import Capture
from checks.plot import Curve, Plot
from checks.probes.choices import ambiguous_from, watch_choices
from checks.references.budget import check_memory
from checks.references.model import AUTOCAST, ModelSource, State, build_model, float64_mode
from checks.references.moving import move_inputs
from checks.spec import Attention, RunSpec
from checks.tolerance import EPSILON

SEED = 1


@dataclass(frozen=True)
class Answer:
    """One probe's log-probabilities of each next token.

    `input_ids`: (B, S); `mask`: (B, S) bool, False at padding; `log_probs`, `exact`: (B, S − 1) float64, by the
    framework's model and by the reference; NaN where no real token is predicted, and in `exact` also behind the first
    expert choice that no precision decides; `floor`: (B,) the largest deviation of a legitimate form of the reference
    in the run's own precision.
    """

    name: str
    input_ids: torch.Tensor
    mask: torch.Tensor
    log_probs: torch.Tensor
    exact: torch.Tensor
    floor: torch.Tensor

    @property
    def errors(self) -> torch.Tensor:
        """(B, S − 1) absolute, in nats; NaN where nothing is judged."""
        return (self.log_probs - self.exact).abs()

    @property
    def largest_error(self) -> float:
        errors = self.errors[~self.exact.isnan()]
        return float(errors.nan_to_num(nan=torch.inf).max()) if errors.numel() else 0.0


def relative_limit(limit: float, answers: Iterable[Answer]) -> float:
    """A limit in nats beside the usual size of a log-probability."""
    sizes = [float(answer.exact.abs().nanmean()) for answer in answers]
    return limit / max(sizes) if sizes and max(sizes) > 0.0 else math.inf


def draw_moved(title: str, moved: torch.Tensor, threshold: float, *, start: int = 0) -> Plot:
    """(S,) how far each token's log-probability moved, against the threshold."""
    positions = [float(start + index) for index in range(moved.shape[0])]
    return Plot(
        title,
        "position in the row",
        "nats",
        (
            Curve("moved", positions, [float(value) for value in moved], style="points"),
            Curve("threshold", positions, [threshold] * len(positions), style="threshold"),
        ),
    )


@dataclass(frozen=True)
class _Row:
    """What the reference says of one row: (S − 1,) log-probabilities, and their floor."""

    exact: torch.Tensor
    floor: float


def read_answers(spec: RunSpec, capture: Capture, source: ModelSource, state: State) -> dict[str, Answer]:
    """The recorded answers by name, each with its reference; empty where the capture holds no probes."""
    step = capture.steps[0]
    recorded = {
        field: capture.tensors(step, "probe", field=field) for field in ("input_ids", "attention_mask", "log_probs")
    }
    read: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
    for name, record in recorded["log_probs"].items():
        ids, log_probs = recorded["input_ids"][name].read("full"), record.read("full")
        assert ids is not None
        assert log_probs is not None
        mask = recorded["attention_mask"][name].read("full") if name in recorded["attention_mask"] else None
        read[name] = (ids, torch.ones_like(ids).bool() if mask is None else mask.bool(), log_probs)
    rows = {tuple(row[real].tolist()) for ids, mask, _ in read.values() for row, real in zip(ids, mask, strict=True)}
    references = _compute_rows(spec, source, state, sorted(rows, key=lambda row: (len(row), row)))
    return {name: _answer(name, *parts, references) for name, parts in read.items()}


def _answer(
    name: str,
    ids: torch.Tensor,
    mask: torch.Tensor,
    log_probs: torch.Tensor,
    references: Mapping[tuple[int, ...], _Row],
) -> Answer:
    exact = torch.full_like(log_probs, torch.nan)
    floors = []
    for row, (tokens, real) in enumerate(zip(ids, mask, strict=True)):
        reference = references[tuple(tokens[real].tolist())]
        predicted = real[:-1] & real[1:]
        exact[row, predicted] = reference.exact
        floors.append(reference.floor)
    shown = torch.where(mask[:, :-1] & mask[:, 1:], log_probs, torch.nan)
    return Answer(name, ids, mask, shown, exact, torch.tensor(floors, dtype=torch.float64))


def _compute_rows(
    spec: RunSpec, source: ModelSource, state: State, rows: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], _Row]:
    """Each row alone, in float64 and in the forms that must not matter."""
    check_memory(source.checkpoint)
    model = build_model(source, spec, state, dtype=torch.float64, attention="eager").eval()
    with float64_mode(source):
        exact = {row: _forward(model, row, autocast=None) for row in rows}
    worst = {row: torch.zeros(len(row) - 1, dtype=torch.float64) for row in rows}
    undecided = {row: len(row) for row in rows}
    own = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    for attention in _attentions(spec, source):
        model = build_model(source, spec, state, dtype=own, attention=attention).eval()
        for seed in (None, SEED):
            moved = None if seed is None else move_inputs(model, EPSILON[spec.precision], seed)
            for row in rows:
                log_probs, scores = _forward(model, row, autocast=AUTOCAST[spec.precision])
                undecided[row] = min(undecided[row], ambiguous_from(exact[row][1], scores))
                worst[row] = torch.maximum(worst[row], (log_probs - exact[row][0]).abs())
            if moved is not None:
                moved.remove()
    found = {}
    for row in rows:
        judged = exact[row][0].clone()
        judged[undecided[row] :] = torch.nan
        decided = worst[row][: undecided[row]]
        size = float(judged.nan_to_num().abs().max()) if judged.numel() else 0.0
        noise = float(decided.max()) if decided.numel() else 0.0
        found[row] = _Row(judged, noise + EPSILON[spec.precision] * max(size, 1.0))
    return found


def _attentions(spec: RunSpec, source: ModelSource) -> tuple[Attention, ...]:
    return ("eager",) if spec.attention == "eager" and not source.plain else ("sdpa", "eager")


def _forward(
    model: nn.Module, row: tuple[int, ...], *, autocast: torch.dtype | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(S − 1,) log-probabilities of one row alone, and what its routers chose by."""
    ids = torch.tensor([row])
    with torch.no_grad(), watch_choices(len(row)) as scores:
        if autocast is None:
            out = model(input_ids=ids)
        else:
            with torch.autocast("cpu", dtype=autocast):
                out = model(input_ids=ids)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    return next_token_log_probs(logits, ids)[0], scores
