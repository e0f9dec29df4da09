"""The photos of a training with many people: crops and the vectors of a network, in memory or in a file, read in chunks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.vision.preprocess import LANDMARK_TEMPLATES, FeatureSpec, unit_rows
from trainer.data import augment
from trainer.data.covered import covered_embeddings
from trainer.features.network import Network, stacked
from trainer.features.spec import Spec
from trainer.types import Array

CHUNK = 512  # photos in one call


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Photos. The arrays may be np.memmap: processes on this machine then read them from the file."""

    crops: Array
    """(N, *crop_shape) uint8."""
    people: Array
    """(N,) index of the person, 0 to C-1."""
    embeddings: Array | None = None
    """(N, 1 + k, d) float32: the network's vectors of each crop and of its k covered copies. None: there is no network."""
    uses_crops: bool = True
    """Whether features are computed from crops, too. Otherwise they are not read: those of a network are large."""

    def chunks(self, chosen: Array | None = None, size: int = CHUNK) -> Iterator[tuple[Array, Array | None, Array]]:
        """Yield crops, embeddings and people, for all photos or for the chosen indices."""
        count = len(self.people) if chosen is None else len(chosen)
        for start in range(0, count, size):
            # A slice of a file is sent as its place in the file; chosen rows are read here.
            yield self.rows(slice(start, start + size) if chosen is None else chosen[start : start + size])

    def rows(self, which: Any) -> tuple[Array, Array | None, Array]:
        """Return crops (none if they are not used), embeddings and people of a slice or of indices."""
        crops = self.crops[which] if self.uses_crops else self.crops[:0]
        return crops, None if self.embeddings is None else self.embeddings[which], self.people[which]


@dataclass(frozen=True, kw_only=True)
class Features:
    """Computes feature columns from a chunk, in any process: a spec without the network itself."""

    own: FeatureSpec | None
    """Our own features, of the crop or appended to the network's vector."""
    share: float | None
    """Length of the network's part (Network.share). None: there is no network."""
    alignment: str
    copies: int = 0
    """Altered copies of each crop (trainer.data.augment). Not with a network."""
    seed: int = 0

    @classmethod
    def of(cls, spec: Spec, copies: int = 0, seed: int | None = 0) -> "Features":
        network = spec.network
        share = None if network is None else network.share
        return cls(own=spec.own, share=share, alignment=spec.alignment, copies=copies, seed=seed or 0)

    def columns(self, crops: Array, embeddings: Array | None) -> Array:
        """Return X (d,n) of a chunk, unit columns in float32."""
        if embeddings is None:
            assert self.own is not None
            return np.ascontiguousarray(self.own.vectors(np.asarray(crops)).T)
        assert self.share is not None
        vectors = np.asarray(embeddings[:, 0])
        return np.ascontiguousarray(stacked(vectors, crops if self.own else vectors, self.own, self.share).T)

    def copied(self, crops: Array, embeddings: Array | None, first: int) -> Array | None:
        """Return X (d, k n) of all copies: first copies of all crops, then second ones, and so on. None: there are none.

        With a network, these are the columns of the network alone. `first`, the person of the first crop, seeds the copies.
        """
        if embeddings is not None:
            of_copies = np.moveaxis(np.asarray(embeddings[:, 1:]), 1, 0).reshape(-1, embeddings.shape[2])
            return unit_rows(of_copies).T if len(of_copies) else None
        if not self.copies:
            return None
        assert self.own is not None
        rng = np.random.default_rng([self.seed, first])
        made = augment.copies(np.asarray(crops), self.copies, rng, LANDMARK_TEMPLATES[self.alignment])
        return np.ascontiguousarray(self.own.vectors(made).T)


def embed(crops: Array, settings: dict[str, Any], covered: bool, model: Array) -> Array:
    """Return (n, 1 + k, d): vectors of crops by a network, and of their k covered copies. `model` holds the ONNX file's bytes.

    The vectors are those of the network alone, not scaled.
    """
    network = Network(model=model.tobytes(), **settings)
    crops = np.asarray(crops)
    found = network.embed(crops)[:, None]
    if not covered:
        return found
    return np.concatenate([found, covered_embeddings(network, crops)], axis=1)
