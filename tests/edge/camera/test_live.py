"""Cameras stall, drop, come back and send rubbish; what is handed out is always whole, new, and honestly stamped."""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge.camera import live as cameras
from edge.camera import mjpeg, sources
from edge.camera.live import Camera, Frame, LiveCamera, open_camera
from edge.errors import CameraError
from tests.fakes.mjpeg_server import MjpegServer, grey_jpeg, jpeg, part

DEADLINE = 20.0
STALL = 0.4


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "RETRY_SECONDS", (0.05, 0.2))


@pytest.fixture
def server() -> Iterator[MjpegServer]:
    with MjpegServer() as server:
        yield server


def until(holds: Callable[[], Any], what: str = "that never happened") -> Any:
    """The first true value of `holds`, however slow the machine is."""
    end = time.monotonic() + DEADLINE
    while not (value := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.002)
    return value


def next_frame(camera: Camera) -> Frame:
    frame = camera.frame(DEADLINE)
    assert frame is not None, camera.health
    return frame


def level(frame: Frame) -> int:
    return round(float(frame.image.mean()))


def until_connected(camera: Camera, server: MjpegServer, times: int) -> None:
    """A lost camera is opened again by whoever asks for it."""
    until(lambda: camera.health and server.connections >= times, "nobody came back")


def camera_threads() -> int:
    return sum(thread.name == "camera" for thread in threading.enumerate())


# A network camera.


def test_only_the_newest_frame_is_handed_out_and_only_once(server: MjpegServer) -> None:
    with open_camera(server.url, wait=True) as camera:
        for shade in (10, 20, 30, 40, 50):
            server.push(grey_jpeg(shade))
        until(lambda: camera.health.frames == 5)
        frame = next_frame(camera)
        assert camera.frame(0) is None
        assert (level(frame), frame.number) == (50, 5)
        assert frame.image.shape == (48, 64, 3)
        assert frame.image.dtype == np.uint8
        server.push(grey_jpeg(60))
        assert (level(next_frame(camera)), camera.health.dropped) == (60, 4)
        assert camera.live
        assert not camera.ended


