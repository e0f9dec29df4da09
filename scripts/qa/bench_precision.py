"""fp32 against int8 with many people: size and time of one face in one thread, and the accuracy on AR.

    python -m scripts.qa.bench_precision [FOLDER]

The times are those of random weights with the shapes of 1,000 and 10,000 people. Both precisions take turns, so that other
work of the machine slows them equally: each time is the median over rounds of the fastest of ten runs. FOLDER has
ar_42x30.npz; the accuracy is left out without it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edge.vision.onnx_session import load_session
from edge.vision.preprocess import FeatureSpec
from export import graph
from export.graph import Factors
from export.nodes import Precision
from export.run import run_graph
from trainer.data.gallery import Gallery
from trainer.method.blocks import Block
from trainer.method.coding import Coding
from trainer.method.parts import part_rows
from trainer.presets import PRESETS
from trainer.training import fit
from trainer.types import Array

ROUNDS, RUNS, SPLITS = 60, 10, 8
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
SPEC = FeatureSpec.for_crop(80, 64)
GRID, RANK = (4, 2), 1024
CODING = Coding(kind="l21", lam=5.0, iterations=4)


def block(d: int, r: int, people: int, rng: np.random.Generator, rows: Array | None = None) -> Block:
    """Return a random block: U with orthonormal columns, and any s and B."""
    U = np.linalg.qr(rng.standard_normal((d, r)).astype(np.float32))[0]
    s = np.sort(np.abs(rng.standard_normal(r)) + 0.05).astype(np.float32)
    return Block(rows, U, s, rng.standard_normal((people, r)).astype(np.float32) / 30)


def sizes_and_times(people: int) -> str:
    rng = np.random.default_rng(0)
    parts = [block(len(rows), len(rows), people, rng, rows) for rows in part_rows(SPEC, GRID)]
    factors = Factors.of_blocks([block(SPEC.length, RANK, people, rng), *parts], CODING)
    built = {precision: graph.build(factors, SPEC, precision) for precision in PRECISIONS}
    crop = rng.integers(0, 256, (1, *SPEC.crop_shape), np.uint8)
    times = race({precision: load_session(data, "the graph") for precision, data in built.items()}, crop)
    cells = [f"{precision} {len(built[precision]) / 1e6:.1f} MB {times[precision]:.0f} us" for precision in PRECISIONS]
    return f"{people} people: {', '.join(cells)}, {times['fp32'] / times['int8']:.2f} times as fast"


def race(sessions: dict[Precision, Any], crop: Array) -> dict[Precision, float]:
    """Return microseconds of one face."""
    measured: dict[Precision, list[float]] = {name: [] for name in sessions}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            session.run(None, {"crops": crop})
            fastest = np.inf
            for _ in range(RUNS):
                start = time.perf_counter()
                session.run(None, {"crops": crop})
                fastest = min(fastest, time.perf_counter() - start)
            measured[name].append(float(fastest))
    return {name: float(np.median(times)) * 1e6 for name, times in measured.items()}


def accuracy(images: Array, labels: Array, seed: int) -> list[float]:
    """Return rank-1 and FNIR at FPIR 1 % (percent) for each precision.

    70 people are enrolled with 8 photos of the first session and tested with the 13 of the second. The other 30 are strangers.
    """
    rng = np.random.default_rng(100 + seed)
    names = np.array([f"{label:03d}" for label in labels])
    enrolled = rng.permutation(np.unique(labels))[:70]
    train = np.sort(np.concatenate([rng.permutation(np.flatnonzero(labels == label)[:13])[:8] for label in enrolled]))
    parameters = {name: value for name, value in PRESETS["tiny"].items() if name != "features"}
    gallery = Gallery(images=images[train], labels=names[train], sources=tuple(map(str, train)))
    model = fit(gallery, FeatureSpec.for_crop(*images.shape[1:]), parameters)
    is_enrolled = np.isin(labels, enrolled)
    test = is_enrolled & (np.arange(len(labels)) % 26 >= 13)
    people = np.searchsorted(model.labels, names[test])
    results: list[float] = []
    for precision in PRECISIONS:
        built = graph.build(Factors.of(model), model.spec, precision)
        found, strange = run_graph(built, images[test]), run_graph(built, images[~is_enrolled])["confidence"]
        right, least = found["label"] == people, np.sort(strange)[::-1][len(strange) // 100]
        results += [100 * right.mean(), 100 * (1 - (right & (found["confidence"] > least)).mean())]
    return results


def main() -> None:
    for people in (1_000, 10_000):
        print(sizes_and_times(people), flush=True)
    if len(sys.argv) > 1:
        with np.load(Path(sys.argv[1]) / "ar_42x30.npz") as data:
            rows = [accuracy(data["images"], data["labels"], seed) for seed in range(SPLITS)]
        for name, row in [*((f"split {i}", row) for i, row in enumerate(rows)), ("mean", np.mean(rows, axis=0))]:
            print(f"AR, {name}: fp32 rank-1 {row[0]:.2f} FNIR {row[1]:.2f}, int8 rank-1 {row[2]:.2f} FNIR {row[3]:.2f}")


if __name__ == "__main__":
    main()
