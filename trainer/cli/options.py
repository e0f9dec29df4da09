"""What the trainer's commands share: options, and how they are read."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from threadpoolctl import threadpool_limits

from edge.errors import UsageError
from trainer.baselines.registry import METHODS
from trainer.features.parts import Grid
from trainer.tuning import Trial

Schedule = Literal["fast", "paper"]
PARTS = "ROWSxCOLUMNS"
MethodName = Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(METHODS)}.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random choice.")]
Threads = Annotated[int | None, typer.Option(min=1, help="BLAS threads (default: all cores).")]


def parts_grid(text: str) -> Grid | None:
    """--parts."""
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None and text != "none":
        raise UsageError(f"--parts {text} makes no sense.", "Write rows x columns, as 4x2, or none.")
    return match and (int(match[1]), int(match[2]))


def blas_threads(threads: int | None) -> Any:
    return nullcontext() if threads is None else threadpool_limits(threads)


def refuse_unwritable(output: Path, option: str = "-o") -> None:
    """Before the work, not after it."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written.", f"Name a file in a folder that exists with {option}.")


def trial_table(trials: list[Trial], most: int = 15) -> str:
    names = list(trials[0].parameters)
    lines = ["accuracy  +-    " + "  ".join(f"{name:>8}" for name in names)]
    for trial in trials[:most]:
        values = "  ".join(f"{trial.parameters[name]!s:>8}" for name in names)
        lines.append(f"{trial.accuracy:7.2f}  {trial.deviation:4.2f}  {values}")
    if len(trials) > most:
        lines.append(f"... and {len(trials) - most} more, down to {trials[-1].accuracy:.2f}")
    return "\n".join(lines)
