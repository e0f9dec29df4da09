"""Repeated frames: they are never new, and a camera that sends nothing else is frozen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edge.camera.base import Frame
from edge.camera.frozen import MEMORY, FrozenCheck
from edge.camera.stamps import NEVER


def frame(level: int, captured: float, shape: tuple[int, ...] = (4, 6, 3)) -> Frame:
    return Frame(image=np.full(shape, level, np.uint8), captured=captured, number=1)


def news(check: FrozenCheck, levels: Sequence[int], start: float = 0.0) -> list[bool]:
    """Give the check ten frames per second."""
    return [check.is_new(frame(level, start + i / 10), start + i / 10) for i, level in enumerate(levels)]


def test_same_pixels_are_one_look() -> None:
    assert news(FrozenCheck(), [7] * 100) == [True] + [False] * 99


def test_buffers_in_turn_are_not_new_again() -> None:
    assert news(FrozenCheck(), [1, 2, 3, 4] * 50) == [True] * 4 + [False] * 196
    assert news(FrozenCheck(), list(range(MEMORY)) * 3)[MEMORY:] == [False] * 2 * MEMORY


def test_duplicates_between_new_frames_are_not_a_problem() -> None:
    check = FrozenCheck()
    assert news(check, [level for level in range(100) for _ in range(2)]) == [True, False] * 100
    assert check.problem == ""


def test_size_and_layout_of_the_image_count() -> None:
    check = FrozenCheck()
    assert check.is_new(frame(7, 1.0, (4, 6, 3)), 1.0)
    assert check.is_new(frame(7, 1.1, (6, 4, 3)), 1.1)
    image = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    assert check.is_new(Frame(image=image[:, ::-1], captured=1.2, number=1), 1.2), "a view of another image"
    assert not check.is_new(Frame(image=image[:, ::-1].copy(), captured=1.3, number=1), 1.3)


def test_problem_begins_after_its_time_and_ends_with_a_new_frame() -> None:
    check = FrozenCheck(seconds=2.0)
    news(check, [7] * 21)
    assert check.problem == ""
    news(check, [7], start=2.1)
    assert check.problem == "The picture has not changed for 2 seconds."
    news(check, [7], start=600.0)
    assert check.problem, "also after the camera was away"
    news(check, [8], start=601.0)
    assert check.problem == ""
    news(check, [7] * 2, start=601.1)
    assert check.problem == "", "the time starts anew"


@pytest.mark.parametrize("times", [[5.0] * 60, [5.0 - i / 10 for i in range(60)], [NEVER] * 60])
def test_time_that_stands_still_is_not_new(times: list[float]) -> None:
    check = FrozenCheck()
    found = [check.is_new(frame(i, captured), 5.0 + i / 10) for i, captured in enumerate(times)]
    assert found == [math.isfinite(times[0])] + [False] * 59
    assert check.problem == "The time of the frames has not changed for 5 seconds."
