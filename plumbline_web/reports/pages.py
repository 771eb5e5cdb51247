"""What the page of one report shows, and the files that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.safestring import SafeString

from plumbline_web.markdown import render_markdown
from plumbline_web.reports.enums import Kind
from plumbline_web.reports.environments import UNCOUNTED, Choice, list_choices
from plumbline_web.reports.figure import read_figure
from plumbline_web.reports.issue_url import build_issue_url
from plumbline_web.reports.models import Report, ScriptRun
from plumbline_web.reports.private import make_redactor
from plumbline_web.reports.rendering import Rendered, Source, list_files, render
from plumbline_web.reports.sending import find_obstacle
from plumbline_web.reports.subjects import framework_of, generate_for
from plumbline_web.reports.trackers import TRACKERS
from plumbline_web.timeline.models import Event, Subject
from workers.reproductions.case import CASES

MOST_RUNS = 20
MOST_EVENTS = 100

DRAFT_NOTICE = "_Draft: the fault was not shown by the script yet, and this is not to be sent._"


@dataclass(frozen=True)
class Page:
    """A report with everything beside it."""

    report: Report
    rendered: Rendered
    preview: SafeString
    removed: tuple[tuple[str, int], ...]
    """what was taken out: kind in words, how often"""
    left_in: tuple[str, ...]
    obstacle: str
    """why it cannot leave the house; empty when it can"""
    issue_url: str
    runs: tuple[ScriptRun, ...]
    events: tuple[Event, ...]
    choices: tuple[Choice, ...]
    may_run: bool
    no_script: str
    """why Plumbline wrote no script; empty where it did"""
    case: str
    """slug of the problem, where a case for it ships"""


def read_page(report: Report, *, may_run_by: bool) -> Page:
    """Everything that the page shows."""
    rendered = render_report(report)
    obstacle = find_obstacle(report)
    service = TRACKERS[report.tracker].service
    link = ""
    if not obstacle:
        link = build_issue_url(report.project, service=service, title=rendered.title, body=_inline(rendered))
    events = Event.objects.filter(subject=Subject.REPORT, subject_id=report.pk).select_related("actor")
    return Page(
        report=report,
        rendered=rendered,
        preview=render_markdown(rendered.markdown),
        removed=tuple((Kind(kind).label, count) for kind, count in sorted(rendered.removed.items())),
        left_in=tuple(Kind(kind).label for kind in report.kept),
        obstacle=obstacle,
        issue_url=link,
        runs=tuple(report.runs.select_related("asked_by").order_by("-pk")[:MOST_RUNS]),
        events=tuple(events.order_by("-at", "-pk")[:MOST_EVENTS]),
        choices=list_choices(framework_of(report)) if may_run_by else (),
        may_run=may_run_by,
        no_script=_say_no_script(report),
        case=_find_case(report),
    )


def render_report(report: Report) -> Rendered:
    """The report as it leaves the house, with the run that its output is of."""
    run = choose_run(report)
    source = Source(
        title=report.title,
        body=report.body,
        script=report.script,
        output=run.output if run is not None else "",
        versions=_list_versions(report, run),
        figure=read_figure(report.finding.result.document) if report.finding is not None else None,
    )
    return render(source, make_redactor(report))


def choose_run(report: Report) -> ScriptRun | None:
    """The run that showed the fault, else the last of the script as it stands."""
    if report.verified_by is not None:
        return report.verified_by
    return report.runs.filter(script=report.script).exclude(output="").order_by("-pk").first()


def make_files(report: Report) -> Mapping[str, bytes]:
    """The files of a report; a draft says that it is one."""
    return list_files(render_report(report), notice=DRAFT_NOTICE if find_obstacle(report) else "")


def _list_versions(report: Report, run: ScriptRun | None) -> Mapping[str, str]:
    """Python, what was installed beside it, and the device; of the recorder nobody upstream has heard."""
    if run is not None and run.packages:
        python, packages, device = run.python, run.packages, {"device": run.device or "CPU"}
    elif report.finding is not None:
        environment = report.finding.validation.environment
        python, packages, device = environment.python, environment.packages, {}
    else:
        return {}
    return {"python": python, **{name: packages[name] for name in sorted(set(packages) - UNCOUNTED)}, **device}


def _inline(rendered: Rendered) -> str:
    """The text for an issue's form, where a picture is attached by hand."""
    if rendered.figure is None:
        return rendered.markdown
    picture = f"![{rendered.figure.title}](plot.png)"
    return rendered.markdown.replace(picture, "_plot.png and data.csv: attach them here_")


def _say_no_script(report: Report) -> str:
    if report.script.strip() or report.finding is None:
        return ""
    return generate_for(report.finding).reason


def _find_case(report: Report) -> str:
    problem = report.problem
    if problem is not None and (CASES / f"{problem.slug}.toml").is_file():
        return problem.slug
    return ""
