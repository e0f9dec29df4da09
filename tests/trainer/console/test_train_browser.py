"""The pages of training in Chromium: one button, the result, decisions about suspected photos, comparison of models."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.fixtures.console import Console, Visitor, held_job, wait_for_job
from tests.fixtures.site import blank_photo, orl_file, site_of_orl
from trainer.console.text import language
from trainer.site import models, people

pytestmark = pytest.mark.slow

WRONG = ("wrong1.pgm", "wrong2.pgm", "wrong3.pgm")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of 20 people. Photos of s2, s3 and s4 have the name s1, s5 and s6; one photo has no face."""
    site = site_of_orl(tmp_path_factory.mktemp("train") / "site", {f"s{person}": range(1, 7) for person in range(1, 21)})
    for file, (owner, person) in zip(WRONG, (("s1", 2), ("s5", 3), ("s6", 4)), strict=True):
        (site.photos / owner / file).write_bytes(orl_file(person, 9))
    (site.photos / "s7" / "wall.png").write_bytes(blank_photo())
    with Console(site.path) as running:
        yield running


def start_training(page: Page, preset: str = "tiny") -> None:
    """Start a training with the keyboard, and wait for the page of its job."""
    page.goto("/train")
    page.get_by_text("More options").press("Enter")
    page.get_by_label("Method").select_option(preset)
    page.get_by_role("button", name="Train", exact=True).press("Enter")
    page.wait_for_url("**/jobs/*")


@pytest.fixture(scope="module", autouse=True)
def model(console: Console, browser: Browser) -> str:
    """The name of a model that was trained with the button: the first one of the site, in any order of the tests."""
    visitor = Visitor(browser, console)
    visitor.enter("operator", user="otto")
    start_training(visitor.page)
    visitor.page.wait_for_url("**/train/*")
    visitor.close()
    return models.list_models(console.site)[0].name


def suspect(page: Page, person: str) -> Locator:
    return page.locator(".suspects li").filter(has_text=f"Named {person}")


def test_result_has_figures_and_advice(visitor: Visitor, model: str) -> None:
    page = visitor.visit(f"/train/{model}")
    for title in ("Right person first (cross-validation)", "Expected misses", "Expected false accepts"):
        expect(page.locator("dl.figures > div").filter(has_text=title).locator(".value")).to_contain_text("%")
    expect(page.get_by_role("table").get_by_role("row").nth(1)).to_contain_text("photos")
    page.get_by_text("Photos that were not used: 1").click()
    expect(page.get_by_text("s7/wall.png: no face found")).to_be_visible()
    expect(page.get_by_text("There is no earlier model to compare with.")).to_be_visible()


def test_log_has_each_stage(visitor: Visitor, model: str) -> None:
    log = visitor.visit("/jobs/1").get_by_role("log")
    shown = [
        log.get_by_role("listitem").nth(n).inner_text().split(" ", 1)[1] for n in range(log.get_by_role("listitem").count())
    ]
    wanted = ["Reading photos", "Training", "Measuring the threshold", "Cross-validation", "Saving"]
    assert [line for line in shown if line in wanted] == wanted


def test_report_opens(visitor: Visitor, model: str) -> None:
    page = visitor.visit(f"/train/{model}")
    page.get_by_role("link", name="Evaluation report").click()
    page.wait_for_url("**/report")
    expect(page.get_by_role("heading", level=1)).to_contain_text(model)


