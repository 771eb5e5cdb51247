"""Showing one problem again: both environments, a validation in each, and what its checks said beside each other."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from checks.verdict import Verdict
from workers.environments.building import build
from workers.environments.resolving import parse_wish
from workers.environments.store import Store
from workers.environments.using import running_in
from workers.report.numbers import format_measurement, pick_largest
from workers.reproductions.adapter import CaseAdapter
from workers.reproductions.case import Case
from workers.reproductions.models import prepare_model
from workers.reproductions.outcome import FAULTY, FIXED, Judged, Reproduction, Side, find_troubles
from workers.request import DEFAULT_TIME_LIMIT_S, Progress, ValidationRequest, ValidationResult, total_seconds
from workers.settings import parse_settings
from workers.validate import build_spec, validate_spec

OWN = frozenset({"plumbline", "plumbline-capture"})
"""Packages of the recorder, which say nothing of a release."""


def reproduce(
    case: Case,
    *,
    store: Store,
    index: Sequence[str],
    out: Path | None,
    on_progress: Callable[[Progress], None],
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
) -> Reproduction:
    """Build what is missing of both environments, run the case in each, and hold the verdicts against the expected.

    `out`: directory that keeps captures and logs of both runs; None keeps none.

    Raises:
        BadRequest: an environment that does not build, or a case that cannot be run.
    """
    sides = {}
    for which, packages in ((FAULTY, case.faulty), (FIXED, case.fixed)):
        if not packages:
            continue

        def show(progress: Progress, which: str = which) -> None:
            on_progress(replace(progress, phase=f"{which}, {progress.phase}"))

        name = find_environment(packages, store=store, index=index, on_progress=show)
        with running_in(name, store=store):
            kept = None if out is None else out / which
            result = validate_case(case, out=kept, on_progress=show, time_limit_s=time_limit_s)
        sides[which] = _describe(result, packages)
    fixed = sides.get(FIXED)
    return Reproduction(
        slug=case.slug,
        url=case.problem.url,
        shows=case.shows,
        expected=case.fails,
        also=case.also,
        unfixed=case.unfixed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        digest=case.digest,
        faulty=sides[FAULTY],
        fixed=fixed,
        troubles=find_troubles(sides[FAULTY], fixed, expected=case.fails, also=case.also, says=case.says),
    )


def find_environment(
    packages: Sequence[str], *, store: Store, index: Sequence[str], on_progress: Callable[[Progress], None]
) -> str:
    """The name of the environment of these requirements, which is built where there is none.

    Raises:
        BadRequest: it does not build.
    """
    wish = parse_wish(packages[0], packages[1:])
    for name, _ in store.find_requested(wish.texts):
        return name
    build(wish, name=None, python=None, index=index, store=store, on_progress=on_progress)
    return wish.name


def validate_case(
    case: Case, *, out: Path | None, on_progress: Callable[[Progress], None], time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> ValidationResult:
    """Run a case in the frameworks' Python of now, and judge it.

    Raises:
        BadRequest: a case that cannot be run.
    """
    request = ValidationRequest(
        framework=case.framework,
        model=str(prepare_model(case.model)),
        data=case.data,
        checks=case.checks,
        settings=parse_settings(case.settings, defaults={}),
        out=out,
        time_limit_s=time_limit_s,
    )
    spec, checks, chosen = build_spec(request, chosen=CaseAdapter(case))
    with contextlib.ExitStack() as stack:
        if case.dump:
            # Not within `out`, which must be empty when the validation begins.
            dump = stack.enter_context(tempfile.TemporaryDirectory(prefix="plumbline-dump-"))
            spec = replace(spec, synced=Path(dump))
        return validate_spec(request, spec, checks, chosen, on_progress=on_progress, cancelled=lambda: False)


def _describe(result: ValidationResult, packages: Sequence[str]) -> Side:
    found = {name: version for name, version in sorted(result.environment.items()) if name not in OWN}
    verdicts = tuple(_judged(verdict) for verdict in result.verdicts)
    return Side(tuple(packages), found, verdicts, round(total_seconds(result.phases), 1))


def _judged(verdict: Verdict) -> Judged:
    wrong = [each for each in verdict.measurements if not each.holds]
    largest = pick_largest(wrong)
    figures = () if largest is None else (f"{largest.name}: {format_measurement(largest)}",)
    return Judged(verdict.check, verdict.status.value, verdict.sentence, figures)
