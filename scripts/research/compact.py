"""When is it worth learning D? Accuracy and misses against the number of atoms, and against corrupted training images.

Methods: LCLRRDL, and four others. LRR and K-SVD atoms have the same kind of coder and another dictionary: random samples, and
K-SVD of each person. Sets: the nine cells of the paper's tables, and SFace vectors of LFW, and of COMASK20:
bare faces train, masked ones test.

- A fifth of the people, drawn with each split, are strangers. The others are enrolled with the training images of the cell.
  People of LFW and COMASK20 with too few photos are strangers, too.
- accuracy: percent of the test images of enrolled people that get the right name.
- FNIR: percent of them with a wrong name, or with a confidence that 1 % of the strangers' images exceed.
- corrupted: a share of the training images gets a block, painted sunglasses, a painted mask, or a wrong name. AR: the seven
  images of session 1 without sunglasses and scarves train, those of session 2 test.

Parameters: `trainer tables --tune` with the same number of atoms (trainer/paper/reproduce.toml), or else with the usual one.
For vectors, the eta of W is chosen on another split. FOLDER/runs.jsonl keeps each result, so an interrupted run continues.
"""

from __future__ import annotations

import hashlib
import inspect
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import typer

from edge.cli import common as console
from edge.errors import EdgeError, UsageError
from edge.text import plural
from edge.vision.confidence import score_confidence
from edge.vision.preprocess import unit_rows
from scripts.research.accuracy import AR_POINTS
from scripts.research.options import DATA, Data, Seed, Splits
from scripts.research.spoiled import blocks, sunglasses
from trainer.baselines.registry import Parameters, method_of
from trainer.data.augment import covered
from trainer.data.gallery import load_like
from trainer.features.spec import parse_network
from trainer.method.classifier import one_hot, ridge
from trainer.paper.experiments import CELLS, Cell, load_data
from trainer.paper.experiments import Data as DataSet
from trainer.paper.tables import Job, Runs, plan, select_cells, select_methods
from trainer.paper.typeset import paired
from trainer.parallel import each
from trainer.presets import NETWORK_ETAS
from trainer.types import Array

METHODS = ("lclrrdl", "lrr", "ksvd", "slrr", "lrrs")
TITLES = {"lclrrdl": "LCLRRDL", "lrr": "random atoms (LRR)", "ksvd": "K-SVD atoms", "slrr": "SLRR", "lrrs": "LRSR"}
STYLES: dict[str, dict[str, Any]] = {
    "lclrrdl": {"color": "tab:red", "marker": "o", "linewidth": 2},
    "lrr": {"color": "tab:blue", "marker": "s"},
    "ksvd": {"color": "tab:green", "marker": "^"},
    "slrr": {"color": "tab:orange", "marker": "D"},
    "lrrs": {"color": "tab:purple", "marker": "v"},
}
FIGURES = {"accuracy": "recognised, %", "fnir": "FNIR at FPIR 1 %, %"}
ATOMS = (1, 2, 3, 5, 8)
FPIR = 0.01
STRANGERS = 5  # one in so many people is a stranger
NONE, KINDS = "none", ("blocks", "sunglasses", "masks", "wrong names")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
CORRUPTED_ATOMS = (2, None)  # None: the 5 of the paper
PEOPLE = 100  # about, with so many photos in a set of vectors
DEVELOPMENT = 777  # seed of the split on which eta is chosen for vectors
PHOTOS = {"lfw": 8, "comask20": 3}
"""Training photos of each person, by set of vectors."""
ARCHIVES = {"lfw": "lfw_dev.zip", "comask20": "comask_dev.zip"}
VECTORS: dict[str, Parameters] = {
    "lclrrdl": {"coding": "l21", "code_lam": None},
    "lrr": {"error": "l21", "lam": 5.0},
    "ksvd": {"error": "l21", "lam": 5.0},
}
"""Parameters for vectors of a network, which are not partly covered as pixels are."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Output = Annotated[Path, typer.Option("-o", "--output", help="Folder of the results and pictures.")]


@dataclass(frozen=True, kw_only=True)
class VectorCell(Cell):
    """People of a set of vectors with enough bare photos for training and others for the test; the others are strangers."""

    masked: frozenset[int] = frozenset()
    """Indices of the vectors of masked faces. If there are any, they are the test."""

    @property
    def name(self) -> str:
        return self.dataset + self._atoms_suffix

    @property
    def size(self) -> tuple[int, int]:
        return PEOPLE, self.per_class

    def spec(self, kind: str) -> Any:
        return None  # the images are vectors

    def split(self, labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return indices of training and test vectors."""
        masked = np.isin(np.arange(len(labels)), list(self.masked))
        train, test = [], []
        for person in np.unique(labels):
            own = labels == person
            bare = rng.permutation(np.flatnonzero(own & ~masked))
            tested = np.flatnonzero(own & masked) if self.masked else bare[self.per_class :]
            if len(bare) >= self.per_class and len(tested):
                train.append(bare[: self.per_class])
                test.append(tested)
        return np.concatenate(train), np.concatenate(test)


