"""Writing events."""

from __future__ import annotations

from typing import Any

from django.db import models

from plumbline_web.accounts.models import User
from plumbline_web.timeline.models import Event, Subject


def record(subject: Subject, row: models.Model, text: str, *, actor: User | None = None, **data: Any) -> Event:
    """Write one event about `row`; call it inside the transaction of the change."""
    return Event.objects.create(subject=subject, subject_id=row.pk, actor=actor, text=text, data=data)
