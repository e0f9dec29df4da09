"""The video of the views."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.camera.base import Frame
from edge.errors import UsageError
from edge.events.view import View
from edge.monitor.annotate import Image, VideoWriter
from tests.fakes.sinks import Barrier


def blank(width: int = 160, height: int = 120, level: int = 90) -> Image:
    return np.full((height, width, 3), level, np.uint8)


def view(number: int, seconds: float, image: Image | None = None) -> View:
    return View(frame=Frame(image=blank(level=40 * number % 256) if image is None else image, captured=seconds, number=number))


def levels(path: Path) -> list[float]:
    """Return the mean brightness of each frame."""
    video = cv2.VideoCapture(str(path))
    found: list[float] = []
    while True:
        read, image = video.read()
        if not read:
            video.release()
            return found
        found.append(float(np.mean(image)))


@pytest.mark.parametrize("name", ["out.mp4", "out.avi", "OUT.MP4"])
def test_every_frame_of_a_recording_is_written_once_and_in_order(tmp_path: Path, name: str) -> None:
    shown = [20.0, 200, 60, 160, 100]
    with closing(VideoWriter(tmp_path / name, fps=29.97)) as writer:
        for number, level in enumerate(shown):
            writer.show(view(number, 1000.1 + number / 29.97, blank(level=int(level))))
        assert not (tmp_path / name).exists(), "it gets its name when it is complete"
    assert levels(tmp_path / name) == pytest.approx(shown, abs=4)
    assert os.listdir(tmp_path) == [name]
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    video = cv2.VideoCapture(str(tmp_path / name))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(29.97, abs=0.01)


def test_video_follows_the_times_of_the_frames(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with closing(VideoWriter(path, fps=10)) as writer:
        for seconds, level in [(0, 20), (0.1, 200), (0.4, 60), (0.41, 90), (0.5, 160), (100.5, 20)]:
            writer.show(view(1, seconds, blank(level=level)))
    # 0.2 and 0.3 repeat the last frame; 0.41 is one too many; 100 seconds without a camera become one. Copies are
    # of the newest frame, written or not.
    wanted = [20, 200, 200, 200, 60, 160, *[160] * 9, 20]
    assert levels(path) == pytest.approx(wanted, abs=6)


def test_frames_get_the_even_size_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "out.avi"
    with closing(VideoWriter(path, fps=10)) as writer:
        writer.show(view(1, 0.0, blank(161, 121, level=200)))
        writer.show(view(2, 0.1, blank(40, 120, level=200)))
    video = cv2.VideoCapture(str(path))
    for _ in range(2):
        image = video.read()[1]
        assert image.shape == (120, 160, 3)
        assert image.min() > 180


def test_live_video_drops_frames_and_never_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = Barrier()

    def stuck(shown: View) -> Image:
        barrier(shown)
        return blank()

    monkeypatch.setattr("edge.monitor.annotate.draw", stuck)
    writer = VideoWriter(tmp_path / "out.avi", fps=10, live=True)
    writer.show(view(0, 0.0))
    assert barrier.entered.wait(30)
    for number in range(1, 20):
        writer.show(view(number, number / 10))  # would block here
    assert writer.health().dropped == 20 - 8
    barrier.opened.set()
    writer.close()
    assert writer.written == 8


def test_interrupted_video_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the old one")

    def run() -> None:
        with closing(VideoWriter(path, fps=10)) as writer:
            writer.show(view(1, 0.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(levels(path)) == 1


def test_old_video_stays_if_there_was_no_frame(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the old one")
    writer = VideoWriter(path, fps=10)
    writer.close()
    writer.close()
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["out.mp4"]
    assert "there was no frame" in caplog.text


def test_broken_frame_is_counted_and_the_others_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out.avi"
    with closing(VideoWriter(path, fps=10)) as writer:
        writer.show(view(1, 0.0))
        writer.show(view(2, 0.1, np.zeros((0, 0, 3), np.uint8)))
        writer.show(view(3, 0.1))
    assert (writer.health().failed, len(levels(path))) == (1, 2)
    assert "not delivered" in caplog.text


@pytest.mark.parametrize(
    ("name", "fps", "message"),
    [
        ("out.mkv", 10, ".mp4 or .avi"),
        ("out", 10, ".mp4 or .avi"),
        ("nowhere/out.mp4", 10, "cannot be written"),
        ("folder.mp4", 10, "is a folder"),
        ("file.txt/out.mp4", 10, "cannot be written"),
        ("out.mp4", 0, "0 frames per second"),
        ("out.mp4", float("nan"), "frames per second"),
    ],
)
def test_impossible_video_is_an_error_at_the_start(tmp_path: Path, name: str, fps: float, message: str) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file.txt").touch()
    with pytest.raises(UsageError) as error:
        VideoWriter(tmp_path / name, fps)
    assert message in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "folder.mp4"]


@pytest.mark.parametrize("seconds", [0.1, 0.04])
def test_recording_keeps_its_frame_rate(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "out.mp4"
    with closing(VideoWriter(path)) as writer:
        for i in range(5):
            writer.show(view(i + 1, 7 + seconds * i, blank(64, 48, 40 * i)))
    video = cv2.VideoCapture(str(path))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(1 / seconds, rel=0.01)
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 5


def test_recording_of_one_frame(tmp_path: Path) -> None:
    path = tmp_path / "out.avi"
    with closing(VideoWriter(path)) as writer:
        writer.show(View(frame=Frame(image=np.zeros((48, 64, 3), np.uint8), captured=7, number=1)))
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT) == 1