def test_who_decodes_slowly_does_not_fall_behind(server: MjpegServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, entered = threading.Event(), threading.Event()
    decoded = []

    def slow(data: bytes) -> Any:
        decoded.append(data)
        entered.set()
        assert gate.wait(DEADLINE)
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)

    monkeypatch.setattr(mjpeg, "decode", slow)
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    large = [jpeg(noise // 2 + i) for i in range(20)]
    assert sum(map(len, large)) > 5 * mjpeg.CHUNK_BYTES
    with open_camera(server.url, wait=True) as camera:
        server.push(grey_jpeg(1))
        assert entered.wait(DEADLINE)
        pusher = threading.Thread(target=server.push, args=large)
        pusher.start()
        pusher.join(10)  # until all is on its way, or the line is full
        gate.set()
        until(lambda: camera.health.frames == 21)
        assert decoded[-1] == large[-1]
        assert len(decoded) <= 4
        assert next_frame(camera).number == 21
        pusher.join()


def test_a_frame_is_stamped_when_it_arrives_not_when_it_is_asked_for(server: MjpegServer) -> None:
    with open_camera(server.url, wait=True) as camera:
        before = camera.now()
        server.push(grey_jpeg(9))
        until(lambda: camera.health.frames == 1)
        after = camera.now()
        time.sleep(0.05)
        frame = next_frame(camera)
        assert before <= frame.captured <= after
        assert camera.now() - frame.captured >= 0.05


def test_a_frame_that_trickles_in_is_as_old_as_its_first_byte(server: MjpegServer) -> None:
    whole = part(grey_jpeg(9))
    with open_camera(server.url, wait=True) as camera:
        server.push(grey_jpeg(1))
        next_frame(camera)
        server.send(whole[:300])
        until(lambda: camera._reader._source._parts._arrived is not None)  # type: ignore[attr-defined]
        middle = camera.now()
        server.send(whole[300:])
        assert next_frame(camera).captured < middle


def test_stalls_are_noticed_within_two_seconds_by_default() -> None:
    assert inspect.signature(open_camera).parameters["stall_seconds"].default == 2.0
    assert inspect.signature(LiveCamera).parameters["stall_seconds"].default == 2.0


def test_a_stall_is_noticed_in_time_and_the_camera_opened_again(server: MjpegServer) -> None:
    with open_camera(server.url, stall_seconds=STALL, wait=True) as camera:
        server.push(grey_jpeg(10))
        stamp = next_frame(camera).captured
        while camera.health.up:
            assert camera.frame(0.01) is None
        assert 0.9 * STALL < camera.now() - stamp < STALL + 1
        assert camera.health.error == "No picture for 0.4 seconds."
        until_connected(camera, server, 2)
        server.push(grey_jpeg(20))
        assert level(next_frame(camera)) == 20
        assert (camera.health.reconnects, camera.health.error) == (1, "")


def test_a_dropped_connection_and_a_closed_port_are_survived(server: MjpegServer) -> None:
    with open_camera(server.url, wait=True) as camera:
        server.push(grey_jpeg(10))
        assert level(next_frame(camera)) == 10
        server.drop()
        until(lambda: not camera.health.up)
        assert camera.health.error == "The camera ended the connection."
        until_connected(camera, server, 2)
        server.push(grey_jpeg(20))
        assert level(next_frame(camera)) == 20
        server.go_down()
        until(lambda: "refused" in camera.health.error)
        assert camera.frame(0.05) is None
        server.come_up()
        until_connected(camera, server, 3)
        server.push(grey_jpeg(30))
        frame = next_frame(camera)
        assert (level(frame), frame.number, camera.health.reconnects) == (30, 3, 2)


def test_broken_frames_are_counted_and_passed_over(server: MjpegServer) -> None:
    good = grey_jpeg(70)
    rubbish = [good[: len(good) // 2], b"", b"not a picture", part(good, length=len(good) - 40)]
    with open_camera(server.url, wait=True) as camera:
        for count, body in enumerate(rubbish, start=1):
            server.send(body if body.startswith(b"--") else part(body))
            until(partial(lambda wanted: camera.health.broken == wanted, count))
        assert camera.frame(0) is None
        server.send(b"\r\nnobody's bytes \xff\xd8\xff" + part(good))
        frame = next_frame(camera)
        assert (level(frame), frame.number) == (70, 1)
        assert camera.health.broken == 4


def test_rubbish_without_end_is_a_lost_camera(server: MjpegServer) -> None:
    with open_camera(server.url, stall_seconds=STALL, wait=True) as camera:
        server.push(grey_jpeg(1))
        next_frame(camera)
        server.send(b"--frame\r\nContent-Length: 99999999999\r\n\r\n")
        until(lambda: "too large" in camera.health.error)
        # Pictures come, and all are broken: that is no camera either.
        until_connected(camera, server, 2)
        server.push(grey_jpeg(2))
        next_frame(camera)
        end = time.monotonic() + DEADLINE
        while camera.health.up:
            assert time.monotonic() < end
            server.push(b"\xff\xd8 broken")
            time.sleep(0.01)
        assert "No picture" in camera.health.error


def test_passwords_are_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with MjpegServer(user="door", password="open/sesame@") as server:
        url = server.url.replace("//", "//door:open%2Fsesame%40@")
        with open_camera(url + "?token=sesame", wait=True) as camera:
            server.push(grey_jpeg(5))
            assert level(next_frame(camera)) == 5
            server.go_down()
            until(lambda: "refused" in camera.health.error)
            assert camera.name == server.url.replace("//", "//***@") + "?***"
        server.come_up()
        wrong = url.replace("open", "closed")
        with pytest.raises(CameraError, match="error 401") as caught:
            open_camera(wrong)
    assert "no pictures of the camera" in caplog.text
    assert "sesame" not in caplog.text + str(caught.value) + camera.health.error


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("rtsp://admin:secret@10.0.0.5:554/h264", "rtsp://***@10.0.0.5:554/h264"),
        ("rtsp://10.0.0.5/user=admin&password=secret&channel=1", "rtsp://10.0.0.5/***"),
        ("rtsp://admin:1/secret@10.0.0.5/h264", "rtsp://admin:1/***"),
        ("http://cam/video.cgi?pwd=secret", "http://cam/video.cgi?***"),
        ("0", "/dev/video0"),
        ("walk.mp4", "walk.mp4"),
    ],
)
def test_names_hold_no_secrets(source: str, name: str) -> None:
    assert sources.name(source) == name


@pytest.mark.parametrize("address", ["rtsp://admin:se/cret@host/", "ftp://admin:secret@host", "http://", "http://[secret/"])
def test_an_address_that_makes_no_sense_is_not_repeated(address: str) -> None:
    with pytest.raises(CameraError, match="makes no sense") as caught:
        open_camera(address, wait=True)
    assert "cret" not in str(caught.value)


def test_an_absent_camera_is_an_error_or_awaited(server: MjpegServer) -> None:
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
        assert level(next_frame(camera)) == 8
        assert (camera.health.up, camera.health.reconnects) == (True, 0)


def test_a_present_camera_is_open_when_it_gave_a_frame(server: MjpegServer) -> None:
    pusher = threading.Thread(target=server.push, args=[grey_jpeg(6)])
    pusher.start()
    with open_camera(server.url) as camera:
        assert camera.health.frames == 1
        assert level(next_frame(camera)) == 6
    pusher.join()


def test_other_video_over_http_is_left_to_ffmpeg(tmp_path: Path) -> None:
    video = write_video(tmp_path / "clip.avi", 30, "MJPG").read_bytes()
    with MjpegServer(reply=("video/x-msvideo", video)) as server, open_camera(server.url) as camera:
        assert next_frame(camera).image.shape == (48, 64, 3)


def test_closing_is_quick_and_leaves_no_thread(server: MjpegServer) -> None:
    camera = open_camera(server.url, wait=True)
    server.push(grey_jpeg(6))
    until(lambda: camera.health.frames == 1)
    start = time.monotonic()
    camera.close()  # the reader waits for bytes that do not come
    camera.close()
    assert time.monotonic() - start < DEADLINE / 2
    until(lambda: camera_threads() == 0)
    assert camera.frame(DEADLINE) is None
    assert camera.ended
    assert not camera.health.up


# The multipart parser.

NOISE = st.binary(max_size=200).filter(lambda noise: b"--" not in noise and not noise.endswith(b"-"))
BODY = st.binary(max_size=400)


def fed(parser: mjpeg.Parts, data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found = []
    for start, end in itertools.pairwise(edges):
        found += [part.data for part in parser.feed(data[start:end], 0.0)]
        assert len(parser._buffer) <= mjpeg.MAX_FRAME_BYTES + mjpeg.MAX_HEADER_BYTES + end - start
    return found


@settings(max_examples=200)
@given(st.lists(st.tuples(NOISE, BODY)), st.lists(st.integers(0, 10**6), max_size=30))
def test_parts_come_out_as_they_went_in_however_they_are_cut(parts: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(noise + part(body) for noise, body in parts)
    assert fed(mjpeg.Parts(b"frame"), stream, cuts) == [body for _, body in parts]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 255), max_size=4), st.lists(st.integers(0, 10**6), max_size=30), st.booleans())
def test_parts_without_a_length_end_at_the_next_delimiter(shades: list[int], cuts: list[int], sloppy: bool) -> None:
    line = b"\n" if sloppy else b"\r\n"
    delimiter = (b"" if sloppy else b"--") + b"--frame"
    bodies = [grey_jpeg(shade) for shade in shades]
    stream = b"".join(delimiter + line + b"Content-Type: image/jpeg" + line * 2 + body + line for body in bodies) + delimiter
    assert fed(mjpeg.Parts(b"--frame"), stream, cuts) == bodies


@settings(max_examples=200)
@given(st.lists(BODY | st.sampled_from([b"--frame", b"\r\n\r\n", b"\r\nContent-Length: 5", b"0" * 5000])), st.data())
def test_any_bytes_are_parts_or_the_parsers_own_error(pieces: list[bytes], data: st.DataObject) -> None:
    try:
        fed(mjpeg.Parts(b"frame"), b"".join(pieces), data.draw(st.lists(st.integers(0, 10**6))))
    except mjpeg.MjpegError:
        assert len(b"".join(pieces)) > 2**12


@pytest.mark.parametrize("start", [b"--frame\r\n\r\n", b"--frame\r\nA: b", b"no delimiter"])
def test_the_parser_holds_no_more_than_its_limits(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mjpeg, "MAX_FRAME_BYTES", 2**16)
    parser = mjpeg.Parts(b"frame")
    parser.feed(start, 0.0)
    refused = False
    for _ in range(40):
        try:
            parser.feed(b"x" * 2**12, 0.0)
        except mjpeg.MjpegError:
            refused = True
            break
        assert len(parser._buffer) <= 2**16 + 2**13
    assert refused == start.startswith(b"--")


# Cameras that OpenCV opens. There is none on the machine that runs this, and none hangs on command.


class FakeCapture:
    """cv2.VideoCapture over a script of frames; False fails, an Event blocks until it is set."""

    script: ClassVar[list[Any]] = []
    arguments: ClassVar[tuple[Any, ...]] = ()
    opened = 0
    stamp = 0.0

    def __init__(self, *arguments: Any) -> None:
        type(self).opened += 1
        type(self).arguments = arguments

    def isOpened(self) -> bool:  # noqa: N802
        return True

    def set(self, *_: Any) -> bool:
        return True

    def get(self, _: int) -> float:
        return type(self).stamp

    def grab(self) -> bool:
        while self.script and isinstance(self.script[0], threading.Event):
            self.script.pop(0).wait(DEADLINE)
        if not self.script:
            time.sleep(0.005)
            return False
        self._image = self.script.pop(0)
        return self._image is not False

    def retrieve(self) -> tuple[bool, Any]:
        return True, self._image

    def release(self) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[FakeCapture]:
    """/dev/video0, as FakeCapture."""

    class Capture(FakeCapture):
        script: ClassVar[list[Any]] = []

    monkeypatch.setattr(sources.os.path, "exists", lambda path: path == "/dev/video0")
    monkeypatch.setattr(sources.os, "access", lambda path, mode: True)
    monkeypatch.setattr(cv2, "VideoCapture", Capture)
    return Capture


def picture(shade: int) -> NDArray[np.uint8]:
    return np.full((4, 6, 3), shade, np.uint8)


@pytest.mark.parametrize("source", ["", "0", "/dev/video0"])
def test_a_device_is_opened_by_its_number(source: str, device: type[FakeCapture]) -> None:
    device.script[:] = [picture(3)]
    with open_camera(source) as camera:
        assert camera.name == "/dev/video0"
        assert level(next_frame(camera)) == 3
    assert device.arguments == (0, cv2.CAP_V4L2)


def test_a_reader_that_hangs_is_given_up_and_its_late_frame_never_used() -> None:
    hang, ended = threading.Event(), threading.Event()

    class Hanging:
        """A picture, and the next one far too late."""

        def __init__(self) -> None:
            self.reads = 0

        def read(self) -> Any:
            self.reads += 1
            if self.reads > 1:
                hang.wait(DEADLINE)
            return picture(self.reads), time.monotonic(), 0

        def interrupt(self) -> None:
            pass

        def close(self) -> None:
            ended.set()

    class Fresh(Hanging):
        def read(self) -> Any:
            time.sleep(0.005)
            return picture(9), time.monotonic(), 0

        def close(self) -> None:
            pass

    connections = [Hanging(), Fresh()]
    with LiveCamera("fake", lambda: connections.pop(0), stall_seconds=STALL) as camera:
        assert level(next_frame(camera)) == 1
        until(lambda: not camera.health.up)
        seen = [level(next_frame(camera))]
        assert camera.health.reconnects == 1
        hang.set()
        while not ended.is_set():
            seen.append(level(next_frame(camera)))
        assert set(seen) == {9}
        assert camera.health.up


def test_few_readers_may_hang_at_a_time(device: type[FakeCapture], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "OPEN_SECONDS", 0.05)
    hang = threading.Event()

    class Hanging(device):  # type: ignore[misc, valid-type]
        opened = 0

        def grab(self) -> bool:
            return not hang.wait(DEADLINE)

    monkeypatch.setattr(cv2, "VideoCapture", Hanging)
    camera = open_camera("0", stall_seconds=0.05, wait=True)
    until(lambda: camera.health and Hanging.opened == cameras.MAX_HUNG)
    end = time.monotonic() + 0.5  # time for many more
    while time.monotonic() < end:
        camera.frame(0.01)
    assert Hanging.opened == cameras.MAX_HUNG
    start = time.monotonic()
    camera.close()
    assert time.monotonic() - start < DEADLINE / 2
    hang.set()
    until(lambda: camera_threads() == 0)


def test_closing_is_quick_while_the_driver_hangs(device: type[FakeCapture]) -> None:
    hang = threading.Event()
    device.script[:] = [picture(1), hang]
    camera = open_camera("0")
    start = time.monotonic()
    camera.close()
    assert time.monotonic() - start < DEADLINE / 2
    hang.set()
    until(lambda: camera_threads() == 0)


def test_failed_reads_are_broken_frames_and_many_are_a_lost_camera(device: type[FakeCapture]) -> None:
    gone: list[Any] = [False] * sources.MAX_FAILURES
    device.script[:] = [False, False, picture(1), *gone]
    with open_camera("0") as camera:
        assert level(next_frame(camera)) == 1
        assert camera.health.broken >= 2
        until(lambda: "no pictures any more" in camera.health.error)
        device.script[:] = [picture(2)]
        assert level(next_frame(camera)) == 2
        assert camera.health.reconnects == 1


def test_a_picture_that_lay_in_a_buffer_is_stamped_by_the_driver(device: type[FakeCapture]) -> None:
    device.stamp = (time.monotonic() - 1.5) * 1000
    device.script[:] = [picture(1)]
    with open_camera("0") as camera:
        assert 1.5 <= camera.now() - next_frame(camera).captured
    for nonsense in (0.0, (time.monotonic() + 3600) * 1000, time.time() * 1000, float("nan")):
        device.stamp = nonsense
        device.script[:] = [picture(1)]
        before = time.monotonic()
        with open_camera("0") as camera:
            assert before <= next_frame(camera).captured <= camera.now()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (np.full((4, 6), 9, np.uint8), picture(9)),
        (np.full((4, 6, 1), 9, np.uint8), picture(9)),
        (np.dstack([picture(9), np.zeros((4, 6), np.uint8)]), picture(9)),
        (None, None),
        (np.zeros((0, 6, 3), np.uint8), None),
        (np.zeros((4, 6, 2), np.uint8), None),
        (np.zeros(24, np.uint8), None),
        (np.zeros((4, 6, 3), np.float32), None),
    ],
)
def test_pictures_are_bgr_or_broken(image: Any, expected: NDArray[np.uint8] | None, device: type[FakeCapture]) -> None:
    device.script[:] = [image, picture(77)]
    with open_camera("0", wait=True) as camera:
        until(lambda: camera.health.frames + camera.health.broken >= 2)
        assert camera.health.broken >= (expected is None)
    found = cameras._bgr(image)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        np.testing.assert_array_equal(found, expected)


