"""How verdicts, times, numbers and digests look on every page: `{% load plumbline %}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.http import QueryDict
from django.template.defaultfilters import filesizeformat
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString

from plumbline_web.validations.models import Validation
from plumbline_web.validations.overview import Matrix
from plumbline_web.validations.presentation import (
    SHAPES,
    count_statuses,
    format_ago,
    measure_duration,
    measure_elapsed,
    word_of,
)
from workers.report.numbers import format_number, format_seconds

register = template.Library()

NONE = "–"
DIGEST_SHOWN = 12
"""hexadecimal digits of a digest on a page; all of them on hover"""


@register.simple_tag
def verdict(word: str) -> SafeString:
    """Word, shape and colour of a verdict or of a validation's state."""
    return format_html(
        '<span class="verdict is-{}"><span class="shape" aria-hidden="true">{}</span>{}</span>',
        word or "none",
        SHAPES.get(word, "○"),
        word or "none yet",
    )


@register.simple_tag
def verdict_of(validation: Validation) -> SafeString:
    """The same, of a validation."""
    return SafeString(verdict(word_of(validation)))


@register.simple_tag
def verdict_shape(word: str) -> SafeString:
    """The shape in its colour, where the word stands elsewhere; read aloud as the word."""
    return format_html(
        '<span class="verdict is-{}" title="{}"><span class="shape" aria-hidden="true">{}</span>'
        '<span class="visually-hidden">{}</span></span>',
        word,
        word,
        SHAPES.get(word, "○"),
        word,
    )


@register.filter
def word(validation: Validation) -> str:
    """Verdict, or state."""
    return word_of(validation)


@register.simple_tag
def counts(validation: Validation) -> SafeString:
    """▲ 1 ● 7 ○ 1: how many checks ended how."""
    parts = format_html_join(
        "",
        '<span class="count is-{}" title="{} {}"><span class="shape" aria-hidden="true">{}</span>'
        '{}<span class="visually-hidden"> {}</span></span>',
        (
            (count.status, count.number, count.status, count.shape, count.number, count.status)
            for count in count_statuses(validation)
        ),
    )
    return format_html('<span class="counts">{}</span>', parts) if parts else SafeString(NONE)


@register.simple_tag
def ago(moment: datetime | None) -> SafeString:
    """Relative time; absolute on hover, which a script turns into the reader's zone."""
    if moment is None:
        return SafeString(NONE)
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        format_ago(moment),
    )


@register.filter
def seconds(value: float | None) -> str:
    """12.3 s, 3 min 05 s."""
    return NONE if value is None else format_seconds(value)


@register.filter
def duration(validation: Validation) -> str:
    """From start to end."""
    return seconds(measure_duration(validation))


@register.filter
def elapsed(validation: Validation) -> str:
    """From start to end, or to now."""
    return seconds(measure_elapsed(validation))


@register.simple_tag
def number(value: Any) -> SafeString:
    """Three significant digits, the whole value on hover; "nan" and "inf" as documents write them."""
    if value is None or value == "":
        return SafeString(NONE)
    try:
        short = format_number(float(value))
    except (TypeError, ValueError):
        short = str(value)
    return format_html('<span title="{}">{}</span>', value, short)


@register.simple_tag
def digest(value: str | None) -> SafeString:
    if not value:
        return SafeString(NONE)
    return format_html('<code title="{}">{}</code>', value, value[:DIGEST_SHOWN])


@register.filter
def size(value: int | None) -> str:
    return NONE if value is None else filesizeformat(value)


@register.filter
def percent(fraction: float) -> int:
    return round(100 * fraction)


@register.filter
def prose(text: str) -> SafeString:
    """A sentence of a check's description: `names` in backticks become code, *words* emphasis."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return SafeString(re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", marked))


@register.simple_tag
def model_at(matrix: Matrix, index: int) -> str:
    """The model of a column."""
    return matrix.models[index].name


@register.filter
def lookup(mapping: Mapping[str, Any], key: str) -> Any:
    """Value of a key that is a variable."""
    return mapping.get(key)


@register.simple_tag(takes_context=True)
def query_with(context: Mapping[str, Any], **changes: Any) -> str:
    """The page's query with some parameters changed; empty ones are left out, and so is the page number."""
    query: QueryDict = context["request"].GET.copy()
    changes = {"page": None, **changes}
    for name, value in changes.items():
        if value in (None, ""):
            query.pop(name, None)
        else:
            query[name] = str(value)
    for name in [name for name, value in query.items() if value == ""]:
        del query[name]
    encoded = query.urlencode()
    return f"?{encoded}" if encoded else "?"
