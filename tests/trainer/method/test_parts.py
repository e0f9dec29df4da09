"""The parts of a face: together they contain each feature once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import ParameterError
from edge.vision.preprocess import KINDS, FeatureSpec
from tests.fixtures.data import faces
from trainer.method.estimator import LCLRRDL
from trainer.method.parts import fuse, part_rows

SPEC = FeatureSpec(height=24, width=20, kind="both")
grids = st.tuples(st.integers(1, 4), st.integers(1, 4)).filter(lambda grid: grid[0] * grid[1] > 1)


@given(grids, st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 4))
def test_every_feature_is_in_one_part(grid: tuple[int, int], kind: str, cell: int, gradient_cell: int) -> None:
    spec = FeatureSpec(height=24, width=20, kind=kind, cell=cell, gradient_cell=gradient_cell)
    rows = part_rows(spec, grid)
    assert len(rows) == grid[0] * grid[1]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(spec.length))


@pytest.mark.parametrize("kind", KINDS)
def test_part_does_not_depend_on_other_parts(kind: str) -> None:
    """A change in the lower left quarter changes the features of the others only at their borders."""
    spec = FeatureSpec(height=24, width=20, kind=kind, gradient_cell=2, blur=0.0)
    rng = np.random.default_rng(0)
    crop = rng.integers(0, 256, (1, 24, 20)).astype(np.uint8)
    other = crop.copy()
    other[:, 14:, :8] = rng.integers(0, 256, (10, 8))
    before, after = (spec.vectors(crops)[0] for crops in (crop, other))
    changed = []
    for rows in part_rows(spec, (2, 2)):
        parts = [vector[rows] / np.linalg.norm(vector[rows]) for vector in (before, after)]
        changed.append(np.abs(parts[0] - parts[1]).max())
    assert changed[2] > 0.05
    assert max(changed[0], changed[1], changed[3]) < 0.02 if kind == "pixels" else changed[2] == max(changed)


def test_scores_without_parts_are_unchanged() -> None:
    scores = np.random.default_rng(0).standard_normal((4, 7))
    assert fuse([scores]) is scores
    assert part_rows(SPEC, None) == []


def test_confident_part_has_more_weight() -> None:
    sure, unsure = np.array([[1.0], [0.1], [0.0]]), np.array([[0.5], [0.6], [0.55]])
    assert fuse([sure, unsure]).argmax() == 0
    assert fuse([100 * sure, unsure]) == pytest.approx(fuse([sure, unsure])), "the norm of the scores does not matter"
    assert (fuse([np.zeros((3, 2)), np.zeros((3, 2))]) == 0).all()


def test_unusable_grid_is_rejected() -> None:
    for grid in ((1, 1), (0, 2), (-1, 3), (30, 30)):
        with pytest.raises(ParameterError):
            part_rows(SPEC, grid)
    with pytest.raises(ParameterError, match="pixels or gradients"):
        LCLRRDL(parts=(2, 2)).fit(np.random.default_rng(0).standard_normal((8, 5)), np.repeat([0, 1], 4))


def test_parts_improve_recognition_of_covered_faces() -> None:
    images, people = faces(people=12, photos=6, size=(24, 20), seed=3)
    train = np.arange(len(images)) % 6 < 3
    cloth = np.random.default_rng(0).integers(0, 256, (15, 20))
    covered = images[~train].copy()
    covered[::2, :15] = covered[1::2, 9:] = cloth
    spec = FeatureSpec(height=24, width=20, kind="pixels")
    whole, parts = (
        LCLRRDL(3, features=spec, coding="l21", parts=grid).fit(images[train], people[train]).score(covered, people[~train])
        for grid in (None, (4, 2))
    )
    assert parts > whole + 0.2
