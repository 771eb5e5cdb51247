"""The forms of reports."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import ValidationError

from plumbline_web.reports.domain import Edited
from plumbline_web.reports.enums import Kind, Tracker, UpstreamState
from plumbline_web.reports.environments import Choice
from plumbline_web.reports.models import Report
from plumbline_web.reports.reproducers.generate import write_skeleton
from plumbline_web.reports.subjects import framework_title
from plumbline_web.reports.trackers import TRACKERS


class TrackerForm(forms.Form):
    """Whose form a new report follows."""

    tracker = forms.ChoiceField(choices=Tracker.choices, label="Tracker")


class EditForm(forms.Form):
    """A whole report as a person writes it."""

    version = forms.IntegerField(widget=forms.HiddenInput)
    title = forms.CharField(max_length=300)
    tracker = forms.ChoiceField(
        choices=Tracker.choices, help_text="another one writes the text anew, as long as nobody changed it"
    )
    project = forms.CharField(
        required=False,
        max_length=300,
        label="Project",
        help_text="such as https://github.com/huggingface/trl; the tracker's own where it is empty",
    )
    body = forms.CharField(
        label="Text",
        widget=forms.Textarea(attrs={"rows": 28, "class": "mono", "spellcheck": "true"}),
        help_text="Markdown; [[script]], [[output]], [[versions]] and [[plot]] are replaced when it is shown",
    )
    script = forms.CharField(
        required=False,
        strip=False,
        label="reproduce.py",
        widget=forms.Textarea(attrs={"rows": 28, "class": "mono", "spellcheck": "false"}),
        help_text="runs by itself, prints what was expected and what was observed, exits 1 where the result is wrong, "
        "0 where it is right, and with another code where it cannot judge",
    )
    kept = forms.MultipleChoiceField(
        required=False,
        choices=Kind.choices,
        label="Leave in",
        widget=forms.CheckboxSelectMultiple,
        help_text="what is not ticked is taken out of text, script, output and data",
    )

    def clean_project(self) -> str:
        project = str(self.cleaned_data["project"]).strip().rstrip("/")
        parts = urlsplit(project)
        if project and (parts.scheme != "https" or not parts.hostname or len(parts.path.strip("/").split("/")) < 2):
            raise ValidationError("This is no address of a project; it is like https://github.com/owner/name.")
        return project

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        tracker, project = values.get("tracker"), values.get("project", "")
        if tracker in ("github", "gitlab") and not project and "project" not in self.errors:
            self.add_error("project", "Name the project: this tracker has none of its own.")
        if project and tracker and TRACKERS[tracker].service == "none":
            self.add_error("project", "A plain text goes to no project; leave this empty.")
        return values

    def read(self) -> Edited:
        """What a valid form says."""
        values = self.cleaned_data
        return Edited(
            tracker=Tracker(values["tracker"]),
            project=values["project"],
            title=values["title"],
            body=values["body"],
            script=values["script"],
            kept=tuple(Kind(each) for each in values["kept"]),
        )


def edit_form_of(report: Report) -> EditForm:
    """The form as the report is; where there is no script, the skeleton of one."""
    names = ("version", "title", "tracker", "project", "body", "script", "kept")
    values = {name: getattr(report, name) for name in names}
    if not report.script:
        values["script"] = write_skeleton(framework_title(report))
    return EditForm(initial=values)


class RunForm(forms.Form):
    """Where a script is to be run."""

    environment = forms.ChoiceField(required=False, label="Environment")

    def __init__(self, *args: Any, choices: tuple[Choice, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["environment"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(choice.name, choice.title) for choice in choices]


class UpstreamForm(forms.Form):
    """Where a report is upstream, and how it stands there."""

    url = forms.URLField(required=False, max_length=500, label="Address of the issue", assume_scheme="https")
    state = forms.ChoiceField(required=False, choices=UpstreamState.choices, label="State there")


class SentForm(forms.Form):
    """Where a report was sent."""

    url = forms.URLField(required=False, max_length=500, label="Address of the issue", assume_scheme="https")
