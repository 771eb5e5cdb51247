"""The machines of the installation: their devices, who has them, and who waits."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from plumbline_web.validations.machines import read_machines


@require_safe
@never_cache
def system(request: HttpRequest) -> HttpResponse:
    return render(request, "validations/system.html", {"machines": read_machines()})
