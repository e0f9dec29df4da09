"""The page with the camera in Chromium, whose camera plays a file made of ORL photos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest
from playwright.sync_api import expect, sync_playwright

from tests.fixtures.console import Console, Visitor, chromium
from tests.fixtures.enrolment import frames
from tests.fixtures.site import site_of_orl
from trainer.site.photos import checker

pytestmark = pytest.mark.slow

FPS, SHOWN = 10, 12  # frames of each photo: the page sends about three in a second


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    site = site_of_orl(tmp_path_factory.mktemp("capture") / "site", {"s1": range(1, 4)})
    with Console(site.path) as running:
        yield running


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Y4M file with the ten photos of an ORL person, who is s1."""
    return write_y4m(tmp_path_factory.mktemp("video") / "s1.y4m", 1)


def write_y4m(file: Path, person: int) -> str:
    images = frames(person)
    height, width = images[0].shape[:2]
    with file.open("wb") as out:
        out.write(f"YUV4MPEG2 W{width} H{height} F{FPS}:1 Ip A1:1 C420mpeg2\n".encode())
        for image in images:
            out.write((b"FRAME\n" + cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420).tobytes()) * SHOWN)
    return f"--use-file-for-fake-video-capture={file}"


def test_photo_is_taken_and_stop_keeps_nothing(console: Console, video: str) -> None:
    with sync_playwright() as playwright, chromium(playwright, video) as browser:
        visitor = Visitor(browser, console)
        visitor.enter("operator", user="otto")
        page = visitor.visit("/people/s1/capture")
        expect(page.locator("video")).to_be_hidden()
        page.get_by_role("button", name="Start").click()
        expect(page.locator("video")).to_be_visible()
        expect(page.get_by_text("Photo 1 of 8")).to_be_visible()
        expect(page.get_by_role("progressbar", name="Photos taken")).not_to_have_js_property("value", 0)
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_text("Stopped. No photo was kept.")).to_be_visible()
        expect(page.locator("video")).to_be_hidden()
        assert len(list((console.site.photos / "s1").iterdir())) == 3
        visitor.close()


def test_enrolled_person_under_another_name_is_shown(console: Console, video: str) -> None:
    if checker().network is None:
        pytest.skip("needs the network SFace, which the first use downloads from PyPI")
    with sync_playwright() as playwright, chromium(playwright, video) as browser:
        visitor = Visitor(browser, console)
        visitor.enter("operator", user="otto")
        visitor.visit("/people/s1")
        expect(visitor.page.locator("[data-check]")).to_have_count(0)
        page = visitor.visit("/people/Other/capture")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_text("This face looks like s1")).to_be_visible()
        page.get_by_role("img", name="s1").evaluate("image => image.decode()")
        expect(page.locator("video")).to_be_hidden()
        page.get_by_role("button", name="Another person: take the photos").click()
        expect(page.get_by_role("progressbar", name="Photos taken")).not_to_have_js_property("value", 0)
        visitor.close()
        assert not (console.site.photos / "Other").exists()


def test_camera_that_is_unplugged_ends_the_session_with_a_sentence(console: Console, video: str) -> None:
    """A second click while the browser asks for permission must not keep a second camera on."""
    opened = """() => {
        const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        window.tracks = [];
        navigator.mediaDevices.getUserMedia = async (wish) => {
            const stream = await open(wish);
            window.tracks.push(...stream.getTracks());
            return stream;
        };
        document.getElementById("begin").click();
        document.getElementById("begin").click();
    }"""
    with sync_playwright() as playwright, chromium(playwright, video) as browser:
        visitor = Visitor(browser, console)
        visitor.enter("operator", user="otto")
        page = visitor.visit("/people/s1/capture")
        page.evaluate(opened)
        expect(page.get_by_text("Photo 1 of 8")).to_be_visible()
        page.wait_for_function("() => tracks.filter((track) => track.readyState === 'ended').length === 1")
        assert page.evaluate("tracks.length") == 2
        page.evaluate("document.getElementById('video').srcObject.getTracks()[0].dispatchEvent(new Event('ended'))")
        expect(page.get_by_role("alert")).to_contain_text("There is no camera that the browser can use.")
        expect(page.get_by_role("button", name="Start")).to_be_visible()
        assert page.evaluate("tracks.every((track) => track.readyState === 'ended')")
        visitor.close()


@pytest.mark.parametrize(
    ("without", "flag", "sentence"),
    [
        ("--use-fake-ui", "--deny-permission-prompts", "The browser does not allow the camera."),
        ("--use-fake-device", "--use-fake-ui-for-media-stream", "There is no camera that the browser can use."),
    ],
)
def test_browser_without_a_camera_gives_a_sentence(console: Console, without: str, flag: str, sentence: str) -> None:
    with sync_playwright() as playwright, chromium(playwright, flag, without=without) as browser:
        visitor = Visitor(browser, console)
        visitor.enter("operator", user="otto")
        page = visitor.visit("/people/s1/capture")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("alert")).to_contain_text(sentence)
        expect(page.get_by_role("button", name="Start")).to_be_visible()
        visitor.close()
