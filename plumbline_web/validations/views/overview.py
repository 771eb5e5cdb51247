"""The overview, and the part of it that follows what runs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.validations.overview import (
    has_any,
    read_matrix,
    read_news,
    read_patterns,
    read_profiles,
    read_running,
)
from plumbline_web.validations.progress import read_progress


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    profile = request.GET.get("profile", "")
    matrix = read_matrix(profile)
    patterns, findings, silent = read_patterns()
    rows, running_total = read_running(user)
    ctx = {
        "profile": profile,
        "profiles": read_profiles(),
        "matrix": matrix,
        "is_empty": not matrix.lines and not has_any(user),
        "news": read_news(user),
        "patterns": patterns,
        "findings": findings,
        "silent": silent,
        "running": rows,
        "running_total": running_total,
        "progress": read_progress(rows),
        "may_submit": user.has_role(Role.SUBMITTER),
    }
    return render(request, "overview.html", ctx)


@require_GET
def running(request: HttpRequest) -> HttpResponse:
    """The panel of what runs, fetched again and again while something does."""
    rows, total = read_running(signed_in(request))
    ctx = {"running": rows, "running_total": total, "progress": read_progress(rows)}
    return render(request, "_running.html", ctx)
