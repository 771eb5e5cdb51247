"""The step page, one tensor's panel, and the data behind each chart."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET
from django.views.decorators.vary import vary_on_headers

from plumbline_web.curves.charts import to_json
from plumbline_web.validations.models import Validation
from plumbline_web.validations.stepdiff.heat import list_swatches
from plumbline_web.validations.stepdiff.page import StepPage, read_page
from plumbline_web.validations.stepdiff.state import read_state
from plumbline_web.validations.stepdiff.tables import pick_tokens, render_csv


@require_GET
def show_step(request: HttpRequest, pk: int) -> HttpResponse:
    validation, page = _read(request, pk)
    name = page.state.tensor
    ctx = {
        "validation": validation,
        "page": page,
        "swatches": list_swatches(),
        "token_table": pick_tokens(page.tokens) if page.tokens is not None else (),
        "query": page.state.query(),
        "tensor": name,
        "measured": page.measure(name) if name else (),
        "siblings": page.siblings(name) if name else (),
    }
    return render(request, "step/step.html", ctx)


@require_GET
@vary_on_headers("HX-Request")
def show_tensor(request: HttpRequest, pk: int) -> HttpResponse:
    """One tensor: a panel for the page that asks for it, else a page of its own."""
    validation, page = _read(request, pk)
    name = page.state.tensor
    measured = page.measure(name)
    if not measured:
        raise Http404(f"no check of {validation.number} measured {name!r}")
    is_panel = request.headers.get("HX-Request") == "true"
    ctx = {
        "validation": validation,
        "page": page,
        "tensor": name,
        "measured": measured,
        "siblings": page.siblings(name),
        "query": page.state.query(),
    }
    return render(request, "step/_tensor.html" if is_panel else "step/tensor.html", ctx)


@require_GET
def give_chart(request: HttpRequest, pk: int, name: str) -> JsonResponse:
    _, page = _read(request, pk)
    chart = page.chart(name)
    if chart is None:
        raise Http404(f"there is no chart {name!r} of this validation")
    return JsonResponse(to_json(chart))


@require_GET
def export_table(request: HttpRequest, pk: int, name: str) -> HttpResponse:
    validation, page = _read(request, pk)
    table = page.table(name)
    if table is None:
        raise Http404(f"there is no table {name!r} of this validation")
    response = HttpResponse(render_csv(table), content_type="text/csv; charset=utf-8")
    kind = f"-{page.question.key}" if name == "tensors" else ""
    response["Content-Disposition"] = f'attachment; filename="{validation.number}-{name}{kind}.csv"'
    return response


def _read(request: HttpRequest, pk: int) -> tuple[Validation, StepPage]:
    validation = get_object_or_404(Validation.objects.visible_to(request.user).with_names(), pk=pk)
    return validation, read_page(validation, read_state(request.GET))
