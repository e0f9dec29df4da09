"""The liveness model on the device: crops and scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.errors import KitError
from edge.vision.presentation import LivenessModel, context, crop
from tests.fixtures.liveness import bluish, part


def grid(height: int = 240, width: int = 320) -> np.ndarray:
    """Return an image whose channels contain the column and the row of each pixel."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([columns * 255 / width, rows * 255 / height, np.zeros_like(rows)], axis=-1).astype(np.uint8)


def middle(image: np.ndarray) -> tuple[float, float]:
    """Return the mean column and row of a crop of the grid, as shares of it."""
    return float(image[..., 0].mean() / 255), float(image[..., 1].mean() / 255)


def test_crop_shows_the_box_enlarged_around_its_middle() -> None:
    found = crop(grid(), (140, 100, 180, 140), 80, 2.0)
    assert found.shape == (80, 80, 3)
    assert middle(found) == pytest.approx((160 / 320, 120 / 240), abs=0.01)
    assert np.ptp(found[..., 0].astype(int)) == pytest.approx(80 * 255 / 320, abs=2), "80 columns of the frame"


def test_crop_is_moved_into_the_frame_and_keeps_its_size() -> None:
    found = crop(grid(), (-10, 190, 50, 250), 80, 2.0)
    assert middle(found) == pytest.approx((60 / 320, 180 / 240), abs=0.01)


def test_crop_is_as_large_as_the_frame_allows() -> None:
    found = crop(grid(), (130, 60, 190, 180), 80, 4.0)
    assert found[0, :, 1].max() <= 1
    assert found[-1, :, 1].min() >= 251, "it reaches from the top to the bottom"
    assert np.ptp(found[..., 0].astype(int)) == pytest.approx(240 * 255 / 320, abs=3), "four times the width of the box"


@pytest.mark.parametrize("box", [(0, 0, 0, 0), (-900, -900, 900, 900), (500, 500, 600, 600), (10.5, 3.25, 11, 3.5)])
def test_every_box_gives_a_crop(box: tuple[float, float, float, float]) -> None:
    assert crop(grid(), box, 80, 2.7).shape == (80, 80, 3)


def test_context_is_the_number_of_boxes_that_fit_into_the_frame() -> None:
    assert context(grid(), (0, 0, 100, 100)) == (3.2, 2.4)
    assert context(grid(), (0, 0, 200, 50)) == (1.6, 4.8)


def test_score_separates_and_is_between_0_and_1() -> None:
    model = LivenessModel(part().graph, part().spec)
    live = np.random.default_rng(0).integers(90, 160, (240, 320, 3), np.uint8)
    box = (120.0, 80.0, 200.0, 160.0)
    assert 0.9 < model.score(live, box) <= 1
    assert 0 <= model.score(bluish(live), box) < 0.01
    assert model.sees_enough(live, box)
    assert model.sees_enough(live, (100.0, 60.0, 220.0, 220.0)), "as near as a person at a laptop"
    assert not model.sees_enough(live, (60.0, 60.0, 230.0, 160.0)), "too wide"
    assert not model.sees_enough(live, (120.0, 10.0, 200.0, 200.0)), "too high"


def test_graph_that_does_not_match_the_manifest_is_rejected() -> None:
    with pytest.raises(KitError, match="does not match"):
        LivenessModel(part().graph, replace(part().spec, crops=((32, 2.7),), names=("one",)))
