"""The workstation part of the aarch64 check: make the kits and frames for both machines, and compare their results."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import read_photo
from edge.kit.manifest import Thresholds
from edge.vision.preprocess import FeatureSpec
from export import graph
from export.graph import Factors
from export.nodes import Precision
from export.pack import bundle
from scripts.research import orl
from trainer.data import gallery
from trainer.data.detector import yunet
from trainer.presets import PRESETS
from trainer.training import fit

PEOPLE = tuple(f"s{i}" for i in range(1, 21))
TRAINING, VISIT = range(1, 7), (7, 8, 9, 10, 7, 8)  # of the ten photos of a person
KITS: tuple[tuple[str, Precision], ...] = (("tiny", "fp32"), ("minimal", "int8"))
# Low thresholds, so that few training photos suffice for a grant.
THRESHOLDS = Thresholds(confidence=0.85, residual=0.9, provisional=True)
# The people of each visit: two enrolled people, a stranger, an empty scene, two people at once.
VISITS: tuple[tuple[str, ...], ...] = (("s2",), ("s4",), ("s30",), (), ("s5", "s35"))
FRAME_SECONDS, PAUSE_SECONDS = 0.2, 3.0
MAX_DIFFERENCE = 1e-4  # of a score


def scene(photos: list[NDArray[np.uint8]], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a frame, 640x480 BGR: the photos side by side in front of an uneven, noisy wall."""
    y, x = np.mgrid[0:480, 0:640]
    wall = 110 + 40 * np.sin(x / 97) + 30 * np.cos(y / 71) + rng.normal(0, 4, x.shape)
    frame = np.clip(wall, 0, 255).astype(np.uint8)
    for i, photo in enumerate(photos):
        face = cv2.resize(photo, None, fx=2.6, fy=2.6, interpolation=cv2.INTER_CUBIC)
        height, width = face.shape
        part = 640 // len(photos)
        top = (480 - height) // 2 + int(rng.integers(-15, 16))
        left = i * part + (part - width) // 2 + int(rng.integers(-15, 16))
        frame[top : top + height, left : left + width] = face
    return cv2.cvtColor(frame, cv2.COLOR_GRAY2BGR)


def make(folder: Path) -> None:
    """Write the kits, and the frames with their capture times."""
    rng = np.random.default_rng(0)

    def photo(person: str, number: int) -> NDArray[np.uint8]:
        return read_photo(orl.folder() / person / f"{number}.pgm")

    for person in PEOPLE:
        (folder / "photos" / person).mkdir(parents=True)
        for number in TRAINING:
            cv2.imwrite(str(folder / "photos" / person / f"{number}.png"), scene([photo(person, number)], rng))
    people = gallery.load_gallery(folder / "photos", cropped=False)
    detector = yunet()
    for preset, precision in KITS:
        parameters = {name: value for name, value in PRESETS[preset].items() if name != "features"}
        model = fit(people, FeatureSpec.for_crop(*people.images.shape[1:]), parameters)
        kit = bundle(
            model,
            graph.build(Factors.of(model), model.spec, precision),
            coding=model.coding,
            precision=precision,
            thresholds=THRESHOLDS,
            calibration={},
            detector=detector,
            private_key=None,
        )
        (folder / f"{preset}-{precision}.kit").write_bytes(kit)

    frames, captured, now = [], [], 0.0
    for visitors in VISITS:
        for number in VISIT:
            frames.append(scene([photo(person, number) for person in visitors], rng))
            captured.append(now)
            now += FRAME_SECONDS
        now += PAUSE_SECONDS
    np.savez(folder / "frames.npz", frames=np.stack(frames), captured=captured)
    cv2.imwrite(str(folder / "photo.png"), frames[0])


def largest_difference(pairs: list[tuple[Any, Any]]) -> float:
    """Return the largest difference between the numbers of both sides; infinity if their shapes differ."""
    try:
        return max((float(np.abs(np.subtract(a, b)).max(initial=0)) for a, b in pairs), default=0.0)
    except ValueError:
        return float("inf")


def compare(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Print the differences at each stage. Return the errors."""
    print(f"{'':24}{here['machine']:>12}{there['machine']:>12}")
    for name in here["versions"]:
        print(f"{name:24}{here['versions'][name]:>12}{there['versions'][name]:>12}")
    machines = (here["machine"], there["machine"])
    errors = [] if machines == ("x86_64", "aarch64") else [f"the results are of {' and '.join(machines)}"]
    for kit, ours in here["kits"].items():
        theirs = there["kits"][kit]
        faces = [list(chain.from_iterable(side["frames"])) for side in (ours, theirs)]
        if [len(frame) for frame in ours["frames"]] != [len(frame) for frame in theirs["frames"]]:
            errors.append(f"{kit}: the number of faces differs")
            continue
        pairs = list(zip(*faces, strict=True))
        scores = largest_difference([(a["scores"] or [], b["scores"] or []) for a, b in pairs])
        labels = [[(face["label"], face["reason"]) for face in side] for side in faces]
        recognised = sum(label is not None for label, _ in labels[0])
        print(f"\n{kit}: {len(ours['frames'])} frames, {len(pairs)} faces, {recognised} recognised")
        print(f"  boxes, pixels         {largest_difference([(a['box'], b['box']) for a, b in pairs]):.1e}")
        print(f"  landmarks, pixels     {largest_difference([(a['landmarks'], b['landmarks']) for a, b in pairs]):.1e}")
        print(f"  crops that differ     {sum(a['crop'] != b['crop'] for a, b in pairs)}")
        other_surroundings = sum(a["surroundings"] != b["surroundings"] for a, b in pairs)
        print(f"  liveness crops        {other_surroundings} differ")
        print(f"  scores                {scores:.1e}  (limit {MAX_DIFFERENCE:g})")
        print(f"  labels that differ    {sum(a != b for a, b in zip(*labels, strict=True))}")
        print(f"  decisions             {', '.join(' '.join(map(str, decision[:2])) for decision in ours['decisions'])}")
        print(f"  seconds per frame     {ours['seconds_per_frame']:.3f}, emulated {theirs['seconds_per_frame']:.3f}")
        if other_surroundings:
            errors.append(f"{kit}: crops for a liveness model differ")
        if labels[0] != labels[1]:
            errors.append(f"{kit}: labels differ")
        if not scores <= MAX_DIFFERENCE:
            errors.append(f"{kit}: scores differ by {scores:.1e}")
        if ours["decisions"] != theirs["decisions"]:
            errors.append(f"{kit}: decisions differ: {ours['decisions']} and {theirs['decisions']}")
    return errors + missing_cases(here)


def missing_cases(here: dict[str, Any]) -> list[str]:
    """Return the kinds of results that do not occur. Without them, equal results would prove little."""
    decisions = [decision for kit in here["kits"].values() for decision in kit["decisions"]]
    granted = {label for outcome, _, label, _ in decisions if outcome == "granted"}
    missing = []
    if len(granted) < 2:
        missing.append(f"{len(granted)} people were granted; at least two are needed")
    if granted - set(PEOPLE):
        missing.append("a stranger was granted")
    if not any(outcome == "denied" for outcome, *_ in decisions):
        missing.append("no visit was denied")
    if not any(not frame for kit in here["kits"].values() for frame in kit["frames"]):
        missing.append("no frame is without a face")
    return missing


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    if task == "make":
        make(folder)
        return
    here, there = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("x86.json", "aarch64.json"))
    errors = compare(here, there)
    sys.exit("\n".join(f"error: {error}." for error in errors) or 0)


if __name__ == "__main__":
    main()
