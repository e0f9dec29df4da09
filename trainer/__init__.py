"""Train face recognition: a dictionary and a classifier from labelled photos."""

from edge.vision.preprocess import FeatureSpec
from trainer.data.gallery import Gallery, load_gallery
from trainer.method.estimator import LCLRRDL
from trainer.model import Model
from trainer.training import fit, train
from trainer.update import enrol, forget

__all__ = ["LCLRRDL", "FeatureSpec", "Gallery", "Model", "enrol", "fit", "forget", "load_gallery", "train"]
