"""`trainer tables`: plan the measurements of the paper's tables, run them and collect the results.

Each result is appended to `runs.jsonl` at once, under a key of everything that it depends on (parameters, seed, data, code of
the method). A run that was killed continues there, and results of other parameters, data or code are not used.
"""

import ast
import fcntl
import hashlib
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from edge.errors import EdgeError, UsageError
from trainer.baselines.registry import METHODS, Parameters, method_of, with_printed
from trainer.paper.experiments import CELLS, TUNED, Cell, Data, OwnCell, measure, read_tuned, tuned_entry
from trainer.paper.tuned import TaskProgress
from trainer.paper.typeset import ALSO_PRINTED, Mean, Results
from trainer.parallel import each
from trainer.types import Array, silent

RUNS_SCHEMA = 2  # raise it when splits or the contents of a run change: `code_digest` does not cover them
QUICK_CELL = "yaleb-8-8"
TIMED_CELL, TIMED_SPLITS = "ar-sunglasses", 3
TIMED_VARIANTS: dict[str, dict[str, Parameters]] = {
    "lclrrdl": {"schedule paper": {"schedule": "paper"}},
    # By default W is learned on codes of single images, and the low-rank problem of all images is not solved.
    "lrrs": {"all training images together": {"classifier_codes": "training"}},
}
"""Further rows of Table 3: parameters beside the tuned ones, by method and title."""


def select_methods(text: str | None) -> tuple[str, ...]:
    """Return the methods in a comma-separated list; all methods for None."""
    names = METHODS if text is None else dict.fromkeys(text.split(","))
    for name in names:
        method_of(name)
    return tuple(names)


def select_cells(text: str | None, folder: Path = Path()) -> tuple[Cell, ...]:
    """Return the cells whose names start with an entry of a comma-separated list, as yaleb-8 or ar; all cells for None.

    An entry FILE:N is a cell of one's own data set in the folder (OwnCell). @A after an entry sets the atoms per person.
    """
    if text is None:
        return CELLS
    found: dict[Cell, None] = {}
    for entry in text.split(","):
        name, has_atoms, atoms = entry.partition("@")
        own = [OwnCell.read(folder, name)] if ":" in name else [cell for cell in CELLS if name and cell.name.startswith(name)]
        if not own or (has_atoms and not re.fullmatch(r"[1-9]\d{0,3}", atoms)):
            names = ", ".join(cell.name for cell in CELLS)
            raise UsageError(f"There is no cell {entry!r}.", f"Choose from {names}, or name one of your own as FILE:N.")
        found |= dict.fromkeys(replace(cell, atoms_per_class=int(atoms)) if has_atoms else cell for cell in own)
    return tuple(sorted(found, key=lambda cell: CELLS.index(cell.standard) if cell.standard in CELLS else len(CELLS)))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One split of one cell by one method."""

    row: str  # its row in the tables: the method, or method/title of TIMED_VARIANTS
    method: str
    cell: Cell
    split: int
    seed: int
    parameters: Parameters  # all parameters of the method
    tuned: bool  # whether some come from tuning
    timed: bool  # measured for Table 3, with no other job at the same time
    key: str  # a digest of everything that the result depends on


def plan(
    data: dict[str, Data],
    *,
    methods: Sequence[str],
    cells: Sequence[Cell],
    splits: int,
    seed: int = 0,
    parameters: Path = TUNED,
    as_printed: bool = False,
) -> list[Job]:
    """Return every split of every cell for Tables 1 and 2, and a few splits of one cell that Table 3 times.

    With `as_printed`, a method that its authors print in another form has a second row.
    """
    known = read_tuned(parameters)
    methods = with_printed(methods) if as_printed else methods

    def jobs(name: str, cell: Cell, splits: int, *, timed: bool = False, variant: str = "") -> list[Job]:
        method, given = method_of(name), TIMED_VARIANTS[name][variant] if variant else {}
        also = ALSO_PRINTED if as_printed and method.printed == {} else ""
        tuned = tuned_entry(known, cell, "pixels", name)
        used = method.settings(cell.atoms, given) | method.usual | tuned
        depends = [RUNS_SCHEMA, name, cell.name, seed, used, timed, data[cell.dataset].digest, code_digest(name)]
        return [
            Job(
                row=f"{name}/{variant}" if variant else name + also,
                method=name,
                cell=cell,
                split=split,
                seed=seed,
                parameters=used,
                tuned=bool(tuned) or not method.grid,
                timed=timed,
                key=hashlib.sha256(json.dumps([*depends, split], sort_keys=True, default=str).encode()).hexdigest()[:24],
            )
            for split in range(splits)
        ]

    found = [job for name in methods for cell in cells for job in jobs(name, cell, splits)]
    for cell in (cell for cell in cells if cell.name == TIMED_CELL):
        for name in methods:
            for variant in ("", *TIMED_VARIANTS.get(name, ())):
                found += jobs(name, cell, min(splits, TIMED_SPLITS), timed=True, variant=variant)
    return found


@cache
def code_digest(method: str) -> str:
    """Return a digest of the method's module, the trainer modules that it imports, and the features; comments do not count.

    Of a method of one's own, it covers all modules of its package or folder that the method imports.
    """
    home = method_of(method).estimator.__module__
    names, code, folder = [home], {}, Path(str(sys.modules[home].__file__)).parent
    for name in names:  # grows in the loop
        file = Path(str(getattr(sys.modules.get(name), "__file__", None)))
        is_ours = name == "trainer" or name.startswith(("trainer.", "edge.vision.preprocess"))
        is_own = ":" in method and (file.parent == folder or name.partition(".")[0] == home.partition(".")[0])
        if name in code or file.suffix != ".py" or not (is_ours or is_own):
            continue
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            names += _imported_modules(node, sys.modules[name].__package__)
            if isinstance(body := getattr(node, "body", None), list):
                body[:] = [line for line in body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
        code[name] = ast.dump(tree)
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def _imported_modules(node: ast.AST, package: str | None) -> list[str]:
    """Return what an import statement names, as modules; each of several names may be one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


