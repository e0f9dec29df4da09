"""Variants of the training of D and W, on development splits: which of them recognise more faces?

Each row changes the usual row, which is LCLRRDL with label rows and the parameters of the cell (trainer/paper/reproduce.toml).
Split k is drawn by `default_rng([777, k])`, which no published result uses. Entries: percent recognised, mean over the splits,
at the eta that is best for the row and the cell, so that no row has the advantage of a tuned eta. As eta is chosen on the
faces that it is tested on, all rows are a little too high: compare rows only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.linalg import eigh

from edge.cli import common as console
from scripts.research.options import DATA, Data
from trainer.baselines.ksvd import k_svd
from trainer.method.base import check_codes
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder
from trainer.method.estimator import LCLRRDL, check_solution
from trainer.method.experts import unit_ridge
from trainer.method.locality import locality_weights
from trainer.method.prox import column_norms, soft_threshold
from trainer.method.result import SolverResult
from trainer.method.solver import SCHEDULES, solve
from trainer.paper.experiments import Cell, load_data, tuned_parameters
from trainer.paper.tables import select_cells
from trainer.parallel import each
from trainer.presets import ETAS
from trainer.types import Array

DEVELOPMENT = 777  # seed of the splits
RIDGE = 1e-3  # of an update of D for the coder's codes
CELLS = "yaleb-8-8@1,yaleb-8-8@2,yaleb-8-8,yaleb-32-8@1,yaleb-32-8@2,yaleb-32-8,ar-mixed@1,ar-mixed@2,ar-mixed"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(eq=False, repr=False)
class Variant(LCLRRDL):
    """LCLRRDL with other ways to learn D and W. The defaults change nothing."""

    _: KW_ONLY
    start: str = "samples"
    """The first D: random samples of each person, K-SVD of these ("k-svd"), or the person's k medoids ("k-medoids")."""
    rounds: int = 1
    """Runs of Algorithm 1: each starts from the D of the one before, and R is computed from it."""
    foreign: float = 1.0
    """Factor of R for the atoms of other people. A large one keeps each atom with its person."""
    unit_atoms: bool = False
    """Give the atoms unit length at the end."""
    incoherence: float = field(default=0.0, metadata={"least": 0})
    """Weight of |D_c'D_j|^2, summed over pairs of people, in updates of D after Algorithm 1."""
    alternations: int = field(default=0, metadata={"least": 0})
    """After Algorithm 1: updates of D for the codes of the device's own coder, each followed by new codes."""
    unit_rows: bool = False
    """Rows of W of unit length in the metric of the ridge (trainer.method.experts)."""

    def _solve(self, samples: Array, labels: Array, atoms: Array) -> SolverResult:
        d, classes, H = len(samples), labels[atoms], one_hot(labels, labels.max() + 1)
        D, B = self._first(samples, labels, atoms), self.label_weight * H[:, atoms]
        X = np.vstack([samples, self.label_weight * H]) if self.label_weight else samples
        same = classes[:, None] == labels
        for _ in range(self.rounds):
            R = locality_weights(samples, unit(D)) * np.where(same, 1, self.foreign)
            start = np.vstack([D, B]) if self.label_weight else D
            schedule = SCHEDULES[str(self.schedule)]
            result = solve(X, start, R, lam=self.lam, alpha=self.alpha, gamma=self.gamma, schedule=schedule)
            check_solution(result)
            D, B = result.D[:d], result.D[d:]
        if self.incoherence:
            D = incoherent(samples - result.E[:d], D, result.Z, classes, weight=self.incoherence, gamma=self.gamma)
        for _ in range(self.alternations):
            D = self._alternate(samples, D)
        return replace(result, D=unit(D) if self.unit_atoms else D)

    def _first(self, samples: Array, labels: Array, atoms: Array) -> Array:
        if self.start == "k-svd":
            return k_svd(samples, labels, samples[:, atoms], labels[atoms])
        if self.start == "k-medoids":
            return samples[:, k_medoids(samples, labels, atoms)]
        return samples[:, atoms]

    def _alternate(self, samples: Array, D: Array) -> Array:
        """D = (D + (X - E) Z'(ZZ' + ridge I)^-1)/2, E the large entries of X - DZ, Z the codes of the device's coder."""
        Z = Coder(D.astype(np.float32), self.coding_for(len(samples))).code(samples).astype(np.float64)
        error = samples - D @ Z
        T = samples - soft_threshold(error, 2 * float(np.median(np.abs(error))))
        fitted = ridge(Z, T, RIDGE)
        return (D + fitted) / 2


def unit(D: Array) -> Array:
    return D / np.maximum(column_norms(D), np.finfo(float).tiny)


def k_medoids(samples: Array, labels: Array, atoms: Array) -> Array:
    """Return as many samples of each class as `atoms` has, so that the samples of the class are near to one of them."""
    chosen = []
    for c in np.unique(labels):
        own = np.flatnonzero(labels == c)
        distances = np.sqrt(np.maximum(2 - 2 * samples[:, own].T @ samples[:, own], 0))
        medoids = np.flatnonzero(np.isin(own, atoms))
        for _ in range(20):
            nearest = distances[:, medoids].argmin(axis=1)
            clusters = [np.flatnonzero(nearest == k) for k in range(len(medoids))]
            moved = np.array([members[distances[np.ix_(members, members)].sum(axis=0).argmin()] for members in clusters])
            if np.array_equal(moved, medoids):
                break
            medoids = moved
        chosen.append(np.sort(own[medoids]))
    return np.concatenate(chosen)