def test_what_is_wrong_with_a_device_is_said(device: type[FakeCapture], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CameraError, match=r"There is no camera /dev/video7.*picamera2:0"):
        open_camera("7")
    monkeypatch.setattr(device, "isOpened", lambda self: False)
    with pytest.raises(CameraError, match=r"does not open.*in use"):
        open_camera("0")
    monkeypatch.setattr(sources.os, "access", lambda path, mode: False)
    with pytest.raises(CameraError, match=r"No permission.*group video"):
        open_camera("0")
    monkeypatch.undo()
    with pytest.raises(CameraError, match="not a camera"):
        open_camera("/dev/null")


def test_pauses_between_attempts_double(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(cameras, "time", clock)
    monkeypatch.setattr(cameras, "RETRY_SECONDS", (0.5, 10.0))
    tries: list[float] = []

    def connect() -> Any:
        tries.append(clock.now)
        raise CameraError("It is not there.")

    camera = LiveCamera("none", connect, wait=True)
    while len(tries) < 9:
        until(lambda: camera_threads() == 0)
        clock.now += 0.25
        assert camera.health.error == "It is not there."
    camera.close()
    assert np.diff(tries).tolist() == [0.5, 1, 2, 4, 8, 10, 10, 10]


def test_an_error_that_nobody_expects_is_a_lost_camera_too() -> None:
    def connect() -> Any:
        raise ZeroDivisionError("rtsp://door:sesame@host")

    with pytest.raises(CameraError, match="failed with ZeroDivisionError") as caught:
        LiveCamera("odd", connect)
    assert "sesame" not in str(caught.value)


# A Raspberry Pi's camera.


class FakePicamera2:
    """As much of picamera2 as is used: one red picture after the other, and then nothing."""

    made: ClassVar[list[FakePicamera2]] = []
    pictures = 3

    def __init__(self, number: int) -> None:
        if number > 1:
            raise IndexError("list index out of range")
        self.made.append(self)
        self.number, self.left, self.held, self.is_closed = number, type(self).pictures, 0, False

    def create_video_configuration(self, main: dict[str, Any]) -> dict[str, Any]:
        return main

    def configure(self, main: dict[str, Any]) -> None:
        # As libcamera has it: the name is read from the highest byte of a little-endian word.
        self.red = {"RGB888": (0, 0, 255), "BGR888": (255, 0, 0)}[main["format"]]

    def start(self) -> None:
        pass

    def capture_request(self, wait: bool) -> Any:
        assert wait is False
        return SimpleNamespace(get_result=self._result)

    def _result(self, timeout: float) -> Any:
        if self.left == 0:
            time.sleep(min(timeout, 0.01))
            raise TimeoutError
        self.left -= 1
        self.held += 1
        return SimpleNamespace(
            make_array=lambda stream: np.full((4, 6, 3), self.red, np.uint8),
            get_metadata=lambda: {"SensorTimestamp": int((time.monotonic() - 0.75) * 1e9)},
            release=self._release,
        )

    def _release(self) -> None:
        self.held -= 1

    def close(self) -> None:
        self.is_closed = True


def test_a_raspberry_pi_camera_is_bgr_and_stamped_by_its_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePicamera2, "made", [])
    monkeypatch.setitem(sys.modules, "picamera2", SimpleNamespace(Picamera2=FakePicamera2))
    with open_camera("picamera2:1") as camera:
        frame = next_frame(camera)
        assert frame.image[0, 0].tolist() == [0, 0, 255]
        assert 0.75 <= camera.now() - frame.captured
        until(lambda: camera.health.reconnects >= 1)
    until(lambda: camera_threads() == 0)
    assert {fake.number for fake in FakePicamera2.made} == {1}
    assert all(fake.is_closed and fake.held == 0 for fake in FakePicamera2.made)
    with pytest.raises(CameraError, match="no Raspberry Pi camera 2"):
        open_camera("picamera2:2")


