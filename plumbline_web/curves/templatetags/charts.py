"""What a page needs to draw charts: `{% load charts %}`."""

from __future__ import annotations

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from plumbline_web.curves.compared import TITLES
from plumbline_web.curves.plotly import FILE, PREFIX, style_ids
from plumbline_web.validations.models import Validation

register = template.Library()


@register.inclusion_tag("compare/_curves.html")
def curves_of(validation: Validation) -> dict[str, object]:
    """The curves of a validation's run, for a page that has `{% plotly %}`, charts.css and charts.js."""
    return {"titles": TITLES, "query": f"v={validation.pk}", "differences": False}


@register.simple_tag
def plotly() -> SafeString:
    """Tells charts.js where plotly.js is; it is fetched when the first chart comes into view."""
    return format_html(
        '<meta name="plumbline-plotly" content="{}" data-style-ids="{}">',
        static(f"{PREFIX}/{FILE}"),
        " ".join(style_ids()),
    )
