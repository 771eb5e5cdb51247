"""What the checkpoint's own weights say of every token that counts, and how far its forms lie from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from checks.references.batch import MicroBatch
from checks.references.initial import CannotCompare, chooses_alone
from checks.references.loss import token_losses
from checks.references.model import AUTOCAST, ModelSource, State, build_model, float64_mode
from checks.references.routing import Choices, Replay
from checks.references.selection import SelectionReplay, Selections
from checks.references.step import Layout, forward_logits, lay_out, scatter
from checks.spec import Attention, RunSpec

LAYOUTS: tuple[Layout, ...] = ("documents", "right", "left")


@dataclass(frozen=True)
class TokenAnswers:
    """(B, S) float64 a micro-batch each: log-probabilities in float64, 0 where nothing counts, and their noise.

    `untempered`: the same at a temperature of 1, by which one that was forgotten is known.
    """

    log_probs: tuple[torch.Tensor, ...]
    noise: tuple[torch.Tensor, ...]
    untempered: tuple[torch.Tensor, ...]


def compute_initial_tokens(
    spec: RunSpec,
    source: ModelSource,
    micro_batches: Sequence[MicroBatch],
    *,
    choices: Choices,
    keys: Selections,
    step: int,
) -> TokenAnswers:
    """Log-probabilities of each counted token under the checkpoint, at the run's temperature.

    Raises:
        CannotCompare: the checkpoint may choose other experts than the run, and which ones was not recorded.
    """
    if chooses_alone(spec, choices=choices, keys=keys, step=step):
        raise CannotCompare("which experts the reference model chose was not recorded")
    exact_model = build_model(source, spec, State({}, {}), dtype=torch.float64, attention="eager")
    with float64_mode(source):
        given = (micro_batches, choices, keys)
        exact = _answer(exact_model, *given, temperature=spec.temperature, layout="documents", autocast=None)
        plain = _answer(exact_model, *given, temperature=1.0, layout="documents", autocast=None)
    noise = [torch.zeros_like(part) for part in exact]
    own = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    attentions: tuple[Attention, ...] = (
        ("eager",) if spec.attention == "eager" and not source.plain else ("sdpa", "eager")
    )
    for attention in attentions:
        model = build_model(source, spec, State({}, {}), dtype=own, attention=attention)
        for layout in LAYOUTS:
            precise = AUTOCAST[spec.precision]
            form = _answer(model, *given, temperature=spec.temperature, layout=layout, autocast=precise)
            noise = [torch.maximum(a, (b - c).abs()) for a, b, c in zip(noise, form, exact, strict=True)]
    return TokenAnswers(tuple(exact), tuple(noise), tuple(plain))


def _answer(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    choices: Choices,
    keys: Selections,
    *,
    temperature: float,
    layout: Layout,
    autocast: torch.dtype | None,
) -> list[torch.Tensor]:
    replays = (Replay(choices, micro_batches), SelectionReplay(keys, micro_batches))
    for replay in replays:
        replay.attach(model)
    losses = [torch.zeros(micro.input_ids.shape, dtype=torch.float64) for micro in micro_batches]
    with torch.no_grad(), torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        for batch in (batch for group in lay_out(micro_batches, layout) for batch in group):
            for replay in replays:
                replay.begin(batch)
            logits = forward_logits(model, batch)
            wide = logits if logits.dtype == torch.float64 else logits.float()
            scatter(token_losses(wide / temperature, batch.targets), batch, losses)
    for replay in replays:
        replay.detach()
    return [-part for part in losses]
