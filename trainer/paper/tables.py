"""The paper's tables: what is to be measured, measuring it, and the figures that come of it.

The unit of work is one split of one cell by one method. Each is appended to `runs.jsonl` as soon as it is measured, under a
key made of what it depends on (parameters, seed, data, code of the method): a killed run goes on where it was, and what was
measured with something else is not taken for it.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from threadpoolctl import threadpool_limits

from edge.errors import EdgeError, TrainingError, UsageError
from edge.files import write_atomically
from trainer.baselines.registry import METHODS, Parameters, method_of
from trainer.paper.experiments import (
    CELLS,
    TUNED,
    Cell,
    choose_for_cell,
    entry,
    load_arrays,
    measure,
    read_tuned,
    tune_cell,
    tuned_entry,
)
from trainer.parallel import each
from trainer.types import Array

FILES = {"yaleb": "yaleb_96x84.npz", "ar": "ar_42x30.npz"}
TIMED_CELL, TIMED_SPLITS = "ar-sunglasses", 3
QUICK_CELL = "yaleb-8-8"
SCHEMA = 2  # to be raised where splits or what is kept of a run change: `code_digest` does not see that


class Data(NamedTuple):
    """A data set, and what tells it from any other."""

    images: Array
    labels: Array
    digest: str


def load(folder: Path, cells: Iterable[Cell]) -> dict[str, Data]:
    """The data sets of these cells, from the files of their usual names."""
    found = {}
    for cell in {cell.dataset: cell for cell in cells}.values():
        images, labels = load_arrays(folder / FILES[cell.dataset], cell)
        digest = hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest()
        found[cell.dataset] = Data(images, labels, digest)
    return found


def chosen_methods(text: str | None) -> tuple[str, ...]:
    """Of comma-separated names; all where there are none."""
    names = METHODS if text is None else dict.fromkeys(text.split(","))
    for name in names:
        method_of(name)
    return tuple(names)


def chosen_cells(text: str | None) -> tuple[Cell, ...]:
    """Of comma-separated beginnings of names, as yaleb-8 or ar; all where there are none."""
    if text is None:
        return CELLS
    beginnings = tuple(text.split(","))
    for beginning in beginnings:
        if not beginning or not any(cell.name.startswith(beginning) for cell in CELLS):
            raise UsageError(f"There is no cell {beginning!r}.", f"Choose of {', '.join(cell.name for cell in CELLS)}.")
    return tuple(cell for cell in CELLS if cell.name.startswith(beginnings))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One split of one cell by one method."""

    method: str
    """Its name in METHODS."""
    cell: Cell
    """The column."""
    split: int
    """From 0."""
    seed: int
    """Of all splits."""
    parameters: Parameters
    """All of them."""
    tuned: bool
    """Whether these come of tuning; else they are the method's usual ones."""
    alone: bool = False
    """Measured with nothing beside it, for Table 3."""
    variant: str = ""
    """What the row says beside the method's name."""
    key: str
    """Made of everything that the result depends on."""

    @property
    def row(self) -> str:
        """Of the table."""
        return f"{self.method}/{self.variant}" if self.variant else self.method


def plan(
    data: dict[str, Data],
    *,
    methods: Sequence[str],
    cells: Sequence[Cell],
    splits: int,
    seed: int = 0,
    file: Path = TUNED,
) -> list[Job]:
    """Every split of every cell for Tables 1 and 2, and the few of one cell that Table 3 times."""
    known = read_tuned(file)

    def jobs(name: str, cell: Cell, splits: int, *, alone: bool = False, variant: str = "") -> list[Job]:
        given = method_of(name).timed[variant] if variant else {}
        tuned = tuned_entry(known, cell, "pixels", name)
        parameters = method_of(name).settings(cell.atoms, given) | method_of(name).usual | tuned
        depends = [SCHEMA, name, cell.name, seed, parameters, alone, data[cell.dataset].digest, code_digest(name)]
        return [
            Job(
                method=name,
                cell=cell,
                split=split,
                seed=seed,
                parameters=parameters,
                tuned=bool(tuned),
                alone=alone,
                variant=variant,
                key=hashlib.sha256(json.dumps([*depends, split], sort_keys=True, default=str).encode()).hexdigest()[:24],
            )
            for split in range(splits)
        ]

    found = [job for name in methods for cell in cells for job in jobs(name, cell, splits)]
    for cell in (cell for cell in cells if cell.name == TIMED_CELL):
        for name in methods:
            for variant in method_of(name).timed:
                found += jobs(name, cell, min(splits, TIMED_SPLITS), alone=True, variant=variant)
    return found


