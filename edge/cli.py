"""The `edge` command, on the device. Each function parses, calls the library, reports."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from edge import console
from edge.errors import KitError, UsageError
from edge.photo import read_grey
from edge.preprocess import resize_crop
from edge.recognize import Recognizer

SCHEMA = 1
PLACES = (Path("door.kit"), Path("/etc/lclrr-edge/door.kit"))

app = console.new_app("Recognise people with a kit that `edge-export build` made.")


@app.command()
def image(
    files: Annotated[list[Path], typer.Argument(help="Photos: jpg, png, pgm, bmp, webp.")],
    kit: Annotated[Path | None, typer.Option(help="The kit (or EDGE_KIT, ./door.kit, /etc/lclrr-edge/door.kit).")] = None,
    public_key: Annotated[Path | None, typer.Option(help="Require the kit to be signed with this key (PEM).")] = None,
    cropped: Annotated[bool, typer.Option("--cropped", help="The photos show faces only.")] = False,
) -> None:
    """Recognise the face in each photo; one JSON object a line."""
    if not cropped:
        raise UsageError(
            "Finding faces in ordinary photographs comes with a later version.", "Crop the photos and pass --cropped."
        )
    recognizer = Recognizer.load(find_kit(kit), public_key=None if public_key is None else console.read_bytes(public_key))
    for file in files:
        crop = resize_crop(read_grey(file), recognizer.kit.manifest.size)
        (found,) = recognizer.recognize_crops(np.asarray(crop)[None])
        typer.echo(json.dumps({"schema": SCHEMA, "file": str(file), **asdict(found)}))


def find_kit(given: Path | None) -> Path:
    """The kit that was named, or the first that is where kits are looked for."""
    named = given or (Path(os.environ["EDGE_KIT"]) if os.environ.get("EDGE_KIT") else None)
    if named is not None:
        return named
    for place in PLACES:
        if place.exists():
            return place
    raise KitError("There is no kit.", "Pass --kit FILE, set EDGE_KIT, or put door.kit into this folder.")


def main() -> None:
    console.run(app)


if __name__ == "__main__":
    main()
