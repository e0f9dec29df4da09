"""Login, roles, language and forms in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.fixtures.console import PASSWORD, Console, Visitor, add_user
from tests.fixtures.site import site_of_orl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console with an administrator and a viewer."""
    site = site_of_orl(tmp_path_factory.mktemp("login") / "site", {"s1": range(1, 3), "s2": range(1, 3)})
    for name, role in (("anna", "administrator"), ("vera", "viewer")):
        add_user(site.path, name, role)  # type: ignore[arg-type]
    with Console(site.path) as running:
        yield running


@pytest.fixture
def visitor(browser: Browser, console: Console) -> Iterator[Visitor]:
    found = Visitor(browser, console)
    yield found
    found.close()


def log_in(visitor: Visitor, user: str, password: str = PASSWORD) -> None:
    visitor.visit("/login")
    visitor.page.get_by_label("User").fill(user)
    visitor.page.get_by_label("Password").fill(password)
    with visitor.page.expect_response(lambda response: response.request.method == "POST"):  # the browser has the cookie then
        visitor.page.get_by_role("button", name="Log in").click()


def test_wrong_password_is_a_sentence_and_the_name_stays(visitor: Visitor) -> None:
    log_in(visitor, "anna", "a wrong password")
    expect(visitor.page.get_by_role("alert")).to_have_text("User or password is wrong.")
    expect(visitor.page.get_by_label("User")).to_have_value("anna")
    expect(visitor.page.get_by_label("Password")).to_have_value("")


def test_login_and_logout(visitor: Visitor) -> None:
    visitor.page.goto("/train")
    expect(visitor.page).to_have_url(f"{visitor.console.url}/login")
    log_in(visitor, "anna")
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("People")
    visitor.page.get_by_role("link", name="Settings").click()
    visitor.page.get_by_role("button", name="Log out").click()
    visitor.page.wait_for_url("**/login")
    visitor.page.goto("/people")
    expect(visitor.page).to_have_url(f"{visitor.console.url}/login")


def test_viewer_has_no_buttons_that_change_and_is_refused(visitor: Visitor) -> None:
    log_in(visitor, "vera")
    for path in ("/people", "/people/s1", "/train"):
        visitor.visit(path)
        assert visitor.page.locator('form[method="post"], input[type="file"]').count() == 0, path
    for path in ("/users", "/trail", "/people/s1/capture"):
        answer = visitor.page.goto(path)
        assert answer is not None
        assert answer.status == 403
        expect(visitor.page.get_by_role("alert")).to_contain_text("needs the role")


def test_language_is_switched_and_stays(visitor: Visitor) -> None:
    log_in(visitor, "anna")
    visitor.visit("/settings")
    visitor.page.get_by_role("combobox", name="Language").select_option("Deutsch")
    visitor.page.get_by_role("region", name="Language").get_by_role("button", name="Save").click()
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Einstellungen")
    visitor.visit("/people")
    expect(visitor.page.locator("html")).to_have_attribute("lang", "de")
    expect(visitor.page.get_by_role("heading", name="Person hinzufügen")).to_be_visible()


def test_form_without_its_csrf_value_is_refused(visitor: Visitor, console: Console) -> None:
    log_in(visitor, "anna")
    visitor.visit("/people/s1")
    visitor.page.locator('#consent input[name="csrf"]').evaluate("input => input.remove()")
    visitor.page.get_by_label("Note").fill("a note")
    visitor.page.locator("#consent").get_by_role("button", name="Save").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("out of date")
    visitor.page.get_by_role("link", name="Back").click()
    expect(visitor.page.get_by_label("Note")).to_have_value("")


def test_one_time_link_and_the_first_user(browser: Browser, tmp_path: Path) -> None:
    """Without users, the link opens the console. The first user ends that, and logs in by password."""
    with Console(tmp_path / "site") as console:
        visitor = Visitor(browser, console)
        visitor.visit("/login")
        visitor.page.goto(console.start_url)
        visitor.page.wait_for_url("**/people")
        visitor.visit("/users")
        visitor.page.get_by_label("Name").fill("anna")
        visitor.page.get_by_label("New password", exact=True).fill(PASSWORD)
        visitor.page.get_by_label("New password, again").fill(f"{PASSWORD}!")
        visitor.page.get_by_role("button", name="Add user").click()
        expect(visitor.page.get_by_role("alert")).to_have_text("The two new passwords are not the same.")
        visitor.visit("/users")
        visitor.page.get_by_label("Name").fill("anna")
        visitor.page.get_by_label("New password", exact=True).fill(PASSWORD)
        visitor.page.get_by_label("New password, again").fill(PASSWORD)
        visitor.page.get_by_role("button", name="Add user").click()
        visitor.page.wait_for_url("**/login")
        log_in(visitor, "anna")
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text("People")
        visitor.close()
