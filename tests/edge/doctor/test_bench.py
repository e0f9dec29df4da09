"""`edge bench`: which stages are timed, and that its numbers fit together. No test depends on speed."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge import stages
from edge.camera.sources import open_camera
from edge.doctor import bench
from edge.doctor.bench import Report, Times, VisitCost
from edge.vision.recognize import Recognizer
from tests.fixtures import kits as doors
from tests.fixtures import portraits
from tests.fixtures.command import run_edge

pytestmark = pytest.mark.slow

WITHOUT_LIVENESS = tuple(stage for stage in bench.BENCH_STAGES if stage != "liveness")  # the kit has no such model


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kit") / "door.kit"
    path.write_bytes(portraits.kit())
    return path


def record(folder: Path, frames: list[Any]) -> Path:
    """Write frames as a folder of images, which is a recording."""
    folder.mkdir()
    for i, frame in enumerate(frames):
        cv2.imwrite(str(folder / f"{i:03}.png"), frame)
    return folder


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four frames with a face, and one of an empty room, at 10 frames per second."""
    photos = portraits.people()["s1"][:4]
    frames = [portraits.in_a_room(photo, width=200) for photo in photos]
    return record(tmp_path_factory.mktemp("bench") / "visit", [*frames, np.full((480, 640, 3), 90, np.uint8)])


def test_every_stage_is_timed_and_the_numbers_fit_together(kit: Path, visit: Path) -> None:
    counted = []
    with open_camera(str(visit)) as camera:
        report = bench.measure(Recognizer.load(kit), camera, report=lambda done, total: counted.append((done, total)))
    assert tuple(report.stages_ms) == WITHOUT_LIVENESS
    assert (report.frames, report.with_face, report.width, report.height) == (5, 4, 640, 480)
    assert counted == [(i, 200) for i in range(1, 6)]
    assert 0 < report.recognised <= 4
    assert report.people == portraits.PEOPLE
    assert report.recognition_share
    assert report.after_detection_share
    assert report.whole_to_detector
    for times in [*report.stages_ms.values(), report.recognition_share, report.after_detection_share]:
        assert 0 < times.p50 <= times.p95 < math.inf
    assert report.recognition_share.p50 < report.after_detection_share.p50 < 1 < report.whole_to_detector.p50
    assert report.frames_per_second > 0
    assert 0 < report.core_share < math.inf


def test_cost_of_a_visit_ends_with_its_decision(kit: Path, visit: Path) -> None:
    """A processor clock that ticks once per call: a frame costs one second."""
    ticks = itertools.count()
    with open_camera(str(visit)) as camera:
        report = bench.measure(Recognizer.load(kit), camera, processor=lambda: float(next(ticks)))
    costs = [cost for cost in (report.granted, report.denied) if cost is not None]
    (cost,) = costs
    assert cost.visits == 1
    assert cost.looks == cost.most_looks == report.recognised == 3
    assert cost.processor_ms == (3000 if report.granted else 4000)
    assert report.core_share == bench.FPS


def test_faster_recording_is_processed_at_the_usual_rate(kit: Path, visit: Path) -> None:
    with open_camera(str(visit), images_per_second=60) as camera:
        report = bench.measure(Recognizer.load(kit), camera)
    assert report.frames == 2, "the frames at 0 and 4/60 seconds"


def test_durations_come_from_the_clock(kit: Path, visit: Path) -> None:
    """A clock that ticks once per call: a stage takes one tick, and the whole frame the ticks of its four stages."""
    ticks = itertools.count()
    with open_camera(str(visit)) as camera:
        report = bench.measure(Recognizer.load(kit), camera, frames=3, clock=lambda: float(next(ticks)))
    inner = (stages.DETECT, stages.ALIGN, stages.RECOGNISE, stages.DECIDE)
    assert {(report.stages_ms[stage].p50, report.stages_ms[stage].p95) for stage in inner} == {(1000, 1000)}
    assert report.stages_ms[stages.WHOLE].p50 == 9000
    assert report.recognition_share == Times(p50=1 / 9, p95=1 / 9)
    assert report.after_detection_share == Times(p50=3 / 9, p95=3 / 9)
    assert report.whole_to_detector == Times(p50=9, p95=9)


def test_command_prints_json(
    kit: Path, visit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edge(monkeypatch, "bench", kit, "--camera", visit, "--frames", 2, "--json") == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    found = json.loads(line)
    assert (found["schema"], found["frames"], set(found["stages_ms"])) == (2, 2, set(WITHOUT_LIVENESS))
    assert found["recognition_share"]["p50"] > 0
    assert found["core_share"] > 0
    assert {found["granted"] is None, found["denied"] is None} == {True, False}
    assert err == ""


def test_recording_without_faces_times_the_detector(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = record(tmp_path / "empty", [np.full((240, 320, 3), grey, np.uint8) for grey in (60, 90, 120)])
    assert run_edge(monkeypatch, "bench", kit, "--camera", empty) == 0
    out = capsys.readouterr().out
    assert "3 frames of 320x240, faces found in 0" in out
    assert "No face was recognised" in out
    assert "detect, ms" in out
    assert "recognise, ms" not in out


def test_table_shows_the_goals() -> None:
    times = Times(p50=1.0, p95=2.0)
    report = Report(
        camera="0",
        width=640,
        height=480,
        people=3,
        frames=2,
        with_face=2,
        recognised=2,
        stages_ms=dict.fromkeys(bench.BENCH_STAGES, times),
        frames_per_second=10.0,
        recognition_share=times,
        after_detection_share=times,
        whole_to_detector=times,
        granted=VisitCost(visits=6, looks=3.2, most_looks=4, processor_ms=110.0),
        denied=VisitCost(visits=2, looks=10.0, most_looks=10, processor_ms=450.0),
        core_share=0.034,
    )
    shown = bench.table(report)
    for goal in ("at most 5 looks", "at most 12 looks", "3.4%   goal: at most 15%"):
        assert goal in shown


def test_kit_for_cropped_photos_is_an_error(
    visit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crops.kit").write_bytes(doors.kit())
    assert run_edge(monkeypatch, "bench", tmp_path / "crops.kit", "--camera", visit) == 20
    assert "cropped" in capsys.readouterr().err
