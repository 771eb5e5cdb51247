"""What a team does with findings, in a real browser: by keyboard, many at once, in a meeting, two at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.triage.models import Action
from plumbline_web.validations.models import Finding
from tests.web.browsing import CHROMIUM, find_serious, open_browser
from tests.web.factories import make_problem, make_user, make_validation

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def ana(db: None) -> User:
    return make_user(Role.TRIAGER, username="ana")


def open_page(browser: Browser, live_server: Any, person: User, *, scheme: Any = "light") -> Page:
    """A page that the person is signed in on; an error of its console fails the test that looks at `page.errors`."""
    client = Client()
    client.force_login(person)
    name = settings.SESSION_COOKIE_NAME
    context = browser.new_context(
        base_url=live_server.url, viewport={"width": 1400, "height": 900}, color_scheme=scheme
    )
    context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": live_server.url}])
    page = context.new_page()
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.set_default_timeout(30_000)
    return page


def press(page: Page, *keys: str) -> None:
    page.wait_for_load_state()  # its scripts listen then
    for key in keys:
        page.keyboard.press(key)


def save(page: Page, number: str) -> None:
    """Save by keyboard, and wait for the message about that finding."""
    page.keyboard.press("Control+Enter")
    expect(page.locator(".note[role=status]")).to_contain_text(f"{number}:")


def test_five_findings_are_triaged_by_keyboard_alone(browser: Browser, live_server: Any, ana: User) -> None:
    make_validation(runs=False)
    make_validation(runs=False, framework="trl")
    problem = make_problem()
    page = open_page(browser, live_server, ana)
    page.goto("/triage/")
    assert find_serious(page) == []
    press(page, "j", "Enter")
    order = [finding.number for finding in Finding.objects.order_by("-silent", "-regressed", "-created_at", "-pk")]
    expect(page.locator("h1")).to_contain_text(order[0])
    assert find_serious(page) == []

    press(page, "1")
    expect(page.locator("#id_problem")).to_have_value(problem.number)
    save(page, order[0])
    expect(page.locator("h1")).to_contain_text(order[1])

    press(page, "x")
    page.keyboard.type("the data has one row")
    save(page, order[1])
    press(page, "i")
    save(page, order[2])
    press(page, "w")
    page.keyboard.type("the floor is too low")
    save(page, order[3])

    press(page, "j")
    expect(page.locator("h1")).to_contain_text(order[5])
    press(page, "k")
    expect(page.locator("h1")).to_contain_text(order[4])
    press(page, "c")
    page.keyboard.type("seen by **all**")
    press(page, "Escape", "a")
    page.keyboard.type("ana")
    press(page, "Escape", "l")
    page.keyboard.type(problem.number)
    save(page, order[4])
    expect(page.locator(".triage-queue ol > li")).to_have_count(1)

    decided = dict(Finding.objects.exclude(decision="").values_list("pk", "decision"))
    said = [decided[int(number[2:])] for number in order[:5]]
    assert said == ["known", "not-a-problem", "inconclusive", "check-wrong", "known"]
    last = Finding.objects.get(pk=int(order[4][2:]))
    assert (last.assignee, last.comments.get().text) == (ana, "seen by **all**")

    press(page, "z")
    expect(page.locator(".note[role=status]")).to_contain_text("Undone: assigned to ana")
    press(page, "?")
    expect(page.get_by_role("dialog")).to_contain_text("the check or its reference is wrong")
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    press(page, " ")
    expect(page.get_by_role("button", name="Unpin")).to_be_visible()


def test_all_that_match_are_decided_at_once_and_undone(browser: Browser, live_server: Any, ana: User) -> None:
    for framework in ("transformers", "trl"):
        for model in ("tiny:qwen3", "tiny:llama"):
            make_validation(runs=False, framework=framework, model=model)
    page = open_page(browser, live_server, ana)
    page.goto("/triage/?framework=trl")
    press(page, "j", "x")
    page.get_by_role("button", name=re.compile("Decide all 6 that match")).click()
    expect(page.locator("h1")).to_have_text("6 findings")
    assert find_serious(page) == []
    page.get_by_label("not a problem").check()
    page.get_by_label("Why").fill("the trainer was misconfigured")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".note[role=status]")).to_contain_text("6 not a problem")
    assert Finding.objects.filter(decision="not-a-problem", validation__framework__name="trl").count() == 6
    assert Finding.objects.exclude(decision="").count() == 6
    press(page, "z")
    expect(page.locator(".note[role=status]")).to_contain_text("Undone: decided: not a problem")
    assert not Finding.objects.exclude(decision="").exists()


def test_a_meeting_of_six_items_is_held_and_leaves_minutes(
    browser: Browser, live_server: Any, ana: User, tmp_path: Path
) -> None:
    for model in ("tiny:qwen3", "tiny:llama"):
        make_validation(runs=False, model=model)
    for finding in Finding.objects.order_by("pk")[:3]:
        Finding.objects.filter(pk=finding.pk).update(group=f"another {finding.pk}")
    problem = make_problem()
    page = open_page(browser, live_server, ana, scheme="dark")
    page.goto("/triage/meetings/")
    assert find_serious(page) == []
    page.get_by_role("button", name="Begin with 6 items").click()
    assert find_serious(page) == []
    for position in range(1, 7):
        expect(page.locator(".page-head")).to_contain_text(f"item {position} of 6")
        press(page, *("i" if position % 2 else "1"))
        page.keyboard.press("Control+Enter")
        expect(page).to_have_url(re.compile(rf"item={position + 1}$"))  # behind the last one are the minutes
    assert find_serious(page) == []
    page.get_by_role("button", name="End the meeting").click()
    with page.expect_download() as started:
        page.get_by_role("link", name="Minutes as Markdown").click()
    minutes = Path(started.value.path()).read_text()
    assert "6 items, 6 decided. Present: ana." in minutes
    assert minutes.count("**decided: inconclusive, ana**") == 3
    assert minutes.count(f"**decided: confirmed, known {problem.number}, ana**") == 3


def test_two_browsers_deciding_the_same_finding_lose_nothing(browser: Browser, live_server: Any, ana: User) -> None:
    make_validation(runs=False)
    finding = Finding.objects.order_by("pk")[0]
    first = open_page(browser, live_server, ana)
    second = open_page(browser, live_server, make_user(Role.TRIAGER, username="bo"))
    for page in (first, second):
        page.goto(f"/triage/{finding.number}/")
    first.get_by_label("inconclusive").check()
    save(first, finding.number)
    second.get_by_label("not a problem").check()
    second.locator("#id_reason").fill("one row")
    second.get_by_label("Comment").fill("typed for minutes")
    second.keyboard.press("Control+Enter")
    expect(second.get_by_role("alert")).to_contain_text("ana decided: inconclusive")
    expect(second.get_by_label("Comment")).to_have_value("typed for minutes")
    expect(second.get_by_label("not a problem")).to_be_checked()
    save(second, finding.number)
    finding.refresh_from_db()
    assert (finding.decision, finding.comments.get().text) == ("not-a-problem", "typed for minutes")
    assert [action.text for action in Action.objects.order_by("pk")] == [
        "decided: inconclusive",
        "decided: not a problem",
    ]
    for address in (f"/triage/{finding.number}/problem/", f"/problems/{make_problem().number}/edit/"):
        first.goto(address)
        assert find_serious(first) == []