def test_suspected_photos_are_kept_moved_and_deleted(visitor: Visitor, model: str, console: Console) -> None:
    page = visitor.visit(f"/train/{model}")
    expect(suspect(page, "s1").get_by_role("img")).to_have_count(2)
    for image in suspect(page, "s1").get_by_role("img").all():
        image.evaluate("image => image.decode()")
    suspect(page, "s1").get_by_role("button", name="Keep: it is s1").click()
    expect(page.get_by_role("status")).to_have_text("Kept. The next training uses this photo of s1.")
    expect(suspect(page, "s1")).to_have_count(0)
    suspect(page, "s5").get_by_role("button", name="Move to s3").click()
    expect(page.get_by_role("status")).to_have_text("Moved to s3.")
    asked: list[str] = []
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    suspect(page, "s6").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status")).to_have_text("The photo of s6 is deleted.")
    assert asked == [language("en")("people.delete_photo_sure")], "only what cannot be undone asks"
    expected = {"s1": WRONG[0], "s3": WRONG[1], "s5": WRONG[1], "s6": WRONG[2]}
    there = [name for name, file in expected.items() if (console.site.photos / name / file).exists()]
    assert there == ["s1", "s3"]


def test_next_training_is_compared_with_the_model_before(visitor: Visitor, console: Console) -> None:
    before = models.list_models(console.site)[0].name
    with console.site.database() as database:
        people.add_photo(console.site, database, "New", orl_file(30, 1), who="test")
        people.add_photo(console.site, database, "New", orl_file(30, 2), who="test")
    expect(visitor.visit("/train").get_by_text("Photos have changed since the newest model was trained.")).to_be_visible()
    start_training(visitor.page, "minimal")
    visitor.page.wait_for_url("**/train/*")
    page, added = visitor.page, re.compile(r"New people \(\d+\): (.*, )?New\b")  # others if tests ran before
    expect(page.get_by_text(f"Compared with {before}")).to_be_visible()
    expect(page.get_by_text(added)).to_be_visible()
    page.get_by_label("Compare with").select_option(before)
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text(added)).to_be_visible()


def test_photo_of_a_renamed_person_cannot_be_moved_to_the_old_name(visitor: Visitor, console: Console) -> None:
    """A model has the names of its training. A photo must not make a new person of an old name."""
    site = console.site
    for owner in ("s8", "s9"):
        (site.photos / owner / "wrong.pgm").write_bytes(orl_file(10 if owner == "s8" else 11, 9))
    start_training(visitor.page)
    visitor.page.wait_for_url("**/train/*")
    with site.database() as database:
        people.rename(site, database, "s10", "Zora", who="test")
    page = visitor.visit("/train/" + models.list_models(site)[0].name)
    shown = suspect(page, "s8")
    expect(shown).to_contain_text("There is no person of this name any more.")
    expect(shown.get_by_role("button", name="Move to")).to_have_count(0)
    expect(suspect(page, "s9").get_by_role("button", name="Move to s11")).to_have_count(1)
    shown.locator('input[name="to"]').evaluate("input => { input.value = 's10'; }")
    shown.locator("form").evaluate("""form => {
      const action = Object.assign(document.createElement("input"), { name: "action", value: "move" });
      form.append(action);
      form.submit();
    }""")
    expect(page.get_by_role("alert")).to_have_text("There is no person of this name any more.")
    assert not (site.photos / "s10").exists()


def test_cancelled_training_leaves_no_model(visitor: Visitor, console: Console) -> None:
    before = models.list_models(console.site)
    with held_job(console.site) as go_on:
        start_training(visitor.page)
        number = int(visitor.page.url.rpartition("/")[2])
        expect(visitor.page.get_by_role("progressbar")).to_be_visible()
        with visitor.page.expect_response("**/cancel"):  # the job has its signal then
            visitor.page.get_by_role("button", name="Cancel").click()
        go_on()
    assert wait_for_job(console, number)["state"] == "cancelled"
    expect(visitor.page.locator("#job")).to_contain_text("Cancelled. Nothing was changed.")
    assert models.list_models(console.site) == before


def test_model_is_deleted(visitor: Visitor, console: Console) -> None:
    start_training(visitor.page, "minimal")
    visitor.page.wait_for_url("**/train/*")
    name = models.list_models(console.site)[0].name
    page = visitor.visit("/train")
    page.get_by_role("row", name=name).get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status")).to_have_text(f"The model {name} is deleted.")
    expect(page.get_by_role("link", name=name)).to_have_count(0)
