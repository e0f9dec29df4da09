"""The recogniser gives a name to a face it knows, and none to anything else. It is silent and needs little."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge import kit as kits
from edge.errors import KitError
from edge.manifest import Thresholds
from edge.recognize import Recognizer
from export import build as building
from export import calibrate, graph
from export.graph import Factors
from tests.export import doors

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built() -> Recognizer:
    """With thresholds as `edge-export build` sets them."""
    return Recognizer(kits.parse(building.build(doors.model("both", "l21")).kit))


def test_known_people_are_recognised(built: Recognizer) -> None:
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


@pytest.mark.parametrize("coding", ["l1", "l21"])
@pytest.mark.parametrize("kind", ["pixels", "gradient", "both"])
def test_what_is_no_face_gets_no_name(coding: str, kind: str) -> None:
    """Other noise than the thresholds were set with."""
    recognizer = Recognizer(kits.parse(building.build(doors.model(kind, coding)).kit))
    nothing = np.concatenate([doors.strange_crops(), calibrate.non_faces(doors.SIZE, number=200, seed=77)])
    named = [face for face in recognizer.recognize_crops(nothing) if face.label]
    assert named == []


def test_a_blank_crop_says_so(built: Recognizer) -> None:
    (face,) = built.recognize_crops(np.zeros((1, *doors.SIZE), np.uint8))
    assert (face.label, face.reason, face.confidence, face.margin) == (None, "blank", 0, 0)


def test_no_crops_no_answers(built: Recognizer) -> None:
    assert built.recognize_crops(np.zeros((0, *doors.SIZE), np.uint8)) == []


@pytest.mark.parametrize(
    "crops", [np.zeros((1, 20, 24), np.uint8), np.zeros(doors.SIZE, np.uint8), np.zeros((1, *doors.SIZE))]
)
def test_other_crops_are_refused(built: Recognizer, crops: np.ndarray) -> None:
    with pytest.raises(ValueError, match="crops must be uint8, N x 24 x 20"):
        built.recognize_crops(crops)


def test_threads_share_a_recogniser(built: Recognizer) -> None:
    crops = doors.held_out()[0]
    alone = built.recognize_crops(crops)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == alone for found in pool.map(built.recognize_crops, [crops] * 40))


def test_numbers_that_are_none_get_no_name() -> None:
    kit = kits.parse(doors.kit())
    model = doors.model("pixels", "l21", 4)
    factors = Factors.of(model)
    broken = replace(factors, B=np.full_like(factors.B, np.nan))
    recognizer = Recognizer(replace(kit, recognizer=graph.build(broken, model.spec, model.coding)))
    assert {face.reason for face in recognizer.recognize_crops(doors.held_out()[0])} == {"broken"}
    assert {face.label for face in recognizer.recognize_crops(doors.held_out()[0])} == {None}


def test_a_graph_that_does_not_fit_the_manifest_is_refused() -> None:
    kit = kits.parse(doors.kit())
    for changed in (
        replace(kit.manifest, labels=kit.manifest.labels[:-1]),
        replace(kit.manifest, crop={"height": 20, "width": 24}),
    ):
        with pytest.raises(KitError, match="do not fit together"):
            Recognizer(replace(kit, manifest=changed))


def test_a_graph_that_the_runtime_cannot_load_is_a_sentence() -> None:
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
    assert Recognizer(_with(kit, higher)).recognize_crops(crop)[0].reason == "unsure"
    lower = replace(exact, residual=np.nextafter(found.residual, 0.0))
    assert Recognizer(_with(kit, lower)).recognize_crops(crop)[0].reason == "unlike"


def _with(kit: kits.Kit, thresholds: Thresholds) -> kits.Kit:
    return replace(kit, manifest=replace(kit.manifest, thresholds=thresholds))


def test_it_needs_numpy_and_onnxruntime_only_and_leaves_no_trace(tmp_path: Path) -> None:
    """Every other package is hidden, and the home folder, where telemetry would write, stays empty."""
    (tmp_path / "door.kit").write_bytes(doors.kit())
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import sys\n"
        "for name in ('cv2', 'typer', 'scipy', 'onnx', 'sklearn', 'matplotlib', 'cryptography', 'threadpoolctl'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np\n"
        "from edge.recognize import Recognizer\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "recognizer = Recognizer.load(sys.argv[1])\n"
        "assert len(recognizer.recognize_crops(np.zeros((2, 24, 20), np.uint8))) == 2\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data")}
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "door.kit")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert list(home.rglob("*")) == []
