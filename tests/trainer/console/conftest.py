"""Chromium for the tests of pages, and an operator who uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.fixtures.console import Console, Visitor, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, chromium(playwright) as found:
        yield found


@pytest.fixture
def visitor(browser: Browser, console: Console) -> Iterator[Visitor]:
    """An operator at the `console` of the test module, who confirms every question."""
    found = Visitor(browser, console)
    found.enter("operator", user="otto")
    found.page.on("dialog", lambda dialog: dialog.accept())
    yield found
    found.close()
