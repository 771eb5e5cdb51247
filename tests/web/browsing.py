"""A real browser for the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

SERIOUS = ("serious", "critical")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Chromium, without a window."""
    # Playwright runs an event loop in this thread, and Django refuses the database there; nothing here awaits.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield opened
            opened.close()


def find_serious(page: Page) -> list[str]:
    """What axe-core finds serious or critical on the page as it is now."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in SERIOUS]
