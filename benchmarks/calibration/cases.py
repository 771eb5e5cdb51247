"""Healthy forms and faults of one family in one precision, for calibrating the thresholds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from checks.captures.blocks import blocks_of
from checks.captures.differences import Difference, Projection, difference, project
from checks.models import resolve_model
from checks.models.families import EAGER_ONLY
from checks.references.batch import Document, MicroBatch
from checks.references.model import AUTOCAST, State, choose_source, float64_mode
from checks.references.moving import move_inputs
from checks.references.step import Layout, StepResult, run_step
from checks.references.variants import StepInputs, Variant, compute_variants
from checks.spec import Attention, Precision, RunSpec
from checks.tolerance import EPSILON, judge_scale, judge_tensor, measure_floor

LENGTHS = ((61, 128), (90, 40))
"""Two micro-batches of unequal rows."""
PROMPT = 7
"""Tokens at the start of each row that the loss does not count."""


def make_micro_batches(vocabulary: int) -> tuple[MicroBatch, ...]:
    """Rows of random tokens, padded on the right, with a prompt that is not counted."""
    generator = torch.Generator().manual_seed(11)
    found = []
    for lengths in LENGTHS:
        ids = torch.randint(3, vocabulary, (len(lengths), max(lengths)), generator=generator)
        counted = torch.zeros(ids.shape, dtype=torch.bool)
        for row, length in enumerate(lengths):
            counted[row, PROMPT : length - 1] = True
        documents = tuple(Document(row, 0, length) for row, length in enumerate(lengths))
        found.append(MicroBatch(ids, ids, counted, None, None, documents, "mask", None))
    return tuple(found)


@dataclass(frozen=True)
class Bench:
    """One family in one precision, ready to be compared: the float64 gradients and the floor's variants."""

    inputs: StepInputs
    gradients: dict[str, Projection]
    variants: tuple[Variant, ...]

    @property
    def precision(self) -> Precision:
        return self.inputs.spec.precision

    def run(
        self,
        model: nn.Module,
        layout: Layout = "right",
        *,
        denominator: int | None = None,
        batches: Sequence[MicroBatch] | None = None,
    ) -> StepResult:
        return run_step(
            model,
            batches or self.inputs.micro_batches,
            denominator=denominator or self.inputs.denominator,
            layout=layout,
            autocast=AUTOCAST[self.precision],
        )

    def model(self, attention: Attention) -> nn.Module:
        """transformers' model, which is what frameworks train, in the run's own precision."""
        inputs = replace(self.inputs, source=replace(self.inputs.source, plain=False))
        return inputs.build(dtype=inputs.own_dtype, attention=attention)

    def differences(self, result: StepResult) -> dict[str, Difference]:
        return {name: difference(result.gradients[name], p) for name, p in self.gradients.items()}

    def ratio(self, result: StepResult) -> float:
        """The largest error in floors over tensors, blocks and the pooled scale."""
        found = self.differences(result)
        count = sum(p.full.numel() for p in self.gradients.values() if p.full is not None)
        mean_square = math.fsum(p.norm**2 for p in self.gradients.values()) / count
        epsilon = EPSILON[self.precision]
        ratios = []
        for name, projection in self.gradients.items():
            noise = [v.differences[name] for v in self.variants]
            floor = measure_floor(projection, noise, epsilon=epsilon, mean_square=mean_square)
            ratios.append(judge_tensor(name, found[name], floor, multiple=1.0).ratio)
        scale = judge_scale(found, [v.differences for v in self.variants], epsilon=epsilon, multiple=1.0)
        return max(*ratios, abs(scale.scale - 1.0) / scale.threshold)

    def repeats(self, result: StepResult) -> bool:
        """Whether the result is bitwise one of the floor's own variants, so that it proves nothing."""
        found = self.differences(result)
        return any(all(found[n].error == v.differences[n].error for n in found) for v in self.variants)


