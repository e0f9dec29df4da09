"""Error rates of a liveness model: APCER, the share of pictures taken for live faces, and BPCER, the share of live faces taken
for pictures (ISO/IEC 30107-3).

A folder has one folder for each kind of presentation: `live`, and one for each kind of attack, such as `print` and `replay`.
Inside are videos and photos, in folders or not. A video, or the photos of one folder in the order of their names, is a
sequence. Its frames are judged one by one, and by three in a row like a visit at the door: by their median.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edge.camera.photo import SUFFIXES, read_photo
from edge.camera.sources import open_camera
from edge.decision.visit import VisitRules
from edge.errors import CameraError, GalleryError, UsageError
from edge.vision.detect import FaceDetector, photo_min_face
from edge.vision.presentation import LivenessModel
from trainer.thresholds import interval
from trainer.types import Array, Progress, Say, silent

LIVE = "live"
VIDEOS = (".mp4", ".avi", ".webm", ".mkv", ".mov")
STEP_SECONDS = 0.1  # between two frames of a video
IN_A_ROW = VisitRules().needed


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Errors of some trials."""

    errors: int
    trials: int

    @property
    def share(self) -> float:
        return self.errors / self.trials if self.trials else 0.0

    def __str__(self) -> str:
        if not self.trials:
            return "no trials"
        low, high = interval(self.errors, self.trials)
        return f"{100 * self.share:.1f} % ({self.errors} of {self.trials}; {100 * low:.1f} to {100 * high:.1f})"


@dataclass(frozen=True, kw_only=True)
class Presentations:
    """The scores of one kind of presentation."""

    kind: str
    is_live: bool
    scores: tuple[tuple[float, ...], ...]
    """Of each sequence, the scores of its frames."""
    no_face: int
    """Frames without a face."""
    too_close: int
    """Frames whose face fills them, so that it is not scored."""

    @property
    def measure(self) -> str:
        return "BPCER" if self.is_live else "APCER"

    def frames(self, threshold: float) -> Rate:
        """Return the error rate of single frames."""
        return self._rate([score for own in self.scores for score in own], threshold)

    def visits(self, threshold: float) -> Rate:
        """Return the error rate of the medians of IN_A_ROW frames."""
        rows = [own[i : i + IN_A_ROW] for own in self.scores for i in range(0, len(own) - IN_A_ROW + 1, IN_A_ROW)]
        return self._rate([median(row) for row in rows], threshold)

    def _rate(self, scores: list[float], threshold: float) -> Rate:
        passed = sum(score >= threshold for score in scores)
        return Rate(errors=len(scores) - passed if self.is_live else passed, trials=len(scores))

    def facts(self, threshold: float) -> dict[str, Any]:
        """Return the result for JSON."""
        frames, visits = self.frames(threshold), self.visits(threshold)
        return {
            "kind": self.kind,
            "measure": self.measure,
            "threshold": threshold,
            "frames": frames.trials,
            "frame_errors": frames.errors,
            "visits": visits.trials,
            "visit_errors": visits.errors,
            "median": median([score for own in self.scores for score in own]) if frames.trials else None,
            "no_face": self.no_face,
            "too_close": self.too_close,
        }


def measure_folder(
    folder: Path,
    model: LivenessModel,
    detector: FaceDetector,
    *,
    any_distance: bool = False,
    progress: Progress = silent,
    say: Say = silent,
) -> list[Presentations]:
    """Score all photos and videos of a folder. With `any_distance`, also faces that fill the frame."""
    try:
        kinds = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
        files = {place.name: [file for file in sorted(place.rglob("*")) if _is_readable(file)] for place in kinds}
    except OSError as error:
        raise UsageError(f"{folder} cannot be read ({error.strerror}).", "Check the path.") from None
    if not any(files.values()):
        hint = "Put photos or videos into folders named live, print, replay: `edge capture NAME --attack KIND` records them."
        raise UsageError(f"{folder} contains no recordings.", hint)
    total, done, found = sum(map(len, files.values())), 0, []
    for kind, own in files.items():
        scorer = Scorer(model, detector, any_distance=any_distance)
        for _, group in groupby(own, key=lambda file: file if file.suffix.lower() in VIDEOS else file.parent):
            scorer.start_sequence()
            for file in group:
                try:
                    for image, min_face in images_of(file):
                        scorer.add(image, min_face)
                except (GalleryError, CameraError) as error:
                    say(error.message)
                done += 1
                progress(done, total)
        found.append(scorer.result(kind, is_live=kind == LIVE))
    return found


class Scorer:
    """Scores the largest face of each frame of some sequences."""

    def __init__(self, model: LivenessModel, detector: FaceDetector, *, any_distance: bool = False) -> None:
        self._model, self._detector, self._any_distance = model, detector, any_distance
        self._scores: list[list[float]] = []
        self._no_face = self._too_close = 0

    def start_sequence(self) -> None:
        self._scores.append([])

    def add(self, image: Array, min_face: int | None = None) -> None:
        """Score a frame. `min_face` is the width of the smallest face to look for."""
        faces = self._detector.detect(image, min_face)
        if not faces:
            self._no_face += 1
        elif self._any_distance or self._model.sees_enough(image, faces[0].box_xyxy):
            self._scores[-1].append(self._model.score(image, faces[0].box_xyxy))
        else:
            self._too_close += 1

    def result(self, kind: str, *, is_live: bool) -> Presentations:
        scores = tuple(tuple(own) for own in self._scores)
        return Presentations(kind=kind, is_live=is_live, scores=scores, no_face=self._no_face, too_close=self._too_close)


def table(found: list[Presentations], threshold: float) -> str:
    """Return the rates as a table in Markdown."""
    lines = [
        f"| kind | | single frames (95 % interval) | median of {IN_A_ROW} in a row | median score | too close | no face |",
        "|---|---|---|---|---|---|---|",
    ]
    for own in found:
        middle = own.facts(threshold)["median"]
        lines.append(
            f"| {own.kind} | {own.measure} | {own.frames(threshold)} | {own.visits(threshold)} "
            f"| {'' if middle is None else f'{middle:.3f}'} | {own.too_close} | {own.no_face} |"
        )
    return "\n".join(lines)


def _is_readable(file: Path) -> bool:
    return file.suffix.lower() in (*SUFFIXES, *VIDEOS) and not file.name.startswith(".")


def images_of(file: Path) -> Iterator[tuple[Array, int | None]]:
    """Yield the images of a photo or a video, and the width of the smallest face in a photo."""
    if file.suffix.lower() in SUFFIXES:
        photo = read_photo(file, colour=True)
        yield photo, photo_min_face(photo)
        return
    last = -np.inf
    with open_camera(str(file)) as camera:
        while not camera.ended:
            frame = camera.frame(1.0)
            if frame is not None and frame.captured - last > STEP_SECONDS - 1e-3:
                last = frame.captured
                yield frame.image, None