@dataclass(frozen=True, kw_only=True)
class CorruptedCell(Cell):
    """AR without covered faces; a share of the training images is corrupted."""

    kind: str
    share: float

    @property
    def name(self) -> str:
        return f"ar-{self.kind}-{self.share:g}{self._atoms_suffix}"

    @property
    def standard(self) -> Cell:
        """The cell whose parameters serve here."""
        return Cell(dataset="ar", atoms_per_class=self.atoms_per_class)

    def split(self, labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        place = np.arange(len(labels)) % 26
        return np.flatnonzero(place < 7), np.flatnonzero((place >= 13) & (place < 20))

    def corrupt(self, images: Array, labels: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the training images and labels with a share of them corrupted."""
        images, labels, people = images.copy(), labels.copy(), np.unique(labels)
        bad = rng.permutation(len(images))[: round(self.share * len(images))]
        if self.kind == "blocks":
            images[bad] = blocks(images[bad], rng)
        elif self.kind == "sunglasses":
            images[bad] = sunglasses(images[bad], rng)
        elif self.kind == "masks":
            height, width = images.shape[1:]
            landmarks = (AR_POINTS + 0.5 - (width / 2, 0)) / height
            images[bad] = covered(images[bad], landmarks)[: len(bad)]
        else:
            others = (np.searchsorted(people, labels[bad]) + rng.integers(1, len(people), len(bad))) % len(people)
            labels[bad] = people[others]
        return images, labels


def vectors(folder: Path, name: str, cache: Path) -> tuple[DataSet, frozenset[int]]:
    """Return SFace vectors of the usable photos in a zip (a folder per person), and `VectorCell.masked`; kept in `cache`."""
    file = cache / f"{name}.npz"
    if not file.exists():
        network = parse_network("sface", console.say)
        assert network is not None
        with TemporaryDirectory() as place, zipfile.ZipFile(folder / ARCHIVES[name]) as archive:
            archive.extractall(place)
            with console.progress(f"Reading {name}") as line:
                photos = next(Path(place).iterdir())
                gallery = load_like(photos, network.crop_shape, network.alignment, progress=line.count)
        console.say(f"Computing {len(gallery.images)} vectors of {name} ...")
        labels = np.unique(gallery.labels, return_inverse=True)[1]
        masked = [row for row, source in enumerate(gallery.sources) if Path(source).name.startswith("mask_")]
        np.savez(file, vectors=network.vectors(gallery.images), labels=labels, masked=masked)
    with np.load(file) as stored:
        data = DataSet(stored["vectors"], stored["labels"], hashlib.sha256(stored["vectors"].tobytes()).hexdigest())
        return data, frozenset(stored["masked"].tolist())


def work(job: Job) -> float:
    """Return the relative work of a job."""
    people, images = job.cell.size
    length = 1 if isinstance(job.cell, VectorCell) else job.cell.spec("pixels").length / 1000
    return people**2 * images * job.cell.atoms * length


def measure(job: Job, eta: float | None, images: Array, labels: Array) -> dict[str, Any]:
    """Train and test once. Return accuracy and FNIR in percent, or the error."""
    cell, parameters = job.cell, job.parameters | ({} if eta is None else {"eta": eta})
    record = {"key": job.key, "row": job.row, "cell": cell.name, "split": job.split, "parameters": parameters}
    train, test = cell.split(labels, np.random.default_rng([job.seed, job.split]))
    rng = np.random.default_rng([job.seed, job.split, 1])
    people = np.unique(labels[train])
    enrolled = rng.permutation(people)[len(people) // STRANGERS :]
    train, test = (rows[np.isin(labels[rows], enrolled)] for rows in (train, test))
    given, names = images[train], labels[train]
    if isinstance(cell, CorruptedCell):
        given, names = cell.corrupt(given, names, rng)
    try:
        model = _estimator(job.method, cell, parameters, job.seed + job.split).fit(given, names)
    except (EdgeError, FloatingPointError, np.linalg.LinAlgError) as error:
        return record | {"error": str(error)}
    strangers = np.flatnonzero(~np.isin(labels, enrolled))
    scores, of_strangers = (model.decision_function(images[rows]) for rows in (test, strangers))
    right = model.classes_[scores.argmax(axis=1)] == labels[test]
    accepted = score_confidence(scores) > np.quantile(score_confidence(of_strangers), 1 - FPIR)
    shares = {"accuracy": right.mean(), "fnir": 1 - (right & accepted).mean()}
    return record | {name: round(100 * float(share), 3) for name, share in shares.items()}


def _estimator(method: str, cell: Cell, parameters: dict[str, Any], seed: int) -> Any:
    return method_of(method).estimator(**parameters, features=cell.spec("pixels"), random_state=seed)


def eta_for_vectors(cell: Cell, job: Job, images: Array, labels: Array) -> float:
    """Return the eta with which most test vectors of the development split are recognised."""
    train, test = cell.split(labels, np.random.default_rng([DEVELOPMENT, 0]))
    model = _estimator(job.method, cell, job.parameters, DEVELOPMENT).fit(images[train], labels[train])
    H = one_hot(np.searchsorted(model.classes_, labels[train]), len(model.classes_))
    Z = model.code(unit_rows(images[test]).T)

    def accuracy(eta: float) -> float:
        return float((model.classes_[(ridge(model.codes_, H, eta) @ Z).argmax(axis=0)] == labels[test]).mean())

    return max((0.01, *NETWORK_ETAS), key=accuracy)


# --- The questions ---


def atoms_cells(only: str | None) -> list[Cell]:
    """Return the cells and sets of vectors whose names begin so, with each number of atoms up to all training images."""
    names = (*(cell.name for cell in CELLS), *PHOTOS) if only is None else only.split(",")
    found: list[Cell] = []
    for name in names:
        found += [VectorCell(dataset=name, per_class=PHOTOS[name])] if name in PHOTOS else select_cells(name)
    return [
        replace(cell, atoms_per_class=None if number == cell.atoms else number)
        for cell in dict.fromkeys(found)
        for number in sorted({*(a for a in ATOMS if a < cell.size[1]), cell.size[1]})
    ]


def corrupted_cells(only: str | None) -> list[Cell]:
    """Return AR without corrupted images, and with each share of each kind whose name begins so."""
    kinds = KINDS if only is None else [kind for kind in KINDS if kind.startswith(tuple(only.split(",")))]
    if not kinds:
        raise UsageError(f"There is no kind {only!r}.", f"Choose from {', '.join(KINDS)}.")
    shares = [(kind, share) for kind in kinds for share in SHARES if share > 0]
    return [
        CorruptedCell(dataset="ar", kind=kind, share=share, atoms_per_class=atoms)
        for atoms in CORRUPTED_ATOMS
        for kind, share in [(NONE, 0.0), *shares]
    ]


def plan_of(sets: dict[str, DataSet], cells: Sequence[Cell], methods: Sequence[str], splits: int, seed: int) -> list[Job]:
    """Return the jobs. Their keys depend on what this script does too."""
    code = "".join(inspect.getsource(part) for part in (VectorCell, CorruptedCell, measure, eta_for_vectors))
    jobs = []
    for job in plan(sets, methods=methods, cells=cells, splits=splits, seed=seed):
        own = VECTORS.get(job.method, {}) if isinstance(job.cell, VectorCell) else {}
        key = hashlib.sha256(f"{code} {job.key} {own}".encode()).hexdigest()[:24]
        jobs += [] if job.timed else [replace(job, parameters=job.parameters | own, key=key)]
    return jobs


def run(
    cells: Sequence[Cell], data: Path, output: Path, methods: Sequence[str], splits: int, seed: int, jobs: int
) -> list[Point]:
    """Measure what the folder does not have, the smallest first. Return the results."""
    output.mkdir(parents=True, exist_ok=True)
    sets = load_data(data, [cell for cell in cells if not isinstance(cell, VectorCell)])
    masked = {}
    for name in {cell.dataset: None for cell in cells if isinstance(cell, VectorCell)}:
        sets[name], masked[name] = vectors(data, name, output)
    cells = [replace(cell, masked=masked[cell.dataset]) if isinstance(cell, VectorCell) else cell for cell in cells]
    planned = plan_of(sets, cells, methods, splits, seed)
    etas: dict[tuple[str, str], float] = {}
    failures: dict[str, None] = {}

    def call(job: Job) -> tuple[Any, ...]:
        images, labels, _ = sets[job.cell.dataset]
        which = job.row, job.cell.name
        if isinstance(job.cell, VectorCell) and which not in etas:
            etas[which] = eta_for_vectors(job.cell, job, images, labels)
        return job, etas.get(which), images, labels

    with Runs(output) as runs, console.progress("Measuring") as line:
        missing = sorted((job for job in planned if job.key not in runs.done), key=work)
        for number, record in enumerate(each(measure, map(call, missing), ordered=False, jobs=jobs), 1):
            line(f"{number} of {len(missing)} (last {record['row']}, {record['cell']})")
            if "error" in record:
                failures[f"{record['row']}, {record['cell']}: {record['error']}"] = None
            else:
                runs.add(record)
        points = collect(planned, runs.done)
    for failure in failures:
        console.say(failure)
    return points


# --- The results ---


@dataclass(frozen=True, kw_only=True)
class Point:
    """The results of a method in a cell, of the splits that were measured."""

    method: str
    cell: Cell
    accuracy: Array
    fnir: Array


def collect(planned: Sequence[Job], done: dict[str, dict[str, Any]]) -> list[Point]:
    """Return the points of which every split was measured."""
    jobs: dict[tuple[str, Cell], list[Job]] = defaultdict(list)
    for job in planned:
        jobs[job.method, job.cell].append(job)
    return [
        Point(
            method=method, cell=cell, **{name: np.array([done[job.key][name] for job in own]) for name in ("accuracy", "fnir")}
        )
        for (method, cell), own in jobs.items()
        if all(job.key in done for job in own)
    ]


def table(points: Sequence[Point], figure: str) -> str:
    """Return a table in Markdown: mean and deviation of each method, and LCLRRDL against LRR (Wilcoxon's signed-rank test)."""
    methods = list(dict.fromkeys(point.method for point in points))
    titles = [method_of(method).title for method in methods]
    lines = [f"| {figure}, % | {' | '.join(titles)} | LCLRRDL against LRR |", "|---" * (len(titles) + 2) + "|"]
    for cell in dict.fromkeys(point.cell for point in points):
        own = {point.method: getattr(point, figure) for point in points if point.cell == cell}
        entries = [f"{own[name].mean():.1f} ± {deviation(own[name]):.1f}" if name in own else "" for name in methods]
        gain = paired(own["lclrrdl"], own["lrr"]) if {"lclrrdl", "lrr"} <= own.keys() else ""
        lines.append(f"| {label_of(cell)} | {' | '.join(entries)} | {gain} |")
    return "\n".join(lines)


def deviation(values: Array) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def label_of(cell: Cell) -> str:
    if isinstance(cell, CorruptedCell):
        return f"{cell.kind} {cell.share:.0%}, {plural(cell.atoms, 'atom')}"
    return f"{cell.standard.name}, {plural(cell.atoms, 'atom')}"


def draw(points: Sequence[Point], figure: str, file: Path) -> None:
    """Draw a panel for each cell (or kind and number of atoms), with a line for each method."""
    import matplotlib.pyplot as plt

    panels: dict[str, list[tuple[Point, float]]] = defaultdict(list)
    for point in points:
        if not isinstance(point.cell, CorruptedCell):
            panels[point.cell.standard.name].append((point, point.cell.atoms))
        else:
            kinds = KINDS if point.cell.kind == NONE else (point.cell.kind,)
            for kind in kinds:
                panels[f"{kind}, {point.cell.atoms} atoms"].append((point, 100 * point.cell.share))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (4 * columns, 3 * rows + 1.8 / columns)
    drawing, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, own) in zip(axes.flat, panels.items(), strict=False):
        for method in dict.fromkeys(point.method for point, _ in own):
            line = sorted(((x, getattr(point, figure)) for point, x in own if point.method == method), key=lambda one: one[0])
            means, deviations = [one[1].mean() for one in line], [deviation(one[1]) for one in line]
            axis.errorbar([one[0] for one in line], means, deviations, label=TITLES[method], capsize=2, **STYLES[method])
        axis.set_title(name, fontsize=10)
        if all(isinstance(point.cell, CorruptedCell) for point, _ in own):
            axis.set_xlabel("corrupted training images, %")
        else:
            numbers = sorted({x for _, x in own})
            axis.set(xscale="log", xlabel="atoms per person")
            axis.set_xticks(numbers, [f"{x:g}" for x in numbers])
            axis.minorticks_off()
        axis.set_ylim(top=min(axis.get_ylim()[1], 100.5))
        axis.grid(alpha=0.3)
    for row in axes:
        row[0].set_ylabel(FIGURES[figure])
    drawing.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2 * columns - 1, fontsize=9)
    drawing.savefig(file, dpi=110)
    plt.close(drawing)


@app.command()
def main(
    question: Annotated[Literal["atoms", "corrupted"], typer.Argument(help="Atoms per person, or corrupted images.")],
    output: Output,
    data: Data = DATA,
    only: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only cells (or kinds) that begin so.")] = None,
    methods: Annotated[str, typer.Option(metavar="NAME,...", help="Only these methods.")] = ",".join(METHODS),
    splits: Splits = 10,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
) -> None:
    """Measure, print a table, and draw accuracy and FNIR."""
    cells = atoms_cells(only) if question == "atoms" else corrupted_cells(only)
    points = run(cells, data, output, select_methods(methods), splits=splits, seed=seed, jobs=jobs)
    if not points:
        raise UsageError("Nothing could be measured.", "See the messages above.")
    for figure in FIGURES:
        typer.echo(table(points, figure) + "\n")
        draw(points, figure, output / f"{question}-{figure}.png")
    console.say(f"Saved {question}-accuracy.png and {question}-fnir.png in {output}.")


if __name__ == "__main__":
    console.run(app)
