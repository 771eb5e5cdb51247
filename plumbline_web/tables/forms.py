"""The form behind a filter."""

from __future__ import annotations

from typing import Any

from django import forms
from django.forms.renderers import BaseRenderer
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

LONGEST_TEXT = 200

PAGE_PARAMETERS = ("page",)
"""What the address of a list says beside the filter; the exports are linked with the same address."""


class PlainSelect(forms.Select):
    """A select whose options have no groups, written here: a template for each of a facet's hundreds of options takes
    as long as the rest of the page."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: BaseRenderer | None = None
    ) -> SafeString:
        widget = self.get_context(name, value, attrs)["widget"]
        options = format_html_join(
            "\n",
            '  <option value="{}"{}>{}</option>',
            (
                (option["value"], flatatt(option["attrs"]), option["label"])
                for _, group, _ in widget["optgroups"]
                for option in group
            ),
        )
        return format_html('<select name="{}"{}>\n{}\n</select>', widget["name"], flatatt(widget["attrs"]), options)


class FilterForm(forms.Form):
    """Refuses what is no filter: a misspelt one must not give the unfiltered list."""

    def clean(self) -> None:
        known = tuple(self.fields)
        unknown = [name for name in self.data if name not in (*known, *PAGE_PARAMETERS)]
        for name in unknown[:20]:
            found = f"there is no such filter; the filters are {', '.join(known)}"
            self.errors[name[:60]] = self.error_class([found])
