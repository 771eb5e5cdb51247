"""One optimizer step that was trained twice, compared part by part in the order in which a step produces them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from checks.captures.capture import Capture, TensorRecord
from checks.captures.compare import compare_tensors
from checks.captures.records import OptimizerRecord, StepRecord
from checks.repeats.allowance import Allowance
from checks.repeats.rows import RowDifference, compare_rows, read_rows

Key = tuple[str, str | None]
WHOLE_STATE = "optimizer state"
"""What is wrong first where the optimizer holds no state of some parameters."""


@dataclass(frozen=True)
class Stage:
    """A part of the step: how much of it was compared, its largest relative difference, and what differs.

    `limit`: the largest difference that was allowed anywhere in it; `first_wrong` and `sentence` are None where all
    holds.
    """

    name: str
    compared: int
    worst: float
    limit: float
    wrong: tuple[str, ...] = ()
    first_wrong: str | None = None
    sentence: str | None = None

    @property
    def holds(self) -> bool:
        return not self.wrong


@dataclass(frozen=True)
class Pair:
    """The step in the resumed run and in the uninterrupted one; each capture counts steps for itself."""

    resumed: Capture
    resumed_step: int
    whole: Capture
    whole_step: int
    allowance: Allowance

    @property
    def records(self) -> tuple[StepRecord, StepRecord]:
        return self.resumed.step(self.resumed_step), self.whole.step(self.whole_step)

    def tensors(self, kind: str) -> tuple[Mapping[Key, TensorRecord], Mapping[Key, TensorRecord]]:
        """(name, field) → record, of the resumed run and of the uninterrupted one."""
        ours = self.resumed.all_tensors(self.resumed_step, kind)
        theirs = self.whole.all_tensors(self.whole_step, kind)
        return {(r.name, r.field): r for r in ours}, {(r.name, r.field): r for r in theirs}


def compare_batch(pair: Pair) -> tuple[Stage, RowDifference | None]:
    """Every tensor of every micro-batch, bit by bit; which rows came instead where they are others."""
    ours, theirs = (_batch(pair.resumed, pair.resumed_step), _batch(pair.whole, pair.whole_step))
    wrong = sorted(ours.keys() ^ theirs.keys())
    wrong += [key for key in ours.keys() & theirs.keys() if not _same(ours[key], theirs[key])]
    first_step = read_rows(pair.whole, 1) if 1 in pair.whole.steps and pair.whole_step != 1 else ()
    rows = compare_rows(read_rows(pair.resumed, pair.resumed_step), read_rows(pair.whole, pair.whole_step), first_step)
    if not wrong:
        return Stage("batch", len(theirs), 0.0, 0.0), None
    names = tuple(f"{name} of micro-batch {index}" for index, name in sorted(wrong))
    if rows is not None:
        return Stage("batch", len(theirs), 1.0, 0.0, names, "data order", rows.sentence), rows
    sentence = f"the rows are the same, and {names[0]} is another"
    return Stage("batch", len(theirs), 1.0, 0.0, names, sorted(wrong)[0][1], sentence), None


def compare_rate(pair: Pair) -> Stage:
    """The learning rate and every other setting of the optimizer's groups, as the step used them."""
    ours, theirs = (record.optimizer for record in pair.records)
    if ours.name != theirs.name or len(ours.groups) != len(theirs.groups):
        sentence = f"the optimizer is {_describe(ours)}, {_describe(theirs)} in the uninterrupted run"
        return Stage("optimizer settings", 1, math.inf, 0.0, ("optimizer",), "optimizer", sentence)
    differing: list[tuple[bool, int, str, object, object]] = []
    compared, worst = 0, 0.0
    for index, (group, other) in enumerate(zip(ours.groups, theirs.groups, strict=True)):
        for key in group.settings.keys() & other.settings.keys():
            a, b = group.settings[key], other.settings[key]
            compared += 1
            if a != b:
                differing.append((key != "lr", index, key, a, b))
                worst = max(worst, _apart(a, b))
    if not differing:
        return Stage("learning rate", compared, 0.0, 0.0)
    differing.sort(key=lambda row: row[:3])
    _, index, key, a, b = differing[0]
    names = tuple(f"{row[2]} of group {row[1]}" for row in differing)
    if key != "lr":
        sentence = f"{names[0]} is {_show(a)}, {_show(b)} in the uninterrupted run"
        return Stage("optimizer settings", compared, worst, 0.0, names, names[0], sentence)
    sentence = f"the learning rate is {_show(a)}, {_show(b)} in the uninterrupted run"
    if a == _rate_of_first_step(pair, index):
        sentence += ": it is that of step 1, the schedule starts over"
    return Stage("learning rate", compared, worst, 0.0, names, "learning rate", sentence)


