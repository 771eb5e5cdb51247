"""What can be judged of a run that was made elsewhere: it is there as its capture says, and there is no other one."""

from __future__ import annotations

from dataclasses import replace

from checks.check import Check
from checks.errors import BadRequest
from checks.models import resolve_model
from checks.parallel.scope import ALONE
from checks.references.budget import CURVE_STEPS
from checks.registry import find_checks
from checks.roles import Role
from checks.samples import read_preferences, read_samples, resolve_data
from checks.spec import RunSpec
from workers.execution import TITLES
from workers.frameworks.requests import check_request, default_settings
from workers.planner import Plan
from workers.push.naming import check_framework
from workers.request import ValidationRequest
from workers.settings import parse_settings

LOGGED = frozenset({"step.schedule", "convergence.health"})
"""Checks of what the framework logged of every step."""

CURVES = frozenset({"convergence.curve"})
"""Checks that take the losses of a run of a few steps from its capture, of a longer one from its log."""


def build_pushed_spec(request: ValidationRequest) -> tuple[RunSpec, tuple[Check, ...]]:
    """State what a pushed capture is said to be as a run spec, and find the checks.

    The framework may be one that no adapter here runs, in a layout that this machine could not run.

    Raises:
        BadRequest: naming the field, what was found, and the remedy.
    """
    check_framework(request.framework)
    checks = find_checks(request.checks)
    data, model = resolve_data(request.data), resolve_model(request.model)
    usual = [f"{name}={value}" for name, value in default_settings(model.family).items()]
    settings = {**parse_settings(usual, defaults={}), **request.settings}
    if settings.get("synced") is not None:
        raise BadRequest("synced", "a pushed capture has no weights of an engine beside it", "leave it out")
    spec = RunSpec(framework=request.framework, model=model.path, data=data, **settings)  # type: ignore[arg-type]
    if spec.objective == "sft":
        check_request(spec, read_samples(data), options=None)
    else:
        samples = tuple(side for pair in read_preferences(data) for side in pair.sides)
        check_request(spec, samples, options=None)
    return spec, checks


def keep_asked_run(plan: Plan) -> Plan:
    """The plan without what takes a run beside the asked one, or its log: a capture from elsewhere has neither."""
    judged, skipped = [], []
    for check in plan.judged:
        if not set(check.roles) <= {Role.RUN} and check.name not in ALONE:
            skipped.append((check, f"a pushed capture has no such run: {_name_runs(check)}"))
        elif check.name in LOGGED or (check.name in CURVES and _is_for_its_curve(plan)):
            skipped.append((check, "reads the framework's log, which is no part of a capture"))
        else:
            judged.append(check)
    names = tuple(check.name for check in judged)
    runs = [replace(run, checks=names) for run in plan.runs if run.role is Role.RUN]
    return Plan(tuple(runs) if names else (), tuple(judged), (*plan.skipped, *skipped))


def _is_for_its_curve(plan: Plan) -> bool:
    return any(run.role is Role.RUN and run.spec.steps >= CURVE_STEPS for run in plan.runs)


def _name_runs(check: Check) -> str:
    return ", ".join(TITLES[role] for role in check.roles if role is not Role.RUN)
