"""Tuned parameters of every method and cell: read them, find them by cross-validation, and write them as TOML.

Tuning uses training images only, of a split that no measurement uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import TrainingError, UsageError
from edge.files import write_atomically
from trainer.baselines.registry import Parameters, method_of
from trainer.paper.experiments import Cell, Data
from trainer.presets import DEFAULT, PRESETS, read_toml, to_toml
from trainer.tuning import Candidate, choose, tune
from trainer.types import Array

TUNED = Path(__file__).with_name("reproduce.toml")
TUNING_SPLIT = 2**31
TaskProgress = Callable[[str, int, int], None] | None  # gets the task as text, the finished and the total number


def tuned_parameters(
    cell: Cell, features: str, method: str = "lclrrdl", file: Path = TUNED, *, parts: bool = False
) -> Parameters:
    """Return the tuned parameters of a cell; the usual parameters of the method where there are none."""
    usual = method_of(method).usual
    if method == "lclrrdl" and features != "pixels":
        usual = {name: PRESETS["minimal"][name] for name in usual}
    found = usual | tuned_entry(read_tuned(file), cell, features, method)
    return found | {"eta": PRESETS[DEFAULT]["eta"]} if parts else found


def tuned_entry(known: dict[str, Any], cell: Cell, features: str, method: str) -> Parameters:
    """Return the parameters in a dictionary of `read_tuned`; empty where there are none."""
    found: Any = known
    for name in (cell.name, method, features):
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise UsageError(f"{name} is not a section of tuned parameters.", "Write them with `trainer tables --tune`.")
    unknown = sorted(found.keys() - signature(method_of(method).estimator).parameters.keys())
    if unknown:
        raise UsageError(f"{method} has no {', '.join(unknown)}, tuned for {cell.name}.", "Correct the --parameters file.")
    return found


def read_tuned(file: Path) -> dict[str, Any]:
    """Read tuned parameters by cell, method and features."""
    return read_toml(file, "trainer tables --tune")


@contextmanager
def write_errors_reported(path: Path) -> Iterator[None]:
    """Raise a UsageError instead of an OSError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}).",
            "Free some space, or choose another place with -o. Existing results are kept.",
        ) from None


def tune_cell(
    images: Array,
    labels: Array,
    cell: Cell,
    *,
    method: str = "lclrrdl",
    features: str = "pixels",
    seed: int = 0,
    given: Parameters | None = None,
    **options: Any,
) -> tuple[list[Candidate], Candidate]:
    """Cross-validate inside the training images of a cell; return all candidates, and the chosen one without its features.

    `given` are parameters that are not tuned. `options` are folds, jobs, scheduler and progress of `trainer.tuning.tune`.
    """
    train, _ = cell.split(labels, np.random.default_rng([seed, TUNING_SPLIT]))
    tuned = method_of(method)
    candidates = tune(
        images[train],
        labels[train],
        spec_for=cell.spec,
        estimator=tuned.estimator,
        grid={"features": (features,)} | tuned.grid,
        fixed=tuned.settings(cell.atoms, given),
        hard=cell.dataset == "ar",  # images of one session are so similar that every candidate recognises 98 to 100 %
        seed=seed,
        **options,
    )
    best = choose(candidates, len(train), tuned.usual | {"features": features})
    return candidates, replace(best, parameters={name: best.parameters[name] for name in tuned.grid})


def toml_entry(cell: Cell, best: Candidate, source: Cell | None = None, **options: Any) -> str:
    """Return a section of `reproduce.toml`, with the command that found the parameters, in this cell or in `source`.

    `options` are the options of the command, method and features among them.
    """
    command = f"trainer reproduce {(source or cell).options} --data FILE"
    command += "".join(f" --{name} {value}" for name, value in options.items())
    note = "" if source in (None, cell) else " of that cell; used here too"
    comment = f"{command} --tune\n{best.accuracy:.2f} % on held-out images{note}"
    return f"[{cell.name}.{options['method']}.{options['features']}]\n{to_toml(best.parameters, comment)}"


def source_cell(cell: Cell) -> Cell:
    """Return the cell whose parameters are used for this one too: to tune each would take hours, and they fit all rates."""
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
    progress: TaskProgress = None,
) -> list[str]:
    """Tune every method in every cell, or with `lend` in the source cells only; append the parameters to a TOML file.

    Entries that the file has are kept. Returns a sentence for each method and cell that failed.
    """
    failures = []
    sources = {cell: source_cell(cell) if lend else cell for cell in cells}
    for method in methods:
        for source in dict.fromkeys(sources.values()):
            known = read_tuned(file) if file.exists() else {}
            missing = [cell for cell in cells if sources[cell] == source and method not in known.get(cell.name, {})]
            if not missing:
                continue

            def count(done: int, total: int, task: str = f"{method}, {source.name}") -> None:
                if progress is not None:
                    progress(task, done, total)

            images, labels, _ = data[source.dataset]
            how: dict[str, Any] = {"method": method, "features": "pixels", "folds": folds, "seed": seed}
            try:
                _, best = tune_cell(images, labels, source, **how, jobs=workers, scheduler=scheduler, progress=count)
            except TrainingError as error:
                failures.append(f"{method}, {source.name}: {error}")
                continue
            entries = [toml_entry(cell, best, source, **how) for cell in missing]
            with write_errors_reported(file):
                text = [file.read_text()] if file.exists() else []
                write_atomically(file, "\n".join([*text, *entries]).encode(), mode=0o644)
    return failures
