"""What holds for every page, in Chromium: names of controls, headings, width on a phone, contrast, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.fixtures.console import PHONE, Console, Visitor, add_user, page_problems, wait_for_job
from tests.fixtures.site import blank_photo, orl_file, site_of_orl, two_faces
from trainer.console.app import PAGES
from trainer.site import models

pytestmark = pytest.mark.slow

LIGHT, DARK = {"color_scheme": "light", "viewport": PHONE}, {"color_scheme": "dark"}
NOT_PAGES = re.compile(r"(\.jpg|/card|/report)$|^/(kits|doors|visits)/")
"""Pictures and JSON; a report, which is checked with `trainer evaluate`; and pages that have tests of their own."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console with people, photos with problems, a model, and users."""
    site = site_of_orl(tmp_path_factory.mktemp("pages") / "site", {f"s{person}": range(1, 5) for person in range(1, 7)})
    for file, data in {"wall.png": blank_photo(), "two.png": two_faces(1, 8), "other.pgm": orl_file(2, 9)}.items():
        (site.photos / "s1" / file).write_bytes(data)
    with Console(site.path) as running:
        with running.client() as client:
            assert client.submit("/train", {"preset": "minimal"}).status_code == 303
        assert wait_for_job(running, 1)["state"] == "done"
        add_user(site.path, "anna", "administrator")
        yield running


def paths(console: Console) -> list[str]:
    """The path of each page that GET shows."""
    model = models.list_models(console.site)[0].name
    filled = [page.path for page in PAGES if page.method == "GET" and not NOT_PAGES.search(page.path)]
    return [
        path.replace("{name}", "s1").replace("{model}", model).replace("{number:int}", "1") for path in filled
    ] + ["/login", "/people?q=zzz", "/people?only=other", "/people/New%20Person"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "language"),
    [(LIGHT, "de"), (LIGHT, "en"), (DARK, "en")],
    ids=["phone, German", "phone, English", "screen, dark"],
)
def test_every_page(browser: Browser, console: Console, options: dict[str, object], language: str) -> None:
    visitor = Visitor(browser, console, **options | {"locale": language})
    visitor.enter(user="anna")
    wrong = {}
    for path in paths(console):
        answer = visitor.page.goto(path)
        assert answer is not None
        assert answer.status in (200, 404), path
        visitor.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        if found := page_problems(visitor.page):
            wrong[path] = found
    assert wrong == {}
    visitor.close()


def test_checker_finds_what_is_wrong(browser: Browser, console: Console) -> None:
    visitor = Visitor(browser, console, viewport=PHONE)
    page = visitor.enter(user="anna")
    page.evaluate("""() => {
      document.querySelector("main").insertAdjacentHTML("beforeend",
        '<h1>a</h1><input id="name"><img src="/static/icon.svg"><button></button><p id="pale">pale</p><p id="wide">wide</p>');
      document.getElementById("pale").style.color = "rgb(128 128 128 / 60%)";
      document.getElementById("wide").style.width = "900px";
    }""")
    found = "; ".join(page_problems(page))
    for part in ("2 h1", "id name twice", "no alt", "button without a name", "textbox without a name", "pale", "too wide"):
        assert part in found
    visitor.close()


def test_skip_link_leads_to_the_content(browser: Browser, console: Console) -> None:
    visitor = Visitor(browser, console)
    page = visitor.enter(user="anna")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    visitor.close()
