"""The solver compared with the oracle (tests/fixtures/oracle.py): seconds, their ratio, and the difference of the results.

Seconds are processor time with one BLAS thread, the median of three rounds of oracle and solver in turn: other work on the
machine changes the ratio little.

The iteration amplifies rounding errors: on the larger problem, two runs of the oracle differ if X differs in the last bit.
So the table also has the difference between two runs of the oracle, with X changed by one part in 1e15, and the accuracy on
the test images.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from edge.vision.preprocess import features
from tests.fixtures import oracle
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder, Coding
from trainer.method.locality import locality_weights
from trainer.method.result import SolverResult
from trainer.method.solver import SCHEDULES, solve
from trainer.paper.experiments import Cell, load_arrays

PROBLEMS = {
    "ar_sunglasses": (Cell(dataset="ar", scenario="sunglasses"), "ar_42x30.npz"),
    "yaleb_8_half": (Cell(dataset="yaleb", per_class=8, rate=2), "yaleb_96x84.npz"),
}
LAM, ALPHA, GAMMA = 25.0, 0.5, 0.05
ROUNDS = 3
ETA = 1e-3


def measure(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    return {name: _problem(cell, data / file, name, say) for name, (cell, file) in PROBLEMS.items()}


def _problem(cell: Cell, file: Path, name: str, say: Callable[[str], None]) -> dict[str, Any]:
    images, labels = load_arrays(file, cell)
    rng = np.random.default_rng(0)
    train, test = cell.split(labels, rng)
    spec = cell.spec("pixels")
    X, T = (features(images[rows], spec).T.astype(np.float64) for rows in (train, test))
    y = labels[train]
    atoms = np.concatenate([rng.permutation(np.flatnonzero(y == c))[: cell.atoms] for c in np.unique(y)])
    D0 = X[:, atoms]
    R = locality_weights(X, D0)

    def run_oracle(start: np.ndarray) -> oracle.OracleResult:
        return oracle.solve(start, D0, R, lam=LAM, alpha=ALPHA, gamma=GAMMA)

    def run_solver(schedule: str) -> SolverResult:
        return solve(X, D0, R, lam=LAM, alpha=ALPHA, gamma=GAMMA, schedule=SCHEDULES[schedule])

    starts = [X, *(X * (1 + 1e-15 * rng.standard_normal(X.shape)) for _ in range(1, ROUNDS))]
    rounds = []
    with threadpool_limits(1):
        for number, start in enumerate(starts, 1):
            say(f"{name}: oracle and solver, {number} of {ROUNDS} ...")
            rounds.append(
                [_timed(partial(run_oracle, start)), *(_timed(partial(run_solver, how)) for how in ("paper", "fast"))]
            )
    oracle_s, fast_s, quick_s = np.median([[seconds for _, seconds in runs] for runs in rounds], axis=0).tolist()
    truth, fast, quick = (result for result, _ in rounds[0])
    again = rounds[1][0][0]

    def accuracy(D: np.ndarray) -> float:
        coder = Coder(D.astype(np.float32), Coding())
        W = ridge(coder.code(X), one_hot(y, labels.max() + 1), ETA)
        return 100 * float(np.mean((W @ coder.code(T)).argmax(axis=0) == labels[test]))

    return {
        "d": X.shape[0],
        "n": X.shape[1],
        "m": D0.shape[1],
        "oracle_s": oracle_s,
        "fast_s": fast_s,
        "ratio": oracle_s / fast_s,
        "schedule_fast_s": quick_s,
        "schedule_fast_ratio": oracle_s / quick_s,
        "iterations": {"oracle": truth.iterations, "paper": fast.iterations, "fast": quick.iterations},
        "difference": _difference(fast, truth),
        "oracle_difference": _difference(again, truth),
        "accuracy": {"oracle": accuracy(truth.D), "paper": accuracy(fast.D), "fast": accuracy(quick.D)},
    }


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    return call(), time.process_time() - started


def _difference(one: Any, other: Any) -> dict[str, float]:
    """Return the largest difference of an entry of Z, and the relative difference of D."""
    return {"Z": float(np.abs(one.Z - other.Z).max()), "D": float(np.linalg.norm(one.D - other.D) / np.linalg.norm(other.D))}


def table(result: dict[str, Any]) -> str:
    lines = [
        "| solver (processor seconds) | d, n, m | oracle | paper schedule | ratio | fast schedule | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in result.items():
        lines.append(
            f"| {name} | {r['d']}, {r['n']}, {r['m']} | {r['oracle_s']:.1f} | {r['fast_s']:.2f} | **{r['ratio']:.1f}x** "
            f"| {r['schedule_fast_s']:.2f} | **{r['schedule_fast_ratio']:.1f}x** |"
        )
    lines += [
        "",
        "| difference in Z, D | solver and oracle | two runs of the oracle, X + 1e-15 | accuracy: oracle, paper, fast |",
        "|---|---|---|---|",
    ]
    for name, r in result.items():
        solver, own, accuracy = r["difference"], r["oracle_difference"], r["accuracy"]
        lines.append(
            f"| {name} | {solver['Z']:.1e}, {solver['D']:.1e} | {own['Z']:.1e}, {own['D']:.1e} "
            f"| {accuracy['oracle']:.1f}, {accuracy['paper']:.1f}, {accuracy['fast']:.1f} |"
        )
    return "\n".join(lines)
