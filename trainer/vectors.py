"""Compute the network's vectors of a training before it starts, or take them from a file of an earlier one."""

import numpy as np

from trainer.data.augment import COVERED
from trainer.data.covered import covered_embeddings
from trainer.data.gallery import crop_digests
from trainer.features.spec import Spec
from trainer.features.vector_file import VectorFile
from trainer.method.experts import expert_rows
from trainer.shards.work import WorkFolder
from trainer.types import Array, Progress, silent

CHUNK = 32  # crops between two reports of progress


def remember_vectors(
    crops: Array, spec: Spec, *, covered: bool, work: WorkFolder | None = None, progress: Progress = silent
) -> None:
    """Let the network know its vectors of crops and, if `covered`, of their covered copies: all folds of a training use them.

    `work` keeps them in a file. The vectors are the same bits with and without it.
    """
    network = spec.network
    assert network is not None
    file = None if work is None else _file(work, spec, covered)
    digests = list(crop_digests(crops))
    missing = list(range(len(digests))) if file is None else _recall(file, digests, spec, covered)
    for start in range(0, len(missing), CHUNK):
        progress(len(digests) - len(missing) + start, len(digests))
        some = missing[start : start + CHUNK]
        vectors = network.embed(crops[some])[:, None]
        if covered:
            vectors = np.concatenate([vectors, covered_embeddings(network, crops[some])], axis=1)
        if file is not None:
            file.append([digests[i] for i in some], vectors.reshape(len(some), -1))
    progress(len(digests), len(digests))


def recall_vectors(crops: Array, spec: Spec, *, covered: bool, work: WorkFolder) -> None:
    """Let the network know the vectors of crops that an earlier training kept. It computes none."""
    _recall(_file(work, spec, covered), list(crop_digests(crops)), spec, covered)


def _file(work: WorkFolder, spec: Spec, covered: bool) -> VectorFile:
    assert spec.network is not None
    return work.vectors(spec.network, covered, int(np.prod(_shape(spec, covered))))


def _shape(spec: Spec, covered: bool) -> tuple[int, int]:
    """Return the shape of the vectors of a crop and its covered copies."""
    return 1 + COVERED if covered else 1, len(expert_rows(spec)[0])


def _recall(file: VectorFile, digests: list[bytes], spec: Spec, covered: bool) -> list[int]:
    """Let the network know what is in the file. Return the indices of the crops that are not."""
    network, stored = spec.network, file.read()
    assert network is not None
    for digest in digests:
        if digest in stored:
            own, *copies = np.array(stored[digest]).reshape(_shape(spec, covered))
            network.known[digest] = own
            if covered:
                network.known_copies[digest] = np.stack(copies)
    return [i for i, digest in enumerate(digests) if digest not in stored]
