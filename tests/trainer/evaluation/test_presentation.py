"""`trainer liveness`: APCER and BPCER of a kit's liveness model."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import cv2
import pytest

from edge.vision.presentation import LivenessModel
from export.liveness import build
from tests.fixtures import orl_door
from tests.fixtures.data import file_of
from tests.fixtures.liveness import bluish, published_networks, with_liveness
from tests.fixtures.orl_door import GUEST, OTHER, empty_room, frames
from tests.fixtures.portraits import finder
from tests.fixtures.trainer_command import TrainerCommand
from trainer.evaluation.presentation import Presentations, measure_folder

pytestmark = pytest.mark.slow  # trains a kit


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> TrainerCommand:
    return TrainerCommand(monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """door.kit, and recordings: photos of two live people and an empty room, a video and one photo of a screen."""
    folder = tmp_path_factory.mktemp("liveness")
    (folder / "door.kit").write_bytes(with_liveness(orl_door.kit()))
    (folder / "plain.kit").write_bytes(orl_door.kit())
    for name in (GUEST, OTHER):
        (folder / "recordings" / "live" / name).mkdir(parents=True)
        for i, image in enumerate((*frames(name, 4), *empty_room(1))):
            cv2.imwrite(str(folder / "recordings" / "live" / name / f"{i}.png"), image)
    (folder / "recordings" / "replay").mkdir()
    screen = [bluish(image) for image in frames(GUEST, 8)]
    orl_door.video(folder / "recordings" / "replay" / "phone.avi", tuple(screen))
    close = orl_door.recognizer().find(screen[0])[0].box_xyxy
    left, top, right, bottom = (round(side) for side in close)
    cv2.imwrite(str(folder / "recordings" / "replay" / "close.png"), screen[0][max(top - 20, 0) : bottom + 20, left:right])
    (folder / "empty").mkdir()
    return folder


def test_rates_of_live_people_and_screens(folder: Path, trainer: TrainerCommand) -> None:
    code, out, _ = trainer("liveness", folder / "door.kit", folder / "recordings", "--json")
    live, replay = json.loads(out)["kinds"]
    assert code == 0
    assert (live["kind"], live["measure"], live["frames"], live["frame_errors"]) == ("live", "BPCER", 8, 0)
    assert (live["visits"], live["visit_errors"], live["no_face"]) == (2, 0, 2), "three in a row, within one person"
    assert (replay["kind"], replay["measure"], replay["frames"], replay["frame_errors"]) == ("replay", "APCER", 8, 0)
    assert (replay["visits"], replay["too_close"]) == (2, 1)


def test_threshold_and_distance_can_be_changed(folder: Path, trainer: TrainerCommand) -> None:
    words = ("liveness", folder / "door.kit", folder / "recordings", "--json", "--threshold", "0", "--any-distance")
    live, replay = json.loads(trainer(*words)[1])["kinds"]
    assert (live["frame_errors"], replay["frame_errors"]) == (0, 9), "everything passes"
    assert replay["too_close"] == 0


def test_table_has_intervals(folder: Path, trainer: TrainerCommand) -> None:
    code, out, err = trainer("liveness", folder / "door.kit", folder / "recordings")
    assert code == 0
    assert "| live | BPCER | 0.0 % (0 of 8; 0.0 to 36.9)" in out
    assert "needs a score of 0.5" in err


@pytest.mark.parametrize(
    ("kit", "data", "code", "message"),
    [
        ("plain.kit", "recordings", 20, "no liveness model"),
        ("door.kit", "missing", 2, "cannot be read"),
        ("door.kit", "empty", 2, "edge capture NAME --attack"),
    ],
)
def test_mistake_is_one_sentence(folder: Path, trainer: TrainerCommand, kit: str, data: str, code: int, message: str) -> None:
    found, out, err = trainer("liveness", folder / kit, folder / data)
    assert (found, out) == (code, "")
    assert message in err


def test_visits_use_the_median_of_three_frames_of_one_sequence() -> None:
    scores = ((0.9, 0.1, 0.9, 0.1), (0.9, 0.9), (0.1, 0.1, 0.9))
    own = Presentations(kind="print", is_live=False, scores=scores, no_face=0, too_close=0)
    assert (own.visits(0.5).errors, own.visits(0.5).trials) == (1, 2)
    assert (own.frames(0.5).errors, own.frames(0.5).trials) == (5, 9)


@pytest.mark.parametrize(("kind", "measure"), [("live", "BPCER"), ("replay", "APCER")])
def test_published_networks_separate_people_from_phones(kind: str, measure: str, tmp_path: Path) -> None:
    """Videos of two people, and of phones that show them. No frame is on the wrong side."""
    built = build(published_networks())
    with ZipFile(file_of("attacks_dev.zip")) as archive:
        names = [name for name in archive.namelist() if f"_{kind}." in name]
        for name in names:
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / Path(name).name).write_bytes(archive.read(name))
    (found,) = measure_folder(tmp_path, LivenessModel(built.graph, built.spec), finder(80))
    assert (found.kind, found.measure, found.too_close) == (kind, measure, 0)
    rate = found.frames(built.spec.threshold)
    assert rate.errors == 0
    assert rate.trials > 50
