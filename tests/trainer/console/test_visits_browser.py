"""The pages of visits in Chromium: search, open, judge after a second look, undo; on a phone, and without script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from edge.audit.crypto import write_keys
from tests.fixtures.console import PHONE, Console, Visitor, chromium
from tests.fixtures.events import make_event
from tests.fixtures.site import site_of_orl
from tests.fixtures.visits import UNKNOWN, camera_frame, write_audit_log
from trainer.site import doors
from trainer.site.doors import Door

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit log with three pictures; its key is beside it."""
    folder = tmp_path_factory.mktemp("log")
    public = write_keys(folder / "key.pem")
    rows = [
        (make_event(label="s1"), camera_frame(5)),
        (make_event(**UNKNOWN), camera_frame(2)),
        (make_event(label="s2"), camera_frame(2, 6)),
    ]
    return write_audit_log(folder / "audit.db", rows, public_key=public)


@pytest.fixture
def console(tmp_path: Path, log: Path) -> Iterator[Console]:
    site = site_of_orl(tmp_path / "site", {name: range(1, 4) for name in ("s1", "s2")})
    doors.add(site, Door(name="north"), "test")
    with Console(site.path, "--picture-key", log.with_name("key.pem")) as running:
        yield running


def upload(page: Page, log: Path) -> None:
    """Import the log on the empty page."""
    page.goto("/visits")
    page.get_by_label("File", exact=True).set_input_files(log)
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("status")).to_contain_text("New visits: 3")


def find(page: Page, person: str) -> None:
    """Search for a person and open the visit."""
    page.goto("/visits")
    page.get_by_role("combobox", name="Person").fill(person)
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tr[data-visit]")).to_have_count(1)
    page.locator("tr[data-visit] a").click()
    expect(page.get_by_role("heading", name="Decision")).to_be_visible()


def saved(console: Console) -> list[str]:
    return sorted(str(path.relative_to(console.site.path)) for path in console.site.path.glob("*/*/*.png"))


def test_search_judge_and_undo(console: Console, log: Path) -> None:
    with sync_playwright() as playwright, chromium(playwright) as browser:
        visitor = Visitor(browser, console)
        page = visitor.enter("operator", user="otto")
        page.on("dialog", lambda dialog: dialog.accept())
        upload(page, log)
        _judge_as_stranger(page, console)
        _judge_as_person(page, console)
        visitor.close()


def _judge_as_stranger(page: Page, console: Console) -> None:
    find(page, "s1")
    page.get_by_role("button", name="This was not s1, but a stranger").click()
    expect(page.get_by_role("heading", name="Is this a stranger?")).to_be_visible()
    assert _shown(page, "img.saved")
    assert saved(console) == []
    page.get_by_role("button", name="Save as a stranger").click()
    expect(page.get_by_role("status")).to_contain_text("The next training uses it.")
    assert len(saved(console)) == 1
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_contain_text("the photo is deleted")
    assert saved(console) == []


def _judge_as_person(page: Page, console: Console) -> None:
    page.goto("/visits")
    page.get_by_label("Only unknown people").check()
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tr[data-visit]")).to_have_count(1)
    page.locator("tr[data-visit] a").click()
    page.get_by_label("This is (name)").fill("s2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Is this s2?")).to_be_visible()
    page.get_by_role("button", name="Save as a photo of s2").press("Enter")
    page.locator("#verdict").get_by_role("link", name="Photos of s2").click()
    page.wait_for_url("**/people/s2")
    assert len(saved(console)) == 1


def _shown(page: Page, selector: str) -> bool:
    """Whether a picture was loaded."""
    script = "image => image.decode().then(() => image.naturalWidth > 0, () => false)"
    return bool(page.locator(selector).first.evaluate(script))


def test_pictures_are_shown_in_the_list_and_faces_can_be_chosen(console: Console, log: Path) -> None:
    with sync_playwright() as playwright, chromium(playwright) as browser:
        visitor = Visitor(browser, console)
        page = visitor.enter("operator", user="otto")
        upload(page, log)
        expect(page.locator("img.small")).to_have_count(3)
        assert _shown(page, "img.small")
        find(page, "s2")
        assert _shown(page, ".whole img")
        page.get_by_role("button", name="This was not s2").click()
        first = page.locator("img.saved").get_attribute("src")
        other = page.locator("#faces button[aria-pressed=false]")
        other.click()
        page.wait_for_url("**face=*")
        assert page.locator("img.saved").get_attribute("src") != first
        visitor.close()


@pytest.mark.parametrize("options", [{"viewport": PHONE}, {"viewport": PHONE, "locale": "de-DE"}], ids=["English", "German"])
def test_no_page_is_wider_than_a_phone(options: dict[str, Any], console: Console, log: Path) -> None:
    with sync_playwright() as playwright, chromium(playwright) as browser:
        first = Visitor(browser, console)
        upload(first.enter("operator", user="otto"), log)
        first.close()
        visitor = Visitor(browser, console, **options)
        page = visitor.enter("administrator")
        for path in ("/visits", "/visits?person=nobody", "/visits/1", "/visits/2", "/visits/3/judge?verdict=is&name=s1"):
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        visitor.close()


def test_pages_work_without_script(console: Console, log: Path) -> None:
    with sync_playwright() as playwright, chromium(playwright) as browser:
        visitor = Visitor(browser, console, java_script_enabled=False)
        page = visitor.enter("operator", user="otto")
        upload(page, log)
        page.goto("/visits/1")
        page.get_by_role("button", name="This was not s1, but a stranger").click()
        page.get_by_role("button", name="Save as a stranger").click()
        expect(page.get_by_role("status")).to_contain_text("Saved as a stranger")
        visitor.close()
