"""Every tensor's measurements, one list a question: gradient, update, weights, accumulation, the model's class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from plumbline_web.validations.stepdiff.documents import (
    FAIL,
    SKIPPED,
    Judged,
    Measured,
    in_thresholds,
    read_number,
    read_optional,
)

SHOWN_ELEMENTS = 4
"""Of a setting that is a list, such as rotary frequencies."""

POOLED = "pooled scale"
RELATIVE = "relative error"

_UPDATE = re.compile(r"^(?:(?P<moment>[a-z_]+) of )?(?P<name>\S+) \(step (?P<step>\d+)\)$")


@dataclass(frozen=True)
class Block:
    """One block of a tensor: a head, an expert, a vocabulary row. `error`: | ‖a‖ − ‖b‖ | of the block, absolute."""

    index: int
    error: float
    norm: float
    floor: float
    threshold: float

    @property
    def ratio(self) -> float:
        return in_thresholds(self.error, self.threshold)

    @property
    def holds(self) -> bool:
        return self.error <= self.threshold


@dataclass(frozen=True)
class Tensor:
    """One tensor's error against its threshold, with what else is known of it.

    `ratio` is the error in thresholds, of the whole or of its worst block, whichever is larger. `part` names what was
    measured where that is not the tensor itself, such as an optimizer moment.
    """

    name: str
    value: float
    floor: float | None
    threshold: float
    limit: float | None
    ratio: float
    holds: bool
    block: str | None = None
    block_kind: str = ""
    blocks: tuple[Block, ...] = ()
    block_count: int = 0
    scale: float | None = None
    cosine: float | None = None
    part: str = ""
    step: int | None = None


@dataclass(frozen=True)
class Question:
    """`key` stands in the address; `check` holds the answer."""

    key: str
    title: str
    check: str
    what: str
    """what is compared with what, in words"""


QUESTIONS = (
    Question("gradient", "Gradient", "step.gradients", "each gradient before clipping, against the float64 reference"),
    Question(
        "update", "Update", "step.update", "what the optimizer did to each parameter, against its paper's definition"
    ),
    Question("weights", "Weights", "step.settings", "each weight before step 1, against the checkpoint"),
    Question(
        "accumulation", "Accumulation", "step.accumulation", "each gradient, against that of the same rows as one batch"
    ),
    Question("class", "Model class", "model.definition", "each gradient of the model's class, against its definition"),
)
"""What the heatmap can show, in reading order."""


def find_question(key: str) -> Question:
    """The question of an address; the first for any other text."""
    return next((question for question in QUESTIONS if question.key == key), QUESTIONS[0])


def list_tensors(judged: Judged | None, question: Question, *, step: int | None = None) -> tuple[Tensor, ...]:
    """The tensors that a check measured, in the order of the model; `step` chooses one of several."""
    if judged is None:
        return ()
    if question.key == "update":
        return tuple(_worst_updates(judged, step if step is not None else choose_step(judged)))
    measured = [m for m in judged.measurements if m.unit == RELATIVE and m.name not in (POOLED, "objective", "loss")]
    absent = judged.evidence.get("absent") or judged.evidence.get("only_in_one") or ()
    return (*(_read(m, judged) for m in measured), *(_absent(name) for name in absent))


def list_mismatches(judged: Judged | None) -> tuple[str, ...]:
    """Settings in force that are not the asked ones, in words: of modules, or of the optimizer."""
    if judged is None:
        return ()
    scalars = judged.evidence.get("scalars") or ()
    modules = (
        f"{name} of {module} is {_say(in_force)}, asked {_say(asked)}" for module, name, asked, in_force in scalars
    )
    return (*modules, *map(str, judged.evidence.get("settings") or ()))


def _say(value: object) -> str:
    if isinstance(value, list) and len(value) > SHOWN_ELEMENTS:
        return f"[{', '.join(map(str, value[:SHOWN_ELEMENTS]))}, … {len(value)} in all]"
    return str(value)


def list_steps(judged: Judged | None) -> tuple[int, ...]:
    """Optimizer steps at which the update was judged."""
    found = [_UPDATE.match(m.name) for m in judged.measurements] if judged is not None else []
    return tuple(sorted({int(match["step"]) for match in found if match}))


def choose_step(judged: Judged) -> int | None:
    """The step that is shown unasked: the first wrong one, else the last."""
    for measurement in judged.measurements:
        match = _UPDATE.match(measurement.name)
        if match and not measurement.holds:
            return int(match["step"])
    steps = list_steps(judged)
    return steps[-1] if steps else None


def say_why_none(judged: Judged | None, question: Question) -> str:
    """Why a question has no tensors, and what to do."""
    if judged is None:
        return f"{question.check} was not asked for; clone this validation and choose it."
    if judged.status == SKIPPED:
        return f"{question.check} was skipped: {judged.sentence}."
    how = "failed before any tensor was compared" if judged.status == FAIL else f"is {judged.status}"
    return f"{question.check} {how}: {judged.sentence}."


def _read(measurement: Measured, judged: Judged) -> Tensor:
    blocks = judged.table("blocks").get(measurement.name) or {}
    ratio = read_optional(judged.table("ratios").get(measurement.name))
    off = judged.table("weights_off").get(measurement.name) or {}
    scale = judged.table("scales").get(measurement.name, off.get("scale"))
    return Tensor(
        name=measurement.name,
        value=measurement.value,
        floor=measurement.floor,
        threshold=measurement.threshold,
        limit=measurement.limit,
        ratio=_known_ratio(measurement) if ratio is None else ratio,
        holds=measurement.holds,
        block=measurement.block,
        block_kind=str(blocks.get("kind", "")),
        blocks=tuple(_read_block(entry) for entry in blocks.get("worst", ())),
        block_count=int(blocks.get("count", 0)),
        scale=read_optional(scale),
        cosine=read_optional(judged.table("cosines").get(measurement.name)),
    )


def _known_ratio(measurement: Measured) -> float:
    """A tensor that fails although its whole is below the threshold fails by a block: at least one threshold."""
    return measurement.ratio if measurement.holds else max(1.0, measurement.ratio)


def _read_block(entry: list[object]) -> Block:
    index, *numbers = entry
    error, norm, floor, threshold = map(read_number, numbers)
    return Block(int(read_number(index)), error, norm, floor, threshold)


def _absent(name: str) -> Tensor:
    """A tensor that one side lacks: the whole of it is missing."""
    return Tensor(name, 1.0, None, 0.0, None, float("inf"), False, part="absent")


def list_updates(judged: Judged, *, step: int | None) -> Iterator[Tensor]:
    """The update of each parameter at one step, and each of its optimizer moments."""
    known = judged.evidence.get("step")
    for measurement in judged.measurements:
        match = _UPDATE.match(measurement.name)
        if match is None or int(match["step"]) != step:
            continue
        name = match["name"]
        read = replace(
            _read(replace(measurement, name=name), judged),
            part=match["moment"] or "",
            step=step,
            ratio=measurement.ratio,
        )
        if known != step:  # the evidence keeps scale and direction of one step
            read = replace(read, scale=None, cosine=None)
        yield read if not read.part else replace(read, scale=None, cosine=None)


def _worst_updates(judged: Judged, step: int | None) -> Iterator[Tensor]:
    """One tensor a parameter: of its update and its moments the one furthest beyond, or nearest to, its threshold.

    Scale and direction are those of the update itself.
    """
    worst: dict[str, Tensor] = {}
    own: dict[str, Tensor] = {}
    for read in list_updates(judged, step=step):
        if not read.part:
            own[read.name] = read
        if read.name not in worst or _severity(read) > _severity(worst[read.name]):
            worst[read.name] = read
    for name, tensor in worst.items():
        update = own.get(name, tensor)
        yield replace(tensor, scale=update.scale, cosine=update.cosine)


def _severity(tensor: Tensor) -> float:
    return tensor.ratio if tensor.ratio == tensor.ratio else float("inf")


def find_first_wrong(judgements: Mapping[str, Judged]) -> Judged | None:
    """The verdict whose sentence heads the page: the gradients' where they fail, else the first failure."""
    gradients = judgements.get("step.gradients")
    if gradients is not None and gradients.status == FAIL:
        return gradients
    return next((judged for judged in judgements.values() if judged.status == FAIL), None)
