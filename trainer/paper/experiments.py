"""The paper's experiments: data sets, splits, parameters and the measurement of one cell of its tables.

Extended Yale B: random images of each person for training, the rest for testing; at rates 1/2, 1/4, 1/8 of 192 x 168.
AR: session 1 for training (seven neutral images and one or two occluded ones, chosen at random), see `ar_split`.
A data set of one's own: random images of each person for training, see `OwnCell`.
"""

import hashlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from edge.errors import GalleryError, UsageError
from edge.text import plural
from edge.vision.preprocess import FeatureSpec
from trainer.baselines.registry import Parameters, method_of
from trainer.data.archives import TooLargeError, open_npz
from trainer.data.arrays import read_arrays
from trainer.presets import PRESETS, read_toml
from trainer.types import Array, Progress, silent

SCENARIOS = {"sunglasses": (7,), "scarf": (10,), "mixed": (7, 10)}
"""AR: the first occluded images of session 1, by scenario."""
FILES = {"yaleb": "yaleb_96x84.npz", "ar": "ar_42x30.npz"}
TUNED = Path(__file__).with_name("reproduce.toml")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One column of the paper's Table 1 or 2."""

    dataset: str  # yaleb, ar, or the file of an OwnCell
    per_class: int = 8  # Yale B and own: training images of each person
    rate: int = 4  # Yale B: 2, 4 or 8 for 1/2, 1/4 or 1/8
    scenario: str = "sunglasses"  # AR: sunglasses, scarf or mixed
    atoms_per_class: int | None = None  # None: as in the paper

    def __post_init__(self) -> None:
        if self.rate not in (2, 4, 8):
            raise UsageError(f"There is no rate {self.rate}.", "Choose 2, 4 or 8.")

    @property
    def name(self) -> str:
        """Its name in commands and files: yaleb-8-4, ar-mixed; with another number of atoms, yaleb-8-4@2."""
        name = f"yaleb-{self.per_class}-{self.rate}" if self.dataset == "yaleb" else f"ar-{self.scenario}"
        return name + self._atoms_suffix

    @property
    def _atoms_suffix(self) -> str:
        return "" if self.atoms_per_class is None else f"@{self.atoms_per_class}"

    @property
    def _atoms_text(self) -> str:
        return "" if self.atoms_per_class is None else f", {plural(self.atoms_per_class, 'atom')}"

    @property
    def standard(self) -> "Cell":
        """The same column with the number of atoms of the paper."""
        return replace(self, atoms_per_class=None)

    @property
    def heading(self) -> str:
        """Its name in a table of its data set."""
        return (f"{self.per_class} each, 1/{self.rate}" if self.dataset == "yaleb" else self.scenario) + self._atoms_text

    @property
    def size(self) -> tuple[int, int]:
        """People, and training images of each."""
        if self.dataset == "ar":
            return 100, 9 if self.scenario == "mixed" else 8
        return 38, self.per_class

    @property
    def atoms(self) -> int:
        """Atoms per class."""
        return self.atoms_per_class or (20 if self.dataset == "yaleb" and self.per_class >= 32 else 5)

    def spec(self, kind: str) -> FeatureSpec:
        """Return the features: Yale B's rate sets the cell of the pixels; gradients use a 24 x 21 grid at every rate."""
        if self.dataset == "ar":
            return FeatureSpec(height=42, width=30, kind=kind)
        return FeatureSpec(height=96, width=84, kind=kind, cell=self.rate // 2, gradient_cell=4)

    def split(self, labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the indices of the training and of the test images."""
        if self.dataset == "ar":
            return ar_split(labels, self.scenario, rng)
        return random_split(labels, self.per_class, rng)


CELLS = (
    *(Cell(dataset="yaleb", per_class=n, rate=rate) for n in (8, 32) for rate in (8, 4, 2)),
    *(Cell(dataset="ar", scenario=scenario) for scenario in SCENARIOS),
)
"""The columns of the paper's Tables 1 and 2, in order. Every other list of columns is made from this one."""


@dataclass(frozen=True, kw_only=True)
class OwnCell(Cell):
    """One column of a data set of one's own: a file of cropped grey images and labels, which `trainer fit` reads too."""

    height: int
    width: int
    people: int

    @classmethod
    def read(cls, folder: Path, name: str) -> "OwnCell":
        """Return the cell FILE:N of a folder: N random images of each person train, all others test."""
        match = re.fullmatch(r"(.+\.(?:npz|mat)):([1-9]\d{0,5})", name)
        if match is None:
            raise UsageError(f"There is no cell {name!r}.", "Name one of your own as FILE:N, for example faces.npz:8.")
        images, labels = load_own(folder / match[1])
        _, height, width = images.shape
        cell = cls(dataset=match[1], per_class=int(match[2]), height=height, width=width, people=len(np.unique(labels)))
        cell.split(labels, np.random.default_rng(0))  # an error if a person has too few images
        return cell

    @property
    def name(self) -> str:
        return f"{self.dataset}:{self.per_class}{self._atoms_suffix}"

    @property
    def heading(self) -> str:
        return f"{self.per_class} each{self._atoms_text}"

    @property
    def size(self) -> tuple[int, int]:
        return self.people, self.per_class

    def spec(self, kind: str) -> FeatureSpec:
        return FeatureSpec.for_crop(self.height, self.width, kind)


def load_own(path: Path) -> tuple[Array, Array]:
    """Read images (N, H, W) and labels 0..C-1 (N,) of a data set of one's own, in the order of the file."""
    if not path.is_file():
        raise GalleryError(f"There is no file {path}.", "Put it into the folder of --data.")
    images, people, _ = read_arrays(path)
    if images.dtype != np.uint8:
        raise GalleryError(f"The images in {path} have more than 8 bits.", "Save them as whole numbers from 0 to 255.")
    names, labels = np.unique(people, return_inverse=True)
    if len(names) < 2:
        raise GalleryError(f"{path} has fewer than two people.", "Add images of at least one more person.")
    return images, labels


def load_arrays(path: str | Path, cell: Cell) -> tuple[Array, Array]:
    """Read images (N, H, W) and labels (N,) in the order of the file: the protocols count positions."""
    try:
        with open_npz(path) as archive:
            images, labels = archive["images"], archive["labels"].astype(int)
    except OSError as error:
        raise GalleryError(f"{path} cannot be opened ({error.strerror or error}).", "Pass --data FILE.") from None
    except TooLargeError as error:
        raise GalleryError(f"{path} {error}.", "Save it without compression.") from None
    except (ValueError, KeyError, EOFError, BadZipFile):
        raise GalleryError(f"{path} lacks the arrays images and labels.", "Save them with numpy.savez.") from None
    spec = cell.spec("pixels")
    if images.dtype != np.uint8 or images.shape[1:] != (spec.height, spec.width) or len(images) != len(labels):
        raise GalleryError(
            f"{path} does not hold {cell.dataset} as 8-bit images of {spec.height}x{spec.width} with one label each.",
            "See docs/research/reproduce.md.",
        )
    return images, labels


class Data(NamedTuple):
    """A data set and its digest."""

    images: Array
    labels: Array
    digest: str


def load_data(folder: Path, cells: Iterable[Cell]) -> dict[str, Data]:
    """Read the data sets of these cells."""
    found = {}
    for cell in {cell.dataset: cell for cell in cells}.values():
        file = FILES.get(cell.dataset)
        images, labels = load_arrays(folder / file, cell) if file else load_own(folder / cell.dataset)
        shape = b"" if file else repr(images.shape).encode()  # of the others it is known
        digest = hashlib.sha256(shape + images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
        found[cell.dataset] = Data(images, labels, digest)
    return found


def random_split(labels: Array, per_class: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Take `per_class` random images of each person for training, the others for testing."""
    train, test = [], []
    for person in np.unique(labels):
        images = rng.permutation(np.flatnonzero(labels == person))
        if len(images) <= per_class:
            raise UsageError(
                f"A person has only {len(images)} images, not more than {per_class}.", "Lower --per-class, or N of FILE:N."
            )
        train.append(images[:per_class])
        test.append(images[per_class:])
    return np.concatenate(train), np.concatenate(test)


def ar_split(labels: Array, scenario: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Split AR as in section V.B of the paper.

    Training: the seven neutral images of session 1 and one random image of each occlusion. Test: the neutral images of
    session 2 and all other images of these occlusions. Each person has 26 images: 7 neutral, 3 sunglasses, 3 scarf, and the
    same again from session 2.
    """
    train, test = [], []
    for person in np.unique(labels):
        images = np.flatnonzero(labels == person)
        if len(images) != 26:
            raise GalleryError(f"A person of AR has {len(images)} images, not 26.", "See docs/research/reproduce.md.")
        chosen, rest = list(range(7)), list(range(13, 20))
        for first in SCENARIOS[scenario]:
            pick = first + int(rng.integers(3))
            chosen.append(pick)
            rest += [i for i in (*range(first, first + 3), *range(first + 13, first + 16)) if i != pick]
        train.append(images[chosen])
        test.append(images[rest])
    return np.concatenate(train), np.concatenate(test)


def tuned_parameters(
    cell: Cell, features: str, method: str = "lclrrdl", file: Path = TUNED, *, parts: bool = False
) -> Parameters:
    """Return the tuned parameters of a cell; the usual parameters of the method where there are none."""
    usual = method_of(method).usual
    if method == "lclrrdl" and features != "pixels":
        usual |= {"label_weight": 0.0, "code_lam": None, "eta": PRESETS["minimal"]["eta"]}
    found = usual | tuned_entry(read_tuned(file), cell, features, method)
    return found | {"eta": PRESETS["tiny"]["eta"]} if parts else found


def read_tuned(file: Path) -> dict[str, Any]:
    """Read tuned parameters by cell, method and features."""
    return read_toml(file, "trainer tables --tune")


def tuned_entry(known: dict[str, Any], cell: Cell, features: str, method: str) -> Parameters:
    """Return the parameters in a dictionary of `read_tuned`, or those with the paper's atoms; empty where there are none."""
    found: Any = known
    for name in (cell.name if cell.name in known else cell.standard.name, method, features):
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise UsageError(f"{name} is not a section of tuned parameters.", "Write them with `trainer tables --tune`.")
    unknown = sorted(found.keys() - signature(method_of(method).estimator).parameters.keys())
    if unknown:
        raise UsageError(f"{method} has no {', '.join(unknown)}, tuned for {cell.name}.", "Correct the --parameters file.")
    return found


def measure(
    images: Array, labels: Array, cell: Cell, split: int, *, method: str, parameters: Parameters, features: str, seed: int
) -> dict[str, Any]:
    """Train and test once. `parameters` are all parameters of the method."""
    train, test = cell.split(labels, np.random.default_rng([seed, split]))
    estimator = method_of(method).estimator(**parameters, features=cell.spec(features), random_state=seed + split)
    started = time.perf_counter()
    estimator.fit(images[train], labels[train])
    trained = time.perf_counter()
    accuracy = 100 * float(estimator.score(images[test], labels[test]))
    return {
        "accuracy": round(accuracy, 3),
        "train_seconds": round(trained - started, 3),
        "test_seconds": round(time.perf_counter() - trained, 3),
        "iterations": getattr(estimator, "n_iter_", None),
    }


def reproduce(
    images: Array,
    labels: Array,
    cell: Cell,
    *,
    method: str = "lclrrdl",
    features: str = "pixels",
    splits: int = 5,
    seed: int = 0,
    progress: Progress = silent,
    **given: Any,
) -> dict[str, Any]:
    """Train and test on `splits` random splits; return mean and deviation of the accuracy, and the training time.

    `given` are parameters that are not tuned: coding, schedule and parts of LCLRRDL.
    """
    settings = method_of(method).settings(cell.atoms, given)
    tuned = tuned_parameters(cell, features, method, parts=settings.get("parts") is not None)
    how: dict[str, Any] = {"method": method, "parameters": settings | tuned, "features": features, "seed": seed}
    runs = []
    for k in range(splits):
        progress(k, splits)
        runs.append(measure(images, labels, cell, k, **how))
    accuracies = [run["accuracy"] for run in runs]
    atoms = {name: settings.pop(name) for name in ("atoms_per_class",) if name in settings}
    return {
        "cell": cell.name,
        "method": method,
        "features": features,
        **settings,
        "parameters": atoms | tuned,
        "seed": seed,
        "accuracy_mean": round(float(np.mean(accuracies)), 2),
        "accuracy_std": round(float(np.std(accuracies, ddof=1)) if splits > 1 else 0.0, 2),
        "train_seconds_mean": round(float(np.mean([run["train_seconds"] for run in runs])), 2),
        "splits": runs,
    }
