"""The pages of people in Chromium: a new site, uploads, photos with problems, changes, deletion and export."""

from __future__ import annotations

import io
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, Route, expect

from tests.fixtures.console import Console, Visitor
from tests.fixtures.site import blank_photo, orl_file, orl_image, png, site_of_orl, two_faces
from tests.fixtures.waiting import until
from trainer.site.photos import checker, decoded

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    site = site_of_orl(tmp_path_factory.mktemp("people") / "site", {"s1": range(1, 4), "s2": range(1, 3)})
    with Console(site.path) as running:
        yield running


def photo(data: bytes, name: str = "photo.pgm") -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def choose(page: Page, *photos: FilePayload) -> None:
    """Choose photos on the page of a person, and wait until all were sent."""
    page.get_by_label("Choose photos").set_input_files(list(photos))
    expect(page.locator("#status")).to_contain_text(f"of {len(photos)} photos added")


def card(page: Page, text: str) -> Locator:
    return page.locator(".photo").filter(has_text=text)


def files(console: Console, name: str) -> list[bytes]:
    folder = console.site.photos / name
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


def drop(page: Page, target: Locator, *paths: Path) -> None:
    """Drop files and folders of the disk on an element, as a mouse does."""
    box = target.bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        at = {"type": kind, "x": box["x"] + 20, "y": box["y"] + 20, "data": data}
        session.send("Input.dispatchDragEvent", at)
    session.detach()


def test_new_site_says_what_to_do_and_the_first_person_is_added(browser: Browser, tmp_path: Path) -> None:
    with Console(tmp_path / "site") as console:
        visitor = Visitor(browser, console)
        visitor.enter()
        page = visitor.visit("/people")
        expect(page.get_by_role("heading", name="No people yet")).to_be_visible()
        expect(visitor.visit("/train").get_by_role("heading", name="Nothing to train yet")).to_be_visible()
        page.get_by_role("link", name="Add people").click()
        page.get_by_label("Name", exact=True).fill("Anna Núñez")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Anna Núñez")
        choose(page, photo(orl_file(1, 1)), photo(orl_file(1, 2)))
        expect(page.locator(".photo")).to_have_count(2)
        for shown in page.locator(".photo > a > img").all():
            shown.evaluate("image => image.decode()")
        assert {one.get_attribute("data-state") for one in page.locator(".photo").all()} <= {"good", "warning"}
        expect(page.locator("#counts")).to_contain_text("Photos: 2")
        page.get_by_label("Date of consent").fill("2026-05-04")  # the forms for a person are there without a reload
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status").first).to_have_text("Saved.")
        assert sorted(files(console, "Anna Núñez")) == sorted([orl_file(1, 1), orl_file(1, 2)])
        page.get_by_role("link", name="All people").click()
        expect(page.get_by_role("link", name="Anna Núñez Photos: 2")).to_be_visible()
        visitor.close()


def test_person_is_added_with_the_keyboard_only(visitor: Visitor, console: Console) -> None:
    # Playwright does not wait until it intercepts choosers. A first listener now has it done long before the key is pressed.
    visitor.page.on("filechooser", lambda chooser: None)
    page = visitor.visit("/people")
    _tab_to(page, page.get_by_label("Name", exact=True))
    page.keyboard.type("Kim")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Kim")
    _tab_to(page, page.get_by_label("Choose photos"))
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([photo(orl_file(30, 1))])
    expect(page.locator(".photo")).to_have_count(1)
    assert files(console, "Kim") == [orl_file(30, 1)]


def _tab_to(page: Page, wanted: Locator, most: int = 40) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if wanted.evaluate("one => one === document.activeElement"):
            return
    pytest.fail("Tab does not reach it")


def test_person_is_added_without_script(browser: Browser, console: Console) -> None:
    visitor = Visitor(browser, console, java_script_enabled=False)
    page = visitor.enter("operator")
    page.get_by_label("Name", exact=True).fill("Nora")
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("Choose photos").set_input_files([photo(orl_file(31, 1)), photo(b"text", "notes.txt")])
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("status").first).to_contain_text("Photos added: 1. notes.txt")
    assert files(console, "Nora") == [orl_file(31, 1)]
    visitor.close()


