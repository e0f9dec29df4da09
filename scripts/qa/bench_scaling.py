"""Time and peak memory of `solve` by the number of people, with 8 photos and 5 atoms per person.

AR has 100 people. The mirrored faces are used as 100 more.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge.vision.preprocess import features
from trainer.method.solver import locality_weights, solve
from trainer.paper.experiments import Cell, load_arrays

PEOPLE = (25, 50, 100, 200)


def measure(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    cell = Cell(dataset="ar")
    images, labels = load_arrays(data / "ar_42x30.npz", cell)
    train, _ = cell.split(labels, np.random.default_rng(0))
    crops = np.concatenate([images[train], images[train][:, :, ::-1]])
    result = {}
    for people in PEOPLE:
        say(f"scaling: {people} people ...")
        X = features(crops[: 8 * people], cell.spec("both")).T.astype(np.float64)
        D0 = X[:, np.arange(8 * people).reshape(-1, 8)[:, :5].ravel()]
        R = locality_weights(X, D0)
        started = time.perf_counter()
        solve(X, D0, R, lam=25.0, alpha=0.5, gamma=0.05)
        seconds = time.perf_counter() - started
        tracemalloc.start()
        solve(X, D0, R, lam=25.0, alpha=0.5, gamma=0.05)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        result[str(people)] = {"d": len(X), "n": X.shape[1], "m": D0.shape[1], "seconds": seconds, "peak_mb": peak / 1e6}
    return result


def table(result: dict[str, Any]) -> str:
    lines = ["| people | d, n, m | training s | peak memory MB |", "|---|---|---|---|"]
    for people, r in result.items():
        lines.append(f"| {people} | {r['d']}, {r['n']}, {r['m']} | {r['seconds']:.1f} | {r['peak_mb']:.0f} |")
    return "\n".join(lines)