@cache
def code_digest(method: str) -> str:
    """Of the method's module, all of the trainer that it rests on, and the features; comments and docstrings do not count."""
    names, code = [METHODS[method].estimator.__module__], {}
    for name in names:  # grows on the way
        if name in code or name not in sys.modules or not name.startswith(("trainer.", "edge.vision.preprocess")):
            continue
        tree = ast.parse(Path(str(sys.modules[name].__file__)).read_text())
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        names += [f"{node.module}{end}" for node in imports for end in ("", *(f".{one.name}" for one in node.names))]
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                body[:] = [line for line in body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
        code[name] = ast.dump(tree)
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """What cannot be written is one sentence."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{place} cannot be written ({error.strerror}).",
            "Make room, or choose another place with -o; what stands there stays.",
        ) from None


class Runs:
    """`runs.jsonl` in a folder: a line for each job that is done. A kill loses at most the line that was being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "runs.jsonl").open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"Another run writes to {folder}.", "Let it end, or choose another folder with -o.") from None
        self._file.seek(0)
        text = self._file.read()
        if text and not text.endswith(b"\n"):
            self._write(b"\n")  # what was being written when it was killed stays a line of its own
        self.done: dict[str, dict[str, Any]] = {}
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self.done[record["key"]] = record
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, record: dict[str, Any]) -> None:
        self._write(json.dumps(record).encode() + b"\n")
        self.done[record["key"]] = record

    def _write(self, data: bytes) -> None:
        with writing(self._folder):
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # of a line that could not be written, which was said
            self._file.close()


class Pace:
    """How long jobs take, from those that are done: the like ones, else the row's others by their size, else all by size."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, ...], list[float]] = defaultdict(list)

    def add(self, job: Job, seconds: float) -> None:
        for like in self._likes(job):
            self._rates[like].append(seconds / size(job.cell))

    def expect(self, job: Job) -> float:
        rates = next((self._rates[like] for like in self._likes(job) if like in self._rates), [1e-9])
        return size(job.cell) * float(np.mean(rates))

    def _likes(self, job: Job) -> tuple[tuple[str, ...], ...]:
        return (job.row, job.cell.name), (job.row,), ()


def size(cell: Cell) -> float:
    """Proportional to the work of an iteration: n m (d + n) for n images, m atoms, d values."""
    people, images = (100, 9 if cell.scenario == "mixed" else 8) if cell.dataset == "ar" else (38, cell.per_class)
    return float(people**2) * images * cell.atoms * (cell.spec("pixels").length + people * images)


class Status(NamedTuple):
    """How far a run is."""

    done: int
    total: int
    seconds_left: float | None
    """Nothing has been measured yet where None."""
    job: Job
    """Done last."""


def run(
    jobs: Sequence[Job],
    data: dict[str, Data],
    runs: Runs,
    *,
    workers: int = -1,
    scheduler: str | None = None,
    progress: Callable[[Status], None] | None = None,
) -> list[str]:
    """Measure what is missing, the longest first, and after that one at a time what is to be timed.

    Returns a sentence for each job that failed.
    """
    by_key, pace = {job.key: job for job in jobs}, Pace()
    for key in by_key.keys() & runs.done.keys():
        pace.add(by_key[key], _seconds(runs.done[key]))
    missing = {key: job for key, job in by_key.items() if key not in runs.done}
    total, failures, measured, started = len(missing), [], 0.0, time.monotonic()

    def call(job: Job) -> tuple[Job, Array, Array]:
        return job, *data[job.cell.dataset][:2]

    def take(record: dict[str, Any]) -> None:
        nonlocal measured
        job = missing.pop(record["key"])
        if "error" in record:
            failures.append(f"{job.row}, {job.cell.name}, split {job.split}: {record['error']}")
        else:
            runs.add(record)
            pace.add(job, _seconds(record))
            measured += _seconds(record)
        if progress is not None:
            progress(Status(total - len(missing), total, left(), job))

    def left() -> float | None:
        """As fast as the workers were together until now, and after that one at a time."""
        timed = sum((pace.expect(job) for job in missing.values() if job.alone), 0.0)
        others = sum(pace.expect(job) for job in missing.values() if not job.alone)
        if not others:
            return timed
        return timed + others * (time.monotonic() - started) / measured if measured else None

    together = sorted((job for job in missing.values() if not job.alone), key=pace.expect, reverse=True)
    if together:
        for record in each(_measured, map(call, together), jobs=workers, scheduler=scheduler, ordered=False):
            take(record)
    with threadpool_limits(1):
        for job in list(missing.values()):
            take(_measured(*call(job)))
    return failures


def _measured(job: Job, images: Array, labels: Array) -> dict[str, Any]:
    about = {"key": job.key, "row": job.row, "cell": job.cell.name, "split": job.split, "seed": job.seed, "alone": job.alone}
    try:
        how: dict[str, Any] = {"method": job.method, "parameters": job.parameters, "seed": job.seed}
        return about | {"parameters": job.parameters} | measure(images, labels, job.cell, job.split, **how)
    except (EdgeError, FloatingPointError, np.linalg.LinAlgError) as error:
        return about | {"error": str(error)}


def _seconds(record: dict[str, Any]) -> float:
    return float(record["train_seconds"] + record["test_seconds"])


@dataclass(frozen=True)
class Figure:
    """What was measured in one place of a table."""

    mean: float
    deviation: float | None
    """Standard deviation over the splits; one split has none."""
    splits: int


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All that was measured, by row and cell."""

    rows: tuple[str, ...]
    """Of Tables 1 and 2: names of methods."""
    cells: tuple[Cell, ...]
    """Their columns."""
    accuracy: dict[tuple[str, str], Figure]
    """Percent, by row and name of the cell."""
    seconds: dict[str, Figure]
    """Training seconds for Table 3, by row."""
    untuned: tuple[str, ...] = ()
    """Rows of which some cell was measured with the method's usual parameters."""


