"""How far a healthy bf16 step on a device, with one kernel of attention, lies from the float64 reference, in floors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from checks.captures.blocks import blocks_of
from checks.captures.differences import Difference, Projection, difference, project
from checks.references.batch import Document, MicroBatch
from checks.references.hf import lift_casts, load_hf
from checks.references.moving import move_inputs
from checks.references.step import ForwardBatch, StepResult, count_targets, run_step
from checks.tolerance import EPSILON, MULTIPLES, judge_tensor, measure_floor, pooled_scale

PRECISION = "bf16"
SEEDS = (1, 2)


@dataclass(frozen=True)
class Noise:
    """`ratio`: the largest error of a gradient in thresholds, above 1 a false alarm; `name`: of whose; `scale`: pooled
    over all gradients, 1 where it is exact; `loss`: error of the loss, in nats.
    """

    ratio: float
    name: str
    scale: float
    loss: float


def make_batch(*, rows: int, positions: int, vocabulary: int) -> tuple[MicroBatch, ...]:
    """One micro-batch of random rows without padding, every next token counted."""
    ids = torch.randint(0, vocabulary, (rows, positions), generator=torch.Generator().manual_seed(3))
    counted = torch.ones_like(ids, dtype=torch.bool)
    counted[:, -1] = False
    documents = tuple(Document(row, 0, positions) for row in range(rows))
    return (MicroBatch(ids, ids, counted, None, None, documents, "data", None),)


def backends(device: str) -> Mapping[str, SDPBackend]:
    """The kernels that scaled_dot_product_attention has for bf16 without a mask on a device."""
    found = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
    return {**found, "efficient": SDPBackend.EFFICIENT_ATTENTION} if device.startswith("cuda") else found


def measure_noise(checkpoint: Path, batch: Sequence[MicroBatch], *, device: str) -> dict[str, Noise]:
    """Kernel → its noise, for those that can compute the batch; reference and floors are the CPU's."""
    exact = load_hf(checkpoint, dtype=torch.float64, attention="eager")
    with lift_casts():
        base = _compute(exact, batch, device="cpu", autocast=False)
    projections = {
        name: project(name, gradient, blocks_of(name, tuple(gradient.shape), config={}))
        for name, gradient in base.gradients.items()
    }
    variants = list(_vary(checkpoint, batch, projections))
    model = load_hf(checkpoint, dtype=torch.float32, attention="sdpa").to(device)
    found = {}
    for kernel, backend in backends(device).items():
        try:
            with sdpa_kernel(backend):
                result = _compute(model, batch, device=device, autocast=True)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            continue  # the memory-efficient one takes no grouped queries
        found[kernel] = _judge(result, base, projections, variants)
    return found


def _vary(
    checkpoint: Path, batch: Sequence[MicroBatch], projections: Mapping[str, Projection]
) -> Iterator[dict[str, Difference]]:
    """The forms of the step that must not matter, on the CPU in the run's own precision."""
    for attention in ("sdpa", "eager"):
        model = load_hf(checkpoint, dtype=torch.float32, attention=attention)  # type: ignore[arg-type]
        yield _differences(_compute(model, batch, device="cpu", autocast=True), projections)
        for seed in SEEDS:
            moved = move_inputs(model, EPSILON[PRECISION], seed)
            yield _differences(_compute(model, batch, device="cpu", autocast=True), projections)
            moved.remove()


def _compute(model: nn.Module, batch: Sequence[MicroBatch], *, device: str, autocast: bool) -> StepResult:
    where = torch.device(device)

    def forward(called: nn.Module, given: ForwardBatch) -> torch.Tensor:
        context: AbstractContextManager[Any] = (
            torch.autocast(where.type, dtype=torch.bfloat16) if autocast else nullcontext()
        )
        with context:
            logits: torch.Tensor = called(input_ids=given.input_ids.to(where)).logits
        return logits.cpu() if not autocast else logits.float().cpu()

    return run_step(model, batch, denominator=count_targets(batch), layout="right", forward=forward)


def _differences(result: StepResult, projections: Mapping[str, Projection]) -> dict[str, Difference]:
    return {name: difference(result.gradients[name].cpu(), each) for name, each in projections.items()}


def _judge(
    result: StepResult,
    base: StepResult,
    projections: Mapping[str, Projection],
    variants: Sequence[Mapping[str, Difference]],
) -> Noise:
    found = _differences(result, projections)
    count = sum(gradient.numel() for gradient in base.gradients.values())
    mean_square = sum(each.norm**2 for each in projections.values()) / count
    judged = [
        judge_tensor(
            name,
            found[name],
            measure_floor(
                each, [variant[name] for variant in variants], epsilon=EPSILON[PRECISION], mean_square=mean_square
            ),
            multiple=MULTIPLES[PRECISION],
        )
        for name, each in projections.items()
    ]
    worst = max(judged, key=lambda each: each.ratio)
    return Noise(worst.ratio, worst.name, pooled_scale(found), abs(result.loss - base.loss))
