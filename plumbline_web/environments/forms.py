from __future__ import annotations

from django import forms

from plumbline_web.environments.models import LONGEST_REQUIREMENT

LONGEST_OTHERS = 2_000


class CreateForm(forms.Form):
    framework = forms.CharField(
        label="Release",
        max_length=LONGEST_REQUIREMENT,
        help_text="Of the framework, as trl==1.16.0.",
        widget=forms.TextInput({"placeholder": "trl==1.16.0", "spellcheck": "false"}),
    )
    others = forms.CharField(
        label="With",
        required=False,
        max_length=LONGEST_OTHERS,
        help_text="Requirements beside it, a line each, as transformers==5.24.0.",
        widget=forms.Textarea({"rows": 3, "spellcheck": "false"}),
    )
    name = forms.CharField(
        label="Name", required=False, max_length=80, help_text="For --env; after its releases if left out."
    )
    python = forms.CharField(
        label="Python",
        required=False,
        max_length=5,
        help_text="As 3.11; the worker’s own if left out.",
        widget=forms.TextInput({"placeholder": "3.11"}),
    )


class EvictForm(forms.Form):
    days = forms.FloatField(
        label="Days", min_value=0.01, max_value=36500, initial=90, help_text="Since a run last used it."
    )
