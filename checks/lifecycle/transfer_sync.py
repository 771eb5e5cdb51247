"""The weights that a rollout engine holds after a sync are the trainer's, of the step that it says.

Reference: an identity: the trainer's recorded parameters before and after its captured steps, cast to the dtype of the
engine. The engine's weights are a dump, a directory of safetensors with a `sync.json` that states how many optimizer
steps they have taken (docs/cli.md, "Weights of a rollout engine"); fused matrices are cut and single experts stacked.
Compared bit by bit wherever numbers were recorded (all of small tensors, 4,096 positions of large ones), and by norms
of rows and sketches elsewhere, within the cast. Adapters that the engine holds merged are held against their product.
Catches: a sync that did not happen or is late (`verl-weight-sync-tied-to-cache-flag`, `slime-old-actor-wrong-lag`),
tensors that are lost, permuted or overwritten on the way (`miles-noncontiguous-weights-broadcast`,
`slime-weight-buffers-freed-too-early`), values rounded more than the cast (`miles-expert-bias-exported-in-bf16`), a
tied head that stays behind, adapters that never reach the engine (`miles-lora-session-served-by-base`,
`miles-lora-sync-fails-unnoticed`).
Cannot see: what the engine computes from its weights (`serving.logprobs`); weights that it keeps in a quantised form or
in a layout of its kernels; of a large tensor, a change of numbers outside the sample that is within the cast's noise; a
step between the captured ones.
Cost: one reading of the dump; no run of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from checks.captures.capture import TensorRecord
from checks.check import Check, inconclusive
from checks.errors import BadRequest
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.spec import RunSpec
from checks.transfer.comparison import Compared, compare_copy, compare_parameter, walk_copies
from checks.transfer.dump import Dump, read_dump
from checks.transfer.merging import adapted
from checks.transfer.names import match_dump
from checks.transfer.quantised import beside_weights
from checks.transfer.states import TrainerStates, read_states, tell_apart
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "transfer.sync"
SHOWN = 3
LISTED = 50
ADAPTER = ".lora_"


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    assert material.spec.synced is not None
    try:
        dump = read_dump(material.spec.synced)
        return _judge(material, dump, read_states(capture))
    except BadRequest as error:
        return inconclusive(NAME, str(error).rstrip("."))


def _judge(material: Material, dump: Dump, states: TrainerStates) -> Verdict:
    step = states.steps[-1] if dump.step is None else dump.step
    if step not in states.records:
        recorded = ", ".join(map(str, states.steps))
        sentence = f"sync.json says step {step}, and the trainer's weights were recorded after steps {recorded}"
        return inconclusive(NAME, f"{sentence}; write a dump after one of these, or ask for other steps")
    records = states.records[step]
    separate = any(ADAPTER in name for name in dump.shapes)
    known = {name: shape for name, shape in states.shapes.items() if separate or ADAPTER not in name}
    tied = bool(material.asked_config.get("tie_word_embeddings"))
    beside = beside_weights(dump.shapes)
    matching = match_dump(dump, known, tied=tied, names=[name for name in dump.shapes if name not in beside])
    scale = material.spec.lora_alpha / material.spec.lora_r
    merged = () if separate else adapted(records)
    compared = [
        compare_parameter(dump, matching, name, states, step, scale=scale if name in merged else None)
        for name in known
        if name in matching.targets
    ]
    compared += [compare_copy(dump, matching, name, place, compared) for name, place in walk_copies(matching)]
    buffers = _buffers(matching.extra, material)
    extra = tuple(name for name in matching.extra if name not in buffers)
    return _decide(dump, states, step, compared, matching.missing, extra, matching.padded)


def _buffers(extra: Sequence[str], material: Material) -> frozenset[str]:
    """Tensors of the dump that are buffers of the trainer's model."""
    assert material.capture is not None
    scalars = material.capture.step(material.capture.steps[0]).scalars
    found = set()
    for name in extra:
        path, _, attribute = name.rpartition(".")
        if name in material.router_biases or isinstance(scalars.get(path, {}).get(attribute), list):
            found.add(name)
    return frozenset(found)


def _decide(
    dump: Dump,
    states: TrainerStates,
    step: int,
    compared: Sequence[Compared],
    missing: Sequence[str],
    extra: Sequence[str],
    padded: Sequence[str],
) -> Verdict:
    judged = [each for each in compared if each.problem is None]
    wrong = [each for each in judged if step not in each.steps]
    quantised = sum(each.quantised for each in compared)
    problems = [each.problem for each in compared if each.problem is not None]
    measurements = tuple(
        Measurement(name, float(count), 0.0, not count, limit=1.0, unit="count")
        for name, count in (
            (f"tensors that are not the trainer's after step {step}", len(wrong)),
            ("parameters that the engine does not hold", len(missing)),
        )
    )
    evidence = {
        "engine": {key: dump.stated.get(key) for key in ("engine", "version", "step")},
        "step": step,
        "recorded_steps": list(states.steps),
        "dtypes": sorted({each.dtype.removeprefix("torch.") for each in judged}),
        "compared": len(judged),
        "wrong": [
            {
                "name": e.name,
                "engine_name": e.source,
                "matches_steps": list(e.steps),
                "relative": _json(e.relative),
                "differing": e.differing,
                "compared": e.compared,
            }
            for e in wrong[:LISTED]
        ],
        "missing": list(missing[:LISTED]),
        "extra": list(extra[:LISTED]),
        "padded": list(padded),
        "unread": problems[:LISTED],
        "plots": to_evidence([_draw(states, judged)]),
    }
    who = dump.label
    if wrong:
        sentence = _say_wrong(who, step, wrong, judged)
        first = _first_wrong(wrong)
        return Verdict(
            NAME,
            Status.FAIL,
            sentence,
            measurements,
            pattern=Pattern.STATE_TRANSFER,
            first_wrong=first,
            evidence=evidence,
        )
    if missing and (extra or problems):
        unknown = extra[0] if extra else problems[0]
        sentence = f"{missing[0]} has no counterpart in the dump, and {unknown} has none in the trainer"
        remedy = "write the dump under the names of the Hugging Face checkpoint"
        return inconclusive(NAME, f"{sentence}; {remedy}", measurements=measurements, evidence=evidence)
    if missing or extra:
        lost = f"{who} does not hold {_list(missing)}" if missing else ""
        more = f"{who} holds {_list(extra)}, which the trainer has not" if extra else ""
        return Verdict(
            NAME,
            Status.FAIL,
            lost or more,
            measurements,
            pattern=Pattern.STATE_TRANSFER,
            first_wrong=(missing or extra)[0],
            evidence=evidence,
        )
    if len(problems) > quantised or not judged:
        why = problems[0] if problems else "the dump holds no tensor that was recorded"
        sentence = f"{len(problems)} of {len(compared)} tensors cannot be compared: {why}"
        return inconclusive(NAME, sentence, measurements=measurements, evidence=evidence)
    return _decide_staleness(dump, states, step, judged, measurements, {**evidence, "quantised": quantised})


