"""Saved views: a name for a filter, one's own or the team's."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.saved.domain import MOST_VIEWS, save_view, shorten_query
from plumbline_web.saved.models import Listing, SavedView
from tests.web.factories import make_user
from tests.web.pages import sign_in, text_of

pytestmark = pytest.mark.django_db


def save(client: Client, name: str = "Mine", query: str = "silent=yes&sort=oldest&page=3", **more: str) -> str:
    """Press the button; the address that it leads to."""
    response = client.post("/views/", {"listing": "problem-list", "name": name, "query": query, **more})
    assert response.status_code == 302
    return str(response.headers["Location"])


def shown(client: Client, address: str = "/problems/") -> list[str]:
    """Names in the menu of a list."""
    page = client.get(address).content.decode()
    found = re.search(r'<ul class="views-list">.*?</ul>', page, re.DOTALL)
    names = re.findall(r"<a [^>]*>([^<]+?)\s*<", found[0]) if found else []
    return [name.strip() for name in names]


def test_a_view_keeps_the_filter_and_the_order_and_is_chosen_from_the_lists_head() -> None:
    client = sign_in()
    assert save(client) == "/problems/?silent=yes&sort=oldest"
    assert shown(client) == ["Mine"]
    assert shown(client, "/validations/") == []
    page = client.get("/problems/?silent=yes&sort=oldest").content.decode()
    assert '<a href="/problems/?silent=yes&amp;sort=oldest" aria-current="page">Mine' in page
    assert "Views: Mine ▾" in page
    assert 'name="query" value="silent=yes&amp;sort=oldest"' in page


def test_a_view_is_its_owners_until_it_is_shared() -> None:
    owner, colleague = sign_in(), sign_in()
    save(owner)
    assert shown(colleague) == []
    save(owner, shared="on")  # the same name: replaced
    assert SavedView.objects.count() == 1
    assert shown(colleague) == ["Mine"]
    view = SavedView.objects.get()
    assert f"/views/{view.pk}/delete/" not in colleague.get("/problems/").content.decode()
    assert colleague.post(f"/views/{view.pk}/delete/").status_code == 403
    administrator = sign_in(Role.ADMINISTRATOR)
    assert administrator.post(f"/views/{view.pk}/delete/").headers["Location"] == "/problems/"
    assert not SavedView.objects.exists()


def test_a_strangers_private_view_is_not_there_for_anyone_else() -> None:
    save(sign_in())
    pk = SavedView.objects.get().pk
    assert sign_in(Role.ADMINISTRATOR).post(f"/views/{pk}/delete/").status_code == 404


def test_two_people_may_use_one_name() -> None:
    first, second = sign_in(), sign_in()
    save(first, shared="on")
    save(second, query="framework=trl")
    assert sorted(SavedView.objects.values_list("query", flat=True)) == ["framework=trl", "silent=yes&sort=oldest"]
    assert shown(first) == ["Mine"]
    assert shown(second) == ["Mine", "Mine"]


@pytest.mark.parametrize(
    ("name", "query", "told"),
    [
        ("  ", "silent=yes", "A name of 0 characters was given; give 1 to 60."),
        ("x" * 61, "silent=yes", "A name of 61 characters was given; give 1 to 60."),
        ("Mine", "page=2&text=", "The list is not filtered or sorted; narrow it first, then save the view."),
        ("Mine", f"text={'a' * 1_001}", "The filter has 1006 characters; at most 1000 are kept."),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(name: str, query: str, told: str) -> None:
    client = sign_in()
    response = client.post("/views/", {"listing": "validation-list", "name": name, "query": query}, follow=True)
    assert told in text_of(response)
    assert not SavedView.objects.exists()


def test_a_person_has_so_many_views_of_a_list_and_no_more() -> None:
    owner = make_user()
    SavedView.objects.bulk_create(
        SavedView(owner=owner, listing=Listing.PROBLEMS, name=f"{number}", query="silent=yes")
        for number in range(MOST_VIEWS)
    )
    with pytest.raises(Refused, match=f"You have {MOST_VIEWS} views of this list; delete one first"):
        save_view(listing=Listing.PROBLEMS, name="new", query="silent=no", is_shared=False, owner=owner)
    save_view(listing=Listing.PROBLEMS, name="7", query="silent=no", is_shared=False, owner=owner)
    save_view(listing=Listing.VALIDATIONS, name="new", query="verdict=fail", is_shared=False, owner=owner)


def test_an_unknown_list_is_not_found_and_a_wrong_filter_cannot_be_saved() -> None:
    client = sign_in()
    assert client.post("/views/", {"listing": "user-list", "name": "x", "query": "a=b"}).status_code == 404
    assert "Save view" not in client.get("/problems/?silent=perhaps").content.decode()


def test_a_name_is_shown_as_text() -> None:
    client = sign_in()
    save(client, name="<script>alert(1)</script>")
    page = client.get("/problems/").content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page


def test_a_query_is_kept_without_what_says_nothing() -> None:
    assert shorten_query("a=1&page=4&b=&c=x+y") == "a=1&c=x+y"
    assert shorten_query("") == ""
