"""What is saved at one parallel layout is what another layout loads: weights, buffers and optimizer state.

Reference: an identity, the saving run's own state: before the step that follows the save every parameter and optimizer
state, put together from the ranks by their placements, against the same as the processes of another layout hold it
before their first step; bit by bit, for loading computes nothing. A run of several processes is loaded by one, a run of
one by two with FSDP2. Buffers and the settings of the optimizer's groups likewise.
Catches: slices that go to the wrong rank or are read transposed (`automodel-transposed-shard-placement`), optimizer
state that is shifted or lost (`mcore-distopt-reshard-padding`, `automodel-optimizer-scheduler-state-not-restored`),
experts that keep what they were built with (`automodel-te-experts-left-at-random-init`), groups whose rate is another
(`mcore-lr-groups-overridden-on-load`).
Cannot see: what the loaded run computes from it (`parallel.gradients`); data order and random states, which a layout
may change; of optimizer states above 4,096 elements those outside the sample; layouts along two axes at once.
Cost: one more run of the framework, of the processes that save and of those that load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checks.captures.records import StepRecord
from checks.check import Check, inconclusive
from checks.lifecycle.checkpoint_resume import needs_two_steps
from checks.material import Material
from checks.parallel.joining import JoinedStep, join_ranks
from checks.parallel.resharding import Key, Reshaped, compare_resharded
from checks.parallel.runs import join_asked
from checks.parallel.tensors import JoinedTensor, NotJoined
from checks.repeats.allowance import find_difference
from checks.roles import Role, other_layout
from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "checkpoint.reshard"
WEIGHTS, STATES = "parameter_before", "optimizer_state_before"
NOT_COMPARED = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings of how an optimizer is executed, which each layout may choose; they change no definition."""
SHOWN = 3
LISTED = 50


def judge(material: Material) -> Verdict:
    resharded = material.capture_of(Role.RESHARDED)
    if material.capture is None or not material.capture.steps:
        return inconclusive(NAME, material.why_not())
    if resharded is None or not resharded.steps:
        outcome = material.others.get(Role.RESHARDED)
        said = "" if outcome is None else f" ({outcome.last_error or outcome.unreadable or outcome.ending})"
        return inconclusive(NAME, f"the run that is saved and resumed at another layout left no step to compare{said}")
    why = find_difference(material.capture, resharded)
    if why is not None:
        sentence = f"{why}, so that the run that saved need not be the asked one bit by bit"
        return inconclusive(NAME, f"{sentence}; ask for deterministic kernels, on one machine")
    spec, other = material.spec, other_layout(material.spec)
    try:
        saved = join_asked(material, spec.steps)
        loaded = join_ranks(resharded, min(resharded.steps), processes=other.processes, dp_size=other.dp_size)
        first = join_asked(material, 1) if 1 in material.capture.steps and spec.steps != 1 else None
        at_first = {} if first is None else first.tensors(WEIGHTS)
        weights = _compare(saved, loaded, WEIGHTS, at_first)
        states = _compare(saved, loaded, STATES, {})
    except NotJoined as error:
        return inconclusive(NAME, str(error))
    settings = _compare_settings(material.capture.step(spec.steps), saved, loaded)
    return _decide(spec, weights, states, settings)


def _compare(
    saved: JoinedStep, loaded: JoinedStep, kind: str, first: Mapping[Key, JoinedTensor]
) -> tuple[Reshaped, ...]:
    return compare_resharded(saved.tensors(kind), loaded.tensors(kind), first)


def _compare_settings(record: StepRecord, saved: JoinedStep, loaded: JoinedStep) -> tuple[int, list[tuple[str, str]]]:
    """How many buffers and settings of groups were compared, and those that differ, each with a sentence."""
    count, wrong = 0, []
    for rank in loaded.ranks:
        theirs = loaded.capture.step(loaded.step, rank=rank)
        for path, attributes in record.scalars.items():
            for name, value in attributes.items():
                if isinstance(value, list) and path in theirs.scalars and name in theirs.scalars[path]:
                    count += 1
                    if theirs.scalars[path][name] != value:
                        buffer = f"{path}.{name}" if path else name
                        wrong.append((buffer, f"the buffer {buffer} is another on rank {rank} after the load"))
        groups = list(zip(record.optimizer.groups, theirs.optimizer.groups, strict=False))
        for index, (group, other) in enumerate(groups):
            for key in sorted((group.settings.keys() & other.settings.keys()) - NOT_COMPARED):
                count += 1
                if group.settings[key] != other.settings[key]:
                    name = "learning rate" if key == "lr" else f"{key} of group {index}"
                    now, then = other.settings[key], group.settings[key]
                    wrong.append((name, f"the {name} is {now} on rank {rank} after the load, {then} when it was saved"))
    return count, wrong


