"""A door at which people of ORL appear: a small kit of eight of them, measured on strangers, and frames of a camera."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from edge import kit as kits
from edge.annotate import CODECS
from edge.manifest import Thresholds
from edge.preprocess import SIZE, FeatureSpec
from edge.recognize import Recognizer
from export import graph
from export.graph import Factors
from export.kit import bundle
from tests.data import ROOT
from tests.edge.mjpeg import MjpegServer, jpeg
from tests.portraits import find_orl, finder, yunet
from trainer import gallery
from trainer.model import fit

sys.path.append(str(ROOT / "scripts"))
import orl

PEOPLE, PHOTOS = 8, 6  # enrolled, and photos of each; what stands at the door is other photos
GUEST, OTHER, STRANGER = "s2", "s7", "s11"
FPS = 10
FAR_LEFT, FAR_RIGHT = (150.0, 230.0), (490.0, 230.0)

Image = NDArray[np.uint8]


@cache
def kit() -> bytes:
    """Trained on photographs, with the threshold that was measured on strangers."""
    find_orl()
    with tempfile.TemporaryDirectory() as folder:
        for name in list(orl.people())[:PEOPLE]:
            (Path(folder) / name).mkdir()
            for i, photo in enumerate(orl.people()[name][:PHOTOS]):
                cv2.imwrite(f"{folder}/{name}/{i}.png", photo)
        people = gallery.load(folder, cropped=False, finder=finder())
    parameters = {"atoms_per_class": 4, "coding": "l21", "eta": 1e-2}
    model = fit(people, FeatureSpec.for_crop(*SIZE), parameters, fpir=0.01)
    assert model.rejection is not None
    low, high = model.rejection.interval
    thresholds = Thresholds(
        confidence=model.rejection.confidence,
        residual=0.7,
        provisional=False,
        fpir=model.rejection.promise,
        fpir_low=low,
        fpir_high=high,
        strangers=model.rejection.trials,
    )
    return bundle(
        model,
        graph.build(Factors.of(model), model.spec, model.coding),
        coding=model.coding,
        precision="fp32",
        thresholds=thresholds,
        calibration={},
        detector=yunet(),
    )


def promise() -> str:
    """What a terminal with this kit says of strangers when it starts."""
    return f"{kits.parse(kit()).manifest.thresholds.sentence}\n"


@cache
def recognizer() -> Recognizer:
    return Recognizer(kits.parse(kit()))


@cache
def frames(name: str = GUEST, number: int = 8, at: tuple[float, float] = (320.0, 240.0)) -> tuple[Image, ...]:
    """Somebody who stands before the camera, seen from photos that training did not see."""
    find_orl()
    rng = np.random.default_rng(int(name[1:]))
    stand = orl.Stand(2.4, 0.0, np.array(at), 1.0, wall())
    photos = islice(cycle(orl.people()[name][PHOTOS:]), number)
    return tuple(orl.scene(photo, rng, stand.jittered(rng)) for photo in photos)


@cache
def nobody(number: int = 12) -> tuple[Image, ...]:
    rng = np.random.default_rng(0)
    stand = orl.Stand(1.0, 0.0, np.zeros(2), 1.0, wall())
    return tuple(orl.nobody(rng, stand) for _ in range(number))


@cache
def together(left: str, right: str, number: int = 8) -> tuple[Image, ...]:
    """Two people at once."""
    half = 320
    return tuple(
        np.hstack([one[:, :half], two[:, half:]])
        for one, two in zip(frames(left, number, FAR_LEFT), frames(right, number, FAR_RIGHT), strict=True)
    )


@cache
def wall() -> Any:
    return orl.Stand.anywhere(np.random.default_rng(1)).wall


@contextmanager
def sending(server: MjpegServer, *scenes: tuple[Image, ...]) -> Iterator[None]:
    """The network camera shows the scenes again and again, 12 pictures a second."""
    enough = threading.Event()
    pictures = [jpeg(image) for scene in scenes for image in scene]

    def send() -> None:
        for picture in cycle(pictures):
            if enough.wait(0.08):
                return
            with suppress(AssertionError):  # nobody is connected, for now
                server.push(picture)

    threading.Thread(target=send, daemon=True).start()
    try:
        yield
    finally:
        enough.set()


def video(path: Path, *scenes: tuple[Image, ...]) -> Path:
    """The scenes one after the other, at FPS."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*CODECS[path.suffix]), FPS, (640, 480))
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no video")
    for image in (image for scene in scenes for image in scene):
        writer.write(image)
    writer.release()
    return path
