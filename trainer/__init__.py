"""Train face recognition: a dictionary and a classifier from labelled photos."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.lazy import lazy_names

if TYPE_CHECKING:
    from edge.vision.preprocess import FeatureSpec
    from trainer.data.gallery import Gallery, load
    from trainer.method.estimator import LCLRRDL
    from trainer.model import Model
    from trainer.training import fit
    from trainer.update import enrol, forget

__all__ = ["LCLRRDL", "FeatureSpec", "Gallery", "Model", "enrol", "fit", "forget", "load"]
__getattr__ = lazy_names(
    __name__,
    {
        "edge.vision.preprocess": ("FeatureSpec",),
        "trainer.data.gallery": ("Gallery", "load"),
        "trainer.method.estimator": ("LCLRRDL",),
        "trainer.model": ("Model",),
        "trainer.training": ("fit",),
        "trainer.update": ("enrol", "forget"),
    },
)
