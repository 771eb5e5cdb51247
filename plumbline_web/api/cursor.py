"""Pages of a long list by key: the next page begins after the last row seen, however many rows were added since."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import QueryDict

from plumbline_web.api.errors import ApiError, invalid

DEFAULT_LIMIT = 50
LARGEST_LIMIT = 500
LONGEST_KEY = 100
"""characters of a text in a cursor"""

PAGE_PARAMETERS = ("cursor", "limit")

NEWEST = ("-created_at", "-id")

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Page:
    """Rows, and the cursor of the next page; None at the end."""

    rows: Sequence[Any]
    next_cursor: str | None


def take_page(rows: QuerySet[M], *, keys: Sequence[str], cursor: str, limit: int) -> Page:
    """Rows in the order of `keys`, names of columns with a minus where descending; the last one is unique.

    `cursor` is empty for the first page.

    Raises:
        ApiError: 400, the cursor is none of this list's, or the limit is out of bounds.
    """
    if not 1 <= limit <= LARGEST_LIMIT:
        raise invalid({"limit": f"{limit} is out of bounds; give 1 to {LARGEST_LIMIT}"})
    rows = rows.order_by(*keys)
    if cursor:
        values = _read(cursor, count=len(keys))
        try:
            rows = rows.filter(_after(keys, values))
        except (ValidationError, ValueError, TypeError):  # values of another list's columns
            raise _refuse() from None
    found = list(rows[: limit + 1])
    if len(found) <= limit:
        return Page(found, None)
    return Page(found[:limit], _write([getattr(found[limit - 1], key.lstrip("-")) for key in keys]))


def read_filter(given: QueryDict, *, known: Sequence[str]) -> QueryDict:
    """Facets without the page's parameters; a misspelt one must not give the unfiltered list.

    Raises:
        ApiError: 400, a parameter is none of `known`.
    """
    unknown = [name for name in given if name not in (*known, *PAGE_PARAMETERS)]
    if unknown:
        raise invalid(
            {name[:60]: f"there is no such filter; the filters are {', '.join(known)}" for name in unknown[:20]}
        )
    left = given.copy()
    for name in PAGE_PARAMETERS:
        left.pop(name, None)
    return left


def turn(page: Page, convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The answer's body."""
    return {"rows": [convert(row) for row in page.rows], "next_cursor": page.next_cursor}


def _after(keys: Sequence[str], values: Sequence[Any]) -> Q:
    """Rows beyond `values`: by the first key, or equal there and beyond by the second, and so on."""
    beyond, equal = Q(), Q()
    for key, value in zip(keys, values, strict=True):
        name, way = key.lstrip("-"), "lt" if key.startswith("-") else "gt"
        beyond |= equal & Q(**{f"{name}__{way}": value})
        equal &= Q(**{name: value})
    # Redundant, and what lets PostgreSQL begin in the index of the first key.
    return Q(**{f"{keys[0].lstrip('-')}__{'lte' if keys[0].startswith('-') else 'gte'}": values[0]}) & beyond


def _write(values: Sequence[Any]) -> str:
    text = json.dumps([_encode(value) for value in values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"at": value.isoformat()}
    if isinstance(value, timedelta):
        return {"us": value // timedelta(microseconds=1)}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if "us" in value:
            return timedelta(microseconds=int(value["us"]))
        moment = datetime.fromisoformat(value["at"])
        if moment.tzinfo is None:
            raise ValueError
        return moment
    if isinstance(value, str) and len(value) <= LONGEST_KEY and "\0" not in value:
        return value
    if not isinstance(value, int) or not -(2**63) < value < 2**63:
        raise ValueError
    return value


def _read(cursor: str, *, count: int) -> list[Any]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if not isinstance(values, list) or len(values) != count:
            raise ValueError
        return [_decode(value) for value in values]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, binascii.Error):
        raise _refuse() from None


def _refuse() -> ApiError:
    return invalid({"cursor": "is none of this list's; take next_cursor of the page before"})
