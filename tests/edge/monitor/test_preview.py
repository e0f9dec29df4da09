"""The preview: its server as a client meets it, and its page in a real browser."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.camera.base import Frame
from edge.errors import ListenError
from edge.events.event import notice
from edge.events.view import Mark, View
from edge.kit.manifest import Thresholds
from edge.monitor import http_server as web
from edge.monitor import preview as previews
from edge.monitor.annotate import draw
from edge.monitor.http_server import parse_address
from edge.monitor.preview import Preview
from tests.fixtures.events import NOON, make_event

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


def ask(preview: Preview, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = connect(preview)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def watch(preview: Preview) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = connect(preview)
    connection.request("GET", "/stream.mjpg")
    return connection, connection.getresponse()


def part(answer: http.client.HTTPResponse) -> np.ndarray:
    """The next picture of a stream."""
    lines: list[bytes] = []
    while (line := answer.readline().strip()) or not lines:
        if line and line != b"--frame":
            lines.append(line)
    head = dict(line.decode().split(": ") for line in lines)
    assert head["Content-Type"] == "image/jpeg"
    image = cv2.imdecode(np.frombuffer(answer.read(int(head["Content-Length"])), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:80", ("127.0.0.1", 80)),
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


NO_ADDRESSES = (
    "", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http", "door.example:80", "::1:80",
    "1.2.3:80", "[::1]", "127.0.0.1:٣", "[127.0.0.1:80", "http://127.0.0.1:80", "127.0.0.1:000080",
)  # fmt: skip
OUR_HOSTS = "localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:8080"
OTHER_HOSTS = (
    "evil.example", "127.0.0.1.evil.example", "192.168.0.7", "", "[::1].evil.example", "localhost.evil.example:80", "[",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ListenError, match=r"\. .*\.$"):
        parse_address(text)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ListenError):
        host, port = parse_address(text)
        assert host
        assert 0 <= port <= 65535


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_number_of_a_machine_is_an_address(ip: Any, port: int) -> None:
    text = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    assert parse_address(text) == (str(ip), port)


def test_a_port_that_is_taken_is_a_sentence(served: Preview) -> None:
    address = served.url.removeprefix("http://").rstrip("/")
    with pytest.raises(ListenError, match=r"in use.*another"):
        Preview(address)


def test_only_an_address_that_others_reach_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    Preview("127.0.0.1:0").close()
    assert caplog.text == ""
    Preview("0.0.0.0:0").close()
    assert "open to everyone" in caplog.text


# Requests


def test_the_page_and_its_parts_are_served_with_their_headers(served: Preview) -> None:
    for path, kind in [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css"), ("/?x=1", "text/html")]:
        answer, body = ask(served, path)
        assert (answer.status, answer.headers.get_content_type()) == (200, kind)
        assert body
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Access-Control-Allow-Origin"] is None
    assert ask(served, "/favicon.ico")[0].status == 204
    for path in ("/nothing", "/../pyproject.toml", "/page/app.js"):
        assert ask(served, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "BREW"])
def test_only_reading_is_allowed(served: Preview, method: str) -> None:
    answer, _ = ask(served, "/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_head_is_an_answer_without_a_body(served: Preview) -> None:
    served.show(view())
    for path in ("/", "/events.json", "/frame.jpg", "/stream.mjpg"):
        answer, body = ask(served, path, "HEAD")
        assert (answer.status, body) == (200, b"")


@pytest.mark.parametrize("host", OUR_HOSTS)
def test_our_own_names_are_answered(served: Preview, host: str) -> None:
    assert ask(served, "/events.json", Host=host)[0].status == 200


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_a_name_that_is_not_ours_is_refused(served: Preview, host: str) -> None:
    assert ask(served, "/events.json", Host=host)[0].status == 403


def test_on_the_network_numbers_and_the_own_name_are_ours() -> None:
    preview = Preview("0.0.0.0:0")
    try:
        allowed = ["192.168.0.7:80", "10.0.0.1", "localhost", socket.gethostname(), f"{socket.gethostname()}.local:80"]
        assert [host for host in allowed if not preview._server.allows(host)] == []
        assert not preview._server.allows("evil.example")
    finally:
        preview.close()


def test_events_are_the_last_ones_newest_first(served: Preview) -> None:
    for number in range(60):
        served.handle(make_event(visit=number, label=f"{HOSTILE}\u2028"))
    said = json.loads(ask(served, "/events.json")[1])
    assert [event["visit"] for event in said["events"]] == list(range(59, 9, -1))
    assert said["events"][0]["label"] == f"{HOSTILE}\u2028"


def test_health_is_what_the_terminal_says_of_itself() -> None:
    with Preview("127.0.0.1:0", health=lambda: {"camera": "front", "fps": float("nan"), "counters": {"denied": 3}}) as preview:
        before = json.loads(ask(preview, "/health.json")[1])
        assert (before["camera_up"], before["frame_age_seconds"], before["frames"]) == (False, None, 0)
        preview.show(view())
        after = json.loads(ask(preview, "/health.json")[1])
        assert (after["camera_up"], after["camera"], after["fps"], after["frames"]) == (True, "front", None, 1)
        assert after["counters"] == {"denied": 3}
        assert 0 <= after["frame_age_seconds"] < 3


def test_health_that_cannot_be_told_is_not_good_health(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("no idea")

    with Preview("127.0.0.1:0", health=broken) as preview:
        preview.show(view())
        said = json.loads(ask(preview, "/health.json")[1])
    assert said["camera_up"] is False
    assert "unknown" in said["error"]
    assert "no idea" in caplog.text


# Pictures


def test_the_newest_frame_is_served_drawn_and_not_too_large(served: Preview) -> None:
    assert ask(served, "/frame.jpg")[0].status == 503
    assert ask(served, "/stream.mjpg")[0].status == 503
    served.show(view(1))
    mark = Mark(box_xyxy=(500, 400, 900, 900), state="granted")
    large = view(2, 1920, 1080)
    served.show(View(frame=large.frame, marks=[mark]))
    answer, body = ask(served, "/frame.jpg")
    image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    assert answer.headers.get_content_type() == "image/jpeg"
    assert image.shape == (720, 1280, 3)
    assert image[:, :, 1].max() > 150, "the mark is green, the frame is dark"


def test_a_stream_shows_the_newest_frame_only(served: Preview) -> None:
    served.show(view(1))
    connection, answer = watch(served)
    assert answer.headers.get_content_type() == "multipart/x-mixed-replace"
    assert part(answer).mean() == pytest.approx(40, abs=3)
    for _ in range(200):
        served.show(view(2))
    served.show(view(3))
    means = [part(answer).mean()]
    while abs(means[-1] - 120) > 3:  # ends: the newest frame is always sent
        means.append(part(answer).mean())
    assert len(means) < 20, "most were skipped"
    connection.close()


def test_nothing_is_encoded_while_nobody_watches(served: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(view: View) -> Any:
        drawn.append(view.frame.number)
        return draw(view)

    monkeypatch.setattr("edge.monitor.preview.draw", counted)
    for number in range(100):
        served.show(view(number))
    assert drawn == []
    ask(served, "/frame.jpg")
    ask(served, "/frame.jpg")
    assert drawn == [99], "once for all who watch"


def test_publishing_does_not_wait_for_a_picture_in_the_making(served: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, opened = threading.Event(), threading.Event()

    def stuck(view: View) -> Any:
        entered.set()
        assert opened.wait(30)
        return draw(view)

    monkeypatch.setattr("edge.monitor.preview.draw", stuck)
    served.show(view(1))
    connection = connect(served)
    connection.request("GET", "/frame.jpg")
    assert entered.wait(30)
    served.show(view(2))  # would never return if it waited: the picture is stuck
    served.handle(make_event())
    opened.set()
    assert connection.getresponse().status == 200
    connection.close()


def test_the_fifth_stream_is_refused_until_one_ends(served: Preview) -> None:
    served.show(view())
    streams = [watch(served) for _ in range(4)]
    assert ask(served, "/stream.mjpg")[0].status == 503
    assert ask(served, "/frame.jpg")[0].status == 200
    connection, answer = streams[0]
    answer.close()
    connection.close()

    def again() -> bool:
        served.show(view())  # a frame is written, and the server sees that nobody takes it
        late, late_answer = watch(served)
        streams.append((late, late_answer))
        return late_answer.status == 200

    eventually(again)
    for connection, answer in streams:
        answer.close()
        connection.close()


def test_a_client_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews._Handler, "timeout", 2.0)
    noise = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8)  # a large picture: it fills the buffers soon
    with Preview("127.0.0.1:0") as preview:
        preview.show(View(frame=Frame(image=noise, captured=0.0, number=1)))
        host, port = re.findall(r"//(.*):(\d+)/", preview.url)[0]
        with socket.create_connection((host, int(port))) as dead, socket.create_connection((host, int(port))) as mute:
            dead.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
            eventually(lambda: preview.status()["streams"] == 1)

            def dropped() -> bool:
                preview.show(View(frame=Frame(image=noise, captured=0.0, number=1)))
                return preview.status()["streams"] == 0

            eventually(dropped)
            mute.settimeout(30)
            assert mute.recv(1) == b"", "one that connects and says nothing is dropped as well"


def test_there_is_an_end_to_connections(served: Preview) -> None:
    host, port = re.findall(r"//(.*):(\d+)/", served.url)[0]
    with contextlib.ExitStack() as stack:
        mute = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(web.CONNECTIONS)]
        late = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        assert late.recv(1) == b"", "refused at once, not after the time that a client has"
        assert len(mute) == web.CONNECTIONS


def test_close_ends_streams_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    preview = Preview("127.0.0.1:0").start()
    preview.show(view())
    streams = [watch(preview) for _ in range(4)]
    mute = connect(preview)
    mute.connect()
    began = time.monotonic()
    preview.close()
    preview.close()
    assert time.monotonic() - began < web.CLIENT_SECONDS / 2, "nobody was waited for"
    assert set(threading.enumerate()) <= before
    for connection, answer in streams:
        answer.close()
        connection.close()
    mute.close()
    with pytest.raises(OSError, match="refused"):
        ask(preview, "/")


def test_close_before_start() -> None:
    Preview("127.0.0.1:0").close()


# In a browser


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """For what another process or thread does in its own time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