def compare_state(pair: Pair) -> Stage:
    """The optimizer's state before the step: moments and step counts."""
    ours, theirs = pair.tensors("optimizer_state_before")
    lost = sorted({name for name, _ in theirs.keys() - ours.keys()})
    if lost:
        held = len({name for name, _ in theirs})
        sentence = f"the optimizer holds no state for {len(lost)} of {held} parameters: it was not restored"
        wrong = tuple(_label(key) for key in sorted(theirs.keys() - ours.keys(), key=str))
        return Stage("optimizer state", len(theirs), 1.0, 0.0, wrong, WHOLE_STATE, sentence)
    return _compare_tensors(pair, "optimizer state", ours, theirs)


def compare_weights(pair: Pair) -> Stage:
    """Every parameter before the step, frozen ones too."""
    ours, theirs = pair.tensors("parameter_before")
    stage = _compare_tensors(pair, "weights", ours, theirs)
    if stage.sentence is None or stage.first_wrong is None or pair.whole_step == 1:
        return stage
    key = (stage.first_wrong, None)
    at_first = {(r.name, r.field): r for r in pair.whole.all_tensors(1, "parameter_before")}
    if key in ours and key in at_first and _relative(ours[key], at_first[key]) <= pair.allowance.tensor(key[0]):
        sentence = f"{stage.sentence}; it is as before step 1: nothing was loaded into it"
        return Stage(stage.name, stage.compared, stage.worst, stage.limit, stage.wrong, stage.first_wrong, sentence)
    return stage


def compare_random(pair: Pair) -> Stage:
    """The states of the random number generators when the step's first forward begins."""
    ours, theirs = pair.records
    both = [name for name, digest in theirs.rng.items() if digest and ours.rng.get(name)]
    wrong = tuple(name for name in both if ours.rng[name] != theirs.rng[name])
    if not wrong:
        return Stage("random state", len(both), 0.0, 0.0)
    sentence = f"the random state of {' and '.join(wrong)} is another"
    return Stage("random state", len(both), 1.0, 0.0, wrong, "random state", sentence)


def compare_loss(pair: Pair) -> Stage:
    """What was back-propagated and what the model returned, micro-batch by micro-batch."""
    allowed = pair.allowance.loss
    wrong, worst, compared = [], 0.0, 0
    pairs = zip(*(record.micro_batches for record in pair.records), strict=False)
    for ours, theirs in pairs:
        for label in ("model_loss", "backward"):
            a, b = getattr(ours, label), getattr(theirs, label)
            if a is None or b is None:
                continue
            compared += 1
            apart = _apart(a, b)
            worst = max(worst, apart)
            if not apart <= allowed:
                wrong.append((theirs.index, a, b))
    if not wrong:
        return Stage("loss", compared, worst, allowed)
    index, a, b = wrong[0]
    sentence = f"the loss of micro-batch {index} is {a:.9g}, {b:.9g} in the uninterrupted run"
    names = tuple(dict.fromkeys(f"micro-batch {index}" for index, _, _ in wrong))
    return Stage("loss", compared, worst, allowed, names, "loss", sentence)


def compare_gradients(pair: Pair) -> Stage:
    return _compare_tensors(pair, "gradients", *pair.tensors("gradient"))


