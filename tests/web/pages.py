"""What the tests of pages share: signing in, and reading a page as a person does."""

from __future__ import annotations

import html
import re
from typing import Any

from django.test import Client

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from tests.web import factories

MOST_QUERIES = 12
"""What a page may ask of the database, with one validation and with a thousand."""


def sign_in(who: User | Role = Role.SUBMITTER) -> Client:
    """A browser of a person, or of a new person with a role."""
    client = Client()
    client.force_login(who if isinstance(who, User) else factories.make_user(who))
    return client


def text_of(response: Any) -> str:
    """The words of a page's main part, with single spaces."""
    whole = response.content.decode()
    found = re.search(r"<main.*?</main>", whole, re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found[0] if found else whole)).split())


def numbers_of(response: Any) -> list[int]:
    """The validations that a list shows, in its order."""
    return [int(number) for number in re.findall(r'name="v" value="(\d+)"', response.content.decode())]
