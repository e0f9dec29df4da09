"""Attacks that want a grant: a replayed video, a frozen camera, a stuck time stamp, two people in one visit."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock
from zipfile import ZipFile

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.sources import open_camera
from edge.kit import format as kits
from edge.terminal.loop import Terminal
from edge.vision.recognize import Recognizer
from export import liveness
from export.build import build_kit
from export.liveness import LivenessPart
from scripts.qa.attacks.attack import CannotRunError, Range, Score, Tally, attack, grants, run_edge
from scripts.research import orl
from tests.fakes.scene_camera import RepeatingCamera, SceneCamera
from tests.fakes.sinks import RecordingSink
from tests.fixtures import orl_door
from tests.fixtures.portraits import yunet
from tests.fixtures.terminals import run_to_end
from trainer.model import Model

Image = NDArray[np.uint8]
PEOPLE = tuple(f"s{number}" for number in range(1, orl_door.PEOPLE + 1))

# 1: a phone that plays a video.

VIDEOS = "attacks_dev.zip"
LIVENESS = ("2.7_80x80_MiniFASNetV2.onnx", "4_0_0_80x80_MiniFASNetV1SE.onnx")
VISIT_FRAMES, TRAINING_FRAMES = 50, 8
VIDEO_FPS = 25.0


@cache
def replay_kit(data: Path, models: Path) -> Recognizer:
    """Train the people of the live videos and some of ORL, and build a kit with the liveness models."""
    part = liveness_part(models)  # before the training
    with tempfile.TemporaryDirectory(prefix="redteam-") as folder:
        photos, model = Path(folder) / "photos", Path(folder) / "door.npz"
        for name, images in [*videos(data, "live").items(), *list(orl.people().items())[: orl_door.PEOPLE]]:
            (photos / name).mkdir(parents=True)
            for i in np.linspace(0, len(images) - 1, TRAINING_FRAMES).astype(int):
                cv2.imwrite(str(photos / name / f"{i}.png"), images[i])
        trained = run_edge("fit", photos, "-o", model, module="trainer")
        if trained.returncode:
            raise CannotRunError(f"the model was not trained: {trained.stderr.strip().splitlines()[-1]}")
        built = build_kit(Model.load(model), detector=yunet(), liveness=part)
        return Recognizer(kits.parse(built.kit))


def liveness_part(folder: Path) -> LivenessPart:
    """Return the liveness model for the kit."""
    if missing := [name for name in LIVENESS if not (folder / name).is_file()]:
        raise CannotRunError(f"{missing[0]} is not in the folder of --models")
    return liveness.build(liveness.parse(f"onnx:{','.join(str(folder / name) for name in LIVENESS)}"))


@cache
def videos(data: Path, kind: str) -> dict[str, list[Image]]:
    """Return the frames of the videos of a kind (live, replay) by person."""
    if not (data / VIDEOS).is_file():
        raise CannotRunError(f"{VIDEOS} is not in the folder of --data")
    found = {}
    with ZipFile(data / VIDEOS) as packed, tempfile.TemporaryDirectory(prefix="redteam-") as folder:
        for member in packed.namelist():
            person, _, found_kind = Path(member).stem.rpartition("_")
            if Path(member).parent.name == "videos" and found_kind == kind:
                file = Path(folder) / Path(member).name
                file.write_bytes(packed.read(member))
                found[f"person-{person}"] = list(frames_of(file))
    return found


def frames_of(path: Path) -> Iterator[Image]:
    with open_camera(str(path)) as camera:
        while not camera.ended:
            frame = camera.frame(1.0)
            if frame is not None:
                yield frame.image


def watched(where: Range, kind: str) -> Iterator[bool]:
    """Show parts of the videos of a kind to a terminal, each as a visit of its own. Yield whether it was granted."""
    recognizer = replay_kit(where.data, where.models)
    for images in videos(where.data, kind).values():
        for start in np.linspace(0, max(0, len(images) - VISIT_FRAMES), where.tries(3, 16)).astype(int):
            events, _ = run_to_end(SceneCamera(images[start : start + VISIT_FRAMES], fps=VIDEO_FPS), recognizer)
            yield bool(grants(events))


@attack("1", "replayed video of a person")
def replayed_video(where: Range) -> Score:
    tally = Tally(where)
    for granted in watched(where, "replay"):
        tally.add(granted, "granted")
    return tally.score()


@attack("1b", "live people refused")
def live_people_refused(where: Range) -> Score:
    """Not an attack, but its price: a liveness check that refuses people is switched off."""
    tally = Tally(where)
    for granted in watched(where, "live"):
        tally.add(not granted, "a live video was not granted")
    return tally.score()


# 2: a frozen camera.


@attack("2", "frozen camera")
def frozen_camera(where: Range) -> Score:
    """One picture, byte for byte the same, at the start and after each dropout."""
    tries = where.tries(10, 60)
    tally = Tally(where, tries)
    pictures = [orl_door.frames(name, 8)[i] for i in range(8) for name in PEOPLE]
    dropout: list[Image | None] = [None] * 15
    for i, picture in enumerate(islice(cycle(pictures), tries)):
        held: Sequence[Any] = [picture] * 30
        scenes = [held] if i % 2 == 0 else [held, dropout, held]
        events, _ = run_to_end(RepeatingCamera(*scenes))
        tally.add(bool(grants(events)), "a still picture was granted")
    return tally.score()


# 3: a time stamp that stands still.


class StuckSensor:
    """The part of picamera2 that edge uses. The time stamps are good at first; then one old stamp stays."""

    images: Sequence[Image] = ()

    def __init__(self, number: int) -> None:
        self._reads, self._stuck = 0, 0.0

    def create_video_configuration(self, main: dict[str, Any]) -> dict[str, Any]:
        return main

    def configure(self, main: dict[str, Any]) -> None:
        """Nothing to configure."""

    start = close = lambda self: None

    def capture_request(self, wait: bool) -> Any:
        return SimpleNamespace(get_result=self._result)

    def _result(self, timeout: float) -> Any:
        time.sleep(1 / orl_door.FPS)
        self._reads += 1
        stamp = time.clock_gettime(time.CLOCK_BOOTTIME) - 0.01
        if self._reads > 2:
            self._stuck = stamp = self._stuck or stamp - 61.0  # as if it had not moved for a minute
        image = self.images[self._reads % len(self.images)]
        return SimpleNamespace(
            make_array=lambda stream: image,
            get_metadata=lambda: {"SensorTimestamp": int(stamp * 1e9)},
            release=lambda: None,
        )


@attack("3", "stuck time stamp")
def stuck_stamp(where: Range) -> Score:
    """The camera shows pictures of unknown age, and its driver repeats one time stamp."""
    tries = where.tries(2, 10)
    tally = Tally(where, tries)
    driver = ModuleType("picamera2")
    driver.Picamera2 = StuckSensor  # type: ignore[attr-defined]
    for name in islice(cycle(PEOPLE), tries):
        StuckSensor.images = orl_door.frames(name, 8)
        stop, events = threading.Event(), RecordingSink()
        with mock.patch.dict(sys.modules, {"picamera2": driver}), open_camera("picamera2:0") as camera:
            threading.Timer(2.5, stop.set).start()
            Terminal(orl_door.recognizer(), camera, sinks=[events]).run(stop)
        tally.add(bool(grants(events)), "granted after the stamp had stood still for a minute")
    return tally.score()


# 4: two people in one visit.


@attack("4", "one visit, two people")
def two_people(where: Range) -> Score:
    """Two frames of an enrolled person, a gap, and beside that place one frame that is recognised: a lucky stranger."""
    tries = where.tries(8, 64)
    tally = Tally(where, tries)
    middle = 320.0
    gaps, moves = (0.9, 0.7, 0.5), (0.0, 50.0, 90.0)
    cases = [(name, gap, move) for gap in gaps for move in moves for name in PEOPLE if gap > 0.5 or move > 0]
    for name, gap, move in islice(cycle(cases), tries):
        first = orl_door.frames(name, 2, (middle, 240.0))
        lucky = orl_door.frames(name, 3, (middle + move, 240.0))[-1:]
        away = orl_door.empty_room(round(gap * orl_door.FPS) - 1)
        events, _ = run_to_end(SceneCamera(first, away, lucky, orl_door.empty_room()))
        tally.add(bool(grants(events)), f"granted after a gap of {gap:g} s, {move:g} pixels beside the place")
    return tally.score()
