"""A validation without a server: ask, plan, capture, refer, judge, and trace a failing forward to its module."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from checks.assemble import assemble
from checks.check import Check, skipped
from checks.faults import fault
from checks.locating import locate
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.references.budget import count_parameters
from checks.registry import find_checks
from checks.roles import Role
from checks.samples import resolve_data
from checks.spec import RunSpec
from checks.transfer.dump import resolve_dump
from checks.verdict import Status, Verdict
from workers.devices.lending import refuse_too_many
from workers.devices.listing import list_devices
from workers.endpoint import ask_endpoint
from workers.execution import Session, execute_all, open_workspace, run_recorded
from workers.frameworks import Adapter, adapter, default_settings
from workers.frameworks.command.stated import FRAMEWORK as COMMAND
from workers.judging import LOCATED_BY, TracePass, judge, next_pass
from workers.launchers.base import Launcher
from workers.planner import Plan, make_plan
from workers.request import Progress, ValidationRequest, ValidationResult
from workers.runner import FrameworkRun
from workers.settings import parse_settings, setting_names

SMALL_MODEL_PARAMETERS = 20_000_000
"""Below it, threads cost more than they give: 0.2 s against 85 s was measured for 20 steps of a tiny model."""


def validate(
    request: ValidationRequest,
    *,
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    launcher: Launcher | None = None,
) -> ValidationResult:
    """Run one validation in this process, its framework runs as subprocesses, or where `launcher` starts them.

    Raises:
        BadRequest: before anything has run, for a request that cannot be met.
    """
    spec, checks, chosen = build_spec(request)
    return validate_spec(request, spec, checks, chosen, on_progress=on_progress, cancelled=cancelled, launcher=launcher)


def validate_spec(
    request: ValidationRequest,
    spec: RunSpec,
    checks: Sequence[Check],
    chosen: Adapter,
    *,
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    launcher: Launcher | None = None,
) -> ValidationResult:
    """Run the validation of a run spec through an adapter, which need be none of the registry's.

    Raises:
        BadRequest: before anything has run, for more devices than there are.
    """
    plan = make_plan(spec, checks)
    if launcher is None:
        there = len(list_devices())
        for planned in plan.runs:
            refuse_too_many(planned.spec, there=there, where="this machine")
    small = count_parameters(spec.model) < SMALL_MODEL_PARAMETERS
    if small:
        torch.set_num_threads(1)
    with open_workspace(request) as workspace:
        session = Session(request, workspace, on_progress, cancelled, launcher)
        side_by_side = small or launcher is not None
        outcomes = execute_all(session, chosen, plan, at_once=len(plan.runs) if side_by_side else 1)
        verdicts = tuple(_judge_all(session, chosen, plan, spec, outcomes))
        return ValidationResult(
            request=request,
            spec=spec,
            verdicts=verdicts,
            phases=tuple(session.phases),
            runs=tuple(session.runs),
            environment=_environment(outcomes),
            warnings=tuple(_warnings(spec, outcomes, session.runs)),
        )


def build_spec(
    request: ValidationRequest, *, chosen: Adapter | None = None
) -> tuple[RunSpec, tuple[Check, ...], Adapter]:
    """Check the whole request and state it as a run spec; through another adapter than the registry's, where given.

    Raises:
        BadRequest: naming the field, what was found, and the remedy.
    """
    chosen = chosen or adapter(request.framework)
    checks = find_checks(request.checks)
    needed = fault(request.inject).settings if request.inject is not None else ()
    data = resolve_data(request.data)
    model = resolve_model(request.model)
    usual = [f"{name}={value}" for name, value in default_settings(model.family).items()]
    settings: dict[str, object] = {**parse_settings([*usual, *needed], defaults={}), **request.settings}
    if settings.get("synced") is not None:
        settings["synced"] = resolve_dump(str(settings["synced"]))
    if request.framework == COMMAND:
        settings["unstated"] = tuple(name for name in setting_names() if name not in settings)
    spec = RunSpec(
        framework=request.framework,
        model=model.path,
        data=data,
        fault=request.inject,
        **settings,  # type: ignore[arg-type]
    )
    chosen.check(spec)
    return spec, checks, chosen


def _judge_all(
    session: Session, chosen: Adapter, plan: Plan, spec: RunSpec, outcomes: Mapping[Role, RunOutcome]
) -> Iterator[Verdict]:
    judged: dict[str, Verdict] = {}
    if Role.RUN in outcomes and not session.cancelled():
        with session.phase("reference", "float64 reference and its noise floor", 0.8):
            material = assemble(
                spec,
                outcomes,
                references=plan.needs_reference,
                definition=plan.needs("model.definition"),
                trajectory=plan.needs("convergence.curve"),
            )
        if plan.needs("serving.logprobs"):
            material = replace(material, served=ask_endpoint(material))
        with session.phase("judge", f"{len(plan.judged)} checks", 0.9):
            judged = judge(plan.judged, material)
        located, material = _trace(session, chosen, spec, material, judged)
        if located:
            with session.phase("judge", "again, with the first wrong module", 0.98):
                judged |= judge([check for check in plan.judged if check.name in LOCATED_BY], material)
    return order_verdicts(plan, judged)


def order_verdicts(plan: Plan, judged: Mapping[str, Verdict]) -> Iterator[Verdict]:
    """The verdicts in reading order: judged ones, those that a cancellation left out, skipped ones."""
    for check in plan.judged:
        cancelled = Verdict(
            check.name, Status.INCONCLUSIVE, "the validation was cancelled before this check was judged"
        )
        yield judged.get(check.name, cancelled)
    for check, reason in plan.skipped:
        yield skipped(check.name, reason)


def _trace(
    session: Session, chosen: Adapter, spec: RunSpec, material: Material, judged: Mapping[str, Verdict]
) -> tuple[bool, Material]:
    """Run the failing step again, as often as it takes to find the first wrong module; whether it ran at all."""
    done: list[str] = []
    while (wanted := next_pass(judged, material, done=done)) is not None:
        material = _record_and_locate(session, chosen, spec, material, wanted)
        done.append(wanted.label)
    return bool(done), material


def _record_and_locate(
    session: Session, chosen: Adapter, spec: RunSpec, material: Material, wanted: TracePass
) -> Material:
    """One more run of the failing step, recording what modules receive and give, and the first wrong one of them."""
    step = wanted.step
    detail = "the failing step again, recording what its modules receive"
    with session.phase(wanted.label.replace("-", " "), detail, 0.95):
        outcome = run_recorded(
            session,
            chosen,
            replace(spec, steps=step),
            wanted.label,
            steps=(step,),
            full=False,
            modules=wanted.modules,
        )
    if outcome.capture is None or step not in outcome.capture.steps:
        return material
    with session.phase("first divergence", "each module of the reference on the framework's own inputs", 0.97):
        return locate(material, outcome.capture)


def _environment(outcomes: Mapping[Role, RunOutcome]) -> dict[str, str]:
    """Packages of the framework's process, with this machine's Python; what the capture says comes first."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    run = outcomes.get(Role.RUN)
    if run is not None and run.capture is not None:
        found |= run.capture.packages
    return found


def _warnings(spec: RunSpec, outcomes: Mapping[Role, RunOutcome], runs: Sequence[FrameworkRun]) -> Iterator[str]:
    if spec.fault is not None:
        injected = fault(spec.fault)
        took_effect = any(injected.marker in run.log.read_text(errors="replace") for run in runs)
        how = "was injected" if took_effect else "was injected and NEVER TOOK EFFECT"
        yield f"the fault {spec.fault} {how}: {injected.summary}"
    for role, outcome in outcomes.items():
        if outcome.capture is not None:
            for missing in outcome.capture.missing:
                yield f"{role.value} run: {missing.what} was not recorded ({missing.why})"