@contextmanager
def _write_errors_reported(path: Path) -> Iterator[None]:
    """Raise a UsageError instead of an OSError."""
    try:
        yield
    except OSError as error:
        next_step = "Free some space, or choose another place with -o. Existing results are kept."
        raise UsageError(f"{path} cannot be written ({error.strerror}).", next_step) from None


class Runs(AbstractContextManager["Runs"]):
    """The file `runs.jsonl` in a folder: one line for each finished job. A kill loses at most the last line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _write_errors_reported(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "runs.jsonl").open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"Another run writes to {folder}.", "Wait for its end, or choose another -o.") from None
        self._file.seek(0)
        text = self._file.read()
        if text and not text.endswith(b"\n"):
            self._write(b"\n")  # ends a line that a kill left incomplete
        self.done: dict[str, dict[str, Any]] = {}
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # an incomplete line
                record = json.loads(line)
                self.done[record["key"]] = record

    def add(self, record: dict[str, Any]) -> None:
        self._write(json.dumps(record).encode() + b"\n")
        self.done[record["key"]] = record

    def _write(self, data: bytes) -> None:
        with _write_errors_reported(self._folder):
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a line that could not be written: already reported
            self._file.close()


def _work(job: Job) -> float:
    """Return the relative work of one iteration: n m (d + n) for n images, m atoms and d values."""
    people, images = job.cell.size
    return float(people**2) * images * job.cell.atoms * (job.cell.spec("pixels").length + people * images)


def run(
    planned: Sequence[Job], data: dict[str, Data], runs: Runs, *, progress: TaskProgress = silent, **where: Any
) -> list[str]:
    """Measure the missing jobs in parallel, the longest first; then the timed jobs one by one. Return a sentence per failure.

    `progress` gets the remaining time as text. `where` are options of `trainer.parallel.each`.
    """
    missing = {job.key: job for job in planned if job.key not in runs.done}
    total, failures, started = len(missing), [], time.monotonic()
    work = sum(map(_work, missing.values()))

    def arguments(job: Job) -> tuple[Job, Array, Array]:
        return job, *data[job.cell.dataset][:2]

    def finish(record: dict[str, Any]) -> None:
        job = missing.pop(record["key"])
        if "error" in record:
            failures.append(f"{job.row}, {job.cell.name}, split {job.split}: {record['error']}")
        else:
            runs.add(record)
        left = sum(map(_work, missing.values()))
        rest = timedelta(seconds=round((time.monotonic() - started) * left / (work - left)))
        progress(f"about {rest} left (last {job.row}, {job.cell.name})", total - len(missing), total)

    parallel = sorted((job for job in missing.values() if not job.timed), key=_work, reverse=True)
    if parallel:
        for record in each(_measure_job, map(arguments, parallel), ordered=False, **where):
            finish(record)
    with threadpool_limits(1):
        for job in list(missing.values()):
            finish(_measure_job(*arguments(job)))
    return failures


def _measure_job(job: Job, images: Array, labels: Array) -> dict[str, Any]:
    about = {"key": job.key, "row": job.row, "cell": job.cell.name, "split": job.split, "seed": job.seed, "alone": job.timed}
    try:
        how: dict[str, Any] = {"method": job.method, "parameters": job.parameters, "features": "pixels", "seed": job.seed}
        return about | {"parameters": job.parameters} | measure(images, labels, job.cell, job.split, **how)
    except (EdgeError, FloatingPointError, np.linalg.LinAlgError) as error:
        return about | {"error": str(error)}


def collect(planned: Sequence[Job], done: dict[str, dict[str, Any]]) -> Results:
    """Return means and deviations. An entry with a missing split stays empty."""
    values: dict[tuple[str, str, bool], list[float | None]] = defaultdict(list)
    for job in planned:
        value = done.get(job.key, {}).get("train_seconds" if job.timed else "accuracy")
        values[job.row, job.cell.name, job.timed].append(value)
    means = {}
    for entry, splits in values.items():
        known = tuple(value for value in splits if value is not None)
        if len(known) == len(splits):
            means[entry] = Mean(known)
    return Results(
        rows=tuple(dict.fromkeys(job.row for job in planned if not job.timed)),
        cells=tuple(dict.fromkeys(job.cell for job in planned if not job.timed)),
        accuracy={(row, cell): mean for (row, cell, timed), mean in means.items() if not timed},
        seconds={row: mean for (row, _, timed), mean in means.items() if timed},
        untuned=tuple(dict.fromkeys(job.row for job in planned if not job.tuned)),
    )
