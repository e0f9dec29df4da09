"""`trainer enrol` and `trainer forget`: change the people of a model."""

from pathlib import Path
from typing import Annotated

import typer
from threadpoolctl import threadpool_limits

from edge.cli import common as console
from edge.text import some
from trainer import update
from trainer.cli.options import ModelFile, StageLine, Threads, print_notes
from trainer.data.gallery import load_like
from trainer.model import Model

Calibrate = Annotated[bool, typer.Option("--calibrate", help="Measure the threshold against strangers again.")]


def enrol(
    model_file: ModelFile,
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS/NAME", help="The person's folder; its name is the label.")],
    calibrate: Calibrate = False,
    threads: Threads = None,
) -> None:
    """Add a person to a model, or photos to a person who is in it."""
    old = Model.load(model_file)
    with console.progress("Reading photos") as line:
        found = load_like(photos, old.spec.crop_shape, old.alignment, progress=line.count, say=console.say)
    print_notes(found.notes)
    with console.progress("Enrolling") as line, threadpool_limits(threads):
        new = update.enrol(old, found, calibrate=calibrate, stage=StageLine(line))
    new.save(model_file)
    console.say(
        f"Saved {model_file}: {len(new.labels)} people from {len(new.crops)} photos, {len(new.crops) - len(old.crops)} of "
        f"them new ({some(list(found.people))}). {update.threshold_note(old, new)}"
    )
    print_notes(update.enrol_notes(old, new, found))


def forget(
    model_file: ModelFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The person to remove.")],
    calibrate: Calibrate = False,
    threads: Threads = None,
) -> None:
    """Remove a person from a model: photos, atoms, codes, and their influence on the atoms of others."""
    old = Model.load(model_file)
    with console.progress("Forgetting") as line, threadpool_limits(threads):
        new = update.forget(old, name, calibrate=calibrate, stage=StageLine(line))
    new.save(model_file)
    console.say(
        f"Saved {model_file}: {len(new.labels)} people from {len(new.crops)} photos, without {name}. "
        f"{update.threshold_note(old, new)}\n"
        f"Kits on devices, backups and the photo folder still contain {name}: build and replace the kit, delete the others."
    )