def collect(jobs: Sequence[Job], done: dict[str, dict[str, Any]]) -> Tables:
    """Means and deviations of what is there; a place with a split missing stays empty."""
    places: dict[tuple[str, str, bool], list[float | None]] = defaultdict(list)
    for job in jobs:
        value = done.get(job.key, {}).get("train_seconds" if job.alone else "accuracy")
        places[job.row, job.cell.name, job.alone].append(value)
    figures = {}
    for place, values in places.items():
        known = np.array([value for value in values if value is not None])
        if len(known) == len(values):
            figures[place] = Figure(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None, len(known))
    return Tables(
        rows=tuple(dict.fromkeys(job.row for job in jobs if not job.alone)),
        cells=tuple(dict.fromkeys(job.cell for job in jobs if not job.alone)),
        accuracy={(row, cell): figure for (row, cell, alone), figure in figures.items() if not alone},
        seconds={row: figure for (row, _, alone), figure in figures.items() if alone},
        untuned=tuple(dict.fromkeys(job.row for job in jobs if not job.tuned)),
    )


def lender(cell: Cell) -> Cell:
    """Whose parameters serve this cell too: a search in each would take hours, and weights are scaled to the dimension."""
    return replace(cell, rate=8) if cell.dataset == "yaleb" else replace(cell, scenario="sunglasses")


def tune_all(
    data: dict[str, Data],
    file: Path,
    *,
    methods: Sequence[str],
    cells: Sequence[Cell],
    lend: bool = True,
    folds: int = 3,
    seed: int = 0,
    workers: int = -1,
    scheduler: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[str]:
    """Parameters of every method for every cell, appended to a TOML file as they are found; what stands there is kept.

    Returns a sentence for each method and cell for which none were found.
    """
    failures = []
    for method in methods:
        lenders = {cell: lender(cell) if lend else cell for cell in cells}
        for tuned in dict.fromkeys(lenders.values()):
            known = read_tuned(file) if file.exists() else {}
            wanted = [cell for cell in cells if lenders[cell] == tuned and method not in known.get(cell.name, {})]
            if not wanted:
                continue

            def count(done: int, total: int, task: str = f"{method}, {tuned.name}") -> None:
                if progress is not None:
                    progress(task, done, total)

            images, labels, _ = data[tuned.dataset]
            how: dict[str, Any] = {"method": method, "features": "pixels", "folds": folds, "seed": seed}
            try:
                trials = tune_cell(images, labels, tuned, **how, jobs=workers, scheduler=scheduler, progress=count)
            except TrainingError as error:
                failures.append(f"{method}, {tuned.name}: {error}")
                continue
            best = choose_for_cell(trials, labels, tuned, method)
            entries = [entry(cell, best, lender=tuned, **how) for cell in wanted]
            with writing(file):
                text = [file.read_text()] if file.exists() else []
                write_atomically(file, "\n".join([*text, *entries]).encode(), mode=0o644)
    return failures