def _decide(
    spec: RunSpec,
    weights: Sequence[Reshaped],
    states: Sequence[Reshaped],
    settings: tuple[int, list[tuple[str, str]]],
) -> Verdict:
    other = other_layout(spec)
    layouts = f"saved by {_describe(spec)} and loaded by {_describe(other)}"
    wrong = [each for each in (*weights, *states) if each.wrong is not None]
    count, odd = settings
    measurements = tuple(
        Measurement(f"{what} that differ", float(number), 0.0, not number, limit=1.0, unit="count")
        for what, number in (
            ("parameters", sum(each.wrong is not None for each in weights)),
            ("optimizer states", sum(each.wrong is not None for each in states)),
            ("buffers and settings", len(odd)),
        )
    )
    evidence = {
        "saved_by": _describe(spec),
        "loaded_by": _describe(other),
        "compared": {
            "parameters": len(weights),
            "optimizer_states": len(states),
            "numbers": sum(each.compared for each in (*weights, *states)),
            "elements": sum(each.elements for each in (*weights, *states)),
            "buffers_and_settings": count,
        },
        "differing": [_show(each) for each in wrong[:LISTED]],
        "settings": [sentence for _, sentence in odd[:LISTED]],
    }
    if wrong or odd:
        sentences = _summarise(wrong, states) + [sentence for _, sentence in odd]
        more = f" (and {len(sentences) - SHOWN} more)" if len(sentences) > SHOWN else ""
        first = _name_first(wrong, states) if wrong else odd[0][0]
        sentence = f"{layouts}: {'; '.join(sentences[:SHOWN])}{more}"
        return Verdict(
            NAME,
            Status.FAIL,
            sentence,
            measurements,
            pattern=Pattern.STATE_TRANSFER,
            first_wrong=first,
            evidence=evidence,
        )
    if not any(each.compared for each in weights):
        return inconclusive(NAME, "no parameter was recorded in both runs", measurements=measurements)
    trained = spec.optimizer != "sgd" or spec.momentum > 0.0
    if trained and not any(each.compared for each in states):
        return inconclusive(NAME, "no optimizer state was recorded in both runs", measurements=measurements)
    numbers, elements = (sum(getattr(each, what) for each in states) for what in ("compared", "elements"))
    sampled = f", {numbers} of their {elements} numbers" if numbers < elements else ""
    sentence = (
        f"{layouts}: {len(weights)} parameters and {len(states)} optimizer states{sampled} are bitwise the same, "
        f"{count} buffers and settings too"
    )
    return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)


def _summarise(wrong: Sequence[Reshaped], states: Sequence[Reshaped]) -> list[str]:
    """A sentence a tensor; one for all states where the load lost every one of them."""
    found = [each.wrong for each in wrong if each.wrong is not None and each.kind != STATES]
    lost = _lost_states(wrong, states)
    if lost:
        said = "the optimizer state was not loaded"
        return [*found, f"{said}: {lost} of {len(states)} states are zero or missing that were not when it was saved"]
    return [*found, *(each.wrong for each in wrong if each.wrong is not None and each.kind == STATES)]


def _lost_states(wrong: Sequence[Reshaped], states: Sequence[Reshaped]) -> int:
    """How many states are gone, where everything that is wrong with states is that they are gone."""
    odd = [each for each in wrong if each.kind == STATES]
    gone = [each for each in odd if each.zero or not each.compared]
    return len(gone) if len(gone) == len(odd) > 1 else 0


def _name_first(wrong: Sequence[Reshaped], states: Sequence[Reshaped]) -> str:
    first = wrong[0]
    if first.kind == STATES and _lost_states(wrong, states):
        return "optimizer state"
    return f"rank {', '.join(map(str, first.ranks))}: {first.label}" if first.ranks else first.label


def _show(each: Reshaped) -> dict[str, object]:
    return {
        "kind": each.kind,
        "name": each.name,
        "field": each.field,
        "differing": each.differing,
        "compared": each.compared,
        "ranks": list(each.ranks),
        "sentence": each.wrong,
    }


def _describe(spec: RunSpec) -> str:
    if spec.processes == 1:
        return "one process"
    axes = {"data": spec.dp_size, "tensor": spec.tp_size, "expert": spec.ep_size}
    axes |= {"pipeline": spec.pp_size, "context": spec.cp_size}
    named = [f"{degree} {axis}-parallel" for axis, degree in axes.items() if degree > 1]
    how = f" ({spec.sharding})" if spec.sharding != "none" else ""
    return f"{' × '.join(named)} ranks{how}"


def _applies(spec: RunSpec) -> str | None:
    if spec.framework != "plain":
        return (
            f"{spec.framework} is taken up again only by the processes that saved it here, which checkpoint.roundtrip "
            "judges; framework plain is loaded at another layout"
        )
    return needs_two_steps(spec)


CHECK = Check(
    NAME,
    "what is saved at one parallel layout is what another loads",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.RESHARDED),
    applies=_applies,
)
