"""The device part of the aarch64 check: run the kits on the frames in a folder, and write all results as JSON.

It runs on x86 and on emulated aarch64; aarch64.py compares the results. It imports only the runtime, as on a device.
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
from edge.vision import presentation
from edge.vision.preprocess import align
from edge.vision.recognize import Recognition, Recognizer

PACKAGES = ("lclrr-edge", "numpy", "onnxruntime", "opencv-python-headless", "typer-slim")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def run_kit(recognizer: Recognizer, frames: NDArray[np.uint8], captured: NDArray[np.float64]) -> dict[str, Any]:
    """Return the results of detection, alignment, recognition, tracking and decision for all frames."""
    manifest = recognizer.kit.manifest
    tracker, door = Tracker(), Door(manifest.labels, manifest.thresholds.confidence, manifest.confidence)
    faces, decisions = [], list[Decision]()
    start = time.perf_counter()
    for frame, now in zip(frames, captured.tolist(), strict=True):
        found = recognizer.recognize(frame)
        visits = tracker.update(now, [one.box_xyxy for one in found if one.box_xyxy])
        visits = [
            tracker.name(visit, one.label) if visit and one.label else visit for visit, one in zip(visits, found, strict=True)
        ]
        seen = {visit: sighting_of(one, now) for visit, one in zip(visits, found, strict=True) if visit is not None}
        decisions += door.step(now=now, when=NOON, seen=seen, ended=tracker.ended(now)).decisions
        faces.append([face_results(one, frame, manifest.size) for one in found])
    seconds = time.perf_counter() - start
    end = now + 60
    decisions += door.step(now=end, when=NOON, seen={}, ended=tracker.ended(end)).decisions
    return {
        "frames": faces,
        "decisions": [(made.outcome, made.reason, made.label, made.frames) for made in decisions],
        "seconds_per_frame": seconds / len(frames),
    }


def sighting_of(one: Recognition, now: float) -> Sighting:
    return Sighting(
        captured=now,
        label=one.label,
        confidence=one.confidence,
        margin=one.margin,
        quality=one.quality.reason if one.quality else None,
        scores=one.scores,
    )


def face_results(one: Recognition, frame: NDArray[np.uint8], size: tuple[int, int]) -> dict[str, Any]:
    """Return the result of each stage for one face."""
    assert one.landmarks is not None
    assert one.box_xyxy is not None
    crop = align(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), one.landmarks, size)  # type: ignore[arg-type]
    return {
        "box": one.box_xyxy,
        "landmarks": one.landmarks.tolist(),
        "crop": hashlib.sha256(crop.tobytes()).hexdigest(),
        "surroundings": hashlib.sha256(presentation.crop(frame, one.box_xyxy, 80, 2.7).tobytes()).hexdigest(),
        "scores": None if one.scores is None else one.scores.tolist(),
        "label": one.label,
        "reason": one.reason,
    }


def main(folder: Path) -> dict[str, Any]:
    with np.load(folder / "frames.npz") as archive:
        frames, captured = archive["frames"], archive["captured"]
    return {
        "machine": platform.machine(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "kits": {kit.stem: run_kit(Recognizer.load(kit), frames, captured) for kit in sorted(folder.glob("*.kit"))},
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(Path(sys.argv[1]))), encoding="utf-8")