def test_photos_that_are_chosen_before_the_script_runs_are_added(visitor: Visitor, console: Console) -> None:
    page = visitor.page
    waiting: list[Route] = []
    page.route("**/static/people.js", lambda route: waiting.append(route))
    page.goto("/people/Early", wait_until="commit")
    page.get_by_label("Choose photos").set_input_files([photo(orl_file(32, 1))])
    until(lambda: page.evaluate("true") and waiting)  # evaluate() lets Playwright report the request
    waiting[0].continue_()
    expect(page.locator(".photo")).to_have_count(1)
    assert files(console, "Early") == [orl_file(32, 1)]
    page.unroute("**/static/people.js")


def test_dropped_files_are_added(visitor: Visitor, console: Console, tmp_path: Path) -> None:
    for name, data in {"a.pgm": orl_file(5, 1), "b.pgm": orl_file(5, 2), "notes.txt": b"no photo"}.items():
        (tmp_path / name).write_bytes(data)
    page = visitor.visit("/people/Dropped")
    drop(page, page.locator("#drop-photos"), *sorted(tmp_path.iterdir()))
    expect(page.locator(".photo")).to_have_count(2)
    assert sorted(files(console, "Dropped")) == sorted([orl_file(5, 1), orl_file(5, 2)])


def test_files_that_are_dropped_beside_the_zone_do_not_open(visitor: Visitor, console: Console) -> None:
    """A browser leaves the page to show a dropped file, unless the page prevents it."""
    page = visitor.visit("/people/Beside")
    is_left = page.get_by_role("heading", name="Photos", exact=True).evaluate("""(heading) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["P5"], "a.pgm"));
      return ["dragover", "drop"].map((kind) =>
        heading.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer })));
    }""")
    assert is_left == [False, False]
    assert files(console, "Beside") == []


def test_dropped_folders_are_people(visitor: Visitor, console: Console, tmp_path: Path) -> None:
    for name, number in (("Olga", 6), ("Paul", 7)):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "1.pgm").write_bytes(orl_file(number, 1))
    page = visitor.visit("/people")
    drop(page, page.get_by_role("region", name="Add a person"), tmp_path / "all")
    expect(page.get_by_role("link", name="Paul Photos: 1")).to_be_visible()
    assert (files(console, "Olga"), files(console, "Paul")) == ([orl_file(6, 1)], [orl_file(7, 1)])


def test_zip_is_imported_as_a_job_that_says_what_it_did(visitor: Visitor, console: Console) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in (21, 22):
            archive.writestr(f"people/zip{number}/1.pgm", orl_file(number, 1))
        archive.writestr("people/s1/9.pgm", orl_file(1, 9))
    page = visitor.visit("/people")
    page.get_by_text("Many people at once").click()
    page.get_by_label("ZIP file").set_input_files(photo(packed.getvalue(), "people.zip"))
    page.get_by_role("button", name="Import").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#job")).to_contain_text("2 new people, 2 photos. There already, left out: s1.")
    page.get_by_role("link", name="Show the result").click()
    expect(page.get_by_role("link", name="zip21 Photos: 1")).to_be_visible()


def test_photos_with_problems_say_so(visitor: Visitor) -> None:
    page = visitor.visit("/people/Quinn")
    blurred = png(cv2.GaussianBlur(orl_image(15, 1), (0, 0), 4))
    choose(page, photo(blank_photo()), photo(blurred), photo(two_faces(15, 10)))
    assert card(page, "No face found").get_attribute("data-state") == "problem"
    assert card(page, "The face is blurred").get_attribute("data-state") == "warning"
    assert card(page, "2 faces: choose the one that is meant").get_attribute("data-state") == "problem"
    page.get_by_role("link", name="All people").click()
    expect(page.get_by_role("link", name="Quinn")).to_contain_text("Problems: 2")


