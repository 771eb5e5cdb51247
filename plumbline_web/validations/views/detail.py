"""One validation: its page, the parts that follow it live, one verdict's evidence, the result and the logs."""

from __future__ import annotations

from django.db.models import Q
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.artefacts.store import MissingArtefact, open_artefact
from plumbline_web.curves.charts import to_json
from plumbline_web.jobs.enums import Kind
from plumbline_web.jobs.models import Job
from plumbline_web.validations.detail import read_detail
from plumbline_web.validations.evidence import read_evidence
from plumbline_web.validations.models import CheckResult, Validation
from plumbline_web.validations.pictures import read_pictures
from plumbline_web.validations.progress import OPEN_JOBS
from plumbline_web.validations.results import result_document

MOST_PIECES = 200
"""Pieces of output that one request for the live log gives."""


@require_GET
@never_cache
def validation_detail(request: HttpRequest, pk: int) -> HttpResponse:
    validation = _find(request, pk)
    ctx = {"validation": validation, "detail": read_detail(validation, user=signed_in(request))}
    return render(request, "validations/detail.html", ctx)


@require_GET
@never_cache
def validation_live(request: HttpRequest, pk: int) -> HttpResponse:
    """The part that moves. Once the state has changed, the whole body takes the place of the old one."""
    validation = _find(request, pk)
    ctx = {"validation": validation, "detail": read_detail(validation, user=signed_in(request))}
    if request.GET.get("version") == str(validation.version):
        return render(request, "validations/_live.html", ctx)
    response = render(request, "validations/_changed.html", ctx)
    response["HX-Retarget"] = "#detail"
    response["HX-Reswap"] = "outerHTML"
    return response


@require_GET
def validation_check(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    """One verdict; `?result=` shows one that a later judgement replaced."""
    validation = _find(request, pk)
    if "\0" in name:  # PostgreSQL knows no such text
        raise Http404("There is no check of this name.")
    judged = CheckResult.objects.filter(validation=validation, check_name=name).select_related("finding")
    number = request.GET.get("result", "")
    wanted = Q(pk=int(number)) if number.isdecimal() and len(number) <= 18 else Q(superseded_at__isnull=True)
    ctx = {
        "validation": validation,
        "evidence": read_evidence(get_object_or_404(judged, wanted)),
        "earlier": judged.filter(superseded_at__isnull=False).defer("document").order_by("-judged_at"),
        "others": validation.results.filter(superseded_at__isnull=True).defer("document").order_by("position"),
    }
    return render(request, "validations/check.html", ctx)


@require_GET
def validation_check_plot(request: HttpRequest, pk: int, result: int, number: int) -> JsonResponse:
    """The n-th plot of one verdict's evidence."""
    judged = get_object_or_404(CheckResult, validation=_find(request, pk), pk=result)
    pictures = read_pictures(judged.document.get("evidence") or {})
    if number >= len(pictures):
        raise Http404("This verdict has no such plot.")
    return JsonResponse(to_json(pictures[number].chart))


@require_GET
def validation_result(request: HttpRequest, pk: int) -> HttpResponse:
    """The document of docs/json.md, as a file."""
    validation = _find(request, pk)
    response = JsonResponse(result_document(validation), json_dumps_params={"indent": 2, "ensure_ascii": False})
    response["Content-Disposition"] = f'attachment; filename="{validation.number}.json"'
    return response


@require_GET
@never_cache
def job_log(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The output as text: all of it, or with `?after=<piece>` what came since, with the next piece in a header."""
    jobs = Job.objects.select_related("log").filter(
        Q(validation__in=Validation.objects.visible_to(signed_in(request)))
        | Q(run__validations__in=Validation.objects.visible_to(signed_in(request)))
        | (Q(kind=Kind.ENVIRONMENT) if signed_in(request).has_role(Role.ADMINISTRATOR) else Q(pk__in=()))
    )
    job = get_object_or_404(jobs.distinct(), pk=pk)
    after = request.GET.get("after", "")
    if job.log is not None and not after:
        try:
            return FileResponse(open_artefact(job.log), content_type="text/plain; charset=utf-8")
        except MissingArtefact as error:
            return HttpResponse(f"{error}\n", status=410, content_type="text/plain; charset=utf-8")
    first = int(after) if after.isdecimal() and len(after) < 10 else 0
    pieces = list(job.lines.filter(token=job.token, number__gte=first).order_by("number")[:MOST_PIECES])
    text = "".join(f"{piece.text}\n" for piece in pieces)
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    # A new lease begins its output anew; the reader sees that by the token.
    response["Plumbline-Token"] = str(job.token)
    response["Plumbline-Next"] = str(pieces[-1].number + 1 if pieces else first)
    response["Plumbline-Open"] = "1" if job.state in OPEN_JOBS else "0"
    return response


def _find(request: HttpRequest, pk: int) -> Validation:
    found: Validation = get_object_or_404(
        Validation.objects.visible_to(signed_in(request))
        .with_names()
        .select_related("cloned_from", "pushed__uploaded_by"),
        pk=pk,
    )
    return found
