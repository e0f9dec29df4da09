"""`trainer liveness` measures the liveness model of a kit on recordings of live people, prints and screens."""

import json
from pathlib import Path
from typing import Annotated

import typer

from edge.cli import common as console
from edge.errors import KitError
from edge.vision.recognize import Recognizer
from trainer.evaluation import presentation


def liveness(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A kit with a liveness model.")],
    data: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folders live, print, replay ... of photos and videos.")],
    threshold: Annotated[float | None, typer.Option(help="Score that a live face needs (default: that of the kit).")] = None,
    any_distance: Annotated[bool, typer.Option("--any-distance", help="Score faces that fill the frame, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how many live people a kit refuses, and how many prints and screens it takes for live people."""
    recognizer = Recognizer.load(kit)
    if recognizer.liveness is None:
        raise KitError("The kit has no liveness model.", "Build it with --liveness.")
    needed = recognizer.liveness.spec.threshold if threshold is None else threshold
    with console.progress("Files") as line:
        found = presentation.measure_folder(
            data, recognizer.liveness, recognizer.detector, any_distance=any_distance, progress=line.count, say=console.say
        )
    if as_json:
        typer.echo(json.dumps({"threshold": needed, "kinds": [own.facts(needed) for own in found]}))
    else:
        typer.echo(presentation.table(found, needed))
        console.say(f"A live face needs a score of {needed:g}. The rates hold for this camera, this light and these attacks.")
