"""Problems as triage makes them: written down from a finding, changed, merged."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.problems.domain import change_problem, create_problem
from plumbline_web.problems.enums import Provenance
from plumbline_web.problems.forms import ProblemForm
from plumbline_web.problems.models import Problem
from plumbline_web.triage.domain import decide
from plumbline_web.triage.forms import KnownProblemField
from plumbline_web.triage.merging import merge
from plumbline_web.triage.queue import PENDING
from plumbline_web.triage.views.finding import find, query, read_version
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import Decision
from plumbline_web.validations.models import Finding


@require_http_methods(["GET", "POST"])
@requires(Role.TRIAGER)
def problem_from_finding(request: HttpRequest, pk: int) -> HttpResponse:
    """A new problem, begun with what the finding says; saving it decides the finding too, and those alike if ticked."""
    finding, person = find(request, pk), signed_in(request)
    form = ProblemForm(request.POST) if request.method == "POST" else ProblemForm(initial=_guess(finding))
    if request.method == "POST" and form.is_valid():
        try:
            with transaction.atomic():
                fields = dict(form.cleaned_data)
                provenance = Provenance(fields.pop("provenance"))
                problem = create_problem(fields, by=person, provenance=provenance)
                chosen = {finding.pk}
                if "alike" in request.POST:
                    alike = Finding.objects.filter(group=finding.group, state__in=PENDING)
                    chosen |= set(alike.values_list("pk", flat=True))
                versions = {finding.pk: read_version(request, finding)}
                outcome = decide(chosen, decision=Decision.NEW, problem=problem, by=person, versions=versions)
                for skipped in outcome.skipped:
                    if skipped.finding.pk == finding.pk:
                        raise Refused("stale", skipped.reason)
        except Refused as error:
            form.add_error(None, f"Nothing was saved: {error}.")
        else:
            messages.success(request, f"{problem.number} is written down, and {finding.number} is it.")
            return redirect(f"{reverse('finding-list')}{query(request)}")
    ctx = {"form": form, "finding": finding, "query": query(request), "fields": list(form)}
    return render(request, "triage/problem.html", ctx, status=200 if not form.errors else 400)


@require_http_methods(["GET", "POST"])
@requires(Role.TRIAGER)
def problem_edit(request: HttpRequest, pk: int) -> HttpResponse:
    problem = get_object_or_404(Problem.objects.defer("search"), pk=pk)
    form = ProblemForm(request.POST if request.method == "POST" else None, problem=problem)
    if request.method == "POST" and form.is_valid():
        given = request.POST.get("version", "")
        version = int(given) if given.isdecimal() and len(given) < 10 else problem.version
        try:
            changed = change_problem(problem, form.cleaned_data, version=version, by=signed_in(request))
        except Refused as error:
            form.add_error(None, f"Nothing was saved: {error}.")
        else:
            messages.success(request, f"Changed: {', '.join(changed)}." if changed else "Nothing was changed.")
            return redirect("problem-detail", pk=pk)
    ctx = {"form": form, "problem": problem, "fields": list(form)}
    return render(request, "triage/problem.html", ctx, status=200 if not form.errors else 400)


@require_POST
@requires(Role.TRIAGER)
def problem_merge(request: HttpRequest, pk: int) -> HttpResponse:
    """Say that this problem is another one."""
    problem = get_object_or_404(Problem.objects.defer("search"), pk=pk)
    try:
        into = KnownProblemField().clean(request.POST.get("into", ""))
        if into is None:
            raise Refused(
                "illegal_state", "no problem is named; write the number of the one that this is, such as P-45"
            )
        merge(problem, into=into, by=signed_in(request))
    except (Refused, ValidationError) as error:
        told = error.messages[0] if isinstance(error, ValidationError) else str(error)
        messages.error(request, f"Nothing was merged: {told}.")
        return redirect("problem-detail", pk=pk)
    messages.success(request, f"{problem.number} is merged into {into.number}; undo brings it back.")
    return redirect("problem-detail", pk=into.pk)


def _guess(finding: Finding) -> dict[str, object]:
    """What a finding says about its problem; the rest is for the person."""
    sentence = finding.result.sentence
    framework = finding.validation.framework.name.replace("_", "-")
    return {
        "title": sentence[:1].upper() + sentence[1:160].split(": ")[0],
        "framework": framework,
        "pattern": finding.pattern,
        "silent": finding.silent,
        "symptom": f"{finding.check_name}: {sentence}",
        "status": "open",
        "provenance": Provenance.FOUND,
        "first_seen": timezone.localdate().isoformat(),
        "affected": f"{framework} {finding.validation.environment.version}",
        "affected_spec": [],
        "cpu_reproducible": "yes",
        "confidence": "medium",
    }
