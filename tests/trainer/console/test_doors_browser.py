"""The form of a door list in Chromium: mouse, keyboard, suggestions, preview; phone width; live status; no script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from edge.monitor.preview import Preview
from tests.fixtures.console import PHONE, Console, Visitor
from trainer.site import door_lists, doors
from trainer.site.doors import Door

pytestmark = pytest.mark.slow

LIST = "/doors/north/list"


@pytest.fixture
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Console(tmp_path_factory.mktemp("doors") / "site") as running:
        for name in ("anna", "Zoë"):
            (running.site.photos / name).mkdir()
        doors.add(running.site, Door(name="north"), "test")
        yield running


@pytest.fixture
def visitor(browser: Browser, console: Console) -> Iterator[Visitor]:
    found = Visitor(browser, console)
    found.enter("operator", user="otto")
    yield found
    found.close()


def new_entry(page: Page, *, script: bool = True) -> None:
    page.goto(LIST)
    page.get_by_role("button", name="Add an entry").click()
    expect(page.get_by_role("button", name="Monday, whole day")).to_be_enabled(enabled=script)


def cell(page: Page, day: str, hour: int) -> tuple[float, float]:
    """The middle of a cell on the screen."""
    box = page.get_by_label(f"{day} {hour:02}:00-{hour + 1:02}:00").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Page, *corners: tuple[str, int]) -> None:
    """Drag with a few large steps, as a fast hand does."""
    page.get_by_role("group", name="Hours of Entry 1").scroll_into_view_if_needed()
    page.mouse.move(*cell(page, *corners[0]))
    page.mouse.down()
    for corner in corners[1:]:
        page.mouse.move(*cell(page, *corner))
    page.mouse.up()


def chosen(page: Page) -> list[str]:
    names: list[str] = page.locator(".week input:checked").evaluate_all(
        "cells => cells.map(cell => cell.ariaLabel.slice(0, -6))"
    )
    return names


def hours(first: int, last: int, *days: str) -> list[str]:
    return [f"{day} {hour:02}:00" for day in days for hour in range(first, last + 1)]


def test_list_is_filled_by_mouse_and_keyboard_previewed_saved_and_shown_again(visitor: Visitor, console: Console) -> None:
    page = visitor.page
    new_entry(page)
    expect(page.get_by_label("Names, one on each line")).to_be_focused()
    page.get_by_label("Add a person").fill("anna")
    page.get_by_label("Add a person").press("Enter")
    page.get_by_label("Add a person").fill("Zoë")
    page.get_by_role("button", name="Add", exact=True).first.click()
    expect(page.get_by_label("Names, one on each line")).to_have_value("anna\nZoë")

    drag(page, ("Monday", 7), ("Wednesday", 22), ("Tuesday", 9))
    assert chosen(page) == hours(7, 9, "Monday", "Tuesday"), "a rectangle, as large as at the end"
    drag(page, ("Monday", 9), ("Tuesday", 9))
    assert chosen(page) == hours(7, 8, "Monday", "Tuesday"), "the first cell says whether cells are cleared"
    page.get_by_label("Tuesday 08:00-09:00").click()
    assert chosen(page) == hours(7, 8, "Monday") + hours(7, 7, "Tuesday"), "a click changes one cell, once"

    page.get_by_label("Monday 08:00-09:00").focus()
    for key in ("ArrowDown", "ArrowRight", "Space", "Shift+ArrowRight", "ArrowDown", "Space", "End", "Space"):
        page.keyboard.press(key)
    expected = [
        *hours(7, 8, "Monday"),
        "Tuesday 07:00",
        "Tuesday 09:00",
        "Tuesday 10:00",
        "Wednesday 10:00",
        "Wednesday 23:00",
    ]
    assert chosen(page) == expected
    page.get_by_role("button", name="Sunday, whole day").press("Enter")
    expected += hours(0, 23, "Sunday")

    page.get_by_text("Other times").click()
    page.get_by_label("Friday", exact=True).last.fill("22:00-06:00")
    page.get_by_role("button", name="Add a visitor").click()
    page.get_by_label("Visitor 1, Name").fill("carl")
    page.get_by_label("Visitor 1, Last day").fill("2030-05-01")
    page.get_by_role("button", name="Preview").last.click()
    page.get_by_role("heading", name="This will be saved").wait_for()
    preview = page.locator("#preview pre").inner_text()
    assert door_lists.load(console.site, "north").text == ""
    page.get_by_role("button", name="Save the list").click()
    page.get_by_text("The list is saved.").wait_for()
    saved = door_lists.load(console.site, "north").text
    assert saved.strip() == preview.strip()
    assert 'people = ["carl"]\nvalid_until = 2030-05-01' in saved
    assert 'weekdays = "fri"\nhours = "22:00-06:00"' in saved

    page.reload()
    assert chosen(page) == [*expected[:-24], *hours(22, 23, "Friday"), *expected[-24:]]
    expect(page.get_by_label("Names, one on each line")).to_have_value("anna\nZoë")
    expect(page.get_by_label("Visitor 1, Name")).to_have_value("carl")
    page.get_by_role("button", name="Save the list").click()
    page.get_by_text("The list is saved.").wait_for()
    assert door_lists.load(console.site, "north").text == saved


def test_week_is_one_tab_stop(visitor: Visitor) -> None:
    page = visitor.page
    new_entry(page)
    page.get_by_role("button", name="Monday, whole day").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Monday 00:00-01:00")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Monday 00:00-01:00")).to_be_focused()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.get_by_label("Tuesday 01:00-02:00")).to_be_focused()
    assert page.locator(".week input[tabindex='0']").count() == 1


def test_wrong_field_is_marked_and_has_the_focus(visitor: Visitor) -> None:
    page = visitor.page
    new_entry(page)
    page.get_by_label("Everyone in the kit").check()
    expect(page.get_by_label("Add a person")).to_be_hidden()
    page.get_by_text("Other times").click()
    page.get_by_label("Tuesday", exact=True).last.fill("7-8")
    page.get_by_role("button", name="Save the list").click()
    expect(page.get_by_role("alert")).to_contain_text("Entry 1, Tuesday: 7-8 are not hours.")
    wrong = page.locator("[aria-invalid=true]")
    expect(wrong).to_have_value("7-8")
    expect(wrong).to_be_focused()
    wrong.fill("07:30-08:00")
    page.get_by_role("button", name="Save the list").click()
    page.get_by_text("The list is saved.").wait_for()


def test_changes_are_not_left_without_a_question(visitor: Visitor) -> None:
    page = visitor.page
    new_entry(page)
    asked: list[str] = []

    def leave(dialog: object) -> None:
        asked.append(dialog.type)  # type: ignore[attr-defined]
        dialog.accept()  # type: ignore[attr-defined]

    page.on("dialog", leave)
    page.get_by_label("Monday 00:00-01:00").click()
    page.get_by_role("link", name="All doors").or_(page.get_by_role("link", name="Door: north")).click()
    page.wait_for_url("**/doors/north")
    assert asked == ["beforeunload"]


def test_pages_fit_a_phone_and_a_finger_chooses_hours(browser: Browser, console: Console) -> None:
    visitor = Visitor(browser, console, viewport=PHONE, has_touch=True)
    page = visitor.enter("operator", user="otto")
    doors.add(console.site, Door(name="W" * 60, status_url="http://127.0.0.1:9/" + "x" * 200), "test")
    new_entry(page)
    page.get_by_label("Tuesday 03:00-04:00").tap()
    expect(page.get_by_label("Tuesday 03:00-04:00")).to_be_checked()
    assert chosen(page) == ["Tuesday 03:00"]
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Tuesday 04:00-05:00")).to_be_focused()
    page.get_by_role("button", name="Add a visitor").click()
    page.get_by_label("Visitor 1, Name").fill("carl")
    page.wait_for_load_state()  # until then a page may be without its style
    page.on("dialog", lambda dialog: dialog.accept())  # leave the form
    for path in ("", "/doors", "/doors/north", "/doors/" + "W" * 60, "/doors/" + "W" * 60 + "/list?as=text"):
        if path:
            page.goto(path)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], (path, width)
    visitor.close()


def test_status_changes_without_moving_the_focus(visitor: Visitor, console: Console) -> None:
    page = visitor.page
    with Preview("127.0.0.1:0") as preview:
        preview.watch(lambda: {"camera_up": True})
        doors.change(console.site, "north", Door(name="north", status_url=preview.url), "test")
        page.goto("/doors")
        name = page.get_by_label("Name of the door")
        name.fill("half a na")
        expect(page.get_by_role("row", name="north")).to_contain_text("Online")
        expect(page.get_by_role("status")).to_have_text("Online: 1")
        preview.watch(lambda: {"camera_up": False, "camera_frozen": True, "error": "The pixels repeat."})
        expect(page.get_by_role("row", name="north")).to_contain_text("Frozen")
        expect(page.get_by_role("row", name="north")).to_contain_text("The pixels repeat.")
        expect(name).to_be_focused()
        expect(name).to_have_value("half a na")


def test_page_says_if_the_console_has_stopped(visitor: Visitor, console: Console) -> None:
    for path in ("/doors", "/doors/north"):
        visitor.page.goto(path)
        expect(visitor.page.locator("#stale")).to_have_text("")
    console.stop()
    expect(visitor.page.get_by_role("alert")).to_contain_text("The console does not answer.")
    visitor.page.goto("about:blank")
    visitor.errors.clear()  # Chromium reports the failed requests


def test_form_works_without_script(browser: Browser, console: Console) -> None:
    visitor = Visitor(browser, console, java_script_enabled=False)
    page = visitor.enter("operator", user="otto")
    new_entry(page, script=False)
    page.get_by_label("Add a person").fill("anna")
    page.get_by_role("button", name="Add", exact=True).first.click()
    expect(page.get_by_label("Names, one on each line")).to_have_value("anna")
    page.get_by_label("Monday 07:00-08:00").check()
    page.get_by_label("Names, one on each line").press("Tab")
    page.get_by_label("Add a date").fill("2030-12-25")
    page.get_by_label("Add a date").press("Enter")
    page.get_by_role("heading", name="This will be saved").wait_for()
    assert "holidays = [2030-12-25]" in page.locator("#preview pre").inner_text(), "Enter gives a preview"
    page.get_by_role("button", name="Save the list").click()
    page.get_by_text("The list is saved.").wait_for()
    assert 'weekdays = "mon"\nhours = "07:00-08:00"' in door_lists.load(console.site, "north").text
    visitor.close()
