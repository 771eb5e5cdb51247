"""Judging what was recorded, and which further pass would trace a failure to its module."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checks.architecture.step_loss import forward_differs
from checks.check import Check, inconclusive
from checks.convergence.convergence_curve import leave_to_single_steps
from checks.errors import NotRecorded
from checks.material import Material
from checks.verdict import Status, Verdict
from workers.frameworks.shims import name_stand_ins
from workers.tracing import ALL_MODULES, choose_modules

LOCATED_BY = frozenset({"step.precision", "step.loss", "step.gradients", "data.packing"})
"""Checks whose failure another pass, with every module's inputs, can trace to the first wrong module."""

OF_NO_RANK = frozenset({"run", "environment"})
"""Levels whose checks do not read one rank for the whole."""

SECOND_PASS = "second-pass"
THIRD_PASS = "third-pass"


@dataclass(frozen=True)
class TracePass:
    """One more run up to the failing step, recording what the modules that match `modules` receive and give."""

    label: str
    step: int
    modules: str


def judge(checks: Sequence[Check], material: Material) -> dict[str, Verdict]:
    """Judge each check; a judge that breaks is an error of Plumbline, never of the framework."""
    return dict(leave_to_single_steps({check.name: _judge(check, material) for check in checks}, material.spec))


def _judge(check: Check, material: Material) -> Verdict:
    begin = time.monotonic()
    try:
        if material.extra_ranks and check.level not in OF_NO_RANK:
            verdict = inconclusive(check.name, material.extra_ranks)
        else:
            verdict = check.judge(material)
    except NotRecorded as error:
        verdict = inconclusive(check.name, str(error))
    except Exception as error:  # an error verdict keeps the other checks' answers
        sentence = f"Plumbline's judge broke ({type(error).__name__}: {error}); report this with the JSON output"
        verdict = Verdict(check.name, Status.ERROR, sentence)
    stand_ins = () if material.capture is None else material.capture.stand_ins
    return replace(name_stand_ins(verdict, stand_ins), elapsed_s=time.monotonic() - begin)


def next_pass(judged: Mapping[str, Verdict], material: Material, *, done: Sequence[str]) -> TracePass | None:
    """The pass that a failing forward asks for after those that are `done`, None where there is nothing to find."""
    reference = material.first_reference()
    if reference is None or THIRD_PASS in done or material.spec.processes > 1:
        return None
    tokens = sum(micro.input_ids.numel() for micro in reference.micro_batches)
    modules = choose_modules(material.spec.model, tokens=tokens)
    step = min(material.references)
    if SECOND_PASS in done:
        first = material.divergence.first if material.divergence else None
        if modules == ALL_MODULES or first is None:
            return None
        return TracePass(THIRD_PASS, step, rf"{re.escape(first.module)}(\..+)?")
    failing = any(judged[name].status is Status.FAIL for name in LOCATED_BY & set(judged))
    if not failing or not forward_differs(reference, precision=material.spec.precision):
        return None
    return TracePass(SECOND_PASS, step, modules)
