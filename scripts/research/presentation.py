"""Error rates of a liveness model on real prints, screens and live faces: a table of docs/guide/liveness.md.

The data are development halves: attacks_dev.zip (NUAA, crops of live faces and of prints; videos of people and of phones that
show them), and sets of photos whose faces all count as live. "Any distance" also scores faces that fill the image. The
terminal does not: it needs the surroundings of a face.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer

from edge.cli import common as console
from edge.errors import GalleryError, UsageError
from edge.vision.detect import YuNetDetector
from edge.vision.presentation import Box, LivenessModel
from export import liveness
from scripts.research import orl
from scripts.research.options import DATA
from trainer.data import detector
from trainer.evaluation.presentation import VIDEOS, Presentations, Scorer, images_of, table
from trainer.types import Array

WIDTHS, HEIGHTS = (1.2, 1.5, 1.8, 2.1, 2.4, 3.2), (1.1, 1.3, 1.5, 1.8, 2.5)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One row of the table: files of an archive."""

    name: str
    archive: str
    part: str
    """Text in the names of its files."""
    is_live: bool = True
    any_distance: bool = False


SOURCES = (
    Source(name="videos of people", archive="attacks_dev.zip", part="_live."),
    Source(name="videos on a phone", archive="attacks_dev.zip", part="_replay.", is_live=False),
    Source(name="NUAA, live", archive="attacks_dev.zip", part="nuaa/live/"),
    Source(name="NUAA, live, any distance", archive="attacks_dev.zip", part="nuaa/live/", any_distance=True),
    Source(name="NUAA, print", archive="attacks_dev.zip", part="nuaa/print/", is_live=False),
    Source(name="NUAA, print, any distance", archive="attacks_dev.zip", part="nuaa/print/", is_live=False, any_distance=True),
    Source(name="COMASK20, bare", archive="comask_dev.zip", part="/nomask_"),
    Source(name="COMASK20, masked", archive="comask_dev.zip", part="/mask_"),
    Source(name="LFW (press photos)", archive="lfw_dev.zip", part=""),
    Source(name="CMU, open (grey, 128x120)", archive="cmu_sunglasses_dev.zip", part="_open"),
    Source(name="CMU, sunglasses (grey, 128x120)", archive="cmu_sunglasses_dev.zip", part="_sunglasses"),
)


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="Folder with attacks_dev.zip and sets of photos.")] = DATA,
    models: Annotated[Path, typer.Option(help="Folder with the networks (*.onnx).")] = DATA.parent / "models",
    threshold: Annotated[float, typer.Option(help="Score that a live face needs.")] = liveness.THRESHOLD,
    photos: Annotated[int, typer.Option(min=1, help="Photos of each row, at most, drawn at random.")] = 1000,
    distances: Annotated[
        bool, typer.Option("--distances", help="Measure the videos with frames cut around the face.")
    ] = False,
) -> None:
    """Measure APCER of prints and replays, and BPCER of live videos and photos, with 95 % intervals."""
    files = sorted(models.glob("*.onnx")) if models.is_dir() else []
    sources = [source for source in SOURCES if (data / source.archive).is_file()]
    if not files or not sources:
        raise UsageError(f"{models} has no networks, or {data} no archives.", "Pass their folders: --models, --data.")
    built = liveness.build(liveness.parse(f"onnx:{','.join(map(str, files))}"))
    model, finder = LivenessModel(built.graph, built.spec), YuNetDetector(detector.yunet(console.say))
    typer.echo(f"Networks: {', '.join(built.spec.names)}. A live face needs {threshold:g}.\n")
    if distances:
        typer.echo(distance_table(data, model, finder, threshold))
        return
    found = []
    with console.progress("Rows") as line:
        for number, source in enumerate(sources):
            line.count(number, len(sources) + 1)
            found.append(measure(source, data, model, finder, photos))
        line.count(len(sources), len(sources) + 1)
        found.append(measure_orl(model, finder))
    typer.echo(table(found, threshold))


def measure(source: Source, data: Path, model: LivenessModel, finder: YuNetDetector, photos: int) -> Presentations:
    """Score the files of a row. The photos of one folder are a sequence, in the order of their names and numbers."""
    scorer = Scorer(model, finder, any_distance=source.any_distance)
    with zipfile.ZipFile(data / source.archive) as archive, tempfile.TemporaryDirectory() as folder:
        names = [name for name in archive.namelist() if source.part in name and not name.endswith("/")]
        chosen = np.random.default_rng(0).permutation(len(names))[:photos]
        for _, group in groupby(sorted((names[i] for i in chosen), key=_order), key=_sequence):
            scorer.start_sequence()
            for name in group:
                try:
                    for image, min_face in images_of(Path(archive.extract(name, folder))):
                        scorer.add(image, min_face)
                except GalleryError as error:
                    console.say(error.message)
    return scorer.result(source.name, is_live=source.is_live)


def measure_orl(model: LivenessModel, finder: YuNetDetector) -> Presentations:
    """Score the photos of ORL, which are grey and show little around the face."""
    scorer = Scorer(model, finder)
    for pictures in orl.people().values():
        scorer.start_sequence()
        for picture in _in_colour(pictures):
            scorer.add(picture, 40)
    return scorer.result("ORL (grey, 92x112)", is_live=True)


def distance_table(data: Path, model: LivenessModel, finder: YuNetDetector, threshold: float) -> str:
    """Return the shares of live and replayed frames that pass, with frames cut to multiples of the face's box."""
    seen: dict[bool, list[tuple[Array, Array]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(data / SOURCES[0].archive) as archive:
        for source in SOURCES[:2]:
            for name in archive.namelist():
                for image, _ in images_of(Path(archive.extract(name, folder))) if source.part in name else ():
                    seen[source.is_live] += [(image, np.array(face.box_xyxy)) for face in finder.detect(image)[:1]]

    def passed(is_live: bool, width: float, height: float) -> str:
        scores = [model.score(*_cut(image, box, width, height)) for image, box in seen[is_live]]
        return f"{100 * np.mean(np.array(scores) >= threshold):.0f}"

    lines = [f"| height, width in boxes | {' | '.join(f'{width:g}' for width in WIDTHS)} |", "|---" * (len(WIDTHS) + 1) + "|"]
    for height in HEIGHTS:
        cells = [f"{passed(True, width, height)} / {passed(False, width, height)}" for width in WIDTHS]
        lines.append(f"| {height:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cut(image: Array, box: Array, width: float, height: float) -> tuple[Array, Box]:
    """Return the part of a frame around a face, `width` and `height` times its box, and the box in it."""
    low, high = box.reshape(2, 2)
    half = (high - low) * (width, height) / 2
    (left, top), (right, bottom) = np.clip(np.rint([(low + high) / 2 - half, (low + high) / 2 + half]), 0, image.shape[1::-1])
    own = [float(side) for side in box - (left, top, left, top)]
    return image[int(top) : int(bottom), int(left) : int(right)], (own[0], own[1], own[2], own[3])


def _in_colour(pictures: Iterable[Array]) -> Iterator[Array]:
    return (np.asarray(cv2.cvtColor(picture, cv2.COLOR_GRAY2BGR)) for picture in pictures)


def _order(name: str) -> tuple[str, int]:
    """Sort 10.jpg after 9.jpg."""
    start, _, number = name.rpartition(".")[0].rpartition("_")
    return start, int(number) if number.isdigit() else 0


def _sequence(name: str) -> str:
    return name if Path(name).suffix.lower() in VIDEOS else _order(name)[0]


if __name__ == "__main__":
    console.run(app)
