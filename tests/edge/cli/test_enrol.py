"""`edge capture` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest

from edge import paths
from edge.cli import main as cli
from edge.enrol.storage import choose_detector
from export import cli as export_cli
from tests.fixtures.command import run_main
from tests.fixtures.enrolment import frames
from tests.fixtures.portraits import kit, yunet

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with photos of s2 in session/ and a detector."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", (Path("door.kit"),))
    (tmp_path / "session").mkdir()
    for i, frame in enumerate(frames(2)):
        cv2.imwrite(f"session/{i:02}.png", frame)
    (tmp_path / "detector.onnx").write_bytes(yunet())
    return tmp_path


def test_capture_writes_photos_and_prints_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, cli.main, "capture", "anna", "--camera", "session", "--detector", "detector.onnx") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["name"], len(found["photos"])) == (2, "anna", len(found["poses"]))
    assert all(Path(file).is_file() for file in found["photos"])
    assert f"{len(found['photos'])} photos of anna are in photos/anna" in err


def test_capture_reads_a_video(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    writer = cv2.VideoWriter("visit.avi", cv2.VideoWriter.fourcc(*"MJPG"), 5, (400, 300))
    for frame in frames(2):
        for _ in range(3):
            writer.write(frame)
    writer.release()
    arguments = ("anna", "--camera", "visit.avi", "--detector", "detector.onnx", "--photos", "4")
    assert run_main(monkeypatch, cli.main, "capture", *arguments) == 0
    assert len(json.loads(capsys.readouterr().out)["photos"]) == 4


def test_capture_asks_the_kit(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "door.kit").write_bytes(kit())
    assert run_main(monkeypatch, cli.main, "capture", "anna", "--camera", "session") == 35
    out, err = capsys.readouterr()
    assert out == ""
    assert "already enrolled as s2" in err
    assert not (folder / "photos").exists()
    assert run_main(monkeypatch, cli.main, "capture", "anna", "--camera", "session", "--allow-alike") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["anna", "--camera", "session", "--kit", "missing.kit"], 20, "missing.kit"),
        (["anna", "--camera", "nowhere", "--detector", "detector.onnx"], 31, "nowhere"),
        (["anna", "--camera", "session", "--detector", "missing.onnx"], 32, "edge-export detector"),
        (["anna/..", "--camera", "session", "--detector", "detector.onnx"], 2, "slash"),
    ],
)
def test_bad_input_gives_a_message_and_an_exit_code(
    folder: Path,
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(monkeypatch, cli.main, "capture", *arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not (folder / "photos").exists()


def test_export_writes_a_detector_for_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yunet()  # or skip
    assert run_main(monkeypatch, export_cli.main, "detector", "-o", str(tmp_path / "detector.onnx")) == 0
    assert len(choose_detector(tmp_path / "detector.onnx", None).detect(frames(1)[0])) == 1
