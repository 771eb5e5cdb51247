"""Validations beside each other: curves, step diffs, settings; and the data behind the curves."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from plumbline_web.curves.charts import to_json
from plumbline_web.curves.compared import TITLES, draw_curves, draw_differences, read_sources
from plumbline_web.curves.comparison import read_comparison
from plumbline_web.curves.exports import list_points, render_points_csv
from plumbline_web.curves.picking import read_validations
from plumbline_web.curves.selection import SCALES, X_AXES, read_selection, rearrange
from plumbline_web.validations.stepdiff.heat import list_swatches
from plumbline_web.validations.stepdiff.tensors import QUESTIONS


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    selection = read_selection(request.GET)
    if "first" in request.GET or "without" in request.GET:
        return redirect(f"{request.path}?{rearrange(selection, request.GET).query()}")
    comparison = read_comparison(selection, user=request.user)
    ctx = {
        "comparison": comparison,
        "selection": selection,
        "validations": comparison.validations,
        "query": selection.query(),
        "differences": len(comparison.sources) > 1,
        "titles": TITLES,
        "x_axes": X_AXES,
        "scales": SCALES,
        "questions": QUESTIONS,
        "swatches": list_swatches(),
    }
    return render(request, "compare/compare.html", ctx)


@require_GET
def give_curves(request: HttpRequest, quantity: str, difference: bool) -> JsonResponse:
    """One chart: the curves, or their differences from the first."""
    if quantity not in TITLES:
        raise Http404(f"there is no curve {quantity!r}; there are {', '.join(TITLES)}")
    selection = read_selection(request.GET)
    found = read_validations(selection, user=request.user)
    visible = [validation.pk for validation in found.validations]
    sources = read_sources(selection, visible=visible, quantities=(quantity,))
    draw = draw_differences if difference else draw_curves
    return JsonResponse(to_json(draw(sources, quantity, selection)))


@require_GET
def export(request: HttpRequest, form: str) -> HttpResponse:
    """Every point of every selected curve, none left out; 400 where a selected validation is none."""
    selection = read_selection(request.GET)
    found = read_validations(selection, user=request.user)
    errors = (*selection.errors, *found.errors)
    if errors or not found.validations:
        sentences = errors or ("v: is missing; give numbers of validations, such as ?v=12",)
        return HttpResponse("\n".join(sentences) + "\n", status=400, content_type="text/plain; charset=utf-8")
    sources = read_sources(selection, visible=[validation.pk for validation in found.validations])
    if form == "csv":
        response = HttpResponse(render_points_csv(sources), content_type="text/csv; charset=utf-8")
    else:
        response = JsonResponse({"curves": list_points(sources)})
    response["Content-Disposition"] = f'attachment; filename="curves.{form}"'
    return response
