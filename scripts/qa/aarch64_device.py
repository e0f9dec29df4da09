"""What a device makes of the frames in a folder, as JSON: run on x86 and on emulated aarch64, then compared by aarch64.py.

Imports the runtime alone, as a device has nothing else.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.decision.door import Decision, Door
from edge.decision.track import Tracker
from edge.decision.visit import Sighting
from edge.vision.preprocess import align
from edge.vision.recognize import Recognition, Recognizer

PACKAGES = ("lclrr-edge", "numpy", "onnxruntime", "opencv-python-headless", "typer-slim")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def look(recognizer: Recognizer, frames: NDArray[np.uint8], captured: NDArray[np.float64]) -> dict[str, Any]:
    """Every frame through detection, alignment, recognition, tracking and decision."""
    manifest = recognizer.kit.manifest
    tracker, door = Tracker(), Door(manifest.labels, manifest.thresholds.confidence)
    faces, decisions = [], list[Decision]()
    start = time.perf_counter()
    for frame, now in zip(frames, captured.tolist(), strict=True):
        found = recognizer.recognize(frame)
        visits = tracker.update(now, [one.box_xyxy for one in found if one.box_xyxy], [one.label for one in found])
        seen = {visit: sighting(one, now) for visit, one in zip(visits, found, strict=True) if visit is not None}
        decisions += door.step(now=now, when=NOON, seen=seen, ended=tracker.ended(now)).decisions
        faces.append([facts(one, frame, manifest.size) for one in found])
    seconds = time.perf_counter() - start
    end = now + 60
    decisions += door.step(now=end, when=NOON, seen={}, ended=tracker.ended(end)).decisions
    return {
        "frames": faces,
        "decisions": [(told.outcome, told.reason, told.label, told.frames) for told in decisions],
        "seconds_per_frame": seconds / len(frames),
    }


def sighting(one: Recognition, now: float) -> Sighting:
    return Sighting(
        captured=now,
        label=one.label,
        confidence=one.confidence,
        margin=one.margin,
        quality=one.quality.reason if one.quality else None,
        scores=None if one.scores is None else tuple(map(float, one.scores)),
    )


def facts(one: Recognition, frame: NDArray[np.uint8], size: tuple[int, int]) -> dict[str, Any]:
    """Of one face: what each stage gave."""
    assert one.landmarks is not None
    crop = align(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), one.landmarks, size)  # type: ignore[arg-type]
    return {
        "box": one.box_xyxy,
        "landmarks": one.landmarks.tolist(),
        "crop": hashlib.sha256(crop.tobytes()).hexdigest(),
        "scores": None if one.scores is None else [float(score) for score in one.scores],
        "label": one.label,
        "reason": one.reason,
    }


def main(folder: Path) -> dict[str, Any]:
    with np.load(folder / "frames.npz") as given:
        frames, captured = given["frames"], given["captured"]
    return {
        "machine": platform.machine(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "kits": {kit.stem: look(Recognizer.load(kit), frames, captured) for kit in sorted(folder.glob("*.kit"))},
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(Path(sys.argv[1]))), encoding="utf-8")
