"""Forms of profiles and schedules; what they mean is read by the domain."""

from __future__ import annotations

from typing import Any

from django import forms

from checks.samples.reading import SAMPLE_FILES
from plumbline_web.catalog.enums import Trigger
from plumbline_web.catalog.models import Profile
from plumbline_web.validations.submission import LONGEST_TEXT
from workers.frameworks import names

MOST_SETTINGS = 4000
"""Characters of the settings' text: each of the thirty-odd fields once, with room."""


class ProfileForm(forms.Form):
    name = forms.CharField(
        label="Name", max_length=100, help_text="An existing name with other content makes its next version."
    )
    dataset = forms.CharField(
        label="Data",
        max_length=LONGEST_TEXT,
        help_text=f"A sample that ships ({', '.join(SAMPLE_FILES)}), or a path under an allowed directory.",
    )
    checks = forms.CharField(
        label="Checks", max_length=MOST_SETTINGS, required=False, help_text="Names, comma separated; empty for all."
    )
    run_settings = forms.CharField(
        label="Settings",
        max_length=MOST_SETTINGS,
        required=False,
        widget=forms.Textarea({"rows": 4, "spellcheck": "false"}),
        help_text="One name=value a line, such as seq_len=256; what is not named has its default.",
    )

    def clean_run_settings(self) -> dict[str, str]:
        """name → text; the domain reads the texts."""
        found: dict[str, str] = {}
        for line in filter(None, map(str.strip, self.cleaned_data["run_settings"].splitlines())):
            name, equals, value = (part.strip() for part in line.partition("="))
            if not equals or not name:
                raise forms.ValidationError(f"{line[:60]!r} has no =; write name=value, one a line.")
            if name in found:
                raise forms.ValidationError(f"{name} is set twice; set it once.")
            found[name] = value
        return found


class ScheduleForm(forms.Form):
    profile = forms.ModelChoiceField(Profile.objects.none(), label="Profile", empty_label=None)
    framework = forms.ChoiceField(label="Framework")
    model = forms.CharField(
        label="Model", max_length=LONGEST_TEXT, help_text="tiny:<family>, or a path under an allowed directory."
    )
    trigger = forms.ChoiceField(label="When", choices=Trigger.choices)
    hour = forms.IntegerField(
        label="Hour (UTC)", min_value=0, max_value=23, initial=2, help_text="Of the nightly ones."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        profile, framework = self.fields["profile"], self.fields["framework"]
        assert isinstance(profile, forms.ModelChoiceField)
        assert isinstance(framework, forms.ChoiceField)
        profile.queryset = Profile.objects.order_by("name", "-version")
        framework.choices = [(name, name) for name in names()]
