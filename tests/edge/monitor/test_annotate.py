"""Drawing on frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.camera.base import Frame
from edge.events.view import Mark, View
from edge.monitor.annotate import COLOURS, Image, draw, to_ascii

GREY = 90


def blank(width: int = 160, height: int = 120, level: int = GREY) -> Image:
    return np.full((height, width, 3), level, np.uint8)


def drawn(image: Image, *marks: Mark) -> Image:
    return draw(View(frame=Frame(image=image, captured=0.0, number=1), marks=marks))


@pytest.mark.parametrize("size", [(160, 120), (1920, 1080), (480, 640)])
@pytest.mark.parametrize("state", COLOURS)
def test_mark_has_the_colour_of_its_state_and_the_frame_is_unchanged(size: tuple[int, int], state: str) -> None:
    width, height = size
    image = blank(width, height)
    box = (width * 0.3, height * 0.5, width * 0.6, height * 0.9)
    result = drawn(image, Mark(box_xyxy=box, text="anna", detail="too dark", state=state))
    assert (image == GREY).all()
    assert result.shape == image.shape
    assert np.abs(result[int(height * 0.7), round(width * 0.3)].astype(int) - COLOURS[state]).max() < 60, "the box's side"
    above = result[: int(height * 0.48), :]
    assert (above == COLOURS[state]).all(-1).any(), "the name's plate"
    assert (above.max(-1) < 60).any(), "the name"
    assert (result[int(height * 0.95) :] == GREY).all(), "no change far from the mark"


def test_landmarks_are_drawn() -> None:
    points = np.array([[80.0, 60.0]], np.float32)
    assert (drawn(blank(), Mark(box_xyxy=(40, 30, 120, 90), landmarks=points))[60, 80] == 255).all()


def test_long_name_is_cut_and_stays_inside_the_frame() -> None:
    result = drawn(blank(), Mark(box_xyxy=(100, 60, 150, 110), text="a name of many words " * 4, state="granted"))
    plate = (result == COLOURS["granted"]).all(-1)[:50]
    ink = (result.max(-1) < 60)[:50]
    columns = np.flatnonzero(plate.any(0))
    assert columns[-1] - columns[0] > 130, "the plate is nearly as wide as the frame"
    assert not ink[:, columns[-1] - 2 :].any(), "and has a margin at the right"


numbers = st.floats(width=32) | st.floats(-50, 250, width=32)


@given(
    box=st.tuples(numbers, numbers, numbers, numbers),
    landmarks=st.none() | st.lists(st.tuples(numbers, numbers), max_size=5).map(lambda rows: np.array(rows, np.float32)),
    text=st.text(max_size=40),
    detail=st.text(max_size=40),
    size=st.tuples(st.integers(1, 200), st.integers(1, 200)),
)
def test_drawing_accepts_any_mark(
    box: tuple[float, float, float, float], landmarks: np.ndarray | None, text: str, detail: str, size: tuple[int, int]
) -> None:
    image = blank(*size)
    mark = Mark(box_xyxy=box, landmarks=landmarks, text=text, detail=detail, state="?")
    result = drawn(image, mark)
    assert result.shape == image.shape


@given(st.text())
def test_drawn_text_is_ascii(text: str) -> None:
    result = to_ascii(text)
    assert result.isascii()
    assert result.isprintable()


def test_accents_are_dropped_and_other_letters_become_question_marks() -> None:
    assert to_ascii("Zoë Čapek 李\n") == "Zoe Capek ??"
