"""The catalogue's pages: the list, the matrices, the recurrences, one problem, and the exports."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from plumbline_web.accounts.access import signed_in
from plumbline_web.problems.detail import read_detail
from plumbline_web.problems.facets import read_matrix
from plumbline_web.problems.filters import DEFAULT_SORT, ProblemFilter
from plumbline_web.problems.models import Problem
from plumbline_web.problems.presentation import COLUMNS, READ, row
from plumbline_web.problems.recurring import read_recurring
from plumbline_web.tables.exports import CHUNK_ROWS, FORMS, stream
from plumbline_web.tables.pagination import read_page
from plumbline_web.tables.shortening import shorten

BASIC = ("text", "framework", "pattern", "silent", "status")
"""Facets that are always in view; the others open on demand."""

DEFAULTS = {"sort": ("", DEFAULT_SORT), "page": ("", "1")}

MATRICES = ("framework", "stage")


@require_GET
def problem_list(request: HttpRequest) -> HttpResponse:
    address = shorten(request, DEFAULTS)
    if address is not None:
        return HttpResponseRedirect(address)
    found = ProblemFilter(request.GET, queryset=Problem.objects.visible_to(signed_in(request)).only(*READ))
    ctx = _narrow(found) | {"page": read_page(found.qs, request.GET.get("page", ""), whole=not found.active())}
    return render(request, "problems/list.html", ctx, status=200 if found.is_valid() else 400)


@require_GET
def problem_matrix(request: HttpRequest) -> HttpResponse:
    """Pattern × framework and pattern × stage of what the filter leaves."""
    address = shorten(request, DEFAULTS)
    if address is not None:
        return HttpResponseRedirect(address)
    found = ProblemFilter(request.GET, queryset=Problem.objects.visible_to(signed_in(request)))
    ctx = _narrow(found) | {"matrices": [read_matrix(found.qs, facet) for facet in MATRICES]}
    return render(request, "problems/matrix.html", ctx, status=200 if found.is_valid() else 400)


@require_GET
def problem_recurrences(request: HttpRequest) -> HttpResponse:
    return render(request, "problems/recurrences.html", {"recurring": read_recurring()})


@require_GET
def problem_detail(request: HttpRequest, pk: int) -> HttpResponse:
    problem = get_object_or_404(Problem.objects.visible_to(signed_in(request)).defer("search"), pk=pk)
    return render(request, "problems/detail.html", {"detail": read_detail(problem), "problem": problem})


@require_GET
def problem_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The whole filtered set; a filter that is wrong gives 400 and no row."""
    if form not in FORMS:
        raise Http404(f"There is no export as {form[:20]}; use {' or '.join(FORMS)}.")
    found = ProblemFilter(request.GET, queryset=Problem.objects.visible_to(signed_in(request)).only(*READ))
    if not found.is_valid():
        sentences = [f"{name}: {'; '.join(errors)}" for name, errors in found.errors.items()]
        return HttpResponse("\n".join(sentences) + "\n", status=400, content_type="text/plain; charset=utf-8")
    rows = (row(problem) for problem in found.qs.iterator(chunk_size=CHUNK_ROWS))
    response = StreamingHttpResponse(stream(rows, COLUMNS, form), content_type=FORMS[form])
    response["Content-Disposition"] = f'attachment; filename="problems.{form}"'
    return response


def _narrow(found: ProblemFilter) -> dict[str, object]:
    """What the filter's form needs."""
    active = found.active()
    return {
        "filter": found,
        "basic": [found.form[name] for name in BASIC],
        "further": [found.form[name] for name in found.form.fields if name not in BASIC],
        "is_further_open": any(name not in BASIC for name in (*active, *found.errors)),
        "active": active,
        "sort": found.sort_name,
    }
