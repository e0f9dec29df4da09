"""The pages of training, over HTTP and in Chromium: start, progress, cancel, result, suspected photos, report, roles."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.fixtures.console import Client, Console, Visitor, chromium, held_job, wait_for_job
from tests.fixtures.site import orl_file, site_of_orl
from trainer.console import jobs as job_pages
from trainer.console.text import language
from trainer.site import jobs, models
from trainer.site.folder import Site

pytestmark = pytest.mark.slow

WRONG = "wrong.pgm"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of 20 people; a photo of s2 has the name s1."""
    folder = tmp_path_factory.mktemp("train") / "site"
    site = site_of_orl(folder, {f"s{person}": range(1, 7) for person in range(1, 21)})
    (site.photos / "s1" / WRONG).write_bytes(orl_file(2, 9))
    with Console(folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[Client]:
    with console.client("operator", user="otto") as found:
        yield found


@pytest.fixture(scope="module")
def model(console: Console, client: Client) -> str:
    """The name of a model that was trained by the button."""
    answer = client.submit("/train", {"preset": "tiny"})
    assert answer.status_code == 303
    number = int(answer.headers["location"].rpartition("/")[2])
    job = wait_for_job(console, number)
    assert job["state"] == jobs.DONE, job
    return str(job["next"].rpartition("/")[2])


def test_page_without_people_says_what_to_do(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client() as own:
        page = own.get("/train").text
        assert 'href="/people"' in page
        assert '<button class="main" id="train">' not in page
        assert own.get("/jobs/1").status_code == 404


def test_result_is_on_the_page(client: Client, model: str, console: Console) -> None:
    page = client.get(f"/train/{model}").text
    found = models.get_model(console.site, model)
    assert found.result is not None
    assert f"{found.result['recognised']['count']} of {found.result['recognised']['of']} photos" in page
    assert f"{found.result['false_accepts']['count']} of {found.result['false_accepts']['of']} photos" in page
    assert f"/people/s1/photos/{WRONG}/crop.jpg" in page
    assert 'href="/people/s1"' in page
    listed = client.get("/train").text
    assert f'href="/train/{model}"' in listed
    german = client.get(f"/train/{model}", headers={"Accept-Language": "de"}).text
    assert "Kreuzvalidierung" in german
    assert re.search(r"\d,\d\N{NO-BREAK SPACE}%", german)


def test_report_has_no_script_and_may_load_nothing(client: Client, model: str) -> None:
    answer = client.get(f"/train/{model}/report")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "Cross-validation" in answer.text


@pytest.mark.parametrize("path", ["/train/none", "/train/none/report", "/train/..%2Fphotos", "/train/%2e%2e", "/train/.cache"])
def test_unknown_models_are_not_found(client: Client, path: str) -> None:
    assert client.get(path).status_code in (404, 405)


def test_viewer_sees_and_changes_nothing(console: Console, model: str) -> None:
    with console.client("viewer", user="vera") as viewer:
        page = viewer.get(f"/train/{model}").text
        assert 'name="action"' not in page
        assert viewer.get("/train").status_code == 200
        for path in ("/train", f"/train/{model}/delete", f"/train/{model}/photos", "/jobs/1/cancel"):
            assert viewer.submit(path).status_code == 403
    with console.client("operator") as operator:
        assert operator.post("/train").status_code == 403, "without the CSRF value"
        assert operator.submit("/train", {"preset": "other"}).status_code == 400


@pytest.mark.parametrize(
    "fields", [{"action": "other"}, {"action": "delete"}, {"action": "delete", "person": "..", "file": "x.pgm"}]
)
def test_wrong_decisions_are_sentences(client: Client, model: str, fields: dict[str, str]) -> None:
    assert client.submit(f"/train/{model}/photos", fields).status_code == 400


def test_suspected_photo_is_kept_then_moved_then_deleted(client: Client, model: str, console: Console) -> None:
    site = console.site
    own = {"person": "s1", "file": WRONG, "to": "s2"}
    data = (site.photos / "s1" / WRONG).read_bytes()
    assert client.submit(f"/train/{model}/photos", own | {"action": "keep"}).status_code == 303
    assert WRONG not in client.get(f"/train/{model}").text, "it is settled"
    with site.database() as database:
        database.execute("DELETE FROM kept_photos")
    assert WRONG in client.get(f"/train/{model}").text
    assert client.submit(f"/train/{model}/photos", own | {"action": "move"}).status_code == 303
    assert (site.photos / "s2" / WRONG).read_bytes() == data
    assert client.submit(f"/train/{model}/photos", {"action": "delete", "person": "s2", "file": WRONG}).status_code == 303
    assert not (site.photos / "s2" / WRONG).exists()
    with site.database() as database:
        done = [tuple(row) for row in database.execute("SELECT who, action FROM trail WHERE action LIKE '% photo'")]
    assert done == [("otto", "keep photo"), ("otto", "move photo"), ("otto", "delete photo")]
    (site.photos / "s1" / WRONG).write_bytes(data)


def test_two_browsers_see_one_job_and_either_cancels_it(console: Console) -> None:
    before = {one.name for one in models.list_models(console.site)}
    with held_job(console.site) as go_on, sync_playwright() as playwright, chromium(playwright) as browser:
        first, second = Visitor(browser, console), Visitor(browser, console)
        first.enter("operator", user="otto")
        second.enter("operator", user="olga")
        first.page.goto("/train")
        first.page.get_by_text("More options").click()
        first.page.get_by_label("Method").select_option("tiny")
        first.page.get_by_role("button", name="Train", exact=True).click()
        first.page.wait_for_url("**/jobs/*")
        second.page.goto("/train")
        second.page.get_by_role("link", name="A job is running").click()
        expect(second.page).to_have_url(first.page.url)
        second.page.on("dialog", lambda dialog: dialog.accept())
        with second.page.expect_response("**/cancel"):  # the job has its signal then
            second.page.get_by_role("button", name="Cancel").click()
        go_on()
        for visitor in (first, second):
            visitor.page.get_by_text("Cancelled").first.wait_for()
        first.close()
        second.close()
    assert {one.name for one in models.list_models(console.site)} == before


def test_page_of_a_job_goes_to_the_result(console: Console) -> None:
    with sync_playwright() as playwright, chromium(playwright) as browser:
        visitor = Visitor(browser, console)
        visitor.enter("operator", user="otto")
        with held_job(console.site) as go_on:
            number = jobs.start(console.site, "trainer", ["site", "train", str(console.site.path), "--preset", "tiny"])
            visitor.page.goto(f"/jobs/{number}")
            expect(visitor.page.get_by_role("log")).to_be_visible()
            go_on()
        visitor.page.wait_for_url("**/train/*")
        visitor.page.get_by_role("heading", name="Comparison").wait_for()
        visitor.page.get_by_role("link", name="Evaluation report").click()
        visitor.page.wait_for_url("**/report")
        assert visitor.page.title().startswith("Evaluation of")
        visitor.close()


def test_deleted_model_is_gone_from_the_page(console: Console, client: Client, model: str) -> None:
    shutil.copy(console.site.models / f"{model}.npz", console.site.models / "copy.npz")
    assert ">copy<" in client.get("/train").text
    assert client.submit("/train/copy/delete").status_code == 303
    assert ">copy<" not in client.get("/train").text
    assert "copy" not in {one.name for one in models.list_models(console.site)}


def test_failed_training_is_shown_with_its_reason(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", {"s1": range(1, 4), "s2": range(1, 4)})
    (site.photos / "empty").mkdir()
    with Console(site.path) as running, running.client() as own:
        number = int(own.submit("/train", {"preset": "tiny"}).headers["location"].rpartition("/")[2])
        job = wait_for_job(running, number)
        assert job["state"] == jobs.FAILED
        assert "No usable photo of empty" in own.get("/train").text
        assert "No usable photo of empty" in own.get(f"/jobs/{number}").text
        for path in ("/train", f"/jobs/{number}"):
            assert "Kein brauchbares Foto von empty" in own.get(path, headers={"Accept-Language": "de"}).text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (1.0, "about 5 seconds left"),
        (42.0, "about 40 seconds left"),
        (70, "about a minute left"),
        (300, "5 minutes"),
    ],
)
def test_estimate_in_words(seconds: float | None, text: str) -> None:
    found = job_pages.left_text(language("en"), seconds)
    assert text in found if text else found == ""


def test_stage_without_a_message_keeps_its_name(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with jobs.run(site, "build", "anna") as job, site.database() as database:
        job.stage("stage of another program", 1, 2)
        state = jobs.get(database, job.id)
        assert state is not None
        assert job_pages.facts_of(language("de"), state)["stage"] == "stage of another program"
        assert job_pages.facts_of(language("de"), state)["count"] == "1 von 2"
