"""Options and helpers that several commands of `trainer` use."""

import re
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge.cli import common as console
from edge.errors import UsageError
from trainer.baselines.registry import METHODS
from trainer.data.gallery import Gallery
from trainer.features.network import Network
from trainer.method.parts import Grid
from trainer.training import photo_loader
from trainer.tuning import Candidate

Coding = Literal["l1", "l21"]
MethodName = Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(METHODS)}; or module:Class of your own.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random choices.")]
Threads = Annotated[int | None, typer.Option(min=1, help="BLAS threads (default: all cores).")]
Photos = Annotated[Path, typer.Argument(help="A folder per person; or an .npz or .mat file with images and labels.")]
Cropped = Annotated[bool, typer.Option("--cropped", help="The photos of the folder show faces only: do not detect faces.")]
Size = Annotated[str | None, typer.Option(metavar="HxW", help="Resize every face (detected faces: 80x64).")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `fit` wrote.")]


def parse_grid(text: str, option: str) -> Grid:
    """Return the two numbers of --parts or --size, for example 4x2."""
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if match is None:
        raise UsageError(f"{option} {text} is not two numbers.", f"Write rows x columns, for example {option} 112x92.")
    return int(match[1]), int(match[2])


def gallery_loader(
    photos: Path, cropped: bool, size: str | None, line: console.Progress, spool: Callable[[], Path] | None = None
) -> Callable[[Network | None], Gallery]:
    """Return a function that loads the training photos for a network, or for our own features (None).

    `spool` returns a file for the crops of many people.
    """
    sides = None if size is None else parse_grid(size, "--size")
    return photo_loader(photos, cropped=cropped, size=sides, spool=spool, progress=line.count, say=console.say)


class StageLine:
    """Shows which step of a long work is done, how much of it, and about how long the rest of the step takes."""

    def __init__(self, line: console.Progress) -> None:
        self.line, self.name, self.started, self.first = line, "", 0.0, 0

    def __call__(self, name: str, done: int, total: int) -> None:
        if name != self.name or done < self.first:
            self.name, self.started, self.first = name, time.monotonic(), done
        text = f"{name}, {done} of {total}"
        if self.first < done < total:
            seconds = (time.monotonic() - self.started) * (total - done) / (done - self.first)
            text += f", about {timedelta(seconds=round(seconds))} left for this step"
        self.line(text)


def check_writable(output: Path, option: str = "-o") -> None:
    """Raise UsageError before the work starts, not after it."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output} cannot be written.", f"Name a file in an existing folder with {option}.")


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        console.say(f"note: {note}")


def candidate_table(candidates: list[Candidate], most: int = 15) -> str:
    names = list(candidates[0].parameters)
    lines = ["accuracy  +-    " + "  ".join(f"{name:>8}" for name in names)]
    for candidate in candidates[:most]:
        values = "  ".join(f"{candidate.parameters[name]!s:>8}" for name in names)
        lines.append(f"{candidate.accuracy:7.2f}  {candidate.deviation:4.2f}  {values}")
    if len(candidates) > most:
        lines.append(f"... and {len(candidates) - most} more, down to {candidates[-1].accuracy:.2f}")
    return "\n".join(lines)
