"""Video files and folders of images."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.camera import recording
from edge.camera.base import Camera, CameraHealth, Frame
from edge.camera.sources import open_camera
from edge.errors import CameraError
from tests.fakes.cameras import DEADLINE, ManualClock, grey_image, grey_level, next_frame
from tests.fakes.mjpeg_server import jpeg
from tests.fixtures.videos import write_video


def all_frames(camera: Camera) -> list[Frame]:
    return list(iter(lambda: camera.frame(0), None))


def test_video_returns_every_frame_in_order_on_its_own_clock(tmp_path: Path) -> None:
    with open_camera(str(write_video(tmp_path / "walk.mp4", 40))) as camera:
        assert (camera.live, camera.ended) == (False, False)
        frames = all_frames(camera)
        assert camera.ended
        assert camera.frame(DEADLINE) is None
        assert [frame.number for frame in frames] == list(range(1, 41))
        assert all(a < b for a, b in itertools.pairwise(map(grey_level, frames)))
        np.testing.assert_allclose(np.diff([frame.captured for frame in frames]), 0.1, atol=1e-6)
        assert camera.health == CameraHealth(up=False, frames=40, dropped=0, broken=0, reconnects=0, error="")


def test_clock_runs_on_from_the_last_frame_until_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(recording, "boottime", clock)
    camera = open_camera(str(write_video(tmp_path / "walk.mp4", 5)))
    clock.now += 3
    assert camera.now() == 100.0, "the clock starts with the first frame"
    next_frame(camera)
    frame = next_frame(camera)
    clock.now += 0.25
    assert camera.now() == pytest.approx(frame.captured + 0.25)
    camera.close()
    camera.close()
    assert camera.frame(DEADLINE) is None
    assert camera.ended


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 90000.0])
def test_invalid_frame_rate_does_not_stop_the_clock(rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_video(tmp_path / "walk.mp4", 6)

    class Capture:
        """A real video with wrong values in its header."""

        def __init__(self, *arguments: Any) -> None:
            self._real = real(*arguments)

        def get(self, key: int) -> float:
            return rate if key in (cv2.CAP_PROP_FPS, cv2.CAP_PROP_POS_MSEC, cv2.CAP_PROP_FRAME_COUNT) else 0.0

        def read(self) -> Any:
            return self._real.read()

        def release(self) -> None:
            self._real.release()

    real = cv2.VideoCapture
    monkeypatch.setattr(cv2, "VideoCapture", Capture)
    with open_camera(str(video)) as camera:
        times = [frame.captured for frame in all_frames(camera)]
    assert len(times) == 6
    assert all(0 < step < 61 for step in np.diff(times))


def test_damaged_part_of_a_video_gives_broken_frames(tmp_path: Path) -> None:
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


def test_truncated_video_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    video = write_video(tmp_path / "walk.avi", 50, "MJPG")
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    with open_camera(str(video)) as camera:
        assert 5 < len(all_frames(camera)) < 40
        assert camera.health.broken == 0
    assert "ends early" in caplog.text


def test_folder_returns_images_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, image in [("c.png", grey_image(3)), ("a.png", grey_image(1)), ("b.PNG", np.full((9, 5, 3), 2, np.uint8))]:
        (tmp_path / name).write_bytes(cv2.imencode(".png", image)[1].tobytes())
    (tmp_path / "aa.jpg").write_bytes(jpeg(grey_image(200))[:150])
    (tmp_path / "ab.bmp").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not an image")
    with open_camera(str(tmp_path)) as camera:
        frames = all_frames(camera)
        assert [(grey_level(frame), frame.image.shape[:2]) for frame in frames] == [(1, (4, 6)), (2, (9, 5)), (3, (4, 6))]
        assert camera.health.broken == 2
        assert camera.ended
    with open_camera(str(tmp_path), images_per_second=2) as camera:
        assert np.diff([frame.captured for frame in all_frames(camera)]).tolist() == pytest.approx([1.5, 0.5])
    with open_camera(str(tmp_path / "c.png")) as camera:
        assert [grey_level(frame) for frame in all_frames(camera)] == [3]


def test_recording_without_images_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CameraError, match="contains no images"):
        open_camera(str(tmp_path))
    for name in ("junk.mp4", "a.png"):
        (tmp_path / name).write_bytes(b"junk" * 1000)
    (tmp_path / "empty.mp4").write_bytes(b"")
    for path in (tmp_path / "junk.mp4", tmp_path / "empty.mp4", tmp_path):
        with pytest.raises(CameraError, match="contains no readable image"):
            open_camera(str(path))
    with pytest.raises(CameraError, match=r"nowhere.mp4 is not a camera, a video file or a folder"):
        open_camera(str(tmp_path / "nowhere.mp4"), wait=True)
