"""The preview: its responses, its streams, and its page in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.camera.base import Frame
from edge.events.event import notice
from edge.events.view import Mark, View
from edge.kit.manifest import Thresholds
from edge.monitor import http_server
from edge.monitor import preview as previews
from edge.monitor.annotate import draw
from edge.monitor.preview import Preview
from tests.fixtures.browser import Browser, find_chromium
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until

HOSTILE = "<img src=x onerror=alert(1)>"


def view(number: int = 1, width: int = 320, height: int = 240) -> View:
    image = np.full((height, width, 3), 40 * number % 256, np.uint8)
    return View(frame=Frame(image=image, captured=float(number), number=number))


@pytest.fixture
def served() -> Iterator[Preview]:
    with Preview("127.0.0.1:0") as preview:
        yield preview


def connect(preview: Preview) -> http.client.HTTPConnection:
    host, port = re.findall(r"//(.*):(\d+)/", preview.url)[0]
    return http.client.HTTPConnection(host, int(port), timeout=30)


def request(preview: Preview, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    connection = connect(preview)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def open_stream(preview: Preview) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = connect(preview)
    connection.request("GET", "/stream.mjpg")
    return connection, connection.getresponse()


def read_frame(response: http.client.HTTPResponse) -> np.ndarray:
    """Return the next frame of a stream."""
    lines: list[bytes] = []
    while (line := response.readline().strip()) or not lines:
        if line and line != b"--frame":
            lines.append(line)
    head = dict(line.decode().split(": ") for line in lines)
    assert head["Content-Type"] == "image/jpeg"
    image = cv2.imdecode(np.frombuffer(response.read(int(head["Content-Length"])), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image


# Page, events and health


def test_page_and_its_files_are_served(served: Preview) -> None:
    for path, kind in [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css"), ("/?x=1", "text/html")]:
        response, body = request(served, path)
        assert (response.status, response.headers.get_content_type()) == (200, kind)
        assert body
    assert request(served, "/favicon.ico")[0].status == 204
    for path in ("/nothing", "/../pyproject.toml", "/page/app.js"):
        assert request(served, path)[0].status == 404


def test_head_request_has_no_body(served: Preview) -> None:
    served.show(view())
    for path in ("/", "/events.json", "/frame.jpg", "/stream.mjpg"):
        response, body = request(served, path, "HEAD")
        assert (response.status, body) == (200, b"")


def test_public_address_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Preview("127.0.0.1:0").close()
    assert caplog.text == ""
    Preview("0.0.0.0:0").close()
    assert "open to everyone" in caplog.text


def test_events_are_the_last_fifty_newest_first(served: Preview) -> None:
    for number in range(60):
        served.handle(make_event(visit=number, label=f"{HOSTILE}\u2028"))
    received = json.loads(request(served, "/events.json")[1])
    assert [event["visit"] for event in received["events"]] == list(range(59, 9, -1))
    assert received["events"][0]["label"] == f"{HOSTILE}\u2028"


def test_health_comes_from_the_terminal() -> None:
    with Preview("127.0.0.1:0") as preview:
        before = json.loads(request(preview, "/health.json")[1])
        assert (before["camera_up"], before["frames"]) == (False, 0)
        preview.watch(lambda: {"camera_up": True, "camera": "front", "fps": float("nan"), "counters": {"denied": 3}})
        preview.show(view())
        after = json.loads(request(preview, "/health.json")[1])
        assert (after["camera_up"], after["camera"], after["fps"], after["frames"]) == (True, "front", None, 1)
        assert after["counters"] == {"denied": 3}


def test_unknown_health_counts_as_a_lost_camera(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("no idea")

    with Preview("127.0.0.1:0") as preview:
        preview.watch(broken)
        preview.show(view())
        received = json.loads(request(preview, "/health.json")[1])
    assert received["camera_up"] is False
    assert "unknown" in received["error"]
    assert "no idea" in caplog.text


# Frames


def test_newest_frame_is_drawn_and_scaled_down(served: Preview) -> None:
    assert request(served, "/frame.jpg")[0].status == 503
    assert request(served, "/stream.mjpg")[0].status == 503
    served.show(view(1))
    mark = Mark(box_xyxy=(500, 400, 900, 900), state="granted")
    served.show(View(frame=view(2, 1920, 1080).frame, marks=[mark]))
    response, body = request(served, "/frame.jpg")
    image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    assert response.headers.get_content_type() == "image/jpeg"
    assert image.shape == (720, 1280, 3)
    assert image[:, :, 1].max() > 150, "the mark is green, the frame is dark"


def test_stream_skips_old_frames(served: Preview) -> None:
    served.show(view(1))
    connection, response = open_stream(served)
    assert response.headers.get_content_type() == "multipart/x-mixed-replace"
    assert read_frame(response).mean() == pytest.approx(40, abs=3)
    for _ in range(200):
        served.show(view(2))
    served.show(view(3))
    means = [read_frame(response).mean()]
    while abs(means[-1] - 120) > 3:  # ends: the newest frame is always sent
        means.append(read_frame(response).mean())
    assert len(means) < 20
    connection.close()


def test_frames_are_encoded_once_and_only_for_clients(served: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(view: View) -> Any:
        drawn.append(view.frame.number)
        return draw(view)

    monkeypatch.setattr(previews, "draw", counted)
    for number in range(100):
        served.show(view(number))
    assert drawn == []
    request(served, "/frame.jpg")
    request(served, "/frame.jpg")
    assert drawn == [99]


def test_loop_does_not_wait_for_a_frame_that_is_encoded(served: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, released = threading.Event(), threading.Event()

    def stuck(view: View) -> Any:
        entered.set()
        assert released.wait(30)
        return draw(view)

    monkeypatch.setattr(previews, "draw", stuck)
    served.show(view(1))
    connection = connect(served)
    connection.request("GET", "/frame.jpg")
    assert entered.wait(30)
    served.show(view(2))  # would never return if it waited
    served.handle(make_event())
    released.set()
    assert connection.getresponse().status == 200
    connection.close()


def test_fifth_stream_is_rejected_until_another_ends(served: Preview) -> None:
    served.show(view())
    streams = [open_stream(served) for _ in range(4)]
    assert request(served, "/stream.mjpg")[0].status == 503
    assert request(served, "/frame.jpg")[0].status == 200
    connection, response = streams[0]
    response.close()
    connection.close()

    def is_accepted() -> bool:
        served.show(view())  # the server writes a frame and notices that the client is gone
        streams.append(open_stream(served))
        return streams[-1][1].status == 200

    until(is_accepted)
    for connection, response in streams:
        response.close()
        connection.close()


def test_client_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CLIENT_SECONDS", 0.5)
    noise = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8)  # a large image soon fills the buffers
    with Preview("127.0.0.1:0") as preview:
        preview.show(View(frame=Frame(image=noise, captured=0.0, number=1)))
        host, port = re.findall(r"//(.*):(\d+)/", preview.url)[0]
        with socket.create_connection((host, int(port))) as dead:
            dead.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: preview.status()["streams"] == 1)

            def is_dropped() -> bool:
                preview.show(View(frame=Frame(image=noise, captured=0.0, number=1)))
                return bool(preview.status()["streams"] == 0)

            until(is_dropped)


def test_close_ends_streams_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with Preview("127.0.0.1:0") as preview:
        preview.show(view())
        streams = [open_stream(preview) for _ in range(4)]
        preview.close()
    until(lambda: set(threading.enumerate()) <= before)
    for connection, response in streams:
        response.close()
        connection.close()


# In a browser


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(find_chromium(), tmp_path / "profile")
    yield opened
    opened.close()


@pytest.mark.slow
def test_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    """Set SCREENSHOTS to a folder to keep the screenshots."""
    state: dict[str, Any] = {
        "camera": "front",
        "camera_up": True,
        "kit": "0123456789ab",
        "counters": {"granted": 1, "denied": 1},
    }
    state["thresholds"] = Thresholds(
        confidence=0.71, residual=1.0, provisional=False, fpir=0.01, fpir_low=0.0018, fpir_high=0.0256, strangers=340
    ).sentence
    screenshots = Path(os.environ.get("SCREENSHOTS", tmp_path))
    finished = threading.Event()

    def text(selector: str) -> str:
        return str(browser.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def brightness() -> float:
        return float(
            browser.run(
                "(() => { const c = document.createElement('canvas'), p = c.getContext('2d'); c.width = c.height = 1;"
                " p.drawImage(document.getElementById('video'), 0, 0, 1, 1); return p.getImageData(0, 0, 1, 1).data[0]; })()"
            )
        )

    shades: set[float] = set()

    def video_moves() -> bool:
        shades.add(brightness())
        return len(shades) > 3

    def show_frames() -> None:  # as the recognition loop does
        number = 0
        while not finished.wait(0.05):
            number += 1
            image = np.full((480, 640, 3), 60 + number % 20 * 8, np.uint8)
            marks = [Mark(box_xyxy=(220, 140, 420, 400), text="anna", detail="granted 0.93", state="granted")]
            preview.show(View(frame=Frame(image=image, captured=number / 20, number=number), marks=marks))

    with Preview("127.0.0.1:0") as preview:
        preview.watch(lambda: state)
        preview.handle(replace(notice("start", now=1.0, utc=NOON), camera="front"))
        preview.handle(make_event(label=HOSTILE))
        loop = threading.Thread(target=show_frames)
        loop.start()
        try:
            browser.resize(1280, 800)
            browser.call("Page.navigate", url=preview.url)
            until(lambda: browser.run("document.getElementById('video')?.naturalWidth > 0"))
            assert browser.run("document.getElementById('video').naturalWidth") == 640
            until(video_moves)

            until(lambda: HOSTILE in text("#events"))
            assert browser.run("document.querySelectorAll('#events img').length") == 0, "a name is text, never markup"
            assert "granted" in text("#events li.granted .outcome")
            assert "camera up" in text("#health")
            assert "front" in text("#facts")
            assert text("#thresholds") == state["thresholds"]
            assert browser.run("document.getElementById('problem').hidden") is True

            preview.handle(make_event(outcome="denied", reason="unknown", label=None, confidence=0.41))
            preview.handle(make_event(label="anna"))
            until(lambda: text("#events li .who") == "anna")
            shown = browser.run("[...document.querySelectorAll('#events .who')].map((who) => who.textContent)")
            assert shown == ["anna", "unknown person", HOSTILE, "terminal"]
            browser.screenshot(screenshots / "desktop.png")
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
            browser.resize(390, 844, phone=True)
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "fits on a phone"
            browser.screenshot(screenshots / "phone.png")

            state |= {"camera_up": False, "error": "no frame for 2 s"}
            until(lambda: "The camera is lost: no frame for 2 s" in text("#problem"))
            assert "camera lost" in text("#health")
            state |= {"camera_frozen": True, "error": "no change"}
            until(lambda: "The camera is frozen: no change" in text("#problem"))
            browser.screenshot(screenshots / "lost.png")
            state |= {"camera_up": True, "camera_frozen": False, "error": ""}
            until(lambda: "camera up" in text("#health"))
            assert browser.run("document.getElementById('problem').hidden") is True
            assert browser.console == []
        finally:
            finished.set()
            loop.join()
    until(lambda: "does not respond" in text("#problem"))
    with Preview(preview.url.removeprefix("http://").rstrip("/")) as restarted:
        restarted.show(view(2, 400, 300))
        until(lambda: browser.run("document.getElementById('video').naturalWidth === 400"))
