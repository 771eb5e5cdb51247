"""How far healthy runs lie under the threshold, and faults over it: `python -m benchmarks.calibration [--json FILE]`.

The multiples of checks/tolerance.py were chosen on one half of the families and faults and are scored on the other
half. Healthy
evidence: the family's transformers model in the run's own precision, in forms that the floor was not measured on; a
form that is bitwise equal to one of the floor's does not count. Faults: changes of the model, the labels or the
count, of one kind each."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from checks.captures.blocks import blocks_of
from checks.captures.differences import Difference, Projection, difference, project
from checks.models import FAMILIES, resolve_model
from checks.models.families import EAGER_ONLY
from checks.references.batch import Document, MicroBatch
from checks.references.model import AUTOCAST, State, choose_source, float64_mode
from checks.references.step import Layout, StepResult, run_step
from checks.references.variants import StepInputs, Variant, compute_variants, move_inputs
from checks.spec import Attention, Precision, RunSpec
from checks.tolerance import EPSILON, MULTIPLES, VERSION, judge_scale, judge_tensor, measure_floor

LENGTHS = ((61, 128), (90, 40))
"""Two micro-batches of unequal rows."""
PROMPT = 7
"""Tokens at the start of each row that the loss does not count."""


@dataclass(frozen=True)
class Score:
    """One run against the rule: `ratio` is its largest error in *floors*, so it alarms when above the multiple."""

    family: str
    case: str
    faulty: bool
    precision: Precision
    ratio: float


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


def measure(family: str, precision: Precision) -> Iterator[Score]:
    """Scores of every healthy form that is not a repeat, and of every fault that the family can have."""
    bench = make_bench(family, precision)
    for case, result in healthy(bench):
        if not bench.repeats(result):
            yield Score(family, case, False, precision, bench.ratio(result))
    for case, result in faults(bench):
        yield Score(family, case, True, precision, bench.ratio(result))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson, 1927, doi:10.1080/01621459.1927.10502953)."""
    if total == 0:
        return 0.0, 1.0
    z, p = 1.959964, hits / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def split(scores: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """Calibration and test half: by family for healthy runs, by family and kind of fault for faulty ones."""
    families = sorted({score.family for score in scores})
    kinds = sorted({score.case for score in scores if score.faulty})
    first, second = [], []
    for score in scores:
        odd = families.index(score.family) % 2
        if not score.faulty or kinds.index(score.case) % 2 == odd:
            (second if odd else first).append(score)
    return first, second


def report(scores: Sequence[Score], console: Console) -> None:
    for precision in dict.fromkeys(score.precision for score in scores):
        multiple = MULTIPLES[precision]
        table = Table(title=f"{precision}: errors in floors; the threshold is {multiple:g} (tolerance {VERSION})")
        for column in ("half", "healthy runs", "largest", "false alarms", "faults", "smallest", "detected"):
            table.add_column(column, justify="right")
        own = [score for score in scores if score.precision == precision]
        for name, half in zip(("calibration", "test"), split(own), strict=True):
            sound = [s.ratio for s in half if not s.faulty]
            wrong = [s.ratio for s in half if s.faulty]
            alarms, hits = sum(r > multiple for r in sound), sum(r > multiple for r in wrong)
            table.add_row(
                name,
                str(len(sound)),
                f"{max(sound, default=0.0):.3g}",
                _rate(alarms, len(sound)),
                str(len(wrong)),
                f"{min(wrong, default=0.0):.3g}",
                _rate(hits, len(wrong)),
            )
        console.print(table)
        missed = [s for s in own if s.faulty and s.ratio <= multiple]
        for score in sorted(missed, key=lambda s: (s.case, s.family)):
            console.print(f"  not seen: {score.case} on {score.family} ({score.ratio:.2g} floors)")


def _rate(hits: int, total: int) -> str:
    low, high = wilson(hits, total)
    return f"{hits}/{total} (95 %: {low:.0%} to {high:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write every score")
    parser.add_argument("--precision", action="append", choices=("float32", "bf16", "bf16_params"))
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    scores = [
        score
        for precision in options.precision or ("float32", "bf16")
        for family in options.family or sorted(FAMILIES)
        for score in measure(family, precision)
    ]
    report(scores, Console(width=140))
    if options.json is not None:
        options.json.write_text(json.dumps([vars(score) for score in scores], indent=1))


if __name__ == "__main__":
    main()
