"""What is drawn, and the video that is written."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.camera.base import Frame
from edge.errors import UsageError
from edge.monitor.annotate import COLOURS, Image, Mark, VideoWriterSink, View, draw, to_ascii

GREY = 90


def blank(width: int = 160, height: int = 120, level: int = GREY) -> Image:
    return np.full((height, width, 3), level, np.uint8)


def view(number: int, seconds: float, image: Image | None = None) -> View:
    return View(frame=Frame(image=blank(level=40 * number % 256) if image is None else image, captured=seconds, number=number))


def levels(path: Path) -> list[float]:
    """The mean brightness of each frame."""
    video = cv2.VideoCapture(str(path))
    found: list[float] = []
    while True:
        read, image = video.read()
        if not read:
            video.release()
            return found
        found.append(float(np.mean(image)))


# Drawing


@pytest.mark.parametrize("size", [(160, 120), (640, 480), (1920, 1080), (480, 640)])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_mark_shows_in_its_colour_and_the_frame_stays_as_it_was(size: tuple[int, int], colour: str) -> None:
    width, height = size
    image = blank(width, height)
    box = (width * 0.3, height * 0.5, width * 0.6, height * 0.9)
    drawn = draw(image, [Mark(box_xyxy=box, text="anna", detail="too dark", colour=colour)])
    assert (image == GREY).all()
    assert drawn.shape == image.shape
    assert np.abs(drawn[int(height * 0.7), round(width * 0.3)].astype(int) - COLOURS[colour]).max() < 60, "the box's side"
    above = drawn[: int(height * 0.48), :]
    assert (above == COLOURS[colour]).all(-1).any(), "the name's plate"
    assert (above.max(-1) < 60).any(), "the name"
    assert (drawn[int(height * 0.95) :] == GREY).all(), "nothing far from the mark"


def test_landmarks_and_caption_are_drawn() -> None:
    points = np.array([[80.0, 60.0]], np.float32)
    drawn = draw(blank(), [Mark(box_xyxy=(40, 30, 120, 90), landmarks=points)], caption="front door")
    assert (drawn[60, 80] == 255).all()
    assert drawn[-1, -1].max() < GREY, "the caption's band"
    assert (drawn[-14:].max(-1) > 200).any(), "the caption"


def test_a_long_name_is_cut_and_stays_inside_the_frame() -> None:
    drawn = draw(blank(), [Mark(box_xyxy=(100, 60, 150, 110), text="a name that goes on and on " * 4, colour="granted")])
    plate = (drawn == COLOURS["granted"]).all(-1)[:50]
    ink = (drawn.max(-1) < 60)[:50]
    columns = np.flatnonzero(plate.any(0))
    assert columns[-1] - columns[0] > 130, "the plate is nearly as wide as the frame"
    assert not ink[:, columns[-1] - 2 :].any(), "and has a margin at the right"


numbers = st.floats(width=32) | st.floats(-50, 250, width=32)


@given(
    box=st.tuples(numbers, numbers, numbers, numbers),
    landmarks=st.none() | st.lists(st.tuples(numbers, numbers), max_size=5).map(lambda rows: np.array(rows, np.float32)),
    text=st.text(max_size=40),
    detail=st.text(max_size=40),
    caption=st.text(max_size=40),
    size=st.tuples(st.integers(1, 200), st.integers(1, 200)),
)
def test_nothing_that_is_marked_can_break_the_drawing(
    box: tuple[float, float, float, float],
    landmarks: np.ndarray | None,
    text: str,
    detail: str,
    caption: str,
    size: tuple[int, int],
) -> None:
    image = blank(*size)
    drawn = draw(image, [Mark(box_xyxy=box, landmarks=landmarks, text=text, detail=detail, colour="?")], caption)
    assert drawn.shape == image.shape


@given(st.text())
def test_drawn_text_is_ascii(text: str) -> None:
    drawn = to_ascii(text)
    assert drawn.isascii()
    assert drawn.isprintable()


def test_accents_are_dropped_and_other_letters_are_question_marks() -> None:
    assert to_ascii("Zoë Čapek 李\n") == "Zoe Capek ??"


# Video


@pytest.mark.parametrize("name", ["out.mp4", "out.avi", "OUT.MP4"])
def test_every_frame_of_a_file_is_written_once_and_in_order(tmp_path: Path, name: str) -> None:
    shown = [20.0, 200, 60, 160, 100]
    with VideoWriterSink(tmp_path / name, fps=29.97) as sink:
        for number, level in enumerate(shown):
            sink(view(number, 1000.1 + number / 29.97, blank(level=int(level))))
        assert not (tmp_path / name).exists(), "it has its name when it is complete"
    assert levels(tmp_path / name) == pytest.approx(shown, abs=4)
    assert os.listdir(tmp_path) == [name]
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    video = cv2.VideoCapture(str(tmp_path / name))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(29.97, abs=0.01)


def test_the_video_keeps_the_pace_of_the_camera(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with VideoWriterSink(path, fps=10) as sink:
        for seconds, level in [(0, 20), (0.1, 200), (0.4, 60), (0.41, 90), (0.5, 160), (100.5, 20)]:
            sink(view(1, seconds, blank(level=level)))
    # 0.2 and 0.3 show what was last seen; 0.41 is one too many; of 100 seconds without a camera one is left. The copies are of
    # the newest picture, written or not.
    wanted = [20, 200, 200, 200, 60, 160, *[160] * 9, 20]
    assert levels(path) == pytest.approx(wanted, abs=6)


def test_frames_of_another_size_are_fitted_in(tmp_path: Path) -> None:
    path = tmp_path / "out.avi"
    with VideoWriterSink(path, fps=10) as sink:
        sink(view(1, 0.0, blank(161, 121, level=200)))
        sink(view(2, 0.1, blank(40, 120, level=200)))
        sink(view(3, 0.2, blank(800, 100, level=200)))
    video = cv2.VideoCapture(str(path))
    first, tall, wide = (video.read()[1] for _ in range(3))
    assert first.shape == tall.shape == wide.shape == (122, 162, 3)
    assert first.mean() > 190
    for image, dark in ((tall, tall[:, :40]), (wide, wide[:40])):
        assert image[61, 81].min() > 180
        assert dark.max() < 40


def test_a_live_video_drops_what_the_disk_has_no_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, opened = threading.Event(), threading.Event()

    def stuck(self: View) -> Image:
        entered.set()
        assert opened.wait(30)
        return self.frame.image

    monkeypatch.setattr(View, "drawn", stuck)
    sink = VideoWriterSink(tmp_path / "out.avi", fps=10, live=True)
    sink(view(0, 0.0))
    assert entered.wait(30)
    for number in range(1, 20):
        sink(view(number, number / 10))  # would never return if it waited
    assert sink.dropped == 19 - 8
    opened.set()
    sink.close()
    assert sink.written == 9


def test_interrupted_the_video_is_complete_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the old one")

    def run() -> None:
        with VideoWriterSink(path, fps=10) as sink:
            sink(view(1, 0.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(levels(path)) == 1


def test_without_a_frame_the_old_video_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the old one")
    sink = VideoWriterSink(path, fps=10)
    sink.close()
    sink.close()
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["out.mp4"]
    assert "nothing to show" in caplog.text


def test_a_broken_frame_is_counted_and_the_rest_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "out.avi"
    with VideoWriterSink(path, fps=10) as sink:
        sink(view(1, 0.0))
        sink(view(2, 0.1, np.zeros((0, 0, 3), np.uint8)))
        sink(view(3, 0.1))
    assert (sink.failed, len(levels(path))) == (1, 2)
    assert "could not be written" in caplog.text


@pytest.mark.parametrize(
    ("name", "fps", "says"),
    [
        ("out.mkv", 10, ".mp4 or .avi"),
        ("out", 10, ".mp4 or .avi"),
        ("nowhere/out.mp4", 10, "cannot be written"),
        ("folder.mp4", 10, "is a folder"),
        ("file.txt/out.mp4", 10, "cannot be written"),
        ("out.mp4", 0, "0 frames a second"),
        ("out.mp4", float("nan"), "frames a second"),
    ],
)
def test_a_video_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, name: str, fps: float, says: str) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file.txt").touch()
    with pytest.raises(UsageError) as refused:
        VideoWriterSink(tmp_path / name, fps)
    assert says in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "folder.mp4"]


@pytest.mark.parametrize("seconds", [0.1, 0.04])
def test_a_recording_keeps_its_own_rate(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "out.mp4"
    with VideoWriterSink(path) as sink:
        for i in range(5):
            sink(View(frame=Frame(image=np.full((48, 64, 3), 40 * i, np.uint8), captured=7 + seconds * i, number=i + 1)))
    video = cv2.VideoCapture(str(path))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(1 / seconds, rel=0.01)
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 5


def test_a_recording_of_one_picture(tmp_path: Path) -> None:
    path = tmp_path / "out.avi"
    with VideoWriterSink(path) as sink:
        sink(View(frame=Frame(image=np.zeros((48, 64, 3), np.uint8), captured=7, number=1)))
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT) == 1
