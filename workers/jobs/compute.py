"""The computing process: `python -m workers.jobs.compute reference|judge ORDER.json ANSWER.json`.

What it prints is its job's live log; a line that starts with `» ` names the phase it is at.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from checks.assemble import assemble
from checks.captures.capture import Capture, open_capture
from checks.check import skipped
from checks.errors import CaptureError
from checks.locating import locate
from checks.material import Material, RunOutcome
from checks.references.budget import count_parameters
from checks.references.stored import ReferenceStore
from checks.registry import find_checks
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Verdict
from workers.endpoint import ask_endpoint
from workers.jobs.compute_signs import PHASE_SIGN
from workers.jobs.documents import (
    JudgeAnswer,
    JudgeOrder,
    ReferenceAnswer,
    ReferenceOrder,
    read_judge_order,
    read_reference_order,
    read_spec,
)
from workers.judging import LOCATED_BY, judge, next_pass
from workers.planner import Plan, make_plan
from workers.push.judging import keep_asked_run
from workers.report.as_json import describe_verdict, to_plain
from workers.report.files import write_whole
from workers.validate import SMALL_MODEL_PARAMETERS


def main(arguments: Sequence[str]) -> int:
    """Read the order, compute, write the answer whole or not at all."""
    kind, order_file, answer_file = arguments
    document = json.loads(Path(order_file).read_text())
    if count_parameters(Path(document["spec"]["model"])) < SMALL_MODEL_PARAMETERS:
        torch.set_num_threads(1)
    answer: ReferenceAnswer | JudgeAnswer
    if kind == "reference":
        answer = compute_references(read_reference_order(document))
    else:
        answer = compute_verdicts(read_judge_order(document))
    write_whole(Path(answer_file), json.dumps(to_plain(answer), allow_nan=False))
    return 0


def compute_references(order: ReferenceOrder) -> ReferenceAnswer:
    """Compute what the store lacks of one run's references."""
    _say("reference: float64 and its noise floor")
    store = ReferenceStore(Path(order.references), revision=order.revision)
    outcomes = {Role.RUN: order.run.open()}
    material = assemble(read_spec(order.spec), outcomes, references=True, definition=False, refer=store)
    for step, (key, held) in store.used.items():
        print(f"step {step}: {'stored already' if held else 'computed'}, {key[:12]}")
    for step, reason in material.no_reference.items():
        print(f"step {step}: no reference: {reason}")
    return ReferenceAnswer(
        used={str(step): key for step, (key, _) in store.used.items()},
        held=[str(step) for step, (_, held) in store.used.items() if held],
        none={str(step): reason for step, reason in material.no_reference.items()},
    )


def compute_verdicts(order: JudgeOrder) -> JudgeAnswer:
    """Judge, with the first wrong module where passes were run for it; say which pass would tell more."""
    spec = read_spec(order.spec)
    plan = make_plan(spec, find_checks(None if order.checks is None else tuple(order.checks)), pushed=order.pushed)
    if order.pushed:
        plan = keep_asked_run(plan)
    judged: dict[str, Verdict] = {}
    wanted = None
    outcomes = {Role(role): outcome.open() for role, outcome in order.runs.items()}
    run = outcomes.get(Role.RUN)
    if run is not None:
        material = _assemble(order, spec, plan, outcomes)
        if plan.needs("serving.logprobs"):
            material = replace(material, served=ask_endpoint(material))
        _say(f"judging {len(plan.judged)} checks")
        judged = judge(plan.judged, material)
        for stored in order.passes:
            _say(f"first divergence, from the {stored.label.replace('-', ' ')}")
            material = _locate(material, stored.capture)
        if not order.pushed:
            wanted = next_pass(judged, material, done=[stored.label for stored in order.passes])
        if order.passes:
            judged |= judge([check for check in plan.judged if check.name in LOCATED_BY], material)
    verdicts = [*(judged[check.name] for check in plan.judged), *(skipped(c.name, why) for c, why in plan.skipped)]
    for verdict in verdicts:
        print(f"{verdict.status.value:12} {verdict.check}: {verdict.sentence}")
    return JudgeAnswer(
        verdicts=[describe_verdict(verdict) for verdict in verdicts],
        wanted=to_plain(wanted),
        packages=dict(run.capture.packages) if run is not None and run.capture is not None else {},
        warnings=list(_warn_of_missing(outcomes)),
    )


def _assemble(order: JudgeOrder, spec: RunSpec, plan: Plan, outcomes: Mapping[Role, RunOutcome]) -> Material:
    _say("reading captures and references")
    return assemble(
        spec,
        outcomes,
        references=plan.needs_reference,
        definition=plan.needs("model.definition"),
        trajectory=plan.needs("convergence.curve"),
        refer=ReferenceStore(Path(order.references), revision=order.revision),
    )


def _locate(material: Material, directory: str | None) -> Material:
    if directory is None or not material.references:
        return material
    capture = _open(directory)
    return material if capture is None or min(material.references) not in capture.steps else locate(material, capture)


def _open(directory: str) -> Capture | None:
    try:
        return open_capture(Path(directory))
    except CaptureError as error:
        print(f"the pass cannot be read: {error}")
        return None


def _warn_of_missing(outcomes: Mapping[Role, RunOutcome]) -> Iterator[str]:
    for role, outcome in outcomes.items():
        if outcome.capture is not None:
            for missing in outcome.capture.missing:
                yield f"{role.value} run: {missing.what} was not recorded ({missing.why})"


def _say(phase: str) -> None:
    print(f"{PHASE_SIGN}{phase}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