def make_bench(family: str, precision: Precision) -> Bench:
    path = resolve_model(f"tiny:{family}").path
    attention: Attention = "eager" if family in EAGER_ONLY else "sdpa"
    config = json.loads((path / "config.json").read_text())
    inputs = StepInputs(
        spec=RunSpec("calibration", path, Path(), precision=precision, attention=attention),
        source=choose_source(path),
        state=State({}, {}),
        micro_batches=make_micro_batches(int(config["vocab_size"])),
        trainable=frozenset(),
        config={},
        choices={},
    )
    model = inputs.build(dtype=torch.float64, attention="eager")
    model.requires_grad_(True)
    with float64_mode(inputs.source):
        exact = inputs.compute(model, exact=True)
    gradients = {
        name: project(name, gradient, blocks_of(name, tuple(gradient.shape), config=config))
        for name, gradient in exact.result.gradients.items()
    }
    inputs = replace(inputs, trainable=frozenset(gradients))
    return Bench(inputs, gradients, tuple(compute_variants(inputs, exact.result, gradients)))


def healthy(bench: Bench) -> Iterator[tuple[str, StepResult]]:
    """transformers' own model in forms that a framework may choose, beside those of the floor."""
    for attention in bench.inputs.attentions:
        model = bench.model(attention)
        for layout in ("right", "left", "merged"):
            yield f"transformers, {attention}, {layout}", bench.run(model, layout)
        handle = move_inputs(model, EPSILON[bench.precision], 3)
        yield f"transformers, {attention}, inputs moved", bench.run(model)
        handle.remove()
    model = bench.model(bench.inputs.attentions[0])
    yield "transformers, micro-batches swapped", bench.run(model, batches=bench.inputs.micro_batches[::-1])


def faults(bench: Bench) -> Iterator[tuple[str, StepResult]]:
    """One change each, of the size of the public problems that they stand for."""
    batches, total = bench.inputs.micro_batches, bench.inputs.denominator
    clean = bench.model(bench.inputs.attentions[0])
    yield "count + 1", bench.run(clean, denominator=total + 1)
    yield "one label masked", bench.run(clean, denominator=total, batches=_mask_one(batches))
    yield "rows see padding", bench.run(clean, denominator=total, batches=_grow_row(batches))
    for name, change in CHANGES.items():
        model = bench.model(bench.inputs.attentions[0])
        if change(model):
            yield name, bench.run(model)


def _mask_one(batches: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    counted = batches[0].counted.clone()
    counted[0, 30] = False
    return (replace(batches[0], counted=counted), *batches[1:])


def _grow_row(batches: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    """The short row gets one token of padding in front, as if the mask let it be seen."""
    micro = batches[0]
    ids, counted = micro.input_ids.clone(), micro.counted.clone()
    length = LENGTHS[0][0]
    ids[0, 1 : length + 1], counted[0, 1 : length + 1] = ids[0, :length].clone(), counted[0, :length].clone()
    ids[0, 0], counted[0, 0] = 0, False
    documents = (Document(0, 0, length + 1), *micro.documents[1:])
    return (replace(micro, input_ids=ids, counted=counted, documents=documents), *batches[1:])


def _scale_eps(model: nn.Module) -> bool:
    for module in model.modules():
        for field in ("variance_epsilon", "eps"):
            if isinstance(getattr(module, field, None), float):
                setattr(module, field, getattr(module, field) * 10.0)
    return True


def _scale_attention(model: nn.Module) -> bool:
    module = next((m for m in model.modules() if isinstance(getattr(m, "scaling", None), float)), None)
    if module is None:
        return False
    module.scaling = module.scaling * 1.01  # type: ignore[operator,assignment]
    return True


def _round_rope(model: nn.Module) -> bool:
    found = False
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name.endswith("inv_freq") and not name.startswith("original"):
                setattr(module, name, buffer.to(torch.bfloat16).to(buffer.dtype))
                found = True
    return found


def _scale_parameter(suffix: str, factor: float, rows: int | None = None) -> Callable[[nn.Module], bool]:
    def change(model: nn.Module) -> bool:
        parameter = next((p for n, p in model.named_parameters() if n.endswith(suffix)), None)
        if parameter is None:
            return False
        with torch.no_grad():
            parameter[:rows].mul_(factor)
        return True

    return change


CHANGES: dict[str, Callable[[nn.Module], bool]] = {
    "norm eps × 10": _scale_eps,
    "attention scale + 1 %": _scale_attention,
    "rope frequencies in bf16": _round_rope,
    "o_proj + 0.1 %": _scale_parameter("layers.0.self_attn.o_proj.weight", 1.001),
    "head + 0.1 %": _scale_parameter("lm_head.weight", 1.001),
    "one head of v + 1 %": _scale_parameter("v_proj.weight", 1.01, rows=16),
    "first expert + 1 %": _scale_parameter("experts.down_proj", 1.01, rows=1),
}
