"""Command line options that several research scripts share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

DATA = Path(os.environ.get("LCLRR_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))

Data = Annotated[Path, typer.Option(help="Folder with yaleb_96x84.npz and ar_42x30.npz.")]
Output = Annotated[Path | None, typer.Option("--json", help="Save results to this file, and continue from the results in it.")]
Only = Annotated[str, typer.Option(help="Measure only the cells with this in their name, such as ar- or 4x2.")]
Splits = Annotated[int, typer.Option(min=1, help="Random splits to average over.")]
Seed = Annotated[int, typer.Option(help="Seed of the splits.")]

# Of the draw from a folder per person (photo_draw.py)
Photographs = Annotated[Path, typer.Option(help="A folder per person, with photographs.")]
People = Annotated[int, typer.Option(min=2, help="People to enrol; all that have enough photos, if there are fewer.")]
Photos = Annotated[int, typer.Option(min=1, help="Bare photos to enrol of each.")]
Strangers = Annotated[int, typer.Option(min=1, help="People who are not enrolled, with all their photos.")]
OccludedPrefix = Annotated[str | None, typer.Option(help="How file names of occluded faces start, such as mask_.")]
