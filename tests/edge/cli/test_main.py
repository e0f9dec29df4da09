"""`edge image`, and how the command starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge import paths
from tests.fixtures import kits as doors
from tests.fixtures import portraits
from tests.fixtures.command import run_edge


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with door.kit and a face in face.png."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    (tmp_path / "door.kit").write_bytes(doors.kit())
    cv2.imwrite("face.png", doors.model().crops[0])
    return tmp_path


def test_image_prints_one_json_line_per_photo(
    door: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2.imwrite("blank.png", np.zeros((30, 30), np.uint8))
    cv2.imwrite("large.png", cv2.resize(doors.model().crops[0], None, fx=3, fy=3, interpolation=cv2.INTER_NEAREST))
    assert run_edge(monkeypatch, "image", "--cropped", "face.png", "blank.png", "large.png") == 0
    face, blank, large = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    own = doors.model().labels[doors.model().crop_people[0]]
    assert (face["schema"], face["file"], face["nearest"]) == (2, "face.png", own)
    assert blank["label"] is None
    assert large["nearest"] == own, "resized to the crop size of the kit"


@pytest.mark.slow
def test_image_finds_faces_in_photos(door: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("door.kit").write_bytes(portraits.kit())
    photos = portraits.people()
    both = portraits.in_a_room(photos["s1"][8], width=140, at=(40, 60))
    both[60:279, 380:560] = cv2.resize(photos["s5"][8], (180, 219))
    cv2.imwrite("both.png", both)
    cv2.imwrite("portrait.png", photos["s2"][8])
    cv2.imwrite("empty.png", np.full((480, 640, 3), 90, np.uint8))
    assert run_edge(monkeypatch, "image", "both.png", "portrait.png", "empty.png") == 0
    large, small, portrait, empty = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (large["label"], small["label"], portrait["label"]) == ("s5", "s1", "s2")
    assert large["file"] == small["file"] == "both.png"
    assert large["box"][0] > small["box"][2]
    assert large["quality"]["reason"] is None
    assert (empty["file"], empty["label"], empty["reason"]) == ("empty.png", None, "no face")
    assert run_edge(monkeypatch, "image", "--min-face", "400", "both.png") == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "no face"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["image", "face.png"], 20, "without --cropped"),
        (["image", "--cropped", "missing.png"], 2, "missing.png"),
        (["image", "--cropped", "face.png", "--kit", "nowhere.kit"], 20, "nowhere.kit"),
        (["image", "--cropped", "face.png", "--kit", "face.png"], 20, "not a kit"),
        (["image", "--cropped", "face.png", "--public-key", "missing.pem"], 2, "missing.pem"),
        (["image", "--cropped"], 2, "FILES"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(
    door: Path, words: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edge(monkeypatch, *words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says.lower() in err.lower()
    assert "Traceback" not in err


def test_kit_search_order(door: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paths.find_kit(None) == Path("door.kit")
    monkeypatch.setenv("EDGE_KIT", "other.kit")
    assert paths.find_kit(None) == Path("other.kit")
    assert paths.find_kit(Path("named.kit")) == Path("named.kit")


def test_missing_kit_is_an_error(door: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (door / "door.kit").unlink()
    monkeypatch.setattr(paths, "KIT_SEARCH", (Path("door.kit"),))
    assert run_edge(monkeypatch, "image", "--cropped", "face.png") == 20
    assert "No kit" in capsys.readouterr().err


@pytest.mark.slow
def test_broken_installation_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text('raise ImportError("libGL.so.1: cannot open shared object file", name="cv2")')
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-m", "edge", "doctor"], env=environment, capture_output=True, text=True)
    assert run.returncode == 37
    assert run.stderr.startswith("error: cv2 cannot be loaded (libGL.so.1")
    assert "Traceback" not in run.stderr


def test_ctrl_c_while_modules_load() -> None:
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'edge.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from edge.__main__ import main\n"
        "main()\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "interrupted\n")