def incoherent(T: Array, D: Array, Z: Array, classes: Array, *, weight: float, gamma: float, sweeps: int = 2) -> Array:
    """Minimise |T - DZ|^2 + gamma |D|^2 + weight sum_{c < j} |D_c'D_j|^2, person by person.

    For one person: D_c (Z_c Z_c' + gamma I) + weight F F'D_c = (T - D_other Z_other) Z_c', F the atoms of the others. The
    eigenvectors V of the first matrix separate it into one equation for each column of D_c V.
    """
    D = D.copy()
    for _ in range(sweeps):
        for c in np.unique(classes):
            own = classes == c
            F = D[:, ~own]
            values, V = eigh(Z[own] @ Z[own].T + gamma * np.eye(own.sum()))
            right = (T - F @ Z[~own]) @ Z[own].T @ V
            inner, FF = F.T @ right, F.T @ F
            solved = [
                (right[:, k] - F @ np.linalg.solve(value / weight * np.eye(len(FF)) + FF, inner[:, k])) / value
                for k, value in enumerate(values)
            ]
            D[:, own] = np.column_stack(solved) @ V.T
    return D


USUAL = "label rows (usual)"
VARIANTS: dict[str, dict[str, Any]] = {
    USUAL: {},
    "as printed: no label rows": {"label_weight": 0.0},
    "D starts from K-SVD": {"start": "k-svd"},
    "D starts from k-medoids": {"start": "k-medoids"},
    "R computed again from D, once": {"rounds": 2},
    "R computed again from D, twice": {"rounds": 3},
    "atoms of other people cost 3 times": {"foreign": 3.0},
    "atoms of other people cost 10 times": {"foreign": 10.0},
    "the same, no label rows": {"foreign": 10.0, "label_weight": 0.0},
    "unit atoms": {"unit_atoms": True},
    "incoherence between people, 0.01": {"incoherence": 0.01},
    "incoherence between people, 0.1": {"incoherence": 0.1},
    "D for codes of the device's coder, once": {"alternations": 1},
    "D for codes of the device's coder, 3 times": {"alternations": 3},
    "the same, no label rows, 3 times": {"alternations": 3, "label_weight": 0.0},
    "unit rows in W": {"unit_rows": True},
}


def measure(cell: Cell, name: str, split: int, images: Array, labels: Array) -> tuple[str, str, list[float]]:
    """Return cell, variant, and the percentage recognised with each eta of ETAS."""
    train, test = cell.split(labels, np.random.default_rng([DEVELOPMENT, split]))
    given: dict[str, Any] = {"coding": "l1", "doubt": False, "atoms_per_class": cell.atoms} | tuned_parameters(cell, "pixels")
    model = Variant(**(given | VARIANTS[name]), features=cell.spec("pixels"), random_state=DEVELOPMENT + split)
    model.fit(images[train], labels[train])
    check_codes(model.codes_)
    spec = cell.spec("pixels")
    Z = model.code(spec.vectors(images[test]).T)
    H = one_hot(np.searchsorted(model.classes_, labels[train]), len(model.classes_))
    classifier = unit_ridge if model.unit_rows else ridge
    answers = [model.classes_[(classifier(model.codes_, H, eta) @ Z).argmax(axis=0)] for eta in ETAS]
    return cell.name, name, [100 * float(np.mean(answer == labels[test])) for answer in answers]


def table(results: dict[tuple[str, str], list[list[float]]], cells: Sequence[Cell], names: Sequence[str]) -> str:
    """Return a table in Markdown, with the difference from the usual row."""
    best = {entry: float(np.mean(splits, axis=0).max()) for entry, splits in results.items()}
    lines = [f"| recognised, % | {' | '.join(cell.name for cell in cells)} |", "|---" * (len(cells) + 1) + "|"]
    for name in names:
        row = [best[cell.name, name] for cell in cells]
        usual = [best.get((cell.name, USUAL)) for cell in cells]
        entries = [
            f"{value:.2f}" + ("" if name == USUAL or base is None else f" ({value - base:+.2f})")
            for value, base in zip(row, usual, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(entries)} |")
    return "\n".join(lines)


@app.command()
def main(
    data: Data = DATA,
    cells: Annotated[str, typer.Option(metavar="NAME,...", help="Cells, with @A for A atoms per person.")] = CELLS,
    only: Annotated[str, typer.Option(help="Only the usual row, and variants with this in their name.")] = "",
    splits: Annotated[int, typer.Option(min=1, help="Development splits to average over.")] = 5,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
) -> None:
    """Measure the variants and print a table."""
    chosen = list(select_cells(cells))
    names = [name for name in VARIANTS if name == USUAL or only in name]
    sets = load_data(Path(data), chosen)
    calls = [(cell, name, k, *sets[cell.dataset][:2]) for cell in chosen for name in names for k in range(splits)]
    results: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    with console.progress("Measuring") as line:
        for number, (cell, name, shares) in enumerate(each(measure, calls, ordered=False, jobs=jobs), 1):
            results[cell, name].append(shares)
            line(f"{number} of {len(calls)} (last {name}, {cell})")
    typer.echo(table(results, chosen, names))


if __name__ == "__main__":
    console.run(app)
