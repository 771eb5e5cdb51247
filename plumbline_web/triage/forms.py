"""The forms of triage: each field well formed; the rules are the domain's."""

from __future__ import annotations

from typing import Any

from django import forms

from plumbline_web.accounts.people import list_triagers
from plumbline_web.problems.models import Problem
from plumbline_web.triage.domain import LONGEST_COMMENT
from plumbline_web.triage.filters import PROBLEM
from plumbline_web.validations.enums import Decision

LONGEST_REASON = 2_000

SNOOZES = (("", "no"), ("day", "until a day"), ("change", "until it shows in another environment"))


class KnownProblemField(forms.CharField):
    """A problem of the catalogue by its number or slug."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=120, required=False, **kwargs)

    def clean(self, value: Any) -> Problem | None:
        text = (super().clean(value) or "").strip()
        if not text:
            return None
        number = PROBLEM.fullmatch(text)
        rows = Problem.objects.defer("search")
        named = {"pk": int(number[1])} if number else {"slug": text.lower()}
        found: Problem | None = rows.filter(**named).first()
        if found is None:
            raise forms.ValidationError(f"there is no problem {text[:60]!r}; write its number, such as P-45")
        return found


class DecisionForm(forms.Form):
    """What a person decides; `needs_decision` where nothing else can be said with it."""

    decision = forms.ChoiceField(label="Decision", choices=Decision.choices, required=False, widget=forms.RadioSelect)
    problem = KnownProblemField(label="Problem", widget=forms.TextInput(attrs={"placeholder": "P-45"}))
    reason = forms.CharField(
        label="Why", max_length=LONGEST_REASON, required=False, widget=forms.Textarea(attrs={"rows": 2})
    )


class BulkForm(DecisionForm):
    """One decision, or one assignment, for many."""

    assignee = forms.ChoiceField(label="Assign to", required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer_people(self, unchanged="leave as it is")

    def clean(self) -> None:
        given = self.cleaned_data
        if not self.errors and not given.get("decision") and not given.get("assignee"):
            raise forms.ValidationError("Neither a decision nor a person is chosen; choose one.")


class FindingForm(DecisionForm):
    """All that one visit to a finding may say."""

    alike = forms.BooleanField(label="Decide all that are alike", required=False)
    comment = forms.CharField(
        label="Comment",
        max_length=LONGEST_COMMENT,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "placeholder": "Markdown"}),
    )
    assignee = forms.ChoiceField(label="Assigned to", required=False)
    due = forms.DateField(label="Due", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    snooze = forms.ChoiceField(label="Snooze", choices=SNOOZES, required=False)
    snooze_until = forms.DateField(label="Day", required=False, widget=forms.DateInput(attrs={"type": "date"}))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _offer_people(self, unchanged="nobody")

    def clean(self) -> None:
        given = self.cleaned_data
        if given.get("snooze") == "day" and "snooze_until" in given and not given["snooze_until"]:
            self.add_error("snooze_until", "Until which day? Choose one, or snooze until a change.")


class WaiverForm(forms.Form):
    """Stands on one page with FindingForm, which has fields of the same names."""

    problem = KnownProblemField(label="Problem", widget=forms.TextInput(attrs={"placeholder": "P-45"}))
    until = forms.DateField(label="Until", widget=forms.DateInput(attrs={"type": "date"}))
    reason = forms.CharField(
        label="Why it is accepted", max_length=LONGEST_REASON, widget=forms.Textarea(attrs={"rows": 2})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"auto_id": "waiver_%s", **kwargs})

    def clean_problem(self) -> Problem:
        found: Problem | None = self.cleaned_data["problem"]
        if found is None:
            raise forms.ValidationError("A waiver cites its problem; write its number, such as P-45.")
        return found


def _offer_people(form: forms.Form, *, unchanged: str) -> None:
    names = [(person.username, person.username) for person in list_triagers()]
    field = form.fields["assignee"]
    assert isinstance(field, forms.ChoiceField)
    field.choices = [("", unchanged), *names]
