"""The face and its parts: sunglasses spoil the upper ones, a scarf the lower ones, and a stranger is like nobody in any.

Each part is a set of rows of the features. All share one dictionary D, learned on whole faces: a part is coded with its rows
of D, brought to unit length, and has a classifier of its own. The scores of each part are then brought to unit length,
weighted by their own confidence, and averaged with those of the whole face.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge.errors import ParameterError
from edge.vision.preprocess import DIRECTIONS, unit_rows
from trainer.features.spec import Spec
from trainer.method.coding import Coder, Coding
from trainer.types import Array

Grid = tuple[int, int]
FAINT = 0.02  # scores shorter than this are not brought to unit length: they are next to nothing, and would be mere rounding


def part_rows(spec: Spec | None, grid: Grid | None) -> list[Array]:
    """The rows of the features that lie in each cell of a grid of (rows, columns), by the middle of their own cells."""
    if grid is None:
        return []
    if spec is None or spec.network is not None or spec.own is None:
        raise ParameterError("parts need features that are pixels or gradients")
    own = spec.own
    down, across = grid
    if min(grid) < 1 or down * across < 2:
        raise ParameterError(f"a face has parts in a grid such as 3x2, not {down}x{across}")
    places = []
    for kind, cell, channels in (("pixels", own.cell, 1), ("gradient", own.gradient_cell, DIRECTIONS)):
        if spec.kind in (kind, "both"):
            rows, columns = spec.height // cell, spec.width // cell
            y, x = (((np.arange(n) + 0.5) * parts / n).astype(int) for n, parts in ((rows, down), (columns, across)))
            places.append(np.tile((y[:, None] * across + x).ravel(), channels))
    place = np.concatenate(places)
    if len(np.unique(place)) < down * across:
        raise ParameterError(f"a {spec.height}x{spec.width} crop with these cells is too coarse for {down}x{across} parts")
    return [np.flatnonzero(place == part) for part in range(down * across)]


def unit_part(X: Array, rows: Array) -> Array:
    """The part's rows of X (d,n), as unit columns."""
    return unit_rows(X[rows].T).T


def part_coders(D: Array, rows: Sequence[Array], coding: Coding) -> list[Coder]:
    return [Coder(np.ascontiguousarray(D[own]), coding) for own in rows]


def fuse(scores: Sequence[Array]) -> Array:
    """(C,n) of the scores of the whole face and of its parts, (C,n) each; without parts, the scores as they are."""
    if len(scores) == 1:
        return scores[0]
    return np.mean([unit * unit.max(axis=0) for unit in map(unit_scores, scores)], axis=0, dtype=scores[0].dtype)


def unit_scores(scores: Array) -> Array:
    """(C,n) of a part at unit length; the highest of each column is the part's confidence, and its weight."""
    return scores / np.maximum(np.linalg.norm(scores, axis=0), FAINT)
