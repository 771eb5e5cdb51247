"""The catalogue, notifications and saved views in a real browser: by keyboard, in light and dark, wide and narrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from plumbline_web.accounts.enums import Role
from plumbline_web.notifications.enums import Kind
from plumbline_web.notifications.models import Notification
from plumbline_web.problems.models import Problem
from plumbline_web.problems.seed import seed_problems
from plumbline_web.saved.models import SavedView
from tests.web.browsing import CHROMIUM, find_serious, open_browser
from tests.web.factories import make_user
from tests.web.pages import sign_in

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def person() -> Any:
    """An administrator, with problems to look at and something to be told of."""
    seed_problems(60)
    person = make_user(Role.ADMINISTRATOR)
    Notification.objects.create(
        person=person, kind=Kind.SILENT, about="V-1", text="step.loss fails", address="/problems/"
    )
    return person


def open_context(browser: Browser, live_server: Any, person: Any, **options: Any) -> BrowserContext:
    """A window in which the person is signed in."""
    context = browser.new_context(base_url=live_server.url, **options)
    context.set_default_timeout(20_000)
    secret = sign_in(person).cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": secret, "url": live_server.url}])
    return context


def test_nothing_serious_stands_in_the_way_in_light_and_dark_wide_and_narrow(
    browser: Browser, live_server: Any, person: Any
) -> None:
    problem = Problem.objects.filter(recurrences__isnull=False)[0]
    pages = (
        "/problems/?silent=yes",
        "/problems/?silent=perhaps",
        "/problems/matrix/",
        "/problems/recurrences/",
        f"/problems/P-{problem.pk}/",
        "/notifications/",
        "/notifications/preferences/",
        "/webhooks/",
    )
    found: dict[str, list[str]] = {}
    for scheme, width in (("light", 1400), ("dark", 390)):
        context = open_context(
            browser, live_server, person, color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        page = context.new_page()
        messages: list[str] = []
        page.on("console", lambda message, said=messages: said.append(message.text))
        for address in pages:
            page.goto(address)
            for summary in page.locator("#main details > summary").all()[:3]:
                summary.click()
            found[f"{scheme} {address}"] = find_serious(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (scheme, address)
        assert [said for said in messages if "400 (Bad Request)" not in said] == []
        context.close()
    assert {where: what for where, what in found.items() if what} == {}


def press_until(page: Page, key: str, wanted: str) -> None:
    """Press a key until the focus is on what the selector finds."""
    for _ in range(60):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", wanted):
            return
    raise AssertionError(f"{key} never reaches {wanted}")


def test_a_view_is_saved_chosen_and_deleted_by_keyboard_alone(browser: Browser, live_server: Any, person: Any) -> None:
    context = open_context(browser, live_server, person, viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto("/problems/?silent=yes")
    press_until(page, "Tab", ".views-menu > summary")
    page.keyboard.press("Enter")
    press_until(page, "Tab", "#view-name")
    page.keyboard.type("Silent ones")
    page.keyboard.press("Enter")
    expect(page.locator(".note")).to_contain_text("The view Silent ones is saved.")
    expect(page).to_have_url(re.compile(r"/problems/\?silent=yes$"))
    assert SavedView.objects.get().query == "silent=yes"

    page.goto("/problems/")
    press_until(page, "Tab", ".views-menu > summary")
    page.keyboard.press("Enter")
    press_until(page, "Tab", ".views-list a")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/problems/\?silent=yes$"))

    press_until(page, "Tab", ".views-menu > summary")
    page.keyboard.press("Enter")
    press_until(page, "Tab", ".views-list button")
    page.keyboard.press("Enter")
    expect(page.locator(".note")).to_contain_text("The view Silent ones is deleted.")

    press_until(page, "Tab", ".bell")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/notifications/$"))
    press_until(page, "Tab", "tbody a")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/problems/$"))
    expect(page.locator(".bell")).to_have_attribute("aria-label", "Notifications")
    context.close()
