"""The form of a problem: the catalogue's fields, each as strict as its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from django import forms
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from plumbline_web.problems.enums import Confidence, OnCpu, Provenance, UpstreamStatus
from plumbline_web.problems.models import Problem
from plumbline_web.validations.enums import Pattern

DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
RANGE = re.compile(r"(?P<package>[A-Za-z0-9][\w.-]*)\s*(?P<specifier>[<>=!~][^|]*?)\s*\|\s*(?P<source>\S.*)")
HERE = ((Provenance.FOUND, "found here, and known upstream"), (Provenance.FIRST_RAISED, "first raised here"))

LONGEST = 10_000


class ListField(forms.CharField):
    """Texts separated by commas or lines."""

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, (list, tuple)) else value

    def clean(self, value: Any) -> list[str]:
        text = super().clean(value) or ""
        return list(dict.fromkeys(each.strip() for each in re.split(r"[,\n]", text) if each.strip()))


class LinksField(ListField):
    def clean(self, value: Any) -> list[str]:
        links = super().clean(value)
        for link in links:
            if not re.fullmatch(r"https://[^\s<>\"]{1,480}", link):
                raise forms.ValidationError(f"{link[:60]!r} is no address; write one that begins with https://")
        return links


class RangesField(forms.CharField):
    """Affected releases, one range a line: `transformers >=5.0,<5.3 | where that is known from`."""

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "\n".join(f"{each['package']} {each['specifier']} | {each['source']}" for each in value)

    def clean(self, value: Any) -> list[dict[str, Any]]:
        text = super().clean(value) or ""
        return list(_read_ranges(text))


def _read_ranges(text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        found = RANGE.fullmatch(line.strip())
        if found is None:
            told = f"line {number}, {line.strip()[:60]!r}, is no range; write one like transformers >=5.0,<5.3 | source"
            raise forms.ValidationError(told)
        try:
            specifier = str(SpecifierSet(found["specifier"]))
        except InvalidSpecifier:
            told = f"line {number}: {found['specifier']!r} is no specifier of PEP 440, such as >=5.0,<5.3"
            raise forms.ValidationError(told) from None
        yield {"package": canonicalize_name(found["package"]), "specifier": specifier, "source": found["source"]}


def _area(label: str, *, rows: int = 3, required: bool = False, help_text: str = "") -> forms.CharField:
    area = forms.Textarea(attrs={"rows": rows})
    return forms.CharField(label=label, max_length=LONGEST, required=required, widget=area, help_text=help_text)


class ProblemForm(forms.Form):
    """Every field that a person may write of a problem."""

    title = forms.CharField(label="Title", max_length=300)
    framework = forms.RegexField(
        r"[a-z0-9]+(-[a-z0-9]+)*",
        label="Framework",
        max_length=60,
        help_text="Where the wrong line sits: transformers, trl, megatron-core …",
        error_messages={"invalid": "Write small letters, digits and single hyphens, such as megatron-core."},
    )
    component = forms.CharField(label="Component", max_length=120, help_text="Such as loss, packing, parallelism/TP.")
    pattern = forms.ChoiceField(label="Pattern", choices=Pattern.choices)
    stage = forms.CharField(label="Stage", max_length=60, help_text="Such as data, forward, loss, optimizer.")
    silent = forms.BooleanField(label="Silent: training goes on without an error", required=False)
    symptom = _area("Symptom", required=True)
    root_cause = _area("Root cause", required=True)
    fix = _area("Fix", rows=2)
    status = forms.ChoiceField(label="Upstream", choices=UpstreamStatus.choices)
    provenance = forms.ChoiceField(label="Known by", choices=HERE)
    first_seen = forms.CharField(label="First seen", max_length=10, help_text="YYYY-MM or YYYY-MM-DD.")
    models = ListField(
        label="Models", required=False, max_length=2_000, help_text="Families; empty where it is general."
    )
    affected = forms.CharField(label="Affected", required=False, max_length=1_000, help_text="In words.")
    fixed_in = forms.CharField(label="Fixed in", required=False, max_length=1_000, help_text="In words.")
    affected_spec = RangesField(
        label="Affected releases",
        required=False,
        max_length=LONGEST,
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "transformers >=5.0,<5.3 | release notes of 5.3"}),
        help_text="One range a line, with its source; empty means not known.",
    )
    url = forms.URLField(
        label="Upstream report",
        required=False,
        max_length=500,
        assume_scheme="https",
        help_text="Empty until there is one.",
    )
    related_urls = LinksField(
        label="Related", required=False, max_length=LONGEST, widget=forms.Textarea(attrs={"rows": 2})
    )
    caught_by = ListField(label="Kinds of checks that see it", required=False, max_length=500)
    cpu_reproducible = forms.ChoiceField(label="Shows on a CPU", choices=OnCpu.choices)
    shows_in_release = forms.CharField(label="How it shows in a release", required=False, max_length=2_000)
    confidence = forms.ChoiceField(label="Confidence", choices=Confidence.choices)

    def __init__(self, *args: Any, problem: Problem | None = None, **kwargs: Any) -> None:
        if problem is not None:
            kwargs["initial"] = {name: getattr(problem, name) for name in self.base_fields}
        super().__init__(*args, **kwargs)
        if problem is not None and problem.provenance not in dict(HERE):
            del self.fields["provenance"]  # said by the catalogue, or by a run

    def clean_first_seen(self) -> str:
        text: str = self.cleaned_data["first_seen"]
        if not DATE.fullmatch(text):
            raise forms.ValidationError(f"{text!r} is no date; write YYYY-MM or YYYY-MM-DD.")
        return text

    def clean_affected_spec(self) -> list[dict[str, Any]]:
        """What a range needs besides has no place in the form, and is kept where its range is."""
        given: list[dict[str, Any]] = self.cleaned_data["affected_spec"]
        kept: Mapping[tuple[str, str], Any] = {
            (each["package"], each["specifier"]): each["needs"]
            for each in self.initial.get("affected_spec") or ()
            if each.get("needs")
        }
        for each in given:
            needs = kept.get((each["package"], each["specifier"]))
            if needs:
                each["needs"] = needs
        return given
