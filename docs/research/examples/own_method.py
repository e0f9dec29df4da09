"""
Add your own method and see it in the tables
============================================

A method is a dataclass that derives from `FaceClassifier`: its fields are its parameters, `_learn` gets unit
columns and classes 0..C-1, and `_scores` returns one row per class. Features, checks, `fit`, `predict` and
`score` are inherited. `trainer tables`, `trainer reproduce` and `trainer tune` then take it as module:Class,
here own_method:NearestSubspace, beside the registered ones. The module must be installed, or a file in the
working directory.
"""

import csv
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from faces import load_faces

from trainer.method.base import FaceClassifier


@dataclass(eq=False, repr=False)
class NearestSubspace(FaceClassifier):
    """Each person is a subspace: the leading left singular vectors U of the samples. score = |U'x|^2."""

    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"dimension": (1, 2, 3, 4)}  # what `trainer tables --tune` tries
    _: KW_ONLY
    dimension: int = 3

    def _learn(self, samples: np.ndarray, labels: np.ndarray) -> None:
        people = [samples[:, labels == person] for person in range(len(self.classes_))]
        self.bases_ = [np.linalg.svd(own, full_matrices=False)[0][:, : self.dimension] for own in people]

    def _scores(self, samples: np.ndarray) -> np.ndarray:
        return np.array([np.square(U.T @ samples).sum(axis=0) for U in self.bases_])


# %%
# The command: our method and two others on faces.npz, five photographs of each person for training, ten
# random splits. The results in FOLDER/results are found again in the next run, until data, parameters or the
# code of the method change.
if __name__ == "__main__":
    plt.switch_backend("Agg")  # draws into files
    output = sys.argv[1] if len(sys.argv) > 1 else "own_method.png"
    gallery = load_faces()
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / "faces.npz", images=gallery.images, labels=gallery.labels)
        command = ["trainer", "tables", "--data", folder, "--cells", "faces.npz:5", "--splits", "10", "--jobs", "1"]
        command += ["--methods", "lclrrdl,own_method:NearestSubspace,srw", "-o", f"{folder}/results"]
        subprocess.run([sys.executable, "-m", *command], cwd=Path(__file__).parent, check=True)
        with open(f"{folder}/results/tables.csv") as file:
            rows = list(csv.DictReader(file))

    # %%
    # tables.csv has one line per entry; tables.md and tables.tex have the same, for reading and for a paper.
    figure, axis = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    for row in rows:
        mean, deviation, is_own = float(row["ours"]), float(row["deviation"]), ":" in row["method"]
        axis.errorbar(mean, row["method"], xerr=deviation, marker="o", capsize=4, color="tab:red" if is_own else "tab:blue")
        axis.annotate(f"{mean:.1f} ± {deviation:.1f}", (mean, row["method"]), (0, 7), textcoords="offset points", ha="center")
    axis.set(
        xlabel="test photographs recognised (%): mean and deviation of 10 random splits",
        title="faces.npz: 40 people, 5 photographs of each train",
    )
    axis.margins(x=0.15, y=0.35)
    axis.invert_yaxis()
    figure.savefig(output, dpi=110)
