"""The recogniser labels enrolled people and no other image. It prints nothing and needs little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.errors import DetectorMissingError, KitError
from edge.kit import format as kits
from edge.kit.manifest import Thresholds
from edge.vision.preprocess import SIZE, align
from edge.vision.quality import QualityLimits
from edge.vision.recognize import Recognizer
from export import graph
from export import measure as calibrate
from export.build import build_kit
from export.graph import Factors
from tests.fixtures import kits as doors
from tests.fixtures import portraits

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built() -> Recognizer:
    """A kit with the thresholds that `edge-export build` sets."""
    return Recognizer(kits.parse(build_kit(doors.model("both", "l21")).kit))


def test_enrolled_people_are_recognised(built: Recognizer) -> None:
    crops, names = doors.held_out()
    found = built.recognize_crops(crops)
    named = [(face.label, name) for face, name in zip(found, names, strict=True) if face.label]
    assert len(named) > len(crops) / 3
    assert all(label == name for label, name in named)
    for face in found:
        assert (face.label is None) == (face.reason != "recognised")
        assert face.threshold == built.kit.manifest.thresholds.confidence
        assert (face.reason == "recognised") == (
            face.confidence >= face.threshold and face.residual <= built.kit.manifest.thresholds.residual
        )


@pytest.mark.parametrize(("coding", "kind"), [("l1", "both"), ("l1", "gradient"), ("l21", "pixels")])
def test_noise_gets_no_label(coding: str, kind: str) -> None:
    """With other noise than the thresholds were set with."""
    recognizer = Recognizer(kits.parse(build_kit(doors.model(kind, coding)).kit))
    noise = np.concatenate([doors.strange_crops(), calibrate.non_faces(doors.SIZE, number=200, seed=77)])
    named = [face for face in recognizer.recognize_crops(noise) if face.label]
    assert named == []


def test_blank_crops_and_empty_batches(built: Recognizer) -> None:
    (face,) = built.recognize_crops(np.zeros((1, *doors.SIZE), np.uint8))
    assert (face.label, face.reason, face.confidence, face.margin) == (None, "blank image", 0, 0)
    assert built.recognize_crops(np.zeros((0, *doors.SIZE), np.uint8)) == []


def test_other_crops_are_rejected(built: Recognizer) -> None:
    others: list[Any] = [np.zeros((1, 20, 24), np.uint8), np.zeros(doors.SIZE, np.uint8), np.zeros((1, *doors.SIZE))]
    for crops in others:
        with pytest.raises(ValueError, match="crops must be uint8, N x 24 x 20"):
            built.recognize_crops(crops)


def test_threads_may_share_a_recogniser(built: Recognizer) -> None:
    crops = doors.held_out()[0]
    alone = built.recognize_crops(crops)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == alone for found in pool.map(built.recognize_crops, [crops] * 40))


def test_invalid_output_gets_no_label() -> None:
    kit = kits.parse(doors.kit())
    model = doors.model("pixels", "l21", 4)
    factors = Factors.of(model)
    invalid = replace(factors, B=np.full_like(factors.B, np.nan))
    recognizer = Recognizer(replace(kit, recognizer=graph.build(invalid, model.spec)))
    assert {face.reason for face in recognizer.recognize_crops(doors.held_out()[0])} == {"invalid output"}
    assert {face.label for face in recognizer.recognize_crops(doors.held_out()[0])} == {None}


def test_graph_that_does_not_match_the_manifest_is_rejected() -> None:
    kit = kits.parse(doors.kit())
    for changed in (
        replace(kit.manifest, labels=kit.manifest.labels[:-1]),
        replace(kit.manifest, crop={"height": 20, "width": 24}),
    ):
        with pytest.raises(KitError, match="does not match"):
            Recognizer(replace(kit, manifest=changed))


def test_graph_that_onnxruntime_cannot_load_is_a_kit_error() -> None:
    kit = kits.parse(doors.kit())
    with pytest.raises(KitError, match=r"cannot load recognizer\.onnx"):
        Recognizer(replace(kit, recognizer=kit.recognizer[:-40]))


def test_thresholds_are_inclusive() -> None:
    kit = kits.parse(doors.kit())
    crop = doors.held_out()[0][:1]
    found = Recognizer(kit).recognize_crops(crop)[0]
    exact = Thresholds(confidence=found.confidence, residual=found.residual, provisional=False)
    assert Recognizer(_with(kit, exact)).recognize_crops(crop)[0].label == found.nearest
    higher = replace(exact, confidence=np.nextafter(found.confidence, 2.0))
    assert Recognizer(_with(kit, higher)).recognize_crops(crop)[0].reason == "low confidence"
    lower = replace(exact, residual=np.nextafter(found.residual, 0.0))
    assert Recognizer(_with(kit, lower)).recognize_crops(crop)[0].reason == "high residual"


def _with(kit: kits.Kit, thresholds: Thresholds) -> kits.Kit:
    return replace(kit, manifest=replace(kit.manifest, thresholds=thresholds))


@pytest.fixture(scope="module")
def door() -> Recognizer:
    """A kit of real people, trained on photos."""
    return Recognizer(kits.parse(portraits.kit()))


def test_people_in_a_frame_are_recognised(door: Recognizer) -> None:
    right = total = 0
    for name, photos in portraits.people().items():
        for photo in photos[portraits.TRAINING :]:
            (found,) = door.recognize(portraits.in_a_room(photo, width=140))
            total += 1
            right += found.label == name
            assert found.label in (name, None)
            assert found.box_xyxy is not None
            assert found.quality is not None
            assert found.quality.reason is None
            assert found.scores is not None
            assert not found.scores.flags.writeable
            assert np.linalg.norm(found.scores) == pytest.approx(1, abs=1e-5)
            assert max(found.scores) == pytest.approx(found.confidence, abs=1e-5)
    assert right >= 0.9 * total


def test_frame_and_crop_give_the_same_result(door: Recognizer) -> None:
    """The device aligns a face as training does."""
    photo = portraits.people()["s1"][7]
    (found,) = door.recognize(photo, min_face=40)
    (face,) = portraits.finder().detect(photo)
    crop = align(portraits.grey(photo), face.landmarks, SIZE)
    (wanted,) = door.recognize_crops(crop[None])
    assert replace(found, box_xyxy=None, landmarks=None, quality=None) == wanted


def test_each_face_gets_a_result_and_a_bad_one_its_reason(door: Recognizer) -> None:
    one, other = portraits.people()["s1"][8], portraits.people()["s5"][8]
    frame = portraits.in_a_room(one, width=140, at=(40, 60))
    frame[60:279, 380:560] = cv2.GaussianBlur(cv2.resize(other, (180, 219)), (0, 0), 8)
    blurred, sharp = door.recognize(frame)
    assert (sharp.label, sharp.reason) == ("s1", "recognised")
    assert (blurred.label, blurred.nearest, blurred.confidence, blurred.scores) == (None, "", 0, None)
    assert blurred.reason == "face blurred"
    assert blurred.threshold == sharp.threshold


def test_quality_limits_and_min_face_are_used(door: Recognizer) -> None:
    frame = portraits.in_a_room(portraits.people()["s1"][8], width=140)
    strict = Recognizer(door.kit, limits=QualityLimits(min_size=200))
    assert [found.reason for found in strict.recognize(frame)] == ["face too small"]
    distant = Recognizer(door.kit, min_face=320)
    assert distant.recognize(frame) == []
    assert len(distant.recognize(frame, min_face=80)) == 1
    assert door.recognize(np.full((480, 640, 3), 90, np.uint8)) == []


def test_threads_may_recognise_frames(door: Recognizer) -> None:
    frames = [portraits.in_a_room(photos[9], width=140) for photos in portraits.people().values()]

    def results(frame: np.ndarray) -> list[tuple[str | None, float]]:
        return [(found.label, found.confidence) for found in door.recognize(frame)]

    alone = [results(frame) for frame in frames]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(results, frames * 3)) == alone * 3


def test_kit_of_cropped_photos_rejects_frames() -> None:
    with pytest.raises(KitError, match="without --cropped"):
        Recognizer(kits.parse(doors.kit())).recognize(np.zeros((48, 64, 3), np.uint8))


def test_kit_without_a_detector_recognises_only_crops(door: Recognizer) -> None:
    without = Recognizer(replace(door.kit, detector=None))
    assert len(without.recognize_crops(np.zeros((1, *SIZE), np.uint8))) == 1
    with pytest.raises(DetectorMissingError, match="--detector yunet") as caught:
        without.recognize(np.zeros((48, 64, 3), np.uint8))
    assert caught.value.exit_code == 32


def test_facts_are_json_without_scores(door: Recognizer) -> None:
    (found,) = door.recognize(portraits.in_a_room(portraits.people()["s1"][8], width=140))
    facts = json.loads(json.dumps(found.facts()))
    assert {"label", "nearest", "confidence", "threshold", "margin", "reason", "box", "quality"} <= set(facts)
    assert not {"scores", "face", "landmarks"} & set(facts)


def test_loading_needs_little_memory(tmp_path: Path) -> None:
    """At most 120 MB."""
    (tmp_path / "door.kit").write_bytes(portraits.kit())
    script = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from edge import Recognizer\n"
        "Recognizer.load(sys.argv[1]).detector\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path / "door.kit")], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) <= 120_000


def test_recognition_needs_few_packages_and_writes_no_file(tmp_path: Path) -> None:
    """Only numpy, OpenCV and onnxruntime are available. The home folder, where telemetry would write, stays empty."""
    (tmp_path / "door.kit").write_bytes(doors.kit())
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import sys\n"
        "for name in ('typer', 'scipy', 'onnx', 'sklearn', 'matplotlib', 'cryptography', 'threadpoolctl'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np\n"
        "from edge import Recognizer\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "recognizer = Recognizer.load(sys.argv[1])\n"
        "assert len(recognizer.recognize_crops(np.zeros((2, 24, 20), np.uint8))) == 2\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data")}
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "door.kit")], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert list(home.rglob("*")) == []
