"""The verbs of saved views."""

from __future__ import annotations

from django.db import transaction
from django.http import QueryDict

from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.saved.models import Listing, SavedView

LONGEST_NAME = 60
LONGEST_QUERY = 1_000
MOST_VIEWS = 50
"""Of one person, in one list."""


def shorten_query(query: str) -> str:
    """A list's query without its page, and without what says nothing."""
    found = QueryDict(query, mutable=True)
    for name in [name for name, value in found.items() if value == "" or name == "page"]:
        del found[name]
    return found.urlencode()


@transaction.atomic
def save_view(*, listing: Listing, name: str, query: str, is_shared: bool, owner: User) -> SavedView:
    """Keep a filter under a name; one of the same name of the same person is replaced.

    Raises:
        Refused: no name or an overlong one, an overlong filter, one that filters nothing, or too many views.
    """
    name = " ".join(name.split())
    query = shorten_query(query)
    if not 0 < len(name) <= LONGEST_NAME or "\0" in name:
        raise Refused("invalid", f"A name of {len(name)} characters was given; give 1 to {LONGEST_NAME}.", field="name")
    if not query:
        raise Refused("invalid", "The list is not filtered or sorted; narrow it first, then save the view.")
    if len(query) > LONGEST_QUERY or "\0" in query:
        raise Refused("invalid", f"The filter has {len(query)} characters; at most {LONGEST_QUERY} are kept.")
    User.objects.select_for_update().get(pk=owner.pk)  # two requests must not both see room for one
    views = SavedView.objects.filter(owner=owner, listing=listing)
    if not views.filter(name=name).exists() and views.count() >= MOST_VIEWS:
        raise Refused("illegal_state", f"You have {MOST_VIEWS} views of this list; delete one first.")
    view, _ = SavedView.objects.update_or_create(
        owner=owner, listing=listing, name=name, defaults={"query": query, "is_shared": is_shared}
    )
    return view


@transaction.atomic
def delete_view(view: SavedView, *, by: User) -> None:
    """Delete one; whoever has its address keeps that.

    Raises:
        Refused: neither its owner nor, of a shared one, an administrator.
    """
    if not view.is_changeable_by(by):
        raise Refused("forbidden", f"{view.name} is a view of {view.owner.username}; ask them, or an administrator.")
    view.delete()