def compare_update(pair: Pair) -> Stage:
    """Parameters and optimizer state after the step."""
    stages = [
        _compare_tensors(pair, "update", *pair.tensors("parameter_after")),
        _compare_tensors(pair, "update", *pair.tensors("optimizer_state")),
    ]
    first = next((stage for stage in stages if not stage.holds), stages[0])
    return Stage(
        "update",
        sum(stage.compared for stage in stages),
        max(stage.worst for stage in stages),
        max(stage.limit for stage in stages),
        tuple(name for stage in stages for name in stage.wrong),
        first.first_wrong,
        first.sentence,
    )


def _compare_tensors(
    pair: Pair, stage: str, ours: Mapping[Key, TensorRecord], theirs: Mapping[Key, TensorRecord]
) -> Stage:
    problems: list[tuple[Key, str]] = []
    worst, limit = 0.0, 0.0
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        if key not in ours or key not in theirs:
            where = "the uninterrupted run" if key not in ours else "the resumed run"
            problems.append((key, f"{_label(key)} is in {where} only"))
            continue
        allowed = pair.allowance.tensor(key[0])
        limit = max(limit, allowed)
        problem, apart = _say_difference(key, ours[key], theirs[key], allowed)
        worst = apart if math.isnan(apart) else max(worst, apart)
        if problem is not None:
            problems.append((key, problem))
    if not problems:
        return Stage(stage, len(theirs), worst, limit)
    names = tuple(_label(key) for key, _ in problems)
    more = f" (and {len(problems) - 1} more of {len(theirs)})" if len(problems) > 1 else ""
    return Stage(stage, len(theirs), worst, limit, names, problems[0][0][0], problems[0][1] + more)


def _say_difference(key: Key, a: TensorRecord, b: TensorRecord, allowed: float) -> tuple[str | None, float]:
    """What is wrong with a tensor of the resumed run, None where nothing is, and the relative difference."""
    if a.dtype != b.dtype:
        return f"{_label(key)} is held in {_short(a.dtype)}, uninterrupted in {_short(b.dtype)}", math.inf
    if a.global_shape != b.global_shape:
        return f"{_label(key)} has shape {a.global_shape}, uninterrupted {b.global_shape}", math.inf
    apart = _relative(a, b)
    if apart <= allowed:
        return None, apart
    if a.norm == 0.0:
        return f"{_label(key)} is zero", apart
    return f"{_label(key)} differs by {apart:.3g} of its norm (allowed {allowed:.2g})", apart


def _relative(a: TensorRecord, b: TensorRecord) -> float:
    """‖a − b‖ / ‖b‖; NaN where the two have no representation in common."""
    return compare_tensors(a, b, step=0).relative


def _batch(capture: Capture, step: int) -> dict[tuple[int, str], TensorRecord]:
    return {(record.micro_batch or 0, record.name): record for record in capture.all_tensors(step, "batch")}


def _same(a: TensorRecord, b: TensorRecord) -> bool:
    ours, theirs = a.read("full"), b.read("full")
    return ours is not None and theirs is not None and ours.dtype == theirs.dtype and ours.equal(theirs)


def _rate_of_first_step(pair: Pair, group: int) -> object:
    if 1 not in pair.whole.steps or pair.whole_step == 1:
        return None
    groups = pair.whole.step(1).optimizer.groups
    return groups[group].settings.get("lr") if group < len(groups) else None


def _apart(a: object, b: object) -> float:
    """|a − b| / |b| of two numbers; 1 of anything else that differs."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        if a == b:
            return 0.0
        return abs(a - b) / abs(b) if b else math.inf
    return 0.0 if a == b else 1.0


def _describe(optimizer: OptimizerRecord) -> str:
    return f"{optimizer.name.rpartition('.')[2]} with {len(optimizer.groups)} groups"


def _label(key: Key) -> str:
    name, field = key
    return name if field is None else f"{field} of {name}"


def _short(dtype: str) -> str:
    return dtype.removeprefix("torch.")


def _show(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def drops_out(record: StepRecord) -> Iterator[str]:
    """Modules and attributes by which the step drops activations at random."""
    for path, attributes in record.scalars.items():
        for name, value in attributes.items():
            is_rate = (name == "p" and "Dropout" in str(attributes.get("class"))) or "dropout" in name
            if is_rate and isinstance(value, float) and value > 0.0:
                yield f"{path}.{name}"
