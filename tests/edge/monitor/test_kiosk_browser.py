"""The page for visitors in a real browser. Set SCREENSHOTS to a folder to keep the screenshots."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.camera.base import Frame
from edge.events.view import Guidance, Mark, View
from edge.monitor import preview as previews
from edge.monitor.kiosk_page import LANGUAGES, MAX_HELP, OUT_OF_ORDER, Kiosk, KioskSettings
from edge.monitor.preview import Preview
from tests.fixtures.browser import Browser, find_chromium
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow

DISPLAYS = {"pi": (800, 480), "wide": (1280, 800), "portrait": (600, 1024)}
CAPTURED = 10.5  # of all frames; the grants of make_event are a little older
RED, BLUE = (0, 0, 255), (255, 0, 0)
OVERFLOW = (
    "part => Math.max(part.scrollHeight - part.clientHeight, part.scrollWidth - part.clientWidth)"
    " / parseFloat(getComputedStyle(part).fontSize)"
)
HOSTILE = "<img src=x onerror=alert(1)>"


def picture() -> Any:
    """A camera image: red on the left, blue on the right."""
    image = np.empty((480, 640, 3), np.uint8)
    image[:, :320], image[:, 320:] = RED, BLUE
    return image


class Door:
    """A preview with the page for visitors, which shows `guidance` 20 times per second until the end of a `with` block."""

    def __init__(self, address: str = "127.0.0.1:0", *, mirror: bool = True, **settings: Any) -> None:
        self.preview = Preview(address, Kiosk(KioskSettings(**settings), mirror=mirror))
        self.guidance: Guidance | None = None
        self.camera_up = True
        self.is_hanging = False
        self._image = picture()
        self._ended = threading.Event()
        self._loop = threading.Thread(target=self._show_frames)
        self.preview.watch(lambda: {"camera_up": self.camera_up})

    def __enter__(self) -> Door:
        self._show_frame()
        self.preview.__enter__()
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._loop.join()
        self.preview.close()

    @property
    def url(self) -> str:
        return f"{self.preview.url}kiosk"

    @property
    def address(self) -> str:
        return self.preview.url.removeprefix("http://").rstrip("/")

    def grant(self, **decision: Any) -> None:
        self.guidance = Guidance.GRANTED
        self.preview.handle(make_event(**decision))

    def _show_frames(self) -> None:  # as the recognition loop does
        while not self._ended.wait(0.05):
            if not self.is_hanging:
                self._show_frame()

    def _show_frame(self) -> None:
        guidance = self.guidance
        marks = [Mark(box_xyxy=(9, 9, 99, 99), text="anna", guidance=guidance, visit=1)] if guidance else []
        self.preview.show(View(frame=Frame(image=self._image, captured=CAPTURED, number=1), marks=marks))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(find_chromium(), tmp_path_factory.mktemp("browser") / "profile")
    yield opened
    opened.close()


class Display:
    """The page as a visitor sees it."""

    def __init__(self, browser: Browser, url: str, size: tuple[int, int] = DISPLAYS["pi"]) -> None:
        self.browser = browser
        browser.call("Page.navigate", url="about:blank")  # the page before says that its server is gone
        browser.console.clear()
        browser.resize(*size)
        browser.call("Page.navigate", url=url)

    @property
    def state(self) -> str | None:
        found = self.browser.run("document.body?.dataset.state")
        return None if found is None else str(found)

    def text(self, name: str) -> str:
        return str(self.browser.run(f"document.getElementById({json.dumps(name)}).innerText"))

    def wait_for(self, state: str) -> None:
        """Wait until the page shows a state, with its title: at the start, it waits for its messages."""
        until(lambda: self.state == state and self.text("title"), f"{state}, not {self.state}")

    @property
    def has_picture(self) -> bool:
        return self.browser.run("document.getElementById('picture')?.hidden") is False


def shown_colour(path: Path, x: float, y: float) -> tuple[int, ...]:
    """The colour of a screenshot at a place: 0, 0 is the left upper corner, 1, 1 the right lower one."""
    image = cv2.imread(str(path))
    assert image is not None
    height, width = image.shape[:2]
    return tuple(int(part) for part in image[int(y * height), int(x * width)])


@contextmanager
def opened(browser: Browser, path: str = "", **settings: Any) -> Iterator[tuple[Door, Display]]:
    with Door(**settings) as door:
        yield door, Display(browser, door.url + path)
        # On a busy machine, the newest frame may be too old to be served.
        assert [said for said in browser.console if not ("frame.jpg" in said and "503" in said)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_state_is_shown_and_fits_on_each_display(browser: Browser, tmp_path: Path, language: str) -> None:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    help_text = "Please ring the bell of the gatehouse on the left side, or call +49 30 12345678."
    titles = set()
    assert len(help_text) == MAX_HELP
    with opened(browser, language=language, names=True, help=help_text) as (door, display):
        for state in (*Guidance, OUT_OF_ORDER):
            door.camera_up = state != OUT_OF_ORDER
            if state == Guidance.GRANTED:
                door.grant(label="Dr. Maximiliane Wolkenstein-Hohenberg")
            else:
                door.preview.handle(make_event(outcome="denied", visit=9))
                door.guidance = None if state in (Guidance.LOOK, OUT_OF_ORDER) else Guidance(state)
            display.wait_for(state)
            titles.add(display.text("title"))
            assert browser.run("document.querySelector('#icon use').getBBox().width > 0"), "there is an icon"
            for name, size in DISPLAYS.items():
                browser.resize(*size)
                browser.screenshot(folder / f"{language}-{name}-{state}.png")
                for element in ("message", "title", "detail"):
                    left = browser.run(f"({OVERFLOW})(document.getElementById('{element}'))")
                    assert left < 0.3, f"{element} of {state} in {language} at {name}: {left} of a line does not fit"
    assert len(titles) == len(Guidance) + 1


def test_name_is_text_and_shown_only_if_the_owner_wants_it(browser: Browser) -> None:
    with opened(browser) as (door, display):
        door.grant(label=HOSTILE)
        display.wait_for(Guidance.GRANTED)
        assert display.text("title") == "Welcome"
        assert "img" not in browser.run("document.body.innerText")
    with opened(browser, names=True) as (door, display):
        door.grant(label=HOSTILE)
        display.wait_for(Guidance.GRANTED)
        assert display.text("title") == f"Welcome, {HOSTILE}"
        assert browser.run("document.querySelectorAll('img').length") == 0


def test_owner_chooses_the_language_and_the_address_another(browser: Browser) -> None:
    for settings, path, expected in (
        ({}, "", ("Please wait", "en")),
        ({"language": "de"}, "", ("Bitte warten", "de")),
        ({}, "?lang=de", ("Bitte warten", "de")),
        ({"language": "de"}, "?lang=xx", ("Bitte warten", "de")),
    ):
        with opened(browser, path, **settings) as (door, display):
            door.guidance = Guidance.WAIT
            display.wait_for(Guidance.WAIT)
            assert (display.text("title"), browser.run("document.documentElement.lang")) == expected


@pytest.mark.parametrize("mirror", [True, False])
def test_picture_is_a_mirror(browser: Browser, tmp_path: Path, mirror: bool) -> None:
    with opened(browser, mirror=mirror) as (door, display):
        door.guidance = Guidance.WAIT
        until(lambda: display.has_picture)
        browser.screenshot(tmp_path / "shot.png")
        left, right = shown_colour(tmp_path / "shot.png", 0.02, 0.1), shown_colour(tmp_path / "shot.png", 0.98, 0.1)
        assert (left.index(max(left)), right.index(max(right))) == ((0, 2) if mirror else (2, 0)), "blue or red"


def test_arrow_points_to_the_side_of_the_visitor(browser: Browser) -> None:
    where = "(r => [(r.left + r.right) / 2, (r.top + r.bottom) / 2])(document.getElementById('{}').getBoundingClientRect())"
    with opened(browser) as (door, display):
        for prompt, axis, sign in ((Guidance.LEFT, 0, -1), (Guidance.RIGHT, 0, 1), (Guidance.DOWN, 1, 1)):
            door.guidance = prompt
            display.wait_for(prompt)
            arrow, ring = (browser.run(where.format(name)) for name in ("arrow", "ring"))
            assert (arrow[axis] - ring[axis]) * sign > 50


def test_lost_camera_removes_welcome_and_picture(browser: Browser) -> None:
    with opened(browser) as (door, display):
        door.grant()
        display.wait_for(Guidance.GRANTED)
        until(lambda: display.has_picture)
        door.camera_up = False
        display.wait_for(OUT_OF_ORDER)
        assert not display.has_picture
        door.camera_up = True
        display.wait_for(Guidance.GRANTED)
        until(lambda: display.has_picture)


def test_terminal_that_hangs_is_out_of_order(browser: Browser) -> None:
    with Door() as door:
        display = Display(browser, door.url)
        door.grant()
        display.wait_for(Guidance.GRANTED)
        door.is_hanging = True
        display.wait_for(OUT_OF_ORDER)
        door.is_hanging = False
        display.wait_for(Guidance.GRANTED)


def test_server_that_answers_no_more_is_out_of_order(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    with Door() as door:
        display = Display(browser, door.url)
        door.grant()
        display.wait_for(Guidance.GRANTED)
        door.preview.watch(lambda: {"camera_up": released.wait(60)})  # the answer does not come
        display.wait_for(OUT_OF_ORDER)
        released.set()
        display.wait_for(Guidance.GRANTED)


NEVER = "() => new Promise(() => {})"
MEANINGLESS = """
(real => async (path, options) => {
  const answer = await real(path, options);
  if (!path.endsWith("state.json")) return answer;
  return new Response(JSON.stringify({ ...(await answer.json()), state: "of another version" }));
})(window.fetch.bind(window))
"""


@pytest.mark.parametrize("fetch", [NEVER, MEANINGLESS])
def test_answer_that_never_comes_or_has_no_meaning_ends_the_welcome(browser: Browser, fetch: str) -> None:
    with Door() as door:
        display = Display(browser, door.url)
        door.grant()
        display.wait_for(Guidance.GRANTED)
        browser.run(f"(window.fetch = {fetch}, 0)")
        display.wait_for(OUT_OF_ORDER)
        assert not display.has_picture


def test_page_goes_on_after_a_restart_of_the_terminal(browser: Browser) -> None:
    with Door() as door:
        display = Display(browser, door.url)
        door.grant()
        display.wait_for(Guidance.GRANTED)
    display.wait_for(OUT_OF_ORDER)
    assert not display.has_picture
    with Door(door.address) as restarted:
        restarted.guidance = Guidance.CLOSER
        display.wait_for(Guidance.CLOSER)


def test_page_is_loaded_again_after_an_update(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    with Door() as door:
        display = Display(browser, door.url)
        display.wait_for(Guidance.LOOK)
        browser.run("window.isOld = true")
    monkeypatch.setattr("edge.monitor.kiosk_page.version", lambda name: "99.0")
    with Door(door.address):
        until(lambda: browser.run("window.isOld === undefined"))
        display.wait_for(Guidance.LOOK)


def test_advice_does_not_flicker_and_a_decision_comes_at_once(browser: Browser) -> None:
    """The states of the page, while the guidance changes with every frame."""
    with opened(browser) as (door, display):
        display.wait_for(Guidance.LOOK)
        browser.run(
            "window.changes = []; new MutationObserver(() => changes.push([document.body.dataset.state, performance.now()]))"
            ".observe(document.body, {attributeFilter: ['data-state']}); 0"
        )

        def flicker() -> bool:
            door.guidance = Guidance.CLOSER if door.guidance is Guidance.WAIT else Guidance.WAIT
            return bool(browser.run("changes.length >= 4"))

        until(flicker)
        door.grant()
        display.wait_for(Guidance.GRANTED)
        changes = browser.run("changes")
    advice = (Guidance.CLOSER, Guidance.WAIT)  # on a busy machine, there may also be out of order
    gaps = [later - earlier for (_, earlier), (state, later) in pairwise(changes) if state in advice]
    assert min(gaps) >= 690, "milliseconds, so that each can be read"


def test_nothing_moves_with_reduced_motion(browser: Browser) -> None:
    animation = "getComputedStyle(document.getElementById('{}')).animationName"
    try:
        with opened(browser) as (door, display):
            for guidance, element in ((Guidance.WAIT, "arc"), (Guidance.LEFT, "arrow")):
                browser.call("Emulation.setEmulatedMedia", features=[])
                door.guidance = guidance
                display.wait_for(guidance)
                assert browser.run(animation.format(element)) != "none"
                browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
                assert browser.run(animation.format(element)) == "none"
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("sound", [True, False])
def test_tones_are_played_after_a_touch_if_the_owner_wants_them(browser: Browser, sound: bool) -> None:
    with opened(browser, sound=sound) as (door, display):
        display.wait_for(Guidance.LOOK)
        browser.run(
            "window.tones = 0; const start = OscillatorNode.prototype.start;"
            "OscillatorNode.prototype.start = function (when) { tones += 1; start.call(this, when); }; 0"
        )
        if sound:
            for kind in ("mousePressed", "mouseReleased"):
                browser.call("Input.dispatchMouseEvent", type=kind, x=400, y=200, button="left", clickCount=1)
            until(lambda: browser.run("audio?.state") == "running")
        door.guidance = Guidance.WAIT
        display.wait_for(Guidance.WAIT)
        assert browser.run("tones") == 0
        door.grant()
        display.wait_for(Guidance.GRANTED)
        assert browser.run("tones") == (2 if sound else 0)
        browser.console.clear()  # Chromium says that sound needs a touch


def test_old_frames_are_not_served_to_the_page(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    with Door() as door:
        display = Display(browser, door.url)
        until(lambda: display.state == Guidance.LOOK and display.has_picture)
        door.is_hanging = True
        monkeypatch.setattr(previews, "MAX_AGE_SECONDS", 0.0)
        until(lambda: not display.has_picture)


def test_screen_readers_hear_each_change(browser: Browser) -> None:
    with opened(browser) as (door, display):
        door.guidance = Guidance.BACK
        display.wait_for(Guidance.BACK)
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        live = [node for node in nodes if node.get("role", {}).get("value") == "status"]
        assert len(live) == 1
        names = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "heading"]
        assert names == ["Take a step back"]
        assert browser.run("document.getElementById('picture').getAttribute('aria-label')") == "Your picture in the camera"
