"""What a run saves is the model that it trained, and what a new process loads is what was saved.

Reference: an identity: every parameter of the run before the step that follows the save against the file, by name,
shape, dtype and value; the same file against the parameters of the process that resumed from it, which must be equal
bit by bit whatever it runs on; optimizer states likewise; config.json and adapter_config.json against the settings in
force and those asked for. The file is read by safetensors alone, without the framework's loader, and an optimizer's
shards by the table that torch.distributed.checkpoint has written beside them. What several ranks hold is put together.
Catches: weights that are lost, stale, transposed, scaled, zeroed or saved in a lower precision, a tied head saved
apart, weights that a load leaves at random or unloaded without an error, moments of the wrong parameter, adapters saved
with another scaling (`miles-conversion-drops-fp32`, `automodel-gemma4-moe-orphan-tie`,
`automodel-tied-head-dropped-on-save`, `automodel-untied-head-retied`, `automodel-transposed-shard-placement`,
`hf-missing-weights-left-uninitialised`, `automodel-fp8-experts-left-at-random-init`, `hf-tie-overwrites-distinct-head`,
`lf-rope-scaling-reapplied-on-resume`).
Cannot see: what another program makes of the file (its tokenizer, its merge of the adapters), settings that neither
config states, weights that are not in safetensors, of optimizer states above 4,096 elements those outside the sample.
Cost: the run of `checkpoint.resume`, and one reading of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from checks.captures.capture import Capture, TensorRecord
from checks.captures.saved import SavedCheckpoint, flatten, read_saved
from checks.check import Check, inconclusive
from checks.lifecycle.checkpoint_resume import needs_two_steps
from checks.material import Material
from checks.parallel.tensors import NotJoined
from checks.parallel.united import unite
from checks.repeats.allowance import Allowance, find_difference
from checks.repeats.configs import compare_adapter_config, compare_config
from checks.repeats.roundtrip import (
    Compared,
    Problem,
    compare_copies,
    compare_loaded,
    compare_saved,
    compare_states,
    find_lost,
)
from checks.roles import Role, spec_of
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "checkpoint.roundtrip"
SHOWN = 3


@dataclass(frozen=True)
class Sides:
    """The three that are compared; each of `run`, `resumed`: canonical name → parameter before the step."""

    run: Mapping[str, TensorRecord]
    at_first: Mapping[str, TensorRecord]
    saved: SavedCheckpoint
    resumed: Mapping[str, TensorRecord]
    states: Mapping[tuple[str, str], TensorRecord]
    expected: tuple[str, ...]
    """names that the file must hold: all, or with adapters those that train"""


def judge(material: Material) -> Verdict:
    run, resumed = material.whole, material.capture_of(Role.RESUMED)
    if run is None or not run.steps:
        return inconclusive(NAME, material.why_not())
    if resumed is None:
        return inconclusive(NAME, "the run that is saved and resumed left no capture; see run.completes")
    checkpoints = read_saved(resumed)
    try:
        resumed = unite(resumed, processes=material.spec.processes, dp_size=material.spec.dp_size)
    except NotJoined as error:
        return inconclusive(NAME, f"the run that is saved and resumed: {error}")
    if not checkpoints:
        return inconclusive(NAME, "the capture names no checkpoint; record it with --checkpoint DIR")
    saved = checkpoints[0]
    if not saved.parameters and not saved.copies:
        unread = saved.unread[0] if saved.unread else f"{saved.directory} holds no weights"
        return inconclusive(NAME, f"no weight of the checkpoint was read ({unread})")
    step = material.spec.steps
    if step not in run.steps:
        return inconclusive(NAME, f"step {step} of the run was not recorded; record its last step")
    why = find_difference(run, resumed)
    reference = material.first_reference()
    if why is not None and reference is None:
        return inconclusive(NAME, f"{why}, and there is no noise floor: {material.why_not()}")
    allowance = Allowance(why or "", reference if why else None, MULTIPLES[material.spec.precision])
    return _compare(material, _take_sides(material, run, resumed, saved), allowance)


def _take_sides(material: Material, run: Capture, resumed: Capture, saved: SavedCheckpoint) -> Sides:
    step = material.spec.steps
    parameters = run.tensors(step, "parameter_before")
    trained = frozenset(run.step(step).trainable)
    after = spec_of(Role.RESUMED, material.spec).resume_after or 0
    first = step - after == 1 and 1 in resumed.steps  # what a later step holds is no longer what was loaded
    return Sides(
        run=parameters,
        at_first=run.tensors(1, "parameter_before") if 1 in run.steps and step != 1 else {},
        saved=saved,
        resumed=resumed.tensors(1, "parameter_before") if first else {},
        states={(r.name, r.field or ""): r for r in run.all_tensors(step, "optimizer_state_before")},
        expected=tuple(name for name in parameters if not material.spec.lora or name in trained),
    )


def _compare(material: Material, sides: Sides, allowance: Allowance) -> Verdict:
    saved, spec = sides.saved, material.spec
    assert material.whole is not None
    step = material.whole.step(spec.steps)
    lost = find_lost(sides.expected, saved)
    buffers, unknown = _sort_extras(sides, step.scalars)
    weights = tuple(compare_saved(sides.run, saved, sides.expected, sides.at_first, allowance))
    copies = tuple(compare_copies(saved))
    loaded = tuple(compare_loaded(sides.resumed, saved, sides.run, sides.at_first))
    states = () if _unread_state(saved) else tuple(compare_states(sides.states, saved, allowance))
    in_force = step.scalars.get("", {}).get("config")
    settings = [
        *compare_config(saved, in_force if isinstance(in_force, Mapping) else {}, flatten(material.asked_config) or {}),
        *(compare_adapter_config(saved, spec, step) if spec.lora else ()),
    ]
    after = spec_of(Role.RESUMED, spec).resume_after
    problems = [
        *(Problem(text.split(" ")[0], text) for text in saved.contradictions),
        *lost,
        *unknown,
        *(c.problem for group in (weights, copies, loaded, states) for c in group if c.problem is not None),
        *settings,
    ]
    if saved.global_step not in (None, after):
        problems.append(Problem("global_step", f"the state is that after step {saved.global_step}, asked {after}"))
    measurements = (
        *(Measurement(c.name, c.apart, c.allowed, c.problem is None, 0.0, 2.0 * c.allowed) for c in weights),
        _pool("largest difference of a loaded parameter", loaded),
        _pool("largest difference of a saved optimizer state", states),
        Measurement("parameters that are not in the file", float(len(lost)), 0.0, not lost, unit="count"),
        Measurement("settings that differ", float(len(settings)), 0.0, not settings, unit="count"),
    )
    limits = {"saved weights": 2.0 * max((c.allowed for c in weights), default=0.0)}
    evidence = {
        "directory": saved.directory.rpartition("/")[2],
        "lost": [p.name for p in lost],
        "unknown": [p.name for p in unknown],
        "buffers": buffers,
        "wrong": [[p.name, p.sentence] for p in problems],
        "tied_copies": [c.name for c in copies],
        "unread": list(saved.unread),
        "compared": {"saved": len(weights), "loaded": len(loaded), "states": len(states)},
    }
    return _decide(sides, problems, measurements, limits, evidence)


def _decide(
    sides: Sides,
    problems: list[Problem],
    measurements: tuple[Measurement, ...],
    limits: Mapping[str, float],
    evidence: Mapping[str, object],
) -> Verdict:
    if problems:
        more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
        return Verdict(
            NAME,
            Status.FAIL,
            "; ".join(problem.sentence for problem in problems[:SHOWN]) + more,
            measurements,
            limits,
            pattern=Pattern.STATE_TRANSFER,
            first_wrong=problems[0].name,
            evidence=evidence,
        )
    if sides.saved.unread:
        sentence = f"a part of the checkpoint could not be read ({sides.saved.unread[0]})"
        return inconclusive(NAME, sentence, measurements=measurements, evidence=evidence)
    counts = evidence["compared"]
    assert isinstance(counts, dict)
    if not counts["saved"] or not counts["loaded"]:
        return inconclusive(NAME, "no parameter of the file was recorded in both runs", evidence=evidence)
    sentence = (
        f"{counts['saved']} parameters and {counts['states']} optimizer states are saved as the run held them, and "
        f"{counts['loaded']} parameters are loaded as saved"
    )
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)


def _sort_extras(sides: Sides, scalars: Mapping[str, Mapping[str, object]]) -> tuple[list[str], tuple[Problem, ...]]:
    """Tensors of the file that are no parameter: buffers of the model, and those of which it has none."""
    buffers, unknown = [], []
    for name in sides.saved.parameters:
        if name in sides.run:
            continue
        path, _, attribute = name.rpartition(".")
        if isinstance(scalars.get(path, {}).get(attribute), list):
            buffers.append(name)
        else:
            unknown.append(Problem(name, f"{name} is in the saved files and is no parameter of the model"))
    return buffers, tuple(unknown)


def _unread_state(saved: SavedCheckpoint) -> bool:
    return any("optimizer" in note.partition(":")[0] for note in saved.unread)


def _pool(name: str, group: tuple[Compared, ...]) -> Measurement:
    worst = max((c.apart for c in group), default=0.0)
    allowed = max((c.allowed for c in group), default=0.0)
    return Measurement(name, worst, allowed, all(c.problem is None for c in group), 0.0, 2.0 * allowed)


CHECK = Check(
    NAME,
    "what is saved is the model that trained, and what is loaded is what was saved",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.RESUMED),
    applies=needs_two_steps,
)
