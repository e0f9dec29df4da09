"""Train face recognition: a dictionary and a classifier from labelled photos. Names load when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.vision.preprocess import FeatureSpec
    from trainer.data.gallery import Gallery, load
    from trainer.method.estimator import LCLRRDL
    from trainer.model import Model
    from trainer.training import fit
    from trainer.update import enrol, forget

__all__ = ["LCLRRDL", "FeatureSpec", "Gallery", "Model", "enrol", "fit", "forget", "load"]

_MODULES = {
    "LCLRRDL": "trainer.method.estimator",
    "FeatureSpec": "edge.vision.preprocess",
    "Gallery": "trainer.data.gallery",
    "Model": "trainer.model",
    "enrol": "trainer.update",
    "fit": "trainer.training",
    "forget": "trainer.update",
    "load": "trainer.data.gallery",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
