"""Confidence and margin of a face: the one definition that training, the exported graph and the device share."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLANK = 1e-6
"""A vector shorter than this counts as zero. Scaling it to unit length would only amplify noise."""


def score_norm(scores: ArrayLike) -> NDArray[Any]:
    """Norms (...) of scores (..., C), at least BLANK."""
    return np.maximum(np.linalg.norm(scores, axis=-1), BLANK)


def score_confidence(scores: ArrayLike) -> NDArray[Any]:
    """Top score over the norm of all scores: (...) from scores (..., C), at most 1."""
    return np.asarray(np.max(scores, axis=-1) / score_norm(scores))


def score_margin(scores: ArrayLike) -> NDArray[Any]:
    """Lead of the top score over the second score, over the norm of all scores: (...) from scores (..., C), C >= 2."""
    top = np.sort(scores, axis=-1)
    return np.asarray((top[..., -1] - top[..., -2]) / score_norm(scores))
