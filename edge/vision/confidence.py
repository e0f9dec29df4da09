"""Confidence and margin of a face: the one definition that training, the exported graph and the device share.

relative   top score over the norm of all scores: one classifier, or the face and its parts
absolute   the top score itself, about 1 for a training photo: experts (trainer.method.experts), whose cosines do not depend on
           the number of people
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge.kit.manifest import RELATIVE as RELATIVE  # decisions do not know kits

BLANK = 1e-6
"""A vector shorter than this counts as zero. Scaling it to unit length would only amplify noise."""


def score_norm(scores: ArrayLike) -> NDArray[Any]:
    """Norms (...) of scores (..., C), at least BLANK."""
    return np.maximum(np.linalg.norm(scores, axis=-1), BLANK)


def score_confidence(scores: ArrayLike, kind: str = RELATIVE) -> NDArray[Any]:
    """Confidence (...) of scores (..., C), at most 1."""
    return np.minimum(np.max(scores, axis=-1) / _scale(scores, kind), 1)


def score_margin(scores: ArrayLike, kind: str = RELATIVE) -> NDArray[Any]:
    """Lead of the top score over the second score, on the scale of the confidence: (...) from scores (..., C), C >= 2."""
    second = np.partition(scores, -2, axis=-1)[..., -2]
    return np.asarray((np.max(scores, axis=-1) - second) / _scale(scores, kind))


def score_length(scores: ArrayLike, kind: str = RELATIVE) -> NDArray[Any]:
    """Norm (...) of scores (..., C) on the scale of the confidence: 1 if the confidence is relative."""
    return score_norm(scores) / _scale(scores, kind)


def _scale(scores: ArrayLike, kind: str) -> NDArray[Any]:
    return score_norm(scores) if kind == RELATIVE else np.ones(np.shape(scores)[:-1])