def _draw(states: TrainerStates, judged: Sequence[Compared]) -> Plot:
    """How many of the engine's tensors are what the trainer held then: all of one step, or a mixture of several."""
    steps = [float(step) for step in states.steps]
    alike = [float(sum(step in each.steps for each in judged)) for step in states.steps]
    return Plot(
        "Whose weights the engine holds",
        "after the trainer's step",
        "tensors",
        (
            Curve("are the trainer's of that step", steps, alike, style="points"),
            Curve("compared", steps, [float(len(judged))] * len(steps), style="threshold"),
        ),
    )


def _decide_staleness(
    dump: Dump,
    states: TrainerStates,
    step: int,
    judged: Sequence[Compared],
    measurements: tuple[Measurement, ...],
    evidence: Mapping[str, object],
) -> Verdict:
    """A pass, unless weights of an earlier step would look the same after the cast."""
    said = "" if dump.step is not None else " (sync.json states no step; the last one is taken)"
    sentence = f"{dump.label} holds the trainer's weights after step {step}{said}: {len(judged)} tensors"
    dtypes = ", ".join(sorted({each.dtype.removeprefix("torch.") for each in judged}))
    earlier = [each for each in states.steps if each < step]
    if earlier:
        told = sum(_told_apart(states, each, step, earlier[-1]) for each in judged)
        if not told:
            reason = f"after the cast to {dtypes} its weights after step {earlier[-1]} look the same as after {step}"
            remedy = "raise lr or dump in the trainer's dtype"
            return inconclusive(
                NAME, f"{reason}, so that a stale sync would not show; {remedy}", measurements=measurements
            )
        sentence += f", {told} of which had moved since step {earlier[-1]}"
    merged = sum(each.merged for each in judged)
    how = f"{sentence}, bit by bit in {dtypes}"
    if merged:
        how += f"; {merged} of them hold their adapters merged, within the rounding of the merge"
    if evidence["quantised"]:
        how += f"; {evidence['quantised']} that it holds quantised are judged by serving.quantised"
    return Verdict(NAME, Status.PASS, how, measurements, evidence=evidence)


def _told_apart(states: TrainerStates, each: Compared, step: int, earlier: int) -> bool:
    if each.merged:
        return earlier not in each.steps
    records: Mapping[str, TensorRecord] = states.records[step]
    if each.name not in records:  # a tied head: its embedding tells
        return False
    dtype: torch.dtype = getattr(torch, each.dtype)
    return tell_apart((records[each.name], states.records[earlier][each.name]), dtype)


def _say_wrong(who: str, step: int, wrong: Sequence[Compared], judged: Sequence[Compared]) -> str:
    count = f"{len(wrong)} of {len(judged)} tensors"
    if all(each.base_alone for each in wrong):
        return (
            f"{who} holds the base weights alone: the adapters of {count} are neither merged into them nor beside "
            f"them; first {wrong[0].name}"
        )
    common = set.intersection(*(set(each.steps) for each in wrong))
    if common:
        near = min(common, key=lambda other: (abs(step - other), other))
        away = step - near
        how = f"stale by {_steps(away)}" if away > 0 else f"ahead by {_steps(-away)}"
        return f"{who} holds weights of after step {near}, not {step}: {how}, in {count}, first {wrong[0].name}"
    shown = "; ".join(_say_one(each, step) for each in wrong[:SHOWN])
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return f"{count} that {who} holds are not the trainer's after step {step}: {shown}{more}"


def _say_one(each: Compared, step: int) -> str:
    if each.base_alone:
        return f"{each.name} is the base without its adapters"
    if each.steps:
        near = min(each.steps, key=lambda other: (abs(step - other), other))
        return f"{each.name} is as after step {near}"
    if each.merged:
        return f"{each.name} is not the base with its adapters merged"
    return f"{each.name} differs by {each.relative:.3g} of its norm, in {each.differing} of {each.compared} numbers"


def _first_wrong(wrong: Sequence[Compared]) -> str:
    if all(each.base_alone for each in wrong):
        return "adapters"
    return wrong[0].name


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _json(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)


def _applies(spec: RunSpec) -> str | None:
    if spec.synced is None:
        return "no weights of a rollout engine were given; set synced to the directory of a dump"
    return None


CHECK = Check(NAME, "the weights that a rollout engine holds are the trainer's", __doc__ or "", judge, applies=_applies)
