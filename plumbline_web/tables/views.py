"""The page of a filtered list, and its exports: what every list's views do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render

from plumbline_web.tables.exports import CHUNK_ROWS, FORMS, stream
from plumbline_web.tables.filters import SORT, ListFilter
from plumbline_web.tables.pagination import read_page
from plumbline_web.tables.shortening import shorten


def shorten_list(request: HttpRequest, found: ListFilter[Any]) -> HttpResponse | None:
    """To the one address of a list, where the given one says something that says nothing."""
    address = shorten(request, {SORT: ("", found.default_sort), "page": ("", "1")})
    return HttpResponseRedirect(address) if address is not None else None


def describe_filter(found: ListFilter[Any], *, basic: Sequence[str]) -> dict[str, Any]:
    """What `tables/_filters.html` needs. `basic`: facets that are always in view; the others open on demand."""
    active = found.active()
    return {
        "filter": found,
        "basic": [found.form[name] for name in basic],
        "further": [found.form[name] for name in found.form.fields if name not in basic],
        "is_further_open": any(name not in basic for name in (*active, *found.errors)),
        "active": active,
        "sort": found.sort_name,
    }


def show_list(
    request: HttpRequest,
    found: ListFilter[Any],
    *,
    template: str,
    basic: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> HttpResponse:
    """One page of the list; 400 for a filter that is wrong, which shows no row. `more`: what only this page needs."""
    shortened = shorten_list(request, found)
    if shortened is not None:
        return shortened
    page = read_page(found.qs, request.GET.get("page", ""), whole=not found.active())
    ctx = describe_filter(found, basic=basic) | {"page": page} | dict(more or {})
    return render(request, template, ctx, status=200 if found.is_valid() else 400)


def export_list(
    found: ListFilter[Any], *, form: str, name: str, kind: type[Any], row: Callable[[Any], Any]
) -> HttpResponseBase:
    """The whole filtered set as a file `name`.`form`; a filter that is wrong gives 400 and no row.

    `kind`: the dataclass that `row` makes of a row of the table; its fields are the columns.
    """
    if form not in FORMS:
        raise Http404(f"There is no export as {form[:20]}; use {', '.join(FORMS)}.")
    if not found.is_valid():
        sentences = [f"{field}: {'; '.join(map(str, errors))}" for field, errors in found.errors.items()]
        return HttpResponse("\n".join(sentences) + "\n", status=400, content_type="text/plain; charset=utf-8")
    rows = (row(each) for each in found.qs.iterator(chunk_size=CHUNK_ROWS))
    response = StreamingHttpResponse(stream(rows, kind, form), content_type=FORMS[form])
    response["Content-Disposition"] = f'attachment; filename="{name}.{form}"'
    return response
