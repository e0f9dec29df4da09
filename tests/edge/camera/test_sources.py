"""Devices, Raspberry Pi cameras and addresses. All drivers are fakes."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest

from edge.camera import ffmpeg, live, sources
from edge.camera.base import display_name, is_bgr
from edge.camera.sources import open_camera
from edge.camera.stamps import NEVER
from edge.errors import CameraError
from tests.fakes.cameras import FakeCapture, FakePicamera2, camera_threads, grey_image, grey_level, next_frame
from tests.fakes.mjpeg_server import MjpegServer
from tests.fixtures.videos import write_video
from tests.fixtures.waiting import until


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", (0.05, 0.2))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[FakeCapture]:
    """A fake /dev/video0."""

    class Capture(FakeCapture):
        script: ClassVar[list[Any]] = []

    monkeypatch.setattr(sources.os.path, "exists", lambda path: path == "/dev/video0")
    monkeypatch.setattr(sources.os, "access", lambda path, mode: True)
    monkeypatch.setattr(cv2, "VideoCapture", Capture)
    return Capture


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
def test_display_name_has_no_password(source: str, name: str) -> None:
    assert display_name(source) == name


@pytest.mark.parametrize("address", ["rtsp://admin:se/cret@host/", "ftp://admin:secret@host", "http://", "http://[secret/"])
def test_invalid_address_is_rejected_and_not_shown(address: str) -> None:
    with pytest.raises(CameraError, match="not valid") as caught:
        open_camera(address, wait=True)
    assert "cret" not in str(caught.value)


def test_http_video_other_than_mjpeg_is_read_by_ffmpeg(tmp_path: Path) -> None:
    video = write_video(tmp_path / "clip.avi", 30, "MJPG").read_bytes()
    with MjpegServer(reply=("video/x-msvideo", video)) as server, open_camera(server.url) as camera:
        assert next_frame(camera).image.shape == (48, 64, 3)


def test_device_is_opened_by_its_number(device: type[FakeCapture]) -> None:
    for source in ("", "0", "/dev/video0"):
        device.script[:] = [grey_image(3)]
        with open_camera(source) as camera:
            assert camera.name == "/dev/video0"
            assert grey_level(next_frame(camera)) == 3
        assert device.arguments == (0, cv2.CAP_V4L2)


def test_close_is_quick_while_the_driver_hangs(device: type[FakeCapture]) -> None:
    hang = threading.Event()
    device.script[:] = [grey_image(1), hang]
    camera = open_camera("0")
    start = time.monotonic()
    camera.close()
    assert time.monotonic() - start < 10
    hang.set()
    until(lambda: camera_threads() == 0)


def test_failed_reads_are_broken_frames_and_many_are_a_lost_camera(device: type[FakeCapture]) -> None:
    failures: list[Any] = [False] * ffmpeg.MAX_FAILURES
    device.script[:] = [False, False, grey_image(1), *failures]
    with open_camera("0") as camera:
        assert grey_level(next_frame(camera)) == 1
        assert camera.health.broken >= 2
        until(lambda: "stopped sending images" in camera.health.error)
        device.script[:] = [grey_image(2)]
        assert grey_level(next_frame(camera)) == 2
        assert camera.health.reconnects == 1


def test_capture_time_comes_from_the_driver(device: type[FakeCapture]) -> None:
    device.stamp = (time.monotonic() - 1.5) * 1000
    device.script[:] = [grey_image(1)]
    with open_camera("0") as camera:
        assert 1.5 <= camera.now() - next_frame(camera).captured


def test_driver_that_loses_its_stamps_gives_stale_frames_after_a_reconnect_too(device: type[FakeCapture]) -> None:
    device.stamp = (time.monotonic() - 0.5) * 1000
    device.script[:] = [grey_image(1)]
    with open_camera("0") as camera:
        assert next_frame(camera).captured > 0
        until(lambda: "stopped sending images" in camera.health.error)
        device.stamp = 0.0
        device.script[:] = [grey_image(2)]
        assert next_frame(camera).captured == NEVER
        assert camera.health.reconnects == 1


@pytest.mark.parametrize(
    "image",
    [None, np.zeros((4, 6), np.uint8), np.zeros((0, 6, 3), np.uint8), np.zeros((4, 6, 4), np.uint8), np.zeros((4, 6, 3))],
)
def test_images_are_bgr_or_broken(image: Any, device: type[FakeCapture]) -> None:
    assert not is_bgr(image)
    device.script[:] = [image, grey_image(77)]
    with open_camera("0") as camera:
        assert grey_level(next_frame(camera)) == 77
        assert camera.health.broken >= 1


def test_device_errors_say_what_to_do(device: type[FakeCapture], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CameraError, match=r"/dev/video7 was not found.*picamera2:0"):
        open_camera("7")
    monkeypatch.setattr(device, "isOpened", lambda self: False)
    with pytest.raises(CameraError, match=r"cannot be opened.*no other program"):
        open_camera("0")
    monkeypatch.setattr(sources.os, "access", lambda path, mode: False)
    with pytest.raises(CameraError, match=r"No permission.*group video"):
        open_camera("0")
    monkeypatch.undo()
    with pytest.raises(CameraError, match="not a camera"):
        open_camera("/dev/null")


def test_raspberry_pi_camera_is_bgr_with_the_time_of_its_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePicamera2, "created", [])
    monkeypatch.setitem(sys.modules, "picamera2", SimpleNamespace(Picamera2=FakePicamera2))
    with open_camera("picamera2:1") as camera:
        frame = next_frame(camera)
        assert frame.image[0, 0].tolist() == [0, 0, 255]
        assert 0.75 <= camera.now() - frame.captured
        until(lambda: camera.health.reconnects >= 1)
    until(lambda: camera_threads() == 0)
    assert {fake.number for fake in FakePicamera2.created} == {1}
    assert all(fake.is_closed and fake.held == 0 for fake in FakePicamera2.created)
    with pytest.raises(CameraError, match="camera 2 was not found"):
        open_camera("picamera2:2")
    monkeypatch.setitem(sys.modules, "picamera2", None)
    with pytest.raises(CameraError, match=r"apt install python3-picamera2.*--system-site-packages"):
        open_camera("picamera2", wait=True)