def test_a_missing_picamera2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "picamera2", None)
    with pytest.raises(CameraError, match=r"apt install python3-picamera2.*--system-site-packages"):
        open_camera("picamera2", wait=True)


# Recordings.


def write_video(path: Path, frames: int, codec: str = "mp4v", rate: float = 10) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), rate, (64, 48))
    assert writer.isOpened()
    noise = np.random.default_rng(0)
    for i in range(frames):
        writer.write(noise.integers(i * 4, i * 4 + 20, (48, 64, 3), dtype=np.uint8))
    writer.release()
    return path


def all_frames(camera: Camera) -> list[Frame]:
    return list(iter(lambda: camera.frame(0), None))


def test_a_video_gives_every_frame_in_order_on_its_own_clock(tmp_path: Path) -> None:
    with open_camera(str(write_video(tmp_path / "walk.mp4", 40))) as camera:
        assert (camera.live, camera.ended) == (False, False)
        frames = all_frames(camera)
        assert camera.ended
        assert camera.frame(DEADLINE) is None
        assert [frame.number for frame in frames] == list(range(1, 41))
        shades = [level(frame) for frame in frames]
        assert all(a < b for a, b in itertools.pairwise(shades))
        np.testing.assert_allclose(np.diff([frame.captured for frame in frames]), 0.1, atol=1e-6)
        assert camera.health == cameras.CameraHealth(up=False, frames=40, dropped=0, broken=0, reconnects=0, error="")


