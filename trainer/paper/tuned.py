"""`trainer tables --tune`: find the parameters of every method and cell by cross-validation, and write them as TOML.

Tuning uses training images only, of a split that no measurement uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import TrainingError
from edge.files import write_file
from trainer.baselines.registry import AS_PRINTED, method_of
from trainer.paper.experiments import Cell, Data, read_tuned
from trainer.presets import to_toml, toml_key
from trainer.tuning import Candidate, choose, tune
from trainer.types import Array, silent

TUNING_SPLIT = 2**31
TaskProgress = Callable[[str, int, int], None]  # gets the task as text, the finished and the total number


def tune_cell(images: Array, labels: Array, cell: Cell, method: str, *, seed: int = 0, **options: Any) -> Candidate:
    """Cross-validate inside the training images of a cell; return the chosen candidate. `options` are those of `tune`."""
    train, _ = cell.split(labels, np.random.default_rng([seed, TUNING_SPLIT]))
    tuned = method_of(method)
    candidates = tune(
        images[train],
        labels[train],
        spec_for=cell.spec,
        estimator=partial(tuned.estimator, **tuned.settings(cell.atoms)),
        grid={"features": ("pixels",)} | tuned.grid,
        hard=cell.dataset == "ar",  # images of one session are so similar that every candidate recognises 98 to 100 %
        seed=seed,
        **options,
    )
    best = choose(candidates, len(train), tuned.usual | {"features": "pixels"})
    return replace(best, parameters={name: best.parameters[name] for name in tuned.grid})


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
    progress: TaskProgress = silent,
    **where: Any,
) -> list[str]:
    """Tune every method in every cell, or with `lend` in the source cells only; append the parameters to a TOML file.

    Entries that the file has are kept. `where` are options of `trainer.parallel.each`. Returns a sentence for each failure.
    """
    failures = []
    sources = {cell: source_cell(cell) if lend else cell for cell in cells}
    for method in methods:
        for source in dict.fromkeys(sources.values()):
            known = read_tuned(file) if file.exists() else {}
            missing = [cell for cell in cells if sources[cell] == source and method not in known.get(cell.name, {})]
            if not missing:
                continue
            if not method_of(method).grid:
                continue  # its authors print everything
            images, labels, _ = data[source.dataset]
            count = partial(progress, f"{method}, {source.name}")
            try:
                best = tune_cell(images, labels, source, method, folds=folds, seed=seed, progress=count, **where)
            except TrainingError as error:
                failures.append(f"{method}, {source.name}: {error}")
                continue
            base, flag = method.removesuffix(AS_PRINTED), " --as-printed" if method.endswith(AS_PRINTED) else ""
            found = f"trainer tables --tune --data FOLDER --cells {source.name} --methods {base}{flag} --folds {folds}"
            found += f" --seed {seed}\n{best.accuracy:.2f} % on held-out images"
            texts = [file.read_text()] if file.exists() else []
            for cell in missing:
                comment = found if cell == source else f"{found} of that cell; used here too"
                texts.append(f"[{toml_key(cell.name)}.{toml_key(method)}.pixels]\n{to_toml(best.parameters, comment)}")
            write_file(file, "\n".join(texts).encode(), mode=0o644)
    return failures
