"""Short addresses: what says nothing is left out, so that one list has one address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.http import HttpRequest


def shorten(request: HttpRequest, defaults: Mapping[str, Sequence[str]]) -> str | None:
    """The same address without what says nothing, where there is something to leave out.

    `defaults`: parameter → the values that say nothing; of every other one the empty text.
    """
    query = request.GET.copy()
    for name, values in request.GET.lists():
        if values[-1] in defaults.get(name, ("",)):
            del query[name]
    if query == request.GET:
        return None
    encoded = query.urlencode()
    return f"{request.path}?{encoded}" if encoded else request.path
