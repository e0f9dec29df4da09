"""The `edge` command as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge import cli
from tests.export import doors


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with door.kit, and a face in face.png: where the command is run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    (tmp_path / "door.kit").write_bytes(doors.kit())
    cv2.imwrite("face.png", doors.model().crops[0])
    return tmp_path


def edge(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["edge", *words])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_image_prints_a_json_line_for_each_photo(
    door: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2.imwrite("blank.png", np.zeros((30, 30), np.uint8))
    cv2.imwrite("large.png", cv2.resize(doors.model().crops[0], None, fx=3, fy=3, interpolation=cv2.INTER_NEAREST))
    assert edge(monkeypatch, "image", "--cropped", "face.png", "blank.png", "large.png") == 0
    face, blank, large = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    own = doors.model().labels[doors.model().crop_people[0]]
    assert (face["schema"], face["file"], face["nearest"]) == (1, "face.png", own)
    assert blank["label"] is None
    assert large["nearest"] == own, "a face of another size is brought to the kit's"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["image", "face.png"], 2, "--cropped"),
        (["image", "--cropped", "missing.png"], 2, "missing.png"),
        (["image", "--cropped", "face.png", "--kit", "nowhere.kit"], 20, "nowhere.kit"),
        (["image", "--cropped", "face.png", "--kit", "face.png"], 20, "not a kit"),
        (["image", "--cropped", "face.png", "--public-key", "missing.pem"], 2, "missing.pem"),
        (["image", "--cropped"], 2, "FILES"),
    ],
)
def test_bad_input_is_a_sentence_and_a_code(
    door: Path,
    words: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert edge(monkeypatch, *words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says.lower() in err.lower()
    assert "Traceback" not in err


def test_the_kit_is_looked_for_in_order(door: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cli.find_kit(None) == Path("door.kit")
    monkeypatch.setenv("EDGE_KIT", "other.kit")
    assert cli.find_kit(None) == Path("other.kit")
    assert cli.find_kit(Path("named.kit")) == Path("named.kit")


def test_no_kit_is_said(door: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (door / "door.kit").unlink()
    monkeypatch.setattr(cli, "PLACES", (Path("door.kit"),))
    assert edge(monkeypatch, "image", "--cropped", "face.png") == 20
    assert "no kit" in capsys.readouterr().err
