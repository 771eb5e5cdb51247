"""The catalogue's pages: the list, the matrices, the recurrences, one problem, and the exports."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.problems.detail import read_detail
from plumbline_web.problems.facets import read_matrix, read_whole_matrices
from plumbline_web.problems.filters import ProblemFilter
from plumbline_web.problems.models import Problem
from plumbline_web.problems.presentation import READ, Row, row
from plumbline_web.problems.recurring import list_groups, read_recurring
from plumbline_web.tables.pagination import read_page
from plumbline_web.tables.shortening import shorten
from plumbline_web.tables.views import describe_filter, export_list, shorten_list, show_list

BASIC = ("text", "framework", "pattern", "silent", "status")
"""Facets that are always in view; the others open on demand."""

MATRICES = ("framework", "stage")

GROUPS_OF_PAGE = 30
"""Each with all of its problems."""


@require_GET
def problem_list(request: HttpRequest) -> HttpResponse:
    return show_list(request, _filter(request), template="problems/list.html", basic=BASIC)


@require_GET
def problem_matrix(request: HttpRequest) -> HttpResponse:
    """Pattern × framework and pattern × stage of what the filter leaves."""
    found = _filter(request)
    shortened = shorten_list(request, found)
    if shortened is not None:
        return shortened
    is_whole = found.is_valid() and not found.active()
    matrices = read_whole_matrices(MATRICES) if is_whole else [read_matrix(found.qs, facet) for facet in MATRICES]
    ctx = describe_filter(found, basic=BASIC) | {"matrices": matrices}
    return render(request, "problems/matrix.html", ctx, status=200 if found.is_valid() else 400)


@require_GET
def problem_recurrences(request: HttpRequest) -> HttpResponse:
    """All groups, or with `group` that one."""
    address = shorten(request, {"page": ("", "1")})
    if address is not None:
        return HttpResponseRedirect(address)
    one = request.GET.get("group", "")
    groups = list_groups().filter(pk=int(one)) if one.isdecimal() and len(one) < 19 else list_groups()
    page = read_page(groups, request.GET.get("page", ""), whole=not one, size=GROUPS_OF_PAGE)
    ctx = {"page": page, "recurring": read_recurring(page.rows), "one": one}
    return render(request, "problems/recurrences.html", ctx)


@require_GET
def problem_detail(request: HttpRequest, pk: int) -> HttpResponse:
    problem = get_object_or_404(Problem.objects.visible_to(signed_in(request)).defer("search"), pk=pk)
    may_triage = signed_in(request).has_role(Role.TRIAGER)
    ctx = {"detail": read_detail(problem), "problem": problem, "may_triage": may_triage}
    return render(request, "problems/detail.html", ctx)


@require_GET
def problem_export(request: HttpRequest, form: str) -> HttpResponseBase:
    return export_list(_filter(request), form=form, name="problems", kind=Row, row=row)


def _filter(request: HttpRequest) -> ProblemFilter:
    return ProblemFilter(request.GET, queryset=Problem.objects.visible_to(signed_in(request)).only(*READ))
