"""Forms of accounts; the rules are the domain's, and `refuse` puts what it says beside the field."""

from __future__ import annotations

from typing import Any

from django import forms

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import LONGEST_DAYS, LONGEST_NAME, scopes_of

LONGEST_PASSWORD = 200
"""Characters; hashing a longer one would only cost time."""


def refuse(form: forms.Form, error: Refused) -> None:
    """Show what the domain refused, beside its field where it has one."""
    form.add_error(error.field if error.field in form.fields else None, str(error))


class SignInForm(forms.Form):
    username = forms.CharField(label="Name", max_length=150, widget=forms.TextInput({"autocomplete": "username"}))
    password = forms.CharField(
        label="Password",
        max_length=LONGEST_PASSWORD,
        strip=False,
        widget=forms.PasswordInput({"autocomplete": "current-password"}),
    )


class PasswordForm(forms.Form):
    current = forms.CharField(
        label="Current password",
        max_length=LONGEST_PASSWORD,
        strip=False,
        widget=forms.PasswordInput({"autocomplete": "current-password"}),
    )
    password = forms.CharField(
        label="New password",
        max_length=LONGEST_PASSWORD,
        strip=False,
        widget=forms.PasswordInput({"autocomplete": "new-password"}),
        help_text="At least 12 characters, none of the common ones.",
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not user.has_usable_password():
            del self.fields["current"]


class TokenForm(forms.Form):
    name = forms.CharField(label="Name", max_length=LONGEST_NAME, help_text="What uses it: “CI of the trainer”.")
    scopes = forms.MultipleChoiceField(label="It may", widget=forms.CheckboxSelectMultiple)
    days = forms.IntegerField(label="Valid for (days)", min_value=1, max_value=LONGEST_DAYS, initial=90)

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scopes = self.fields["scopes"]
        assert isinstance(scopes, forms.MultipleChoiceField)
        scopes.choices = [(scope.value, scope.label) for scope in scopes_of(user)]
        scopes.initial = [Scope.READ.value]


class InviteForm(forms.Form):
    username = forms.CharField(label="Name", max_length=150, widget=forms.TextInput({"autocomplete": "off"}))
    role = forms.ChoiceField(label="Role", choices=Role.choices, initial=Role.SUBMITTER)


class RoleForm(forms.Form):
    role = forms.ChoiceField(label="Role", choices=Role.choices)
