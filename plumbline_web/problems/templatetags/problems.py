"""What only the catalogue's pages draw: `{% load problems %}`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django import template

from checks.verdict import Status
from workers.reproductions.outcome import Judged, Reproduction

register = template.Library()

SHADES = 4
"""of a matrix, from few to many"""


@register.simple_tag
def shade(count: int, most: int) -> int:
    """1 to SHADES, by the logarithm: a cell of one and a cell of eighty both show."""
    if most <= 1:
        return 1
    return 1 + round((SHADES - 1) * math.log(count) / math.log(most))


@register.simple_tag(takes_context=True)
def narrowed(context: template.Context, facet: str, value: str, patterns: Sequence[tuple[str, str]], index: int) -> str:
    """The list's query for one cell of a matrix, within the filter that is in force."""
    query = {name: given for name, given in context["request"].GET.items() if given and name != "page"}
    return "?" + urlencode(query | {facet: value, "pattern": patterns[index][0]})


@dataclass(frozen=True)
class Line:
    """One check's answers on both releases."""

    check: str
    faulty: Judged
    fixed: Judged | None


@register.filter
def judged_on_both(found: Reproduction) -> list[Line]:
    """What failed on the faulty release, beside the same check on the fixed one."""
    return [
        Line(judged.check, judged, found.fixed.find(judged.check) if found.fixed is not None else None)
        for judged in found.faulty.verdicts
        if judged.status == Status.FAIL.value
    ]