def test_the_clock_of_a_recording_runs_on_from_its_last_frame(tmp_path: Path) -> None:
    camera = open_camera(str(write_video(tmp_path / "walk.mp4", 5)))
    assert camera.now() == camera.now()
    next_frame(camera)
    asked = time.monotonic()
    frame = next_frame(camera)
    time.sleep(0.02)
    age = camera.now() - frame.captured
    assert 0.02 <= age <= time.monotonic() - asked


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 90000.0])
def test_an_absurd_frame_rate_does_not_stop_the_clock(rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_video(tmp_path / "walk.mp4", 6)

    class Capture:
        """A real video with a header that lies."""

        def __init__(self, *arguments: Any) -> None:
            self._real = real(*arguments)

        def get(self, what: int) -> float:
            lies = {cv2.CAP_PROP_FPS: rate, cv2.CAP_PROP_POS_MSEC: rate, cv2.CAP_PROP_FRAME_COUNT: rate}
            return lies.get(what, 0.0)

        def read(self) -> Any:
            return self._real.read()

        def release(self) -> None:
            self._real.release()

    real = cv2.VideoCapture
    monkeypatch.setattr(cv2, "VideoCapture", Capture)
    with open_camera(str(video)) as camera:
        stamps = [frame.captured for frame in all_frames(camera)]
    assert len(stamps) == 6
    assert all(0 < step < 61 for step in np.diff(stamps))


def test_holes_in_a_video_are_broken_frames(tmp_path: Path) -> None:
    video = write_video(tmp_path / "walk.mp4", 50)
    data = bytearray(video.read_bytes())
    start = len(data) // 3
    data[start : start + 4000] = np.random.default_rng(1).bytes(4000)
    video.write_bytes(data)
    with open_camera(str(video)) as camera:
        frames = all_frames(camera)
        assert camera.health.broken > 0
        assert len(frames) + camera.health.broken == 50
        assert frames[-1].captured - frames[0].captured == pytest.approx(4.9, abs=0.01)


def test_a_video_that_ends_early_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    video = write_video(tmp_path / "walk.avi", 50, "MJPG")
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    with open_camera(str(video)) as camera:
        assert 5 < len(all_frames(camera)) < 40
        assert camera.health.broken == 0
    assert "ends early" in caplog.text


def test_a_video_without_pictures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.mp4").write_bytes(b"junk" * 1000)
    (tmp_path / "empty.mp4").write_bytes(b"")
    for name in ("junk.mp4", "empty.mp4"):
        with pytest.raises(CameraError, match="holds no picture"):
            open_camera(str(tmp_path / name))
    with pytest.raises(CameraError, match=r"There is no camera, video or folder .*nowhere.mp4"):
        open_camera(str(tmp_path / "nowhere.mp4"), wait=True)


def test_a_folder_is_shown_in_the_order_of_names(tmp_path: Path) -> None:
    for name, image in [("c.png", picture(3)), ("a.png", picture(1)), ("b.PNG", np.full((9, 5, 3), 2, np.uint8))]:
        (tmp_path / name).write_bytes(cv2.imencode(".png", image)[1].tobytes())
    (tmp_path / "aa.jpg").write_bytes(jpeg(picture(200))[:150])
    (tmp_path / "ab.bmp").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not an image")
    with open_camera(str(tmp_path)) as camera:
        frames = all_frames(camera)
        assert [(level(frame), frame.image.shape[:2]) for frame in frames] == [(1, (4, 6)), (2, (9, 5)), (3, (4, 6))]
        assert camera.health.broken == 2
        assert camera.ended
    with open_camera(str(tmp_path), images_per_second=2) as camera:
        assert np.diff([frame.captured for frame in all_frames(camera)]).tolist() == pytest.approx([1.5, 0.5])
    with open_camera(str(tmp_path / "c.png")) as camera:
        assert [level(frame) for frame in all_frames(camera)] == [3]


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CameraError, match="holds no images"):
        open_camera(str(tmp_path))
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(CameraError, match="holds no picture"):
        open_camera(str(tmp_path))


def test_a_closed_recording_gives_nothing_more(tmp_path: Path) -> None:
    camera = open_camera(str(write_video(tmp_path / "walk.mp4", 5)))
    next_frame(camera)
    camera.close()
    camera.close()
    assert camera.frame(DEADLINE) is None
    assert camera.ended
