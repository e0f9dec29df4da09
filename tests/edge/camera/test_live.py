"""LiveCamera: stalls, lost connections and broken frames. Every frame it returns is complete, new and has a correct time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest

from edge.camera import live, mjpeg, sources
from edge.camera.base import STALL_SECONDS, Camera
from edge.camera.live import LiveCamera
from edge.camera.sources import open_camera
from edge.errors import CameraError
from tests.fakes.cameras import DEADLINE, ManualClock, camera_threads, grey_image, grey_level, next_frame
from tests.fakes.mjpeg_server import MjpegServer, grey_jpeg, jpeg, part
from tests.fixtures.waiting import until


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.05, 0.2))


@pytest.fixture
def server() -> Iterator[MjpegServer]:
    with MjpegServer() as server:
        yield server


def clocked(url: str, clock: ManualClock) -> LiveCamera:
    connect = sources.live_source(url)
    assert connect is not None
    return LiveCamera("network", connect, wait=True, clock=clock)


def until_connected(camera: Camera, server: MjpegServer, times: int, clock: ManualClock | None = None) -> None:
    """A lost camera is opened again by the next call of health or frame."""
    if clock is not None:
        clock.now += 1
    until(lambda: camera.health and server.connections >= times, "the camera did not connect again")


def test_frame_returns_only_the_newest_frame_and_only_once(server: MjpegServer) -> None:
    with open_camera(server.url, wait=True) as camera:
        for level in (10, 20, 30, 40, 50):
            server.push(grey_jpeg(level))
        until(lambda: camera.health.frames == 5)
        frame = next_frame(camera)
        assert camera.frame(0) is None
        assert (grey_level(frame), frame.number) == (50, 5)
        assert (frame.image.shape, str(frame.image.dtype)) == ((48, 64, 3), "uint8")
        server.push(grey_jpeg(60))
        assert (grey_level(next_frame(camera)), camera.health.dropped) == (60, 4)
        assert (camera.live, camera.ended) == (True, False)


def test_slow_decoding_skips_frames_and_does_not_fall_behind(server: MjpegServer, monkeypatch: pytest.MonkeyPatch) -> None:
    may_decode, entered = threading.Event(), threading.Event()
    decoded = []

    def decode_slowly(data: bytes) -> Any:
        decoded.append(data)
        entered.set()
        assert may_decode.wait(DEADLINE)
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)

    monkeypatch.setattr(mjpeg, "decode", decode_slowly)
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    large = [jpeg(noise // 2 + i) for i in range(20)]
    assert sum(map(len, large)) > 5 * mjpeg.CHUNK_BYTES
    with open_camera(server.url, wait=True) as camera:
        server.push(grey_jpeg(1))
        assert entered.wait(DEADLINE)
        pusher = threading.Thread(target=server.push, args=large)
        pusher.start()
        pusher.join(10)  # until all bytes are sent, or the socket buffer is full
        may_decode.set()
        until(lambda: camera.health.frames == 21)
        assert decoded[-1] == large[-1]
        assert len(decoded) <= 4
        assert next_frame(camera).number == 21
        pusher.join()


def test_capture_time_is_the_arrival_of_the_first_byte(server: MjpegServer) -> None:
    slow = part(grey_jpeg(9))
    with open_camera(server.url, wait=True) as camera:
        before = camera.now()
        server.push(grey_jpeg(1))
        until(lambda: camera.health.frames == 1)
        after = camera.now()
        assert before <= next_frame(camera).captured <= after
        server.send(slow[:300])
        until(lambda: camera._reader.source._parts._arrived is not None)  # type: ignore[attr-defined]
        middle = camera.now()
        server.send(slow[300:])
        assert next_frame(camera).captured < middle


def test_stalled_camera_is_reported_in_time_and_opened_again(server: MjpegServer) -> None:
    assert STALL_SECONDS == 2.0
    clock = ManualClock()
    with clocked(server.url, clock) as camera:
        server.push(grey_jpeg(10))
        next_frame(camera)
        clock.now += 1.89
        assert camera.health.up
        clock.now += 0.1
        assert (camera.health.up, camera.health.error) == (False, "No frame for 2 seconds.")
        until_connected(camera, server, 2, clock)
        server.push(grey_jpeg(20))
        assert grey_level(next_frame(camera)) == 20
        assert (camera.health.reconnects, camera.health.error) == (1, "")


def test_lost_connection_and_closed_port_recover(server: MjpegServer) -> None:
    with open_camera(server.url, wait=True) as camera:
        server.push(grey_jpeg(10))
        assert grey_level(next_frame(camera)) == 10
        server.drop()
        until(lambda: not camera.health.up)
        assert camera.health.error == "The camera closed the connection."
        until_connected(camera, server, 2)
        server.push(grey_jpeg(20))
        assert grey_level(next_frame(camera)) == 20
        server.go_down()
        until(lambda: "refused" in camera.health.error)
        assert camera.frame(0.05) is None
        server.come_up()
        until_connected(camera, server, 3)
        server.push(grey_jpeg(30))
        frame = next_frame(camera)
        assert (grey_level(frame), frame.number, camera.health.reconnects) == (30, 3, 2)


def test_broken_frames_are_counted_and_skipped(server: MjpegServer) -> None:
    good = grey_jpeg(70)
    broken = [good[: len(good) // 2], b"", b"not an image", part(good, length=len(good) - 40)]
    with open_camera(server.url, wait=True) as camera:
        for count, body in enumerate(broken, start=1):
            server.send(body if body.startswith(b"--") else part(body))
            until(partial(lambda wanted: camera.health.broken == wanted, count))
        assert camera.frame(0) is None
        server.send(b"\r\nbytes between parts \xff\xd8\xff" + part(good))
        frame = next_frame(camera)
        assert (grey_level(frame), frame.number, camera.health.broken) == (70, 1, 4)


def test_invalid_stream_is_a_lost_camera(server: MjpegServer) -> None:
    clock = ManualClock()
    with clocked(server.url, clock) as camera:
        server.push(grey_jpeg(1))
        next_frame(camera)
        server.send(b"--frame\r\nContent-Length: 99999999999\r\n\r\n")
        until(lambda: "too large" in camera.health.error)
        until_connected(camera, server, 2, clock)
        server.push(grey_jpeg(2))
        next_frame(camera)
        clock.now += 1.99  # broken frames do not count as a sign of life
        server.push(b"\xff\xd8 broken")
        until(lambda: not camera.health.up)
        assert "No frame" in camera.health.error


def test_passwords_are_sent_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with MjpegServer(user="door", password="open/sesame@") as server:
        url = server.url.replace("//", "//door:open%2Fsesame%40@")
        with open_camera(url + "?token=sesame", wait=True) as camera:
            server.push(grey_jpeg(5))
            assert grey_level(next_frame(camera)) == 5
            server.go_down()
            until(lambda: "refused" in camera.health.error)
            assert camera.name == server.url.replace("//", "//***@") + "?***"
        server.come_up()
        with pytest.raises(CameraError, match="error 401") as caught:
            open_camera(url.replace("open", "closed"))
    assert "no frames from the camera" in caplog.text
    assert "sesame" not in caplog.text + str(caught.value) + camera.health.error


def test_absent_camera_is_an_error_unless_wait_is_set(server: MjpegServer) -> None:
    server.go_down()
    with pytest.raises(CameraError, match="cannot be reached: connection refused"):
        open_camera(server.url)
    assert camera_threads() == 0
    with open_camera(server.url, wait=True) as camera:
        until(lambda: "refused" in camera.health.error)
        assert not camera.health.up
        server.come_up()
        until_connected(camera, server, 1)
        server.push(grey_jpeg(8))
        assert grey_level(next_frame(camera)) == 8
        assert (camera.health.up, camera.health.reconnects) == (True, 0)


def test_close_is_quick_and_leaves_no_thread(server: MjpegServer) -> None:
    pusher = threading.Thread(target=server.push, args=[grey_jpeg(6)])
    pusher.start()
    camera = open_camera(server.url)
    pusher.join()
    assert camera.health.frames == 1, "a camera is open when it gave a frame"
    start = time.monotonic()
    camera.close()  # while the reader waits for bytes
    camera.close()
    assert time.monotonic() - start < DEADLINE / 2
    until(lambda: camera_threads() == 0)
    assert camera.frame(DEADLINE) is None
    assert camera.ended
    assert not camera.health.up


class Source:
    """A source that runs `read` for each image."""

    def __init__(self, read: Any, closed: threading.Event) -> None:
        self._read, self._closed = read, closed

    def read(self) -> Any:
        return self._read(), time.monotonic(), 0

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self._closed.set()


def test_hung_reader_is_abandoned_and_its_late_frame_is_not_used() -> None:
    hang, first_closed, clock = threading.Event(), threading.Event(), ManualClock()
    images = iter([grey_image(1), grey_image(2)])

    def first() -> Any:
        image = next(images)
        assert image[0, 0, 0] == 1 or hang.wait(DEADLINE)
        return image

    def second() -> Any:
        time.sleep(0.002)
        return grey_image(9)

    connections = [Source(first, first_closed), Source(second, threading.Event())]
    with LiveCamera("fake", lambda: connections.pop(0), clock=clock) as camera:
        assert grey_level(next_frame(camera)) == 1
        clock.now += 2
        assert not camera.health.up
        clock.now += 1
        levels = [grey_level(next_frame(camera))]
        assert camera.health.reconnects == 1
        hang.set()
        while not first_closed.is_set():
            levels.append(grey_level(next_frame(camera)))
        assert set(levels) == {9}
        assert camera.health.up


def test_only_a_few_readers_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    hang, clock, opened = threading.Event(), ManualClock(), []

    def connect() -> Any:
        opened.append(clock.now)
        hang.wait(DEADLINE)
        raise CameraError("late")

    camera = LiveCamera("hanging", connect, wait=True, clock=clock)
    for _ in range(4 * live.MAX_HUNG_THREADS):
        clock.now += sources.OPEN_SECONDS
        assert camera.health.error in ("", "No frame for 10 seconds.")
    until(lambda: len(opened) == live.MAX_HUNG_THREADS)
    camera.close()
    hang.set()
    until(lambda: camera_threads() == 0)
    assert len(opened) == live.MAX_HUNG_THREADS


def test_retry_pauses_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.5, 10.0))
    clock = ManualClock()
    attempts: list[float] = []

    def connect() -> Any:
        attempts.append(clock.now)
        raise CameraError("Camera not found.")

    camera = LiveCamera("none", connect, wait=True, clock=clock)
    while len(attempts) < 9:
        until(lambda: camera_threads() == 0)
        clock.now += 0.25
        assert camera.health.error == "Camera not found."
    camera.close()
    assert np.diff(attempts).tolist() == [0.5, 1, 2, 4, 8, 10, 10, 10]


def test_unexpected_error_is_a_lost_camera_and_its_text_is_hidden() -> None:
    def connect() -> Any:
        raise ZeroDivisionError("rtsp://door:sesame@host")

    with pytest.raises(CameraError, match="failed with ZeroDivisionError") as caught:
        LiveCamera("odd", connect)
    assert "sesame" not in str(caught.value)