@pytest.mark.parametrize(("name", "how", "person"), [("Click", "rect >> nth=0", 17), ("Key", "button.pick >> nth=1", 11)])
def test_one_of_two_faces_is_chosen(visitor: Visitor, console: Console, name: str, how: str, person: int) -> None:
    """By a click into the photo, or with a button. Both count from left to right."""
    page = visitor.visit(f"/people/{name}")
    left, right = (17, 11) if name == "Click" else (18, 11)
    choose(page, photo(two_faces(left, right)))
    card(page, "2 faces").locator(how).click()
    expect(page.get_by_role("status").first).to_have_text("The photo shows only the chosen face now.")
    expect(card(page, "2 faces")).to_have_count(0)
    (data,) = files(console, name)
    part = decoded(data)
    middle = part[part.shape[0] // 3 : part.shape[0] // 2, part.shape[1] // 3 : part.shape[1] // 2]
    original = cv2.resize(orl_image(person, 1), (180, 219), interpolation=cv2.INTER_CUBIC)
    assert cv2.matchTemplate(original, middle, cv2.TM_CCOEFF_NORMED).max() > 0.99


def test_near_duplicate_shows_the_other_photo(visitor: Visitor) -> None:
    page = visitor.visit("/people/Rita")
    choose(page, photo(orl_file(16, 1)), photo(png(cv2.convertScaleAbs(orl_image(16, 1), alpha=1.05))))
    expect(card(page, "Nearly the same as another photo")).to_have_count(2)
    shown = card(page, "Nearly the same as another photo").first
    expect(shown.locator(".duplicates img")).to_have_count(1)
    shown.locator(".duplicates img").evaluate("image => image.decode()")


def test_looks_like_another_person_shows_both_pictures(visitor: Visitor) -> None:
    if checker().network is None:
        pytest.skip("needs the network SFace, which the first use downloads from PyPI")
    visitor.visit("/people/s1")
    expect(visitor.page.locator("[data-check]")).to_have_count(0)
    page = visitor.visit("/people/Sam")
    choose(page, photo(orl_file(1, 7)))
    shown = card(page, "Looks like another person: s1")
    expect(shown.locator(".alike img")).to_have_count(2)
    for image in shown.locator(".alike img").all():
        image.evaluate("image => image.decode()")
    shown.get_by_role("link", name="s1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("s1")


def test_photo_of_two_people_is_refused_with_a_sentence(visitor: Visitor, console: Console) -> None:
    visitor.visit("/people/s2")
    expect(visitor.page.locator("[data-check]")).to_have_count(0)
    page = visitor.visit("/people/Tom")
    page.get_by_label("Choose photos").set_input_files([photo(orl_file(2, 1), "holiday.pgm")])
    expect(page.locator("#refused")).to_contain_text("holiday.pgm: This is a photo of s2 already")
    assert files(console, "Tom") == []


def test_bombs_are_refused_with_a_sentence(visitor: Visitor, console: Console) -> None:
    huge = bytearray(png(np.zeros((8, 8), np.uint8)))
    huge[16:24] = (60_000).to_bytes(4, "big") * 2
    page = visitor.visit("/people/Bomb")
    page.get_by_label("Choose photos").set_input_files([photo(bytes(huge), "huge.png"), photo(b"no photo", "text.png")])
    expect(page.locator("#refused li")).to_have_count(2)
    assert files(console, "Bomb") == []
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(8):
            archive.writestr(f"bomb/{number}.pgm", b"P5 1 1 255\n" + bytes(32 << 20))
    page = visitor.visit("/people")
    page.get_by_text("Many people at once").click()
    page.get_by_label("ZIP file").set_input_files(photo(packed.getvalue(), "bomb.zip"))
    page.get_by_role("button", name="Import").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#job")).to_contain_text("unpack to far more than its own size")
    assert not (console.site.photos / "bomb").exists()


def test_consent_rename_and_merge(visitor: Visitor, console: Console) -> None:
    page = visitor.visit("/people/Uma")
    choose(page, photo(orl_file(23, 1)))
    page.reload()
    page.get_by_label("Date of consent").fill("2026-05-04")
    page.get_by_label("Note").fill("Signed <b>by hand</b>")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_have_text("Saved.")
    expect(page.get_by_label("Note")).to_have_value("Signed <b>by hand</b>")
    page.get_by_label("New name").fill("Ute")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Ute")
    expect(page.get_by_label("Date of consent")).to_have_value("2026-05-04")
    visitor.visit("/people/Vera")
    choose(page, photo(orl_file(23, 2)))
    page.reload()
    page.get_by_label("This is the same person as").fill("Ute")
    page.get_by_role("button", name="Merge").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Ute")
    expect(page.locator(".photo")).to_have_count(2)
    assert sorted(files(console, "Ute")) == sorted([orl_file(23, 1), orl_file(23, 2)])
    assert not (console.site.photos / "Vera").exists()


def test_photo_is_moved_and_deleted(visitor: Visitor, console: Console) -> None:
    page = visitor.visit("/people/Will")
    choose(page, photo(orl_file(24, 1)), photo(orl_file(24, 2)))
    first = page.locator(".photo").first
    first.get_by_text("Move", exact=True).click()
    first.get_by_label("To which person?").fill("Xena")
    first.get_by_role("button", name="Move photo").click()
    expect(page.get_by_role("status").first).to_have_text("The photo is with Xena now.")
    page.locator(".photo").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").first).to_have_text("The photo was deleted.")
    assert (len(files(console, "Xena")), (console.site.photos / "Will").exists()) == (1, False)


def test_export_downloads_a_zip_that_opens(visitor: Visitor) -> None:
    page = visitor.visit("/people/s2")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all data").click()
    assert download.value.suggested_filename == "s2.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.testzip() is None
        assert {"photos/1.pgm", "person.json"} <= set(archive.namelist())
        assert archive.read("photos/1.pgm") == orl_file(2, 1)


def test_deleted_person_is_gone_and_the_page_says_what_was_searched(visitor: Visitor, console: Console) -> None:
    page = visitor.visit("/people/Yann Delamare")
    choose(page, photo(orl_file(25, 1)))
    page.reload()
    page.get_by_role("button", name="Delete this person").click()
    page.wait_for_url("**/jobs/*")
    expect(page.locator("#job")).to_contain_text("Nothing in this site contains the person any more.")
    assert "Yann" not in page.content()
    page.get_by_role("link", name="Show the result").click()
    assert "Yann" not in page.content()
    assert not (console.site.photos / "Yann Delamare").exists()


def test_console_that_is_killed_during_uploads_loses_no_accepted_photo(browser: Browser, tmp_path: Path) -> None:
    """The first photo is accepted, then the console is killed. The page says so, and the console starts again."""
    console = Console(tmp_path / "site")
    visitor = Visitor(browser, console)
    page = visitor.enter("operator")
    visitor.visit("/people/Zoe")
    sent = []

    def kill_at_the_second(route: Route) -> None:
        sent.append(route.request.url)
        if len(sent) == 2:
            visitor.is_away = True
            console.stop(signal.SIGKILL)
        route.continue_()

    page.route("**/people/Zoe/photos", kill_at_the_second)
    page.get_by_label("Choose photos").set_input_files([photo(orl_file(26, n), f"{n}.pgm") for n in (1, 2)])
    expect(page.locator("#refused")).to_have_text(
        "2.pgm: The console does not answer. Check that it is running, then try again."
    )
    expect(page.locator(".photo")).to_have_count(1)
    assert files(console, "Zoe") == [orl_file(26, 1)]
    page.unroute("**/people/Zoe/photos")
    console.__exit__()
    with Console(tmp_path / "site", address=console.address):
        visitor.is_away = False
        choose(page, photo(orl_file(26, 2), "2.pgm"))
        expect(page.locator(".photo")).to_have_count(2)
        assert sorted(files(console, "Zoe")) == sorted([orl_file(26, 1), orl_file(26, 2)])
        visitor.close()


def test_upload_that_is_cut_off_leaves_no_part_of_a_photo(tmp_path: Path) -> None:
    console = Console(tmp_path / "site")
    with console.client("operator") as client:
        boundary, data = "0123456789", orl_file(27, 1)
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="photos"; filename="1.pgm"\r\n\r\n'.encode()
        headers = {"X-CSRF": client.csrf(), "Content-Type": f"multipart/form-data; boundary={boundary}"}

        def body() -> Iterator[bytes]:
            yield head + data[: len(data) // 2]
            console.stop(signal.SIGKILL)
            yield data[len(data) // 2 :] + f"\r\n--{boundary}--\r\n".encode()

        with pytest.raises(httpx.TransportError):
            client.post("/people/Cut/photos", content=body(), headers=headers)
    console.__exit__()
    assert list(console.site.photos.iterdir()) == []
    with Console(tmp_path / "site") as again, again.client() as client:
        assert "No people yet" in client.get("/people").text
