"""`edge bench` names the stages, and its figures fit together. How long anything takes is never tested."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.camera.open import open_camera
from edge.cli import main as cli
from edge.doctor import bench
from edge.vision.recognize import Recognizer
from tests.fixtures import kits as doors
from tests.fixtures import portraits


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kit") / "door.kit"
    path.write_bytes(portraits.kit())
    return path


def record(folder: Path, frames: list[Any]) -> Path:
    """A folder of images is a recording."""
    folder.mkdir()
    for i, frame in enumerate(frames):
        cv2.imwrite(str(folder / f"{i:03}.png"), frame)
    return folder


@pytest.fixture
def visit(tmp_path: Path) -> Path:
    """Eight frames with a face, and two of an empty room."""
    photos = portraits.people()["s1"][:8]
    room = np.full((480, 640, 3), 90, np.uint8)
    return record(tmp_path / "visit", [*(portraits.in_a_room(photo, width=200) for photo in photos), room, room])


def edge(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["edge", *map(str, words)])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_every_stage_is_timed_and_the_figures_fit_together(kit: Path, visit: Path) -> None:
    with open_camera(str(visit)) as camera:
        report = bench.measure(Recognizer.load(kit), camera, kit=kit)
    assert tuple(report.stages_ms) == bench.STAGES
    assert (report.frames, report.with_face, report.width, report.height) == (10, 8, 640, 480)
    assert 0 < report.recognised <= 8
    assert report.people == portraits.PEOPLE
    assert report.recognition_share
    assert report.after_detection_share
    assert report.whole_to_detector
    assert report.start
    shares = [report.recognition_share, report.after_detection_share, report.whole_to_detector]
    for times in [*report.stages_ms.values(), *shares]:
        assert 0 < times.p50 < math.inf
        assert 0 < times.p95 < math.inf
    assert all(times.p50 <= times.p95 for times in report.stages_ms.values())
    assert report.recognition_share.p50 < report.after_detection_share.p50
    assert report.frames_per_second == pytest.approx(1000 / report.stages_ms["whole"].p50)
    assert min(report.start.import_seconds, report.start.load_seconds, report.start.peak_mb) > 0
    assert report.start.strangers == ()


def test_the_stages_do_what_the_recogniser_does(kit: Path, visit: Path) -> None:
    """The crops that are timed are those that the recogniser would look at."""
    recognizer = Recognizer.load(kit)
    with open_camera(str(visit)) as camera:
        frame = camera.frame(1)
        assert frame is not None
        crops = bench._Bench(recognizer, camera, time.perf_counter)._crops(
            frame.image, recognizer.detector.detect(frame.image)
        )
    alone = recognizer.recognize_crops(crops)
    whole = [face for face in recognizer.recognize(frame.image) if face.quality and face.quality.reason is None]
    assert [face.scores for face in alone] == [face.scores for face in whole] != []


def test_frames_can_be_fewer(kit: Path, visit: Path) -> None:
    counted = []
    with open_camera(str(visit)) as camera:
        report = bench.measure(
            Recognizer.load(kit), camera, frames=3, report=lambda done, total: counted.append((done, total))
        )
    assert report.frames == 3
    assert report.start is None
    assert counted == [(1, 3), (2, 3), (3, 3)]


def test_the_clock_is_an_argument(kit: Path, visit: Path) -> None:
    ticks = iter(range(10_000))
    with open_camera(str(visit)) as camera:
        report = bench.measure(Recognizer.load(kit), camera, clock=lambda: float(next(ticks)))
    assert {(times.p50, times.p95) for times in report.stages_ms.values()} == {(1000, 1000)}
    assert report.whole_to_detector == report.recognition_share == bench.Times(p50=1, p95=1)
    assert report.after_detection_share == bench.Times(p50=3, p95=3)
    assert report.frames_per_second == 1


def test_the_command_prints_json(
    kit: Path, visit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edge(monkeypatch, "bench", kit, "--camera", visit, "--frames", 2, "--json") == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    found = json.loads(line)
    assert (found["schema"], found["frames"], set(found["stages_ms"])) == (1, 2, set(bench.STAGES))
    assert found["recognition_share"]["p50"] > 0
    assert err == ""


def test_a_recording_without_faces_still_times_the_detector(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = record(tmp_path / "empty", [np.full((240, 320, 3), grey, np.uint8) for grey in (60, 90, 120)])
    assert edge(monkeypatch, "bench", kit, "--camera", empty) == 0
    out = capsys.readouterr().out
    assert "3 frames of 320x240, 0 with a face" in out
    assert "No face was good enough" in out
    assert "detect, ms" in out
    assert "recognise, ms" not in out
    with open_camera(str(empty)) as camera:
        report = bench.measure(Recognizer.load(kit), camera)
    assert (report.recognition_share, report.after_detection_share, report.whole_to_detector) == (None, None, None)
    assert json.loads(json.dumps(report.facts()))["with_face"] == 0


def test_the_table_holds_the_goals(kit: Path, visit: Path) -> None:
    with open_camera(str(visit)) as camera:
        shown = bench.table(bench.measure(Recognizer.load(kit), camera, frames=2, kit=kit))
    for goal in ("at most 5%", "at most 1.3", "at most 0.5", "at most 120"):
        assert goal in shown
    assert "nan" not in shown


def test_a_kit_that_cannot_be_started_has_no_start(tmp_path: Path) -> None:
    (tmp_path / "bad.kit").write_bytes(b"PK")
    assert bench.start(tmp_path / "bad.kit") is None


def test_a_kit_for_crops_only_is_a_sentence(
    visit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crops.kit").write_bytes(doors.kit())
    assert edge(monkeypatch, "bench", tmp_path / "crops.kit", "--camera", visit) == 20
    assert "cropped" in capsys.readouterr().err
