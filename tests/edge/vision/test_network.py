"""The preset network with SFace: from photos to a kit to the faces in a frame."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from edge.cli.main import app
from edge.errors import KitDamagedError, UsageError
from edge.kit import format as kits
from edge.kit.manifest import ABSOLUTE, ARCFACE_ALIGNMENT, EYES_ALIGNMENT, Thresholds
from edge.vision.detect import Face
from edge.vision.preprocess import LANDMARK_TEMPLATES, FeatureSpec, align
from edge.vision.recognize import Recognizer
from export import graph
from export.graph import Factors
from export.pack import bundle
from export.verify import verify_kit
from tests.fakes.scene_camera import SceneCamera
from tests.fixtures import orl_door
from tests.fixtures.portraits import find_orl, finder, people, yunet
from tests.fixtures.terminals import run_to_end
from trainer.data import gallery
from trainer.downloads import SFACE
from trainer.features.network import SIDE, Network, prepared
from trainer.features.spec import parse_network
from trainer.model import Model
from trainer.presets import PRESETS
from trainer.training import fit

pytestmark = pytest.mark.slow

SIZE = (SIDE, SIDE)


@cache
def sface() -> Network:
    try:
        found = parse_network("sface")
    except UsageError as error:
        pytest.skip(str(error))
    assert found is not None
    return found


@cache
def model() -> Model:
    """Trained on photos of eight people, with a threshold measured on strangers."""
    find_orl()
    with tempfile.TemporaryDirectory() as folder:
        for name, photos in people().items():
            (Path(folder) / name).mkdir()
            for i, photo in enumerate(photos[: orl_door.PHOTOS]):
                cv2.imwrite(f"{folder}/{name}/{i}.png", photo)
        how: dict[str, Any] = {"size": SIZE, "finder": finder(), "alignment": sface().alignment, "colour": sface().colour}
        found = gallery.load_gallery(folder, cropped=False, **how)
    together = replace(sface(), own=FeatureSpec.for_crop(*SIZE))
    preset = {name: value for name, value in PRESETS["network"].items() if name != "features"}
    return fit(found, together, {"atoms_per_class": 4, **preset}, fpir=0.05)


@cache
def kit() -> bytes:
    trained = model()
    assert trained.calibration is not None
    return bundle(
        trained,
        graph.build(Factors.of(trained), trained.spec),
        coding=trained.coding,
        precision="fp32",
        thresholds=Thresholds(confidence=trained.calibration.confidence, residual=1.0, provisional=True),
        calibration={},
        detector=yunet(),
    )


def test_enrolled_people_are_recognised_and_strangers_are_not() -> None:
    recognizer = Recognizer(kits.parse(kit()))
    for name in (orl_door.GUEST, orl_door.OTHER):
        found = [recognizer.recognize(frame) for frame in orl_door.frames(name, 4)]
        assert [[one.label for one in faces] for faces in found] == [[name]] * 4
    strangers = [one for frame in orl_door.frames(orl_door.STRANGER, 4) for one in recognizer.recognize(frame)]
    assert [one.label for one in strangers] == [None] * 4
    both = recognizer.recognize(orl_door.together(orl_door.GUEST, orl_door.OTHER, 1)[0])
    assert {one.label for one in both} == {orl_door.GUEST, orl_door.OTHER}


def test_door_grants_enrolled_people_on_an_absolute_confidence() -> None:
    recognizer = Recognizer(kits.parse(kit()))
    frames = orl_door.frames(orl_door.GUEST, 4)
    events, _ = run_to_end(SceneCamera(frames * 3), recognizer)
    (grant,) = (event for event in events if event.grants)
    assert grant.label == orl_door.GUEST
    assert grant.confidence is not None
    seen = [recognizer.recognize(frame)[0].confidence for frame in frames]
    assert min(seen) <= grant.confidence <= max(seen) + 0.05, "on the scale of single frames"
    events, _ = run_to_end(SceneCamera(orl_door.frames(orl_door.STRANGER, 4) * 20), recognizer)
    assert [decision for decision, _ in events.decisions] == ["denied"]


def test_frames_are_recognised_in_colour() -> None:
    recognizer = Recognizer(kits.parse(kit()))
    frame = (orl_door.frames(orl_door.GUEST, 1)[0] * (0.6, 0.8, 1.0)).astype(np.uint8)
    (found,) = recognizer.recognize(frame)
    assert found.landmarks is not None
    crop = align(frame, found.landmarks, SIZE, EYES_ALIGNMENT)
    for channels, same in ((crop, True), (crop[..., ::-1], False)):
        scores = model().scores(channels[None])[0]
        difference = np.abs(np.array(found.scores) - scores / np.linalg.norm(scores)).max()
        assert (difference < 1e-3) == same


def test_kit_computes_the_same_as_the_published_network() -> None:
    parsed = kits.parse(kit())
    assert [parity.crops for parity in verify_kit(parsed, model=model())] == ["random", "training", "training, unfolded"]
    assert parsed.manifest.features["sha256"] == SFACE.sha256
    assert (parsed.manifest.alignment, parsed.manifest.confidence) == (EYES_ALIGNMENT, ABSOLUTE)
    assert b"SFace" in kits.unpack(kit())[kits.LICENSE]


def test_command_recognises_a_photo(tmp_path: Path) -> None:
    (tmp_path / "door.kit").write_bytes(kit())
    cv2.imwrite(str(tmp_path / "frame.png"), orl_door.frames(orl_door.GUEST, 1)[0])
    arguments = ["image", str(tmp_path / "frame.png"), "--kit", str(tmp_path / "door.kit")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert json.loads(done.stdout)["label"] == orl_door.GUEST


def test_changed_weights_are_detected() -> None:
    weights = max((t.raw_data for t in prepared(sface().model).graph.initializer), key=len)
    data = bytearray(kit())
    data[bytes(data).index(weights) + 1_000_000] ^= 0x10
    with pytest.raises(KitDamagedError):
        kits.parse(bytes(data))


def test_crops_equal_those_of_opencv(tmp_path: Path) -> None:
    """Our alignment and features against those of cv2.FaceRecognizerSF."""
    if not hasattr(cv2, "FaceRecognizerSF"):
        pytest.skip("this OpenCV has no FaceRecognizerSF")
    (tmp_path / "sface.onnx").write_bytes(sface().model)
    theirs = cv2.FaceRecognizerSF.create(str(tmp_path / "sface.onnx"), "")
    for grey in orl_door.frames(orl_door.GUEST, 3):
        frame = (grey * (0.5, 0.7, 1.0)).astype(np.uint8)
        (face,) = finder().detect(frame)
        row = np.concatenate([face.box_xyxy, face.landmarks.ravel(), [1.0]]).astype(np.float32)
        wanted = theirs.alignCrop(frame, row)
        ours = align(frame, face.landmarks, SIZE, ARCFACE_ALIGNMENT)
        assert np.abs(ours.astype(float) - wanted).mean() < 4  # OpenCV scales down without a blur
        for crop, least in ((wanted, 0.95), (ours, 0.9999)):
            vector = theirs.feature(crop)[0]
            assert sface().vectors(ours[None])[0] @ (vector / np.linalg.norm(vector)) > least
        swapped = replace(sface(), channels="bgr").vectors(ours[None])[0]
        assert swapped @ (vector / np.linalg.norm(vector)) < 0.99


def test_aligned_face_is_not_moved() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    landmarks = (LANDMARK_TEMPLATES[EYES_ALIGNMENT] * SIDE + (SIDE / 2, 0)).astype(np.float32)
    face = Face(box_xyxy=(0, 0, SIDE, SIDE), landmarks=landmarks)
    recognizer = Recognizer(kits.parse(kit()))
    assert np.abs(recognizer.crop(frame, face).astype(int) - frame).max() <= 1
