"""Both ends of the aarch64 proof, on the workstation: the kits and frames that two machines look at, and the comparison."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import read_grey
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
TRAINING, LATER = range(1, 7), (7, 8, 9, 10, 7, 8)  # of ten photos: those trained on, and a visit
KITS: tuple[tuple[str, Precision], ...] = (("tiny", "fp32"), ("minimal", "int8"))
# Low, so that known people are let in after few photos: the two machines are compared here, not people.
THRESHOLDS = Thresholds(confidence=0.85, residual=0.9, provisional=True)
# Who comes to the door, one visit after the other, and what must become of it: known people, a stranger, nobody, two at once.
VISITS: tuple[tuple[str, ...], ...] = (("s2",), ("s4",), ("s30",), (), ("s5", "s35"))
FRAME_SECONDS, PAUSE_SECONDS = 0.2, 3.0
LIMIT = 1e-4  # of a score


def scene(photos: list[NDArray[np.uint8]], rng: np.random.Generator) -> NDArray[np.uint8]:
    """A frame, 640x480 BGR: each photo somewhere in its own part of an uneven, noisy wall."""
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
    """Kits, and frames with the times at which they were taken."""
    rng = np.random.default_rng(0)

    def photo(person: str, number: int) -> NDArray[np.uint8]:
        return read_grey(orl.folder() / person / f"{number}.pgm")

    for person in PEOPLE:
        (folder / "photos" / person).mkdir(parents=True)
        for number in TRAINING:
            cv2.imwrite(str(folder / "photos" / person / f"{number}.png"), scene([photo(person, number)], rng))
    people = gallery.load(folder / "photos", cropped=False)
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
        for number in LATER:
            frames.append(scene([photo(person, number) for person in visitors], rng))
            captured.append(now)
            now += FRAME_SECONDS
        now += PAUSE_SECONDS
    np.savez(folder / "frames.npz", frames=np.stack(frames), captured=captured)
    cv2.imwrite(str(folder / "photo.png"), frames[0])


def largest(pairs: list[tuple[Any, Any]]) -> float:
    """The largest difference of any number from its counterpart; infinite where they do not even have the same shape."""
    try:
        return max((float(np.abs(np.subtract(a, b)).max(initial=0)) for a, b in pairs), default=0.0)
    except ValueError:
        return float("inf")


def compare(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Print what differs at each stage; return what must not."""
    print(f"{'':24}{here['machine']:>12}{there['machine']:>12}")
    for name in here["versions"]:
        print(f"{name:24}{here['versions'][name]:>12}{there['versions'][name]:>12}")
    machines = (here["machine"], there["machine"])
    wrong = [] if machines == ("x86_64", "aarch64") else [f"compared were {' and '.join(machines)}"]
    for kit, ours in here["kits"].items():
        theirs = there["kits"][kit]
        faces = [list(chain.from_iterable(side["frames"])) for side in (ours, theirs)]
        if [len(frame) for frame in ours["frames"]] != [len(frame) for frame in theirs["frames"]]:
            wrong.append(f"{kit}: other faces are found")
            continue
        pairs = list(zip(*faces, strict=True))
        scores = largest([(a["scores"] or [], b["scores"] or []) for a, b in pairs])
        answers = [[(face["label"], face["reason"]) for face in side] for side in faces]
        named = sum(label is not None for label, _ in answers[0])
        print(f"\n{kit}: {len(ours['frames'])} frames, {len(pairs)} faces, {named} named")
        print(f"  boxes, pixels         {largest([(a['box'], b['box']) for a, b in pairs]):.1e}")
        print(f"  landmarks, pixels     {largest([(a['landmarks'], b['landmarks']) for a, b in pairs]):.1e}")
        print(f"  crops that differ     {sum(a['crop'] != b['crop'] for a, b in pairs)}")
        print(f"  scores                {scores:.1e}  (limit {LIMIT:g})")
        print(f"  labels that differ    {sum(a != b for a, b in zip(*answers, strict=True))}")
        print(f"  decisions             {', '.join(' '.join(map(str, told[:2])) for told in ours['decisions'])}")
        print(f"  seconds a frame       {ours['seconds_per_frame']:.3f}, emulated {theirs['seconds_per_frame']:.3f}")
        if answers[0] != answers[1]:
            wrong.append(f"{kit}: labels differ")
        if not scores <= LIMIT:
            wrong.append(f"{kit}: scores differ by {scores:.1e}")
        if ours["decisions"] != theirs["decisions"]:
            wrong.append(f"{kit}: decisions differ: {ours['decisions']} and {theirs['decisions']}")
    return wrong + proves_nothing(here)


def proves_nothing(here: dict[str, Any]) -> list[str]:
    """Equal answers are worth something only if the frames bring forth every kind of answer."""
    told = [decision for kit in here["kits"].values() for decision in kit["decisions"]]
    granted = {label for outcome, _, label, _ in told if outcome == "granted"}
    missing = []
    if len(granted) < 2:
        missing.append(f"the frames let in {len(granted)} people, not two or more")
    if granted - set(PEOPLE):
        missing.append("a stranger was let in")
    if not any(outcome == "denied" for outcome, *_ in told):
        missing.append("nobody was denied")
    if not any(not frame for kit in here["kits"].values() for frame in kit["frames"]):
        missing.append("no frame is empty")
    return missing


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    if task == "make":
        make(folder)
        return
    here, there = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("x86.json", "aarch64.json"))
    wrong = compare(here, there)
    sys.exit("\n".join(f"error: {sentence}." for sentence in wrong) or 0)


if __name__ == "__main__":
    main()
