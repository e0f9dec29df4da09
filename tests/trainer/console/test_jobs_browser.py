"""Jobs in Chromium: every browser sees the same job, and a restart of the console does not touch it."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
from playwright.sync_api import Browser, Dialog, expect

from tests.fixtures.console import PHONE, Console, Visitor, held_job, kill_job, wait_for_job
from tests.fixtures.site import site_of_orl
from trainer.site import jobs, models
from trainer.site.folder import Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return site_of_orl(tmp_path_factory.mktemp("jobs") / "site", {f"s{person}": range(1, 5) for person in range(1, 7)})


def train(visitor: Visitor, *, clicks: int = 1) -> int:
    """Start a training with the smallest preset, and return the number of its job."""
    page = visitor.visit("/train")
    page.get_by_text("More options").click()
    page.get_by_label("Method").select_option("minimal")
    page.get_by_role("button", name="Train", exact=True).click(click_count=clicks, delay=100)
    page.wait_for_url("**/jobs/*")
    return int(page.url.rpartition("/")[2])


def test_second_browser_sees_the_job_and_its_end(browser: Browser, site: Site) -> None:
    with Console(site.path) as console, held_job(site) as go_on:
        first, second = Visitor(browser, console), Visitor(browser, console, viewport=PHONE)
        first.enter("operator", user="otto")
        second.enter("viewer", user="vera")
        number = train(first)
        second.page.reload()
        second.page.get_by_role("link", name="A job is running").click()
        expect(second.page).to_have_url(first.page.url)
        expect(second.page.get_by_text("Started by otto")).to_be_visible()
        expect(second.page.get_by_role("button", name="Cancel")).to_have_count(0)
        second.visit(f"/jobs/{number}")
        go_on()
        for visitor in (first, second):
            visitor.page.wait_for_url("**/train/*")
        expect(second.page.get_by_role("link", name="A job is running")).to_have_count(0)
        assert first.page.url == second.page.url
        first.close()
        second.close()


def test_double_click_starts_one_training(browser: Browser, site: Site) -> None:
    with Console(site.path) as console, held_job(site) as go_on:
        visitor = Visitor(browser, console)
        visitor.enter("operator")
        sent: list[str] = []
        visitor.page.on("request", lambda request: sent.append(request.method) if request.method == "POST" else None)
        train(visitor, clicks=2)
        go_on()
        visitor.page.wait_for_url("**/train/*")
        assert sent == ["POST"]
        visitor.close()


def test_second_training_waits_for_the_first(browser: Browser, site: Site) -> None:
    with Console(site.path) as console, held_job(site) as go_on:
        visitor = Visitor(browser, console)
        visitor.enter("operator")
        visitor.visit("/train")
        visitor.page.locator("#train").evaluate("button => button.form.target = '_blank'")  # this page stays as it is
        with visitor.context.expect_page() as opened:
            visitor.page.locator("#train").click()
        opened.value.wait_for_url("**/jobs/*")
        visitor.page.locator("#train").evaluate("button => button.form.target = ''")
        visitor.page.locator("#train").click()
        expect(visitor.page.get_by_role("alert")).to_contain_text("Another job of this site is running.")
        number = int(opened.value.url.rpartition("/")[2])
        jobs.cancel(site, number, who="anna")
        go_on()
        assert wait_for_job(console, number)["state"] == "cancelled"
        visitor.close()


def test_training_goes_on_when_the_console_is_killed_and_started_again(browser: Browser, site: Site) -> None:
    before = {model.name for model in models.list_models(site)}
    console = Console(site.path)
    visitor = Visitor(browser, console)
    visitor.enter("operator", user="otto")
    with held_job(site) as go_on:
        number = train(visitor)
        visitor.is_away = True
        console.stop(signal.SIGKILL)
        console.__exit__()
        expect(visitor.page.locator("#job").get_by_role("alert")).to_contain_text("The console does not answer.")
        with Console(site.path, address=console.address) as again:
            with again.client() as client:
                assert client.get(f"/jobs/{number}", headers={"Accept": "application/json"}).json()["state"] == "running"
            other = Visitor(browser, again)
            other.enter("viewer")
            expect(other.page.get_by_role("link", name="A job is running")).to_be_visible()
            expect(visitor.page.locator("#stale")).to_be_hidden()
            go_on()
            visitor.page.wait_for_url("**/train/*")  # the page asked until the console answered
            new = {model.name for model in models.list_models(site)} - before
            assert [visitor.page.url.rpartition("/")[2]] == [*new]
            other.close()
            visitor.close()


def test_killed_job_is_shown_as_failed(browser: Browser, site: Site) -> None:
    with Console(site.path) as console, held_job(site) as go_on:
        visitor = Visitor(browser, console)
        visitor.enter("operator")
        number = train(visitor)
        with site.database() as database:
            job = jobs.get(database, number)
        assert job is not None
        kill_job(job.pid)
        go_on()
        expect(visitor.page.locator("#job").get_by_role("alert")).to_contain_text("was ended from outside")
        visitor.page.get_by_role("link", name="Back").click()
        expect(visitor.page.get_by_role("alert")).to_contain_text("The last training failed.")
        visitor.close()


def test_progress_and_log_follow_the_job(browser: Browser, site: Site) -> None:
    with Console(site.path) as console:
        visitor = Visitor(browser, console)
        visitor.enter("viewer")
        with jobs.run(site, "import", "test") as job:
            job.stage("import people", 1, 4)
            page = visitor.visit(f"/jobs/{job.id}")
            expect(page.get_by_role("status").first).to_have_text("Importing people")
            expect(page.get_by_text("1 of 4")).to_be_visible()
            job.stage("check photos", 3, 4)
            job.say("<b>a line</b>")
            expect(page.get_by_role("status").first).to_have_text("Checking photos")
            expect(page.get_by_text("3 of 4")).to_be_visible()
            expect(page.get_by_role("log")).to_contain_text("<b>a line</b>")
            job.finish("4 new people.")
        expect(page.locator("#job")).to_contain_text("4 new people.")
        assert page.url.endswith(f"/jobs/{job.id}"), "the message stays"
        visitor.close()


@pytest.mark.parametrize(
    ("kind", "question", "message"),
    [
        ("train", "Stop this job? Nothing will be changed.", "Cancelled. Nothing was changed."),
        ("import", "Stop this job? What it has done so far stays.", "Cancelled. What was done before stays"),
    ],
)
def test_cancel_says_what_stays(browser: Browser, site: Site, kind: str, question: str, message: str) -> None:
    asked = []

    def refuse(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    with Console(site.path) as console:
        visitor = Visitor(browser, console)
        visitor.enter("operator")
        visitor.page.on("dialog", refuse)
        with suppress(KeyboardInterrupt), jobs.run(site, kind, "test") as job:
            visitor.visit(f"/jobs/{job.id}").get_by_role("button", name="Cancel").click()
            assert asked == [question]
            raise KeyboardInterrupt
        expect(visitor.page.locator("#job")).to_contain_text(message)
        visitor.close()
