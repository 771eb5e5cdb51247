"""The switches that decide how numbers are computed are in force as they were asked, none accepted and ignored.

Reference: the run spec. Compared with what the framework's process held at each captured step: the precision of
float32 matrix products (full, not TF32), the attention kernel, autocast, the dtypes of parameters, gradients and
optimizer state (master weights and moments in float32 unless bfloat16 parameters were asked), gradient checkpointing,
adapters, training mode, and the micro-batches of the first step with their rows.
Catches: flags that are accepted and ignored (checkpointing that does not recompute, adapters that were not added,
another attention), TF32 switched on by a library, moments kept in bfloat16 while float32 was asked, an autocast that
is missing or of another dtype, an optimizer that steps after every micro-batch (`accelerate-sync-each-batch-steps`).
Cannot see: switches that leave no trace in the process, such as a kernel chosen inside an operator; whether the
numbers are right (`step.gradients`).
Cost: nothing beyond the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checks.captures.capture import Capture, TensorRecord
from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.model import AUTOCAST, PARAMETER_DTYPES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "environment.settings"
MICRO_BATCHES = "micro-batches of a step"
ROWS = "rows of a micro-batch"


@dataclass(frozen=True)
class Switch:
    """One switch: asked and in force, as texts."""

    name: str
    step: int | None
    asked: str
    in_force: str

    @property
    def holds(self) -> bool:
        return self.asked == self.in_force


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    switches = [*_process(capture), *(s for step in capture.steps for s in _step(material, capture, step))]
    wrong = [switch for switch in switches if not switch.holds]
    measurements = (Measurement("switches not as asked", float(len(wrong)), 0.0, not wrong, unit="count"),)
    evidence = {
        "switches": [
            {"switch": s.name, "step": s.step, "asked": s.asked, "in force": s.in_force, "status": _word(s)}
            for s in switches
        ]
    }
    if not wrong:
        sentence = f"{len({switch.name for switch in switches})} switches are in force as asked"
        return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)
    first = wrong[0]
    names = list(dict.fromkeys(switch.name for switch in wrong))
    more = f"; so are {', '.join(names[1:4])}" if len(names) > 1 else ""
    sentence = f"{first.name} is {first.in_force}, asked {first.asked}{more}"
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        pattern=_read_pattern(first),
        first_wrong=first.name,
        evidence=evidence,
    )


def _read_pattern(switch: Switch) -> Pattern:
    if switch.name in (MICRO_BATCHES, ROWS):
        return Pattern.OBJECTIVE_SCALE
    precise = any(word in switch.name for word in ("products", "dtype", "autocast"))
    return Pattern.PRECISION if precise else Pattern.MODEL_DEFINITION


def _process(capture: Capture) -> Iterator[Switch]:
    """What holds for the whole process; an older capture may not say."""
    torch_settings = (capture.manifest.get("environment") or {}).get("torch") or {}
    if "matmul_precision" in torch_settings:
        yield Switch("precision of float32 matrix products", None, "highest", str(torch_settings["matmul_precision"]))


def _step(material: Material, capture: Capture, step: int) -> Iterator[Switch]:
    spec, record = material.spec, capture.step(step)
    model = record.model
    held = PARAMETER_DTYPES[spec.precision]
    autocast = AUTOCAST[spec.precision]
    if step == 1 and _fills_a_step(material, len(record.micro_batches)):
        yield Switch(MICRO_BATCHES, step, str(spec.accumulation), str(len(record.micro_batches)))
    if step == 1 and (rows := _count_rows(material, capture, step)):
        yield Switch(ROWS, step, str(spec.batch), " and ".join(map(str, sorted(rows))))
    if model.attention is not None:
        yield Switch("attention", step, spec.attention, model.attention)
    yield Switch("autocast", step, str(autocast), str(model.autocast or None))
    yield Switch("training mode", step, "on", "on" if model.training else "off")
    yield Switch("gradient checkpointing", step, _on(spec.gradient_checkpointing), _on(model.gradient_checkpointing))
    adapted = any(".lora_" in name for name in record.trainable)
    yield Switch("adapters", step, _on(spec.lora), _on(adapted))
    # What the model's class keeps in float32 is as asked there.
    kept = material.float32_names
    found = dict(model.parameter_dtypes)
    if found.get("torch.float32") == len(kept):
        del found["torch.float32"]
    yield Switch("dtype of parameters", step, str(held), _dtypes(found))
    yield Switch(
        "dtype of gradients", step, str(held), _dtypes(r.dtype for r in _others(capture, step, "gradient", kept))
    )
    states = [record for record in _others(capture, step, "optimizer_state", kept) if record.field != "step"]
    if states:
        yield Switch("dtype of optimizer state", step, str(held), _dtypes(r.dtype for r in states))


def _count_rows(material: Material, capture: Capture, step: int) -> set[int]:
    """How many rows the micro-batches of a step have; none where that is no matter of the batch that was asked for.

    Of pairs, groups and packed documents a batch has other numbers of rows, and the data may not fill a step.
    """
    spec, record = material.spec, capture.step(step)
    if spec.objective != "sft" or spec.packs or "batch" in spec.unstated:
        return set()
    if len(record.micro_batches) != spec.accumulation or not _fills_a_step(material, len(record.micro_batches)):
        return set()
    batches = (capture.micro_batch_tensors(step, "batch", each.index) for each in record.micro_batches)
    shapes = [each.global_shape for batch in batches for name, each in batch.items() if name.endswith("input_ids")]
    return {shape[0] for shape in shapes if len(shape) == 2}


def _fills_a_step(material: Material, found: int) -> bool:
    """Whether the data hold a whole first step; more micro-batches than asked are never a matter of the data."""
    spec, dataset = material.spec, material.dataset
    if found > spec.accumulation:
        return True
    if dataset is None:
        return False
    tokens = sum(min(len(document), spec.seq_len) for document in dataset.documents)
    rows = tokens // spec.seq_len if spec.packing else dataset.rows
    return rows >= spec.dp_size * spec.batch * spec.accumulation


def _on(value: bool) -> str:
    return "on" if value else "off"


def _others(capture: Capture, step: int, kind: str, kept: frozenset[str]) -> list[TensorRecord]:
    """The records of a kind, but for those of kept parameters that are in float32."""
    return [r for r in capture.all_tensors(step, kind) if r.name not in kept or r.dtype != "torch.float32"]


def _dtypes(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


def _word(switch: Switch) -> str:
    return "as asked" if switch.holds else "not as asked"


CHECK = Check(NAME, "every numeric switch is in force as asked", __doc__ or "", judge)
