"""Pages of a long list without counting it: the count stops at a bound, and so do the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import QuerySet

PAGE_ROWS = 50
MOST_COUNTED = 1_000
"""Rows that are counted: nobody reads the difference between 20,000 and 30,000, and counting them takes longer than
everything else on the page."""
MOST_PAGES = 200
"""The last page that is given; who needs an older row narrows the list."""


@dataclass(frozen=True)
class Page:
    """Rows `first` to `last` of a list."""

    rows: tuple[Any, ...]
    number: int
    first: int
    last: int
    total: str
    """as a sentence says it: "77", "more than 10,000", "about 100,000" """
    has_next: bool
    is_bound: bool
    """the last page that is given, though more rows match"""

    @property
    def previous(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        return self.number + 1 if self.has_next else None


def read_page(queryset: QuerySet[Any], number: str, *, whole: bool, size: int = PAGE_ROWS) -> Page:
    """A page of an ordered queryset. `number`: as the address has it; what is no page is the first or last one.

    `whole`: the list is not narrowed, so that the table's own estimate says how long it is. `size`: rows of a page.
    """
    keys = list(queryset.values_list("pk", flat=True)[: MOST_COUNTED + 1])
    counted = len(keys)
    pages = MOST_PAGES if counted > MOST_COUNTED else max(1, -(-counted // size))
    asked = int(number) if number.isdecimal() and len(number) < 10 else 1
    page = min(max(asked, 1), pages)
    start = (page - 1) * size
    end = start + size + 1  # one more, to know whether another page follows
    is_beyond = end > counted > MOST_COUNTED
    found = list(queryset.values_list("pk", flat=True)[start:end]) if is_beyond else keys[start:end]
    rows = _fetch(queryset, found[:size])
    has_more = len(found) > size
    return Page(
        rows=rows,
        number=page,
        first=start + 1 if rows else 0,
        last=start + len(rows),
        total=_say_total(queryset, counted, whole=whole),
        has_next=has_more and page < MOST_PAGES,
        is_bound=has_more and page == MOST_PAGES,
    )


def _fetch(queryset: QuerySet[Any], keys: list[Any]) -> tuple[Any, ...]:
    """Whole rows of the page alone: joining thousands that are only passed over would take most of the time."""
    rows = {row.pk: row for row in queryset.order_by().filter(pk__in=keys)}
    return tuple(rows[key] for key in keys if key in rows)


def _say_total(queryset: QuerySet[Any], counted: int, *, whole: bool) -> str:
    if counted <= MOST_COUNTED:
        return f"{counted:,}"
    if whole:
        estimate = estimate_rows(queryset.model._meta.db_table)
        if estimate > MOST_COUNTED:
            return f"about {estimate:,}"
    return f"more than {MOST_COUNTED:,}"


def estimate_rows(table: str) -> int:
    """Rows of a table as PostgreSQL's statistics have it; 0 or less where it was never analysed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [table])
        found = cursor.fetchone()
    return int(found[0]) if found else 0
