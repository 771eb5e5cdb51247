"""The bell of the header: `{% load notifications %}`."""

from __future__ import annotations

from django import template

from plumbline_web.accounts.models import User
from plumbline_web.notifications.domain import count_unread

register = template.Library()

MOST_COUNTED = 99


@register.simple_tag(takes_context=True)
def unread_notifications(context: template.Context) -> str:
    """How many, as the bell shows it: empty, "7", "99+"."""
    person = context.get("user")
    if not isinstance(person, User):
        return ""
    count = count_unread(person, most=MOST_COUNTED)
    return f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count or "")
