"""`edge capture --attack` records what a liveness model is measured on."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest

from edge import paths
from edge.camera.photo import read_photo
from tests.fixtures import orl_door
from tests.fixtures.command import run_edge
from tests.fixtures.liveness import bluish, with_liveness
from tests.fixtures.orl_door import GUEST, empty_room, frames

pytestmark = pytest.mark.slow  # trains a kit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a kit and frames of a screen, of a person and of an empty room."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", (Path("door.kit"),))
    (tmp_path / "door.kit").write_bytes(with_liveness(orl_door.kit()))
    for name, images in {"screen": map(bluish, frames(GUEST, 8)), "person": frames(GUEST, 8), "room": empty_room(4)}.items():
        (tmp_path / name).mkdir()
        for i, image in enumerate(images):
            cv2.imwrite(f"{name}/{i}.png", image)
    return tmp_path


def test_frames_are_written_whole_and_scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edge(monkeypatch, "capture", "anna", "--attack", "replay", "--camera", "screen", "--photos", "3") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["kind"], found["frames"], found["too_close"], found["passed"]) == ("replay", 3, 0, 0)
    assert found["median"] < 0.1
    files = sorted((folder / "attacks" / "replay" / "anna").iterdir())
    assert [read_photo(file, colour=True).shape for file in files] == [(480, 640, 3)] * 3
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files), "faces are private"
    assert "0 of 3 frames pass as a live face" in err
    assert run_edge(monkeypatch, "capture", "anna", "--attack", "live", "--camera", "person", "--photos", "3") == 0
    assert json.loads(capsys.readouterr().out)["passed"] == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["anna", "--attack", "../print", "--camera", "screen"], 2, "not a kind of attack"),
        (["an/na", "--attack", "print", "--camera", "screen"], 2, "slash"),
        (["anna", "--attack", "print", "--camera", "room"], 36, "No frame showed a face"),
        (["anna", "--attack", "print", "--camera", "screen", "--kit", "plain.kit"], 20, "no liveness model"),
        (["anna", "--attack", "print", "--camera", "screen", "--kit", "missing.kit"], 20, "missing.kit"),
    ],
)
def test_mistake_is_one_sentence_and_writes_nothing(
    folder: Path,
    words: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "plain.kit").write_bytes(orl_door.kit())
    assert run_edge(monkeypatch, "capture", *words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not (folder / "attacks").exists()
