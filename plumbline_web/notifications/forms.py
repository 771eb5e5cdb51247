"""Forms of notifications; the rules are the domain's."""

from __future__ import annotations

from typing import Any

from django import forms

from plumbline_web.accounts.models import User
from plumbline_web.notifications.enums import Kind
from plumbline_web.notifications.models import Preference
from plumbline_web.notifications.webhooks import LONGEST_SECRET


class PreferenceForm(forms.Form):
    """Two boxes a kind, and the address."""

    email = forms.EmailField(
        label="E-mail address", required=False, max_length=254, widget=forms.EmailInput({"autocomplete": "email"})
    )

    def __init__(self, *args: Any, person: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["email"].initial = person.email
        known = {each.kind: each for each in Preference.objects.filter(person=person)}
        for kind in Kind:
            wish = known.get(kind.value) or Preference(kind=kind)
            for channel, title in (("in_app", "in the app"), ("by_email", "by e-mail")):
                self.fields[f"{kind.value}_{channel}"] = forms.BooleanField(
                    label=f"{kind.label}, {title}", required=False, initial=getattr(wish, channel)
                )

    def rows(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Title of each kind with its two boxes."""
        return [(kind.label, [self[f"{kind.value}_in_app"], self[f"{kind.value}_by_email"]]) for kind in Kind]

    def wishes(self) -> dict[Kind, tuple[bool, bool]]:
        values = self.cleaned_data
        return {kind: (values[f"{kind.value}_in_app"], values[f"{kind.value}_by_email"]) for kind in Kind}


class WebhookForm(forms.Form):
    url = forms.CharField(
        label="Address", max_length=500, widget=forms.URLInput({"placeholder": "https://", "autocomplete": "off"})
    )
    secret = forms.CharField(
        label="Secret",
        required=False,
        max_length=LONGEST_SECRET,
        widget=forms.TextInput({"autocomplete": "off"}),
        help_text="16 characters or more, which the receiver has too; left empty, one is drawn and shown once.",
    )
    kinds = forms.MultipleChoiceField(label="It is told of", choices=Kind.choices, widget=forms.CheckboxSelectMultiple)
