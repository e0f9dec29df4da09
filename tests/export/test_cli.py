"""`edge-export` from a user's side: what it writes, what it says, and the code it leaves with."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge.kit import format as kits
from edge.vision.recognize import Recognizer
from export import cli
from tests.fixtures import kits as doors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With door.npz (l21), robust.npz (l1), a signed and an unsigned kit."""
    folder = tmp_path_factory.mktemp("export")
    doors.model("pixels", "l21", 4).save(folder / "door.npz")
    doors.model("both", "l1").save(folder / "robust.npz")
    images, names = doors.held_out()
    np.savez(folder / "faces.npz", images=images, labels=names)
    for command in (
        "keygen -o ours.pem",
        "keygen -o theirs.pem",
        "build door.npz -o door.kit --detector none",
        "build door.npz -o signed.kit --detector none --sign ours.pem",
    ):
        assert run(folder, command) == 0
    return folder


def run(folder: Path, command: str) -> int:
    """The exit code of a command; names of files are taken in `folder`."""
    known = (".npz", ".kit", ".pem", ".pub", ".onnx", ".png", ".svg", ".txt")
    words = [str(folder / word) if word.endswith(known) else word for word in command.split()]
    argv, sys.argv = sys.argv, ["edge-export", *words]
    try:
        cli.main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    finally:
        sys.argv = argv
    raise AssertionError("a command ends by leaving")


def test_build_writes_a_private_kit_and_says_what_it_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "build robust.npz -o robust.kit --detector none --data faces.npz") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    for words in ("iterations  agreement  accuracy  microseconds", "<- chosen", "converged", "held-out faces", "not signed"):
        assert words in captured.err
    assert stat.S_IMODE((folder / "robust.kit").stat().st_mode) == 0o600
    assert Recognizer.load(folder / "robust.kit").recognize_crops(doors.held_out()[0][:1])


def test_build_for_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "build door.npz -o other.kit --detector none --json --iterations 4 --precision fp16") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coding"]["iterations"] == 4
    assert found["precision"] == "fp16"
    assert found["microseconds"]["4"] > 0
    assert found["bytes"] == (folder / "other.kit").stat().st_size


def test_a_kit_has_a_version_and_a_series(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "inspect door.kit --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["series"]) == (1, "")
    assert run(folder, "build door.npz -o north.kit --detector none --json --kit-version 7 --series north") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["series"]) == (7, "north")
    assert run(folder, "build door.npz -o north.kit --detector none --kit-version 0") == 2
    assert run(folder, "build door.npz -o north.kit --detector none --series no\x07rth") == 2


def test_building_twice_gives_the_same_bytes(folder: Path) -> None:
    assert run(folder, "build door.npz -o again.kit --detector none") == 0
    assert (folder / "again.kit").read_bytes() == (folder / "door.kit").read_bytes()
    assert run(folder, "build door.npz -o again.kit --detector none --sign ours.pem") == 0
    assert (folder / "again.kit").read_bytes() == (folder / "signed.kit").read_bytes()


def test_verify_says_what_it_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "verify door.kit") == 0
    assert "pass some with --data" in capsys.readouterr().err
    assert run(folder, "verify signed.kit --key ours.pem.pub --data faces.npz --model door.npz") == 0
    said = capsys.readouterr().err
    assert "signature: valid" in said
    assert "24 given crops: the same labels" in said
    assert run(folder, "verify door.kit --data faces.npz --json") == 0
    parity = json.loads(capsys.readouterr().out)["parity"]
    assert [found["crops"] for found in parity] == ["random", "given"]
    assert all(found["other_labels"] == 0 and found["score_difference"] < 1e-4 for found in parity)


