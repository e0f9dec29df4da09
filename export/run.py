"""Runs graphs on many crops. A network in a graph takes a thousand times as long as the rest, and sees each crop once.

The vectors of images without a face depend only on the network. They are kept in the user's cache, for the next build.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edge.files import write_atomically
from edge.vision.onnx_session import import_onnxruntime, load_session
from edge.vision.recognize import OUTPUTS
from export.graph import front, has_network, head
from export.nodes import PRECISIONS
from trainer.downloads import cache_folder
from trainer.features.network import EMBEDDING, Network, embeddings
from trainer.features.prepare import quick
from trainer.parallel import in_threads
from trainer.types import Array

AT_ONCE = 64  # crops that a graph gets
NETWORK_AT_ONCE = 4  # a network needs 30 MB for each face that it sees at once
DIGEST = hashlib.sha256().digest_size

Outputs = dict[str, Array]


def run_graph(graph: bytes, crops: Array) -> Outputs:
    """Return the outputs of a graph for crops (N, H, W), or BGR (N, H, W, 3). A network in it sees each crop once."""
    if not has_network(graph):
        session = _session(graph)
        return in_chunks(lambda chunk: dict(zip(OUTPUTS, session.run(OUTPUTS, {"crops": chunk}), strict=True)), crops)
    session, vectors = load_session(head(graph), "the graph", prepack=False), network_vectors(graph, crops)

    def outputs(rows: Array) -> Outputs:
        found = session.run(OUTPUTS, {"crops": crops[rows], EMBEDDING: vectors[rows]})
        return dict(zip(OUTPUTS, found, strict=True))

    return in_chunks(outputs, np.arange(len(crops)))


def network_vectors(graph: bytes, crops: Array) -> Array:
    """Return (N, d), what the network in a graph computes from crops. Crops that it has seen are not computed again."""
    network, known = _network(graph)
    return embeddings(crops, lambda crop: network.run([EMBEDDING], {"crops": crop[None]})[0][0], known)


def remember(graph: bytes, network: Network) -> None:
    """Do not run the network of a graph with all digits again on crops that the trainer's network has seen."""
    _network(graph)[1].update(network.known)


def remember_non_faces(graph: bytes, crops: Array) -> None:
    """Do not run the network of a graph on these crops if a build on this computer did so before. They show no faces."""
    if not has_network(graph):
        return
    digests = [hashlib.sha256(crop.tobytes()).digest() for crop in crops]
    key = hashlib.sha256(b"".join([front(graph), import_onnxruntime().__version__.encode(), *digests]))
    file = cache_folder() / f"non-faces-{key.hexdigest()[:32]}.bin"
    vectors = _read(file, len(crops))
    if vectors is None:
        vectors = network_vectors(graph, crops)
        _write(file, vectors)
    _network(graph)[1].update(zip(digests, vectors, strict=True))


def _read(file: Path, number: int) -> Array | None:
    """Return stored vectors; None if there are none, or the file is damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    stored, content = data[:DIGEST], data[DIGEST:]
    if not content or len(content) % (4 * number) or hashlib.sha256(content).digest() != stored:
        return None
    return np.frombuffer(content, np.float32).reshape(number, -1)


def _write(file: Path, vectors: Array) -> None:
    content = np.ascontiguousarray(vectors, np.float32).tobytes()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, hashlib.sha256(content).digest() + content)
    except OSError:
        return  # without a cache, the next build takes longer


@lru_cache(maxsize=1)
def _session(graph: bytes) -> Any:
    """Return the session of the last graph again: loading a large one takes longer than running it."""
    return load_session(graph, "the graph", prepack=False)


@lru_cache(maxsize=len(PRECISIONS))
def _network(graph: bytes) -> tuple[Any, dict[bytes, Array]]:
    """Return the network of a graph, and its vectors by the digest of the crop."""
    network = quick(onnx.load_model_from_string(front(graph)))
    return load_session(network.SerializeToString(deterministic=True), "the network"), {}


def in_chunks(outputs: Callable[[Array], Outputs], crops: Array, size: int = AT_ONCE) -> Outputs:
    """Return outputs(crops), computed for `size` crops at a time."""
    return _joined([outputs(chunk) for chunk in _chunks(crops, size)])


def in_parallel(outputs: Callable[[Array], Outputs], crops: Array, size: int = NETWORK_AT_ONCE) -> Outputs:
    """Return outputs(crops), computed for `size` crops at a time, on all cores. `outputs` must release the interpreter."""
    return _joined(in_threads(outputs, _chunks(crops, size)))


def _chunks(crops: Array, size: int) -> list[Array]:
    return [crops[i : i + size] for i in range(0, len(crops), size)]


def _joined(chunks: list[Outputs]) -> Outputs:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
