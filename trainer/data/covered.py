"""The network's vectors of crops with painted covers. Each crop is painted and goes through the network once."""

import numpy as np

from edge.vision.preprocess import LANDMARK_TEMPLATES
from trainer.data import augment
from trainer.features.network import Network, embeddings
from trainer.types import Array


def covered_embeddings(network: Network, crops: Array) -> Array:
    """Return (N, k, d), the network's own vectors of the k covered copies of each crop (trainer.data.augment.covered)."""
    landmarks = LANDMARK_TEMPLATES[network.alignment]

    def of_copies(crop: Array) -> Array:
        return np.stack([network.embedding(copy) for copy in augment.covered(crop[None], landmarks)])

    return embeddings(crops, of_copies, network.known_copies)
