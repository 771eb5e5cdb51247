"""The pages of reports: the list, a new one, one with its preview, its form, its files, and what is done to it."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.problems.models import Problem
from plumbline_web.reports import domain
from plumbline_web.reports.enums import ReportState, Tracker, UpstreamState
from plumbline_web.reports.environments import list_choices
from plumbline_web.reports.figure import draw_png
from plumbline_web.reports.forms import EditForm, RunForm, SentForm, TrackerForm, UpstreamForm, edit_form_of
from plumbline_web.reports.models import Report
from plumbline_web.reports.pages import make_files, read_page, render_report
from plumbline_web.reports.permissions import may_run
from plumbline_web.reports.rendering import pack
from plumbline_web.reports.running import run_script
from plumbline_web.reports.sending import find_obstacle, mark_sent, set_upstream
from plumbline_web.reports.subjects import framework_of, read_subject
from plumbline_web.reports.trackers import tracker_of
from plumbline_web.tables.pagination import read_page as read_rows
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

TYPES = {"md": "text/markdown; charset=utf-8", "zip": "application/zip"}


@require_GET
def report_list(request: HttpRequest) -> HttpResponse:
    state = request.GET.get("state", "")
    found = Report.objects.visible_to(signed_in(request)).select_related("problem", "finding", "owner")
    found = found.defer("body", "script", "generated", "problem__search")
    if state in ReportState.values:
        found = found.filter(state=state)
    page = read_rows(found.order_by("-updated_at", "-pk"), request.GET.get("page", ""), whole=not state)
    return render(request, "reports/list.html", {"page": page, "state": state, "states": ReportState.choices})


@require_http_methods(["GET", "POST"])
@requires(Role.TRIAGER)
def report_new(request: HttpRequest) -> HttpResponse:
    """Begin a report about `?finding=` or `?problem=`."""
    user = signed_in(request)
    finding, problem = _read_subject(request)
    subject = read_subject(finding=finding, problem=problem)
    form = TrackerForm(request.POST or None, initial={"tracker": tracker_of(subject.framework)})
    if request.method == "POST" and form.is_valid():
        tracker = Tracker(form.cleaned_data["tracker"])
        report = domain.draft_report(by=user, finding=finding, problem=problem, tracker=tracker)
        return redirect("report-detail", report.pk)
    ctx = {"form": form, "finding": finding, "problem": problem, "subject": subject}
    return render(request, "reports/new.html", ctx, status=400 if form.errors else 200)


def _read_subject(request: HttpRequest) -> tuple[Finding | None, Problem | None]:
    """From the address: F-17 or 17, P-45 or 45."""
    user = signed_in(request)
    found, known = (request.GET.get(name, "").upper().split("-")[-1] for name in ("finding", "problem"))
    if not any(number.isdecimal() and len(number) < 12 for number in (found, known)):
        raise Http404("A report is about a finding or a problem; begin it from the page of one.")
    finding = get_object_or_404(Finding.objects.visible_to(user), pk=found) if found else None
    problem = get_object_or_404(Problem.objects.visible_to(user).defer("search"), pk=known) if known else None
    return finding, problem


@require_GET
def report_detail(request: HttpRequest, pk: int) -> HttpResponse:
    user = signed_in(request)
    report = _get(request, pk)
    page = read_page(report, may_run_by=may_run(report, user))
    ctx = {
        "page": page,
        "report": report,
        "may_edit": user.has_role(Role.TRIAGER),
        "run_form": RunForm(choices=page.choices),
        "sent_form": SentForm(),
        "upstream_form": UpstreamForm(initial={"url": report.upstream_url, "state": report.upstream_state}),
    }
    return render(request, "reports/detail.html", ctx)


@require_http_methods(["GET", "POST"])
@requires(Role.TRIAGER)
def report_edit(request: HttpRequest, pk: int) -> HttpResponse:
    report = _get(request, pk)
    form = EditForm(request.POST) if request.method == "POST" else edit_form_of(report)
    status, theirs = 200, None
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                domain.edit(report, form.read(), version=form.cleaned_data["version"], by=signed_in(request))
                return redirect("report-detail", pk)
            except domain.Stale as stale:
                # Both are kept: theirs is shown beside, and the next save replaces it knowingly.
                status, theirs = 409, stale.current
                data = request.POST.copy()
                data["version"] = str(stale.current.version)
                form.data = data
                form.add_error(None, str(stale))
            except Refused as refused:
                form.add_error(None, str(refused))
    return render(request, "reports/edit.html", {"report": report, "form": form, "theirs": theirs}, status=status)


@require_GET
def report_file(request: HttpRequest, pk: int, form: str) -> HttpResponse:
    """The report as Markdown or ZIP: refused until its script showed the fault, but as a draft that says so."""
    report = _get(request, pk)
    obstacle = find_obstacle(report)
    if obstacle and request.GET.get("draft") != "1":
        return render(request, "reports/refused.html", {"report": report, "obstacle": obstacle}, status=409)
    files = make_files(report)
    name = f"{report.number}{'-draft' if obstacle else ''}.{form}"
    response = HttpResponse(files["report.md"] if form == "md" else pack(files), content_type=TYPES[form])
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@require_GET
def report_plot(request: HttpRequest, pk: int) -> HttpResponse:
    rendered = render_report(_get(request, pk))
    if rendered.figure is None:
        raise Http404("This report has no plot: it is of no finding, or of one without numbers.")
    return HttpResponse(draw_png(rendered.figure), content_type="image/png")


@require_POST
@requires(Role.TRIAGER)
def report_run(request: HttpRequest, pk: int) -> HttpResponse:
    report = _get(request, pk)
    form = RunForm(request.POST, choices=list_choices(framework_of(report)))
    if not form.is_valid():
        messages.error(request, "There is no such environment here.")
        return redirect("report-detail", pk)
    chosen = form.cleaned_data["environment"]
    done = "The script is run as soon as a worker is free."
    return _do(request, pk, lambda: run_script(report, environment=chosen, by=signed_in(request)), done=done)


@require_POST
@requires(Role.TRIAGER)
def report_sent(request: HttpRequest, pk: int) -> HttpResponse:
    report, form = _get(request, pk), SentForm(request.POST)
    if not form.is_valid():
        messages.error(request, "This is no address of an issue.")
        return redirect("report-detail", pk)
    url = form.cleaned_data["url"]
    return _do(request, pk, lambda: mark_sent(report, url=url, by=signed_in(request)), done="Noted as sent.")


@require_POST
@requires(Role.TRIAGER)
def report_upstream(request: HttpRequest, pk: int) -> HttpResponse:
    report, form = _get(request, pk), UpstreamForm(request.POST)
    if not form.is_valid():
        messages.error(request, "This is no address of an issue.")
        return redirect("report-detail", pk)
    url, state = form.cleaned_data["url"], UpstreamState(form.cleaned_data["state"])
    return _do(request, pk, lambda: set_upstream(report, url=url, state=state, by=signed_in(request)), done="Noted.")


def _get(request: HttpRequest, pk: int) -> Report:
    found = Report.objects.visible_to(signed_in(request)).with_subjects().select_related("verified_by")
    report: Report = get_object_or_404(found, pk=pk)
    return report


def _do(request: HttpRequest, pk: int, deed: Callable[[], object], *, done: str) -> HttpResponse:
    """Do it, say so, or why not, and show the report again."""
    try:
        deed()
    except Refused as refused:
        messages.error(request, f"{str(refused)[:1].upper()}{str(refused)[1:]}.")
    else:
        messages.success(request, done)
    return redirect("report-detail", pk)
