"""Of several faces in a photo, the one that is meant."""

from __future__ import annotations

import numpy as np
import pytest

from edge.vision.detect import Face
from trainer.data.meant_face import meant_face

SHAPE = (300, 400)  # height, width
MIDDLE = (200, 150)


def face(x: float, y: float, width: float) -> Face:
    """A face around a point of the photo, as high as wide."""
    half = width / 2
    return Face(box_xyxy=(x - half, y - half, x + half, y + half), landmarks=np.zeros((5, 2), np.float32))


def test_only_face_is_meant_wherever_it_is() -> None:
    assert meant_face([], SHAPE) is None
    for alone in (face(*MIDDLE, 40), face(10, 290, 40), face(395, 5, 300)):
        assert meant_face([alone], SHAPE) is alone


@pytest.mark.parametrize(
    ("meant", "others"),
    [
        (face(*MIDDLE, 120), [face(50, 60, 50), face(350, 60, 60)]),  # large in the middle, small ones beside it
        (face(*MIDDLE, 80), [face(40, 150, 80)]),  # in the middle; one as large at the edge
        (face(*MIDDLE, 80), [face(20, 20, 95)]),  # in the middle; a larger one in a corner
        (face(100, 150, 160), [face(*MIDDLE, 50)]),  # much larger, beside a small one in the middle
        (face(110, 150, 120), [face(290, 150, 60)]),  # as near to the middle, and much larger
    ],
)
def test_face_that_clearly_leads_is_meant(meant: Face, others: list[Face]) -> None:
    for faces in ([meant, *others], [*others, meant]):
        assert meant_face(faces, SHAPE) is meant


@pytest.mark.parametrize(
    "faces",
    [
        [face(130, 150, 90), face(270, 150, 90)],  # equal, side by side
        [face(150, 150, 90), face(290, 150, 90)],  # equal, one a little nearer to the middle
        [face(90, 150, 80), face(200, 150, 80), face(310, 150, 80)],  # a group of three
        [face(130, 150, 100), face(270, 150, 80)],  # one a little larger
        [face(*MIDDLE, 70), face(60, 150, 110)],  # one in the middle, a larger one at the edge
    ],
)
def test_doubt_is_not_decided(faces: list[Face]) -> None:
    assert meant_face(faces, SHAPE) is None
    assert meant_face(faces[::-1], SHAPE) is None


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (3000, 4000)])
def test_scale_and_orientation_do_not_matter(shape: tuple[int, int]) -> None:
    unit, middle = max(shape) / 400, (shape[1] / 2, shape[0] / 2)
    centred = face(*middle, 80 * unit)
    beside = face(middle[0], middle[1] - 60 * unit, 80 * unit)
    away = face(middle[0], middle[1] - 140 * unit, 80 * unit)
    assert meant_face([centred, beside], shape) is None
    assert meant_face([centred, away], shape) is centred
