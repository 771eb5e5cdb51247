"""What people come for, in a real browser against real workers, from the sign-in link to two runs side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from plumbline_web.accounts.domain import create_first_administrator_link
from plumbline_web.validations.models import Validation
from tests.web.browsing import CHROMIUM, find_serious, open_browser
from tests.web.running import empty_queues, worker

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]

RUN_LIMIT_MS = 300_000
"""A tiny validation takes half a minute on an idle machine."""


@pytest.fixture
def page(live_server: Any) -> Iterator[Page]:
    """A browser page that nobody has signed in on; any message of its console fails the test."""
    with open_browser() as browser:
        context = browser.new_context(base_url=live_server.url, viewport={"width": 1400, "height": 900})
        opened = context.new_page()
        messages: list[str] = []
        opened.on("console", lambda message: messages.append(message.text))
        opened.on("pageerror", lambda error: messages.append(str(error)))
        opened.set_default_timeout(60_000)
        yield opened
        context.close()
    # Leaving a page that follows a run ends the request in progress; what a server answers wrongly has another name.
    said = [message for message in messages if not message.startswith(("htmx:afterRequest", "htmx:send"))]
    # the one form that was meant to be wrong; a violation of the content security policy would be another
    assert [message for message in said if "400 (Bad Request)" not in message] == []
    assert len(said) <= 1


def sign_in(page: Page) -> None:
    secret = create_first_administrator_link()
    page.goto(f"/sign-in/{secret}/")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#main")).to_contain_text("You have no password yet")
    assert find_serious(page) == []
    page.get_by_role("link", name="Overview").first.click()


def ask(page: Page, *, fault: str | None, wrong: bool) -> None:
    """Fill in the form and submit it; where `wrong`, once with a batch of none first."""
    page.goto("/validations/new/")
    page.get_by_label("framework", exact=False).first.select_option("transformers")
    page.locator("[name=model]").fill("tiny:qwen3")
    page.locator("[name=data]").fill("gsm8k_sample")
    page.get_by_role("button", name="none", exact=True).click()
    page.locator("[name=checks][value='step.loss']").check()
    page.locator("[name=checks][value='step.gradients']").check()
    expect(page.locator("#preview")).to_contain_text("framework run")
    if fault:
        page.locator("summary", has_text="Advanced").click()
        page.locator("[name=inject]").select_option(fault)
    if wrong:
        page.locator("[name='settings.batch']").fill("0")
        page.get_by_role("button", name="Submit").click()
        expect(page.locator("#errors")).to_contain_text("nothing was submitted")
        expect(page.locator("#errors")).to_contain_text("0 is out of bounds; set it to 1 or more")
        expect(page.locator("[name='settings.batch']")).to_be_focused()
        expect(page.locator("[name=model]")).to_have_value("tiny:qwen3")
        assert find_serious(page) == []
        assert Validation.objects.count() == 0
        page.locator("[name='settings.batch']").fill("2")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile(r"/validations/V-\d+/"))


def watch(page: Page, title: str) -> str:
    """Wait for the verdict on a page that is never loaded again; the validation's number."""
    page.evaluate("window.neverLoadedAgain = true")
    expect(page).to_have_title(re.compile(title), timeout=RUN_LIMIT_MS)
    assert page.evaluate("window.neverLoadedAgain") is True
    expect(page.locator("#live")).to_have_count(0)
    found = re.search(r"V-\d+", page.url)
    assert found is not None
    return found[0]


def test_from_the_sign_in_link_to_two_validations_side_by_side(page: Page, live_server: Any, tmp_path: Path) -> None:
    empty_queues()
    sign_in(page)
    assert find_serious(page) == []
    with worker(tmp_path / "worker.log"):
        ask(page, fault=None, wrong=True)
        expect(page.locator("#live")).to_contain_text("framework run")
        healthy = watch(page, r"^V-\d+ pass")
        assert find_serious(page) == []

        page.get_by_role("link", name="Step diff").click()
        cells = page.locator("[data-heat] td a")
        expect(cells.first).to_be_visible()
        cells.nth(3).click()
        expect(page.locator("#tensor")).to_contain_text("model.layers.0.")
        expect(page).to_have_url(re.compile("tensor="))
        assert find_serious(page) == []

        before = page.locator("html").get_attribute("data-theme")
        page.keyboard.press("t")
        expect(page.locator("html")).not_to_have_attribute("data-theme", str(before))
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("theme")
        page.keyboard.press("Escape")

        page.goto(f"/validations/{healthy}/")
        page.get_by_role("link", name="Clone with changes").click()
        page.locator("summary", has_text="Advanced").click()
        page.locator("[name=inject]").select_option("wrong-loss-count")
        page.get_by_role("button", name="Submit").click()
        expect(page.locator("#live")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page).to_have_title(re.compile(r"^V-\d+ cancelled"))
        expect(page.locator("#main")).to_contain_text("cancelled")

        page.get_by_role("link", name="Clone with changes").click()
        expect(page.locator("[name=inject]")).to_have_value("wrong-loss-count")
        page.get_by_role("button", name="Submit").click()
        broken = watch(page, r"^V-\d+ fail")
        expect(page.locator("#main")).to_contain_text("the loss is normalised by the wrong count")

    page.goto(f"/compare/?v={healthy[2:]}&v={broken[2:]}")
    main = page.locator("#main")
    for text in (healthy, broken, "wrong-loss-count", "step.gradients"):
        expect(main).to_contain_text(text)
    for figure in page.locator("figure[data-chart]").all():
        figure.scroll_into_view_if_needed()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    assert find_serious(page) == []