def test_inspect_names_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "inspect door.kit --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["people"] == 4
    assert found["signature"] == "none"
    assert found["kit"] == kits.read(folder / "door.kit").sha256
    assert run(folder, "inspect signed.kit --key ours.pem.pub") == 0
    shown = capsys.readouterr().out
    assert "thresholds.provisional" in shown
    assert kits.read(folder / "signed.kit").manifest.thresholds.sentence in shown
    assert not any(name in shown or name in json.dumps(found, ensure_ascii=False) for name in doors.NAMES)


@pytest.mark.parametrize(("file", "start"), [("graph.png", b"\x89PNG"), ("graph.svg", b"<?xml")])
def test_inspect_draws_the_graph(folder: Path, file: str, start: bytes) -> None:
    assert run(folder, f"inspect door.kit --graph {file}") == 0
    assert (folder / file).read_bytes().startswith(start)
    if file.endswith("svg"):
        assert "MatMul" in (folder / file).read_text()


def test_the_bare_graph(folder: Path) -> None:
    assert run(folder, "onnx robust.npz -o bare.onnx") == 0
    model = onnx.load(folder / "bare.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.name.startswith("F_") for node in model.graph.node) == doors.model("both", "l1").coding.iterations - 1


def test_keys_are_private_and_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stat.S_IMODE((folder / "ours.pem").stat().st_mode) == 0o600
    before = (folder / "ours.pem").read_bytes()
    assert run(folder, "keygen -o ours.pem") == 2
    assert "exists" in capsys.readouterr().err
    assert (folder / "ours.pem").read_bytes() == before


def spoil(folder: Path) -> None:
    whole = (folder / "door.kit").read_bytes()
    (folder / "damaged.kit").write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    (folder / "short.kit").write_bytes(whole[: len(whole) // 2])
    parts = kits.unpack(whole)
    parts[kits.MANIFEST] = parts[kits.MANIFEST].replace(b'"format": 1', b'"format": 9')
    (folder / "future.kit").write_bytes(kits.pack(parts))
    (folder / "notes.txt").write_text("hello")
    with (folder / "huge.kit").open("wb") as file:
        file.truncate(kits.MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("verify missing.kit", 20, "cannot be opened"),
        ("verify notes.txt", 20, "not a kit"),
        ("verify damaged.kit", 21, "damaged"),
        ("inspect damaged.kit", 21, "damaged"),
        ("verify short.kit", 22, "end of the kit is missing"),
        ("verify huge.kit", 23, "larger than"),
        ("verify future.kit", 24, "format 9"),
        ("verify door.kit --key ours.pem.pub", 26, "not signed"),
        ("verify signed.kit --key theirs.pem.pub", 27, "another key"),
        ("verify door.kit --model robust.npz", 29, "not built from this model"),
        ("verify door.kit --key missing.pub", 2, "cannot be read"),
        ("build missing.npz -o x.kit", 2, "cannot be opened"),
        ("build notes.txt -o x.kit", 2, "not a model"),
        ("build door.npz -o x.kit --sign notes.txt", 2, "no Ed25519 private key"),
        ("build door.npz -o x.kit --detector none --data notes.txt", 2, "not a gallery"),
        ("build door.npz -o /nowhere/x.kit --detector none", 2, "cannot be written"),
        ("inspect door.kit --graph notes.txt", 2, "neither .png nor .svg"),
        ("build door.npz", 2, "Missing option"),
        ("build door.npz -o x.kit --precision int4", 2, "int4"),
    ],
)
def test_each_failure_has_its_sentence_and_code(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, code: int, words: str
) -> None:
    spoil(folder)
    assert run(folder, command) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert not (folder / "x.kit").exists()


def test_a_precision_that_costs_too_much_has_its_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from export import measure as calibrate

    monkeypatch.setattr(calibrate, "LOSS", -1.0)
    assert run(folder, "build door.npz -o x.kit --detector none --precision int8") == 30
    assert "--allow-loss" in capsys.readouterr().err
    assert not (folder / "x.kit").exists()
    assert run(folder, "build door.npz -o loss.kit --detector none --precision int8 --allow-loss") == 0
