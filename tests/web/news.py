"""Something to be told of, for tests."""

from __future__ import annotations

from plumbline_web.accounts.models import User
from plumbline_web.notifications.domain import notify
from plumbline_web.notifications.enums import Kind
from plumbline_web.validations.models import Validation
from tests.web.factories import make_validation


def tell(*people: User, kind: Kind = Kind.SILENT, key: str = "", by: User | None = None) -> Validation:
    """Tell some people, and the webhooks, of a validation."""
    validation = make_validation(state="queued", runs=False)
    notify(kind, about=validation, text="step.loss fails", address="/validations/", to=people, by=by, key=key)
    return validation
