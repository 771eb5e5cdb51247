"""The saved views in the head of a list: `{% load saved %}{% saved_views "problem-list" %}`."""

from __future__ import annotations

from typing import Any

from django import template

from plumbline_web.accounts.models import User
from plumbline_web.saved.domain import LONGEST_NAME, shorten_query
from plumbline_web.saved.models import SavedView

register = template.Library()

MOST_SHOWN = 100


@register.inclusion_tag("saved/_menu.html", takes_context=True)
def saved_views(context: template.Context, listing: str) -> dict[str, Any]:
    """One's own views and the team's, the one that is open marked, and the form that saves what is shown."""
    request = context["request"]
    user: User = request.user
    query = shorten_query(request.GET.urlencode())
    rows = list(SavedView.objects.visible_to(user).filter(listing=listing).select_related("owner")[:MOST_SHOWN])
    found = context.get("filter")
    return {
        "views": [(view, view.query == query, view.is_changeable_by(user), view.owner_id == user.pk) for view in rows],
        "listing": listing,
        "query": query,
        "longest": LONGEST_NAME,
        "may_save": bool(query) and not (found is not None and found.errors),
    }
