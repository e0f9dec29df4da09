"""Record prints, screens and live faces with the terminal's own camera, to measure its liveness model there.

Whole frames are written to OUTPUT/KIND/NAME, because the model needs the surroundings of a face. `trainer liveness` measures
such folders: KIND is `live`, or the name of an attack.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera
from edge.enrol.storage import check_name, write
from edge.errors import KitError, TooFewPhotosError, UsageError
from edge.privileges import rights_over
from edge.vision.recognize import Recognizer

FRAMES = 30
GAP_SECONDS = 0.2  # between two frames
MAX_SECONDS = 60.0
WAIT_SECONDS = 0.25
LIVE = "live"


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """Frames of one presentation that were written, and their scores."""

    kind: str
    name: str
    files: tuple[Path, ...]
    scores: tuple[float, ...]
    """Of the frames in which the face does not fill the image."""
    threshold: float

    @property
    def passed(self) -> int:
        """Number of frames that the model takes for a live face."""
        return sum(score >= self.threshold for score in self.scores)

    def facts(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "kind": self.kind,
            "name": self.name,
            "frames": len(self.files),
            "folder": str(self.files[0].parent),
            "too_close": len(self.files) - len(self.scores),
            "passed": self.passed,
            "median": round(median(self.scores), 4) if self.scores else None,
            "threshold": self.threshold,
        }

    def messages(self) -> list[str]:
        """The result in sentences."""
        found = f"{self.passed} of {len(self.scores)} frames pass as a live face (score of at least {self.threshold:g})."
        if too_close := len(self.files) - len(self.scores):
            found += f" {too_close} frames were not scored: the face was too close to the camera."
        return [found, f"The frames are in {self.files[0].parent}. Measure all recordings with `trainer liveness`."]


def record(
    name: str,
    kind: str,
    camera: Camera,
    recognizer: Recognizer,
    output: Path,
    *,
    when: datetime,
    frames: int = FRAMES,
    say: Callable[[str], None] = lambda _: None,
) -> Presentation:
    """Take `frames` frames with a face, score them, and write them. `when` names the files."""
    name = check_name(name)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", kind):
        raise UsageError(f"{kind!r} is not a kind of attack.", "Write print, replay, another short word, or live.")
    model = recognizer.liveness
    if model is None:
        raise KitError("The kit has no liveness model to measure.", "Build it with --liveness.")
    show = "look at the camera" if kind == LIVE else "show the attack to the camera, and move it a little"
    say(f"Taking {frames} frames: {show}.")
    images: list[NDArray[np.uint8]] = []
    scores: list[float] = []
    began = last = camera.now() - GAP_SECONDS
    while len(images) < frames and not camera.ended and camera.now() - began < MAX_SECONDS:
        frame = camera.frame(WAIT_SECONDS)
        if frame is None or frame.captured < last + GAP_SECONDS - 1e-6:
            continue
        faces = recognizer.find(frame.image)
        if not faces:
            continue
        last = frame.captured
        images.append(frame.image)
        if model.sees_enough(frame.image, faces[0].box_xyxy):
            scores.append(model.score(frame.image, faces[0].box_xyxy))
    if not images:
        raise TooFewPhotosError("No frame showed a face.", "Hold the face into the middle of the image.")
    with rights_over(output):
        files = write(output / kind / name, images, when)
    return Presentation(kind=kind, name=name, files=files, scores=tuple(scores), threshold=model.spec.threshold)
