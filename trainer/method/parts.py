"""Parts of the face: sunglasses cover the upper parts, a scarf the lower ones, and a stranger matches in no part.

Each part is a set of rows of the features. All share one dictionary D, learned on whole faces: a part is coded with its rows
of D at unit length, and has its own classifier. The scores of each part are scaled to unit length, weighted by their own
confidence, and averaged with those of the whole face.
"""

from collections.abc import Sequence

import numpy as np

from edge.errors import ParameterError
from edge.vision.preprocess import DIRECTIONS, unit_rows
from trainer.features.spec import Spec
from trainer.method.coding import Coder, Coding
from trainer.types import Array

Grid = tuple[int, int]
FAINT = 0.02  # scores with a smaller norm stay below unit length: they are mostly rounding errors


def part_rows(spec: Spec | None, grid: Grid | None) -> list[Array]:
    """Return the feature rows in each cell of a grid (rows, columns); the centre of a row's own cell decides."""
    if grid is None:
        return []
    if spec is None or spec.network is not None or spec.own is None:
        raise ParameterError("parts need features that are pixels or gradients")
    own = spec.own
    down, across = grid
    if min(grid) < 1 or down * across < 2:
        raise ParameterError(f"parts need a grid such as 3x2, not {down}x{across}")
    cells = []
    for kind, cell, channels in (("pixels", own.cell, 1), ("gradient", own.gradient_cell, DIRECTIONS)):
        if own.kind in (kind, "both"):
            rows, columns = own.height // cell, own.width // cell
            y, x = (((np.arange(n) + 0.5) * parts / n).astype(int) for n, parts in ((rows, down), (columns, across)))
            cells.append(np.tile((y[:, None] * across + x).ravel(), channels))
    part_of_row = np.concatenate(cells)
    if len(np.unique(part_of_row)) < down * across:
        raise ParameterError(f"a {own.height}x{own.width} crop with these cells is too coarse for {down}x{across} parts")
    return [np.flatnonzero(part_of_row == part) for part in range(down * across)]


def unit_part(X: Array, rows: Array) -> Array:
    """Return the part's rows of X (d,n), as unit columns."""
    return unit_rows(X[rows].T).T


def part_coders(D: Array, rows: Sequence[Array], coding: Coding) -> list[Coder]:
    return [Coder(np.ascontiguousarray(D[own]), coding) for own in rows]


def fuse(scores: Sequence[Array]) -> Array:
    """Combine the scores (C,n) of the whole face and of its parts; without parts, return them unchanged."""
    if len(scores) == 1:
        return scores[0]
    fused: Array = np.mean([unit * unit.max(axis=0) for unit in map(unit_scores, scores)], axis=0, dtype=scores[0].dtype)
    return fused


def unit_scores(scores: Array) -> Array:
    """Scale scores (C,n) to unit length. The highest of each column is then the part's confidence, and its weight."""
    return np.asarray(scores / np.maximum(np.linalg.norm(scores, axis=0), FAINT))
