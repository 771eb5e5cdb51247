"""Charts in a real browser, under the site's own content security policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, sync_playwright

from checks.captures.log import LogRecord
from plumbline_web.curves.domain import store_curves
from plumbline_web.curves.plotly import package_data, style_ids
from plumbline_web.validations.models import Validation
from tests.web.factories import make_user, make_validation
from tests.web.test_stepdiff import QUERY, packed_verdicts

CHROMIUM = "/usr/bin/chromium"
DRAWN = "() => !document.querySelector('figure[data-chart]:not([data-drawn]):not([data-empty])')"
SERIOUS = ("serious", "critical")

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright runs an event loop in this thread, and Django refuses the database there; nothing here awaits.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield opened
            opened.close()


@pytest.fixture
def page(browser: Browser, live_server: Any) -> Iterator[Page]:
    """A signed-in browser page; any message of the browser's console fails the test."""
    client = Client()
    client.force_login(make_user())
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    messages: list[str] = []
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1400, "height": 900})
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": live_server.url}])
    opened = context.new_page()
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    yield opened
    context.close()
    assert messages == []


def scroll_through(page: Page) -> None:
    """Bring every chart into view once and wait until all are drawn."""
    for figure in page.locator("figure[data-chart]").all():
        figure.scroll_into_view_if_needed()
    page.wait_for_function(DRAWN)


def find_serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in SERIOUS]


@pytest.fixture
def packed(db: None) -> Validation:
    return make_validation(verdicts=packed_verdicts())


def test_the_step_page_draws_its_charts_within_the_policy(page: Page, packed: Validation) -> None:
    page.goto(f"/validations/{packed.number}/step/")
    scroll_through(page)
    assert page.locator("figure[data-chart][data-drawn]").count() == 4
    forward = page.locator("figure[data-chart*=forward]")
    assert "first divergence: model.layers.0.self_attn" in forward.inner_text()
    assert "33 modules, 5 wrong by themselves" in forward.locator("[data-note]").inner_text()
    # the layers of a chart lie on each other: without Plotly's own style rules they would stand below each other
    tops = forward.locator(".main-svg").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    page.locator("figure[data-chart*=tokens] .nsewdrag").hover()
    page.locator("figure[data-chart*=tokens] .points path").first.hover(force=True)
    page.locator(".hoverlayer text").first.wait_for()


def test_charts_are_not_drawn_before_they_come_into_view(page: Page, packed: Validation) -> None:
    page.goto(f"/validations/{packed.number}/step/")
    page.wait_for_load_state("networkidle")
    assert page.locator("figure[data-chart*=forward][data-drawn]").count() == 0


def test_charts_follow_the_theme(page: Page, packed: Validation) -> None:
    page.goto(f"/validations/{packed.number}/step/")
    scroll_through(page)
    paper = "figure[data-chart*=forward] .main-svg"
    read = "all => getComputedStyle(all[0]).backgroundColor"
    assert page.locator(paper).evaluate_all(read) == "rgb(255, 255, 255)"
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    page.wait_for_function(
        f"() => getComputedStyle(document.querySelector('{paper}')).backgroundColor === 'rgb(20, 23, 26)'"
    )


def test_a_cell_opens_its_tensor_without_reload_and_the_address_keeps_it(page: Page, packed: Validation) -> None:
    page.goto(f"/validations/{packed.number}/step/")
    page.evaluate("window.stayed = true")
    page.locator(f"[data-heat] a[href*='{QUERY}']").click()
    page.locator("#tensor h2", has_text=QUERY).wait_for()
    assert page.evaluate("window.stayed")
    assert f"tensor={QUERY}" in page.url
    assert page.locator("[data-heat] a[aria-current]").count() == 1
    page.reload()
    assert page.locator("#tensor h2").inner_text() == QUERY


def test_the_heatmap_is_walked_with_the_arrow_keys(page: Page, packed: Validation) -> None:
    page.goto(f"/validations/{packed.number}/step/")
    links = page.locator("[data-heat] tbody a")
    links.first.focus()
    assert page.locator("[data-heat] tbody a[tabindex='0']").count() == 1
    # down the first column: embedding → norm, past the layers that have nothing there
    page.keyboard.press("ArrowDown")
    assert "model.norm.weight" in str(page.evaluate("document.activeElement.title"))
    page.locator(f"[data-heat] a[href*='{QUERY}']").focus()
    page.keyboard.press("ArrowDown")
    assert "model.layers.1.self_attn.q_proj.weight" in str(page.evaluate("document.activeElement.title"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("#tensor h2", has_text="model.layers.1.self_attn.k_proj.weight").wait_for()


def test_a_table_sorts_by_whole_values(page: Page, packed: Validation) -> None:
    page.goto(f"/validations/{packed.number}/step/")
    page.locator("#tensors-table > summary").click()
    head = page.locator("#tensors-table th", has_text="Threshold").first
    head.locator("button").click()
    values = page.locator("#tensors-table tbody tr td:nth-child(4) span").evaluate_all(
        "all => all.map(one => +one.title)"
    )
    assert len(values) == 25
    assert values == sorted(values, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_step_page_is_accessible_and_fits_a_phone(page: Page, packed: Validation, theme: str) -> None:
    page.goto(f"/validations/{packed.number}/step/?tensor={QUERY}")
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    scroll_through(page)
    assert find_serious(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_comparison_is_drawn_within_the_policy_and_accessible(page: Page, packed: Validation, theme: str) -> None:
    other = make_validation()
    for validation, end in ((packed, 1.0), (other, float("nan"))):
        run = validation.validation_runs.get(role="run").run
        store_curves(run, [LogRecord(step, value, 1.0, 0.0) for step, value in enumerate([3.0, 2.0, end], start=1)])
    page.goto(f"/compare/?v={packed.pk}&v={other.pk}&scale=symlog&smoothing=0.5")
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    scroll_through(page)
    assert page.locator("figure[data-chart][data-drawn]").count() == 6
    assert "1 not finite" in page.locator("figure[data-chart^='/compare/loss.json'] [data-note]").inner_text()
    assert find_serious(page) == []
    page.locator("#id_scale").select_option("log")
    page.wait_for_url("**scale=log**")
    assert page.url.endswith(f"/compare/?v={packed.pk}&v={other.pk}&scale=log&smoothing=0.5")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_curve_that_cannot_be_had_says_so(page: Page, packed: Validation) -> None:
    page.route("**/forward.json*", lambda route: route.fulfill(status=200, body="no document"))
    page.goto(f"/validations/{packed.number}/step/")
    page.locator("figure[data-chart*=forward]").scroll_into_view_if_needed()
    note = page.locator("figure[data-chart*=forward] .chart-error")
    note.wait_for()
    assert "Reload the page to try again; the table has the numbers." in note.inner_text()


def test_the_ids_by_which_plotly_finds_its_sheets_are_read_from_the_wheel() -> None:
    assert style_ids()[0] == "plotly.js-style-global"
    text = (package_data() / "plotly.min.js").read_text()
    assert all(identifier in text for identifier in style_ids()[1:])