class Browser:
    """A headless Chromium, spoken to in its DevTools protocol through a pipe: no driver and no port."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
            " --disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
        )
        # The protocol is spoken on the descriptors 3 and 4. The shell puts them there, after Python has closed all others.
        wiring = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", wiring, "bash", program, *flags.split(), f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        """What the page's console says."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(said["params"]))
            if said.get("id") == self._number:
                assert "error" not in said, said
                return dict(said["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        scale = 2 if phone else 1
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._session = ""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        absent = "no Chromium: install it (Debian: apt-get install chromium) or set CHROMIUM to its path"
        if os.environ.get("CI"):
            pytest.fail(absent)
        pytest.skip(absent)
    opened = Browser(program, tmp_path / "profile")
    yield opened
    opened.close()


def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    state: dict[str, Any] = {"camera": "front", "kit": "0123456789ab", "counters": {"granted": 1, "denied": 1}}
    state["thresholds"] = Thresholds(
        confidence=0.71, residual=1.0, provisional=False, fpir=0.01, fpir_low=0.0018, fpir_high=0.0256, strangers=340
    ).sentence
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    going = threading.Event()

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

    def moves() -> bool:
        shades.add(brightness())
        return len(shades) > 3

    def film() -> None:  # the recognition loop's part
        number = 0
        while not going.wait(0.05):
            number += 1
            image = np.full((480, 640, 3), 60 + number % 20 * 8, np.uint8)
            marks = [Mark(box_xyxy=(220, 140, 420, 400), text="anna", detail="granted 0.93", state="granted")]
            preview.show(View(frame=Frame(image=image, captured=number / 20, number=number), marks=marks))

    with Preview("127.0.0.1:0", health=lambda: state) as preview:
        preview.handle(notice("start", now=1.0, utc=NOON, camera="front"))
        preview.handle(make_event(label=HOSTILE))
        filming = threading.Thread(target=film)
        filming.start()
        try:
            browser.resize(1280, 800)
            browser.call("Page.navigate", url=preview.url)
            eventually(lambda: bool(browser.run("document.getElementById('video')?.naturalWidth > 0")))
            assert browser.run("document.getElementById('video').naturalWidth") == 640
            eventually(moves)

            eventually(lambda: HOSTILE in text("#events"))
            assert browser.run("document.querySelectorAll('#events img').length") == 0, "a name is text, never markup"
            assert "granted" in text("#events li.granted .outcome")
            assert "camera up" in text("#health")
            assert "front" in text("#facts")
            assert text("#thresholds") == state["thresholds"]
            assert browser.run("document.getElementById('problem').hidden") is True

            preview.handle(make_event(outcome="denied", reason="unknown person", label=None, confidence=0.41))
            preview.handle(make_event(label="anna"))
            eventually(lambda: text("#events li .who") == "anna")
            assert browser.run("[...document.querySelectorAll('#events .who')].map((who) => who.textContent)") == [
                "anna",
                "unknown person",
                HOSTILE,
                "terminal",
            ]
            browser.screenshot(pictures / "desktop.png")
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
            browser.resize(390, 844, phone=True)
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out on a phone"
            browser.screenshot(pictures / "phone.png")

            state |= {"camera_up": False, "error": "no frame for 2 s"}
            eventually(lambda: "The camera is lost: no frame for 2 s" in text("#problem"))
            assert "camera lost" in text("#health")
            browser.screenshot(pictures / "lost.png")
            del state["camera_up"]
            eventually(lambda: "camera up" in text("#health"))
            assert browser.run("document.getElementById('problem').hidden") is True
            assert browser.complaints == []
        finally:
            going.set()
            filming.join()
    eventually(lambda: "does not respond" in text("#problem"))


def test_the_page_recovers_from_a_restart_of_the_terminal(browser: Browser) -> None:
    with Preview("127.0.0.1:0") as preview:
        address = preview.url.removeprefix("http://").rstrip("/")
        browser.call("Page.navigate", url=preview.url)
        eventually(lambda: browser.run("document.getElementById('problem')?.textContent") == "The camera is lost.")
        preview.show(view(1))
        eventually(lambda: bool(browser.run("document.getElementById('video').naturalWidth === 320")))
    eventually(lambda: "not respond" in str(browser.run("document.getElementById('problem').textContent")))
    with Preview(address) as preview:
        preview.show(view(2, 400, 300))
        eventually(lambda: bool(browser.run("document.getElementById('video').naturalWidth === 400")))
