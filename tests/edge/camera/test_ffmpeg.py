"""Frames of videos and streams have a maximum size, before they are decoded and in each frame."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.camera import ffmpeg, live, photo
from edge.camera.recording import Recording
from edge.camera.sources import open_camera
from edge.camera.stamps import CaptureTimes
from edge.errors import CameraError
from tests.fakes.cameras import FakeCapture, grey_image, next_frame
from tests.fakes.mjpeg_server import MjpegServer
from tests.fixtures.data import ROOT
from tests.fixtures.videos import write_video
from tests.fixtures.waiting import until

WIDTH, HEIGHT = 8400, 8200  # a little more than MAX_PIXELS
WRITE = """
import sys
import cv2
import numpy as np
path, width, height = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 10, (width, height))
writer.write(np.zeros((height, width, 3), np.uint8))
writer.release()
"""
OPEN = """
import sys
from edge.camera.sources import open_camera
from edge.errors import CameraError

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

before, problem = peak(), ""
try:
    open_camera(sys.argv[1])
except CameraError as error:
    problem = str(error)
print(peak() - before)
print(problem)
"""


def run(script: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def large_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("videos") / "large.avi"
    run(WRITE, path, WIDTH, HEIGHT)
    return path


@pytest.mark.slow
def test_large_frames_are_rejected_before_they_are_decoded(large_video: Path) -> None:
    assert WIDTH * HEIGHT > photo.MAX_PIXELS
    with MjpegServer(reply=("video/x-msvideo", large_video.read_bytes())) as server:
        for source in (large_video, server.url):
            extra, problem = run(OPEN, source)
            assert "more than 67 million pixels" in problem
            assert int(extra) < WIDTH * HEIGHT, "not even one byte for each pixel"


def test_file_whose_header_is_too_large_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "walk.mp4", 3)
    open_camera(str(path)).close()
    monkeypatch.setattr(photo, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(CameraError, match="more than 0 million pixels"):
        open_camera(str(path))


def test_frame_that_becomes_too_large_ends_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def images() -> Iterator[tuple[Any, float]]:
        for i, image in enumerate([grey_image(1), grey_image(2), np.zeros((40, 60, 3), np.uint8)]):
            yield ffmpeg.bounded(image), i / 10

    monkeypatch.setattr(photo, "MAX_PIXELS", 24)
    camera = Recording("video", images())
    assert camera.frame(0) is not None
    with pytest.raises(CameraError, match="million pixels"):
        camera.frame(0)
    assert camera.ended


def test_stream_that_becomes_too_large_is_a_lost_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photo, "MAX_PIXELS", 24)
    monkeypatch.setattr(live, "RETRY_SECONDS", (100.0, 100.0))
    monkeypatch.setattr(FakeCapture, "script", [grey_image(1), np.zeros((40, 60, 3), np.uint8)])
    with live.LiveCamera("rtsp", lambda: ffmpeg.Capture(FakeCapture(), CaptureTimes())) as camera:  # type: ignore[arg-type]
        next_frame(camera)
        until(lambda: "million pixels" in camera.health.error)
