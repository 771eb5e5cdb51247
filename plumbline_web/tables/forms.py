"""The form behind a filter."""

from __future__ import annotations

from django import forms

LONGEST_TEXT = 200

PAGE_PARAMETERS = ("page",)
"""What the address of a list says beside the filter; the exports are linked with the same address."""


class FilterForm(forms.Form):
    """Refuses what is no filter: a misspelt one must not give the unfiltered list."""

    def clean(self) -> None:
        known = tuple(self.fields)
        unknown = [name for name in self.data if name not in (*known, *PAGE_PARAMETERS)]
        for name in unknown[:20]:
            found = f"there is no such filter; the filters are {', '.join(known)}"
            self.errors[name[:60]] = self.error_class([found])
