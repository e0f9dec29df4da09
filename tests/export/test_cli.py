"""The command `edge-export`: files, messages and exit codes."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge.kit import format as kits
from edge.kit.manifest import MAX_VERSION
from edge.vision.recognize import Recognizer
from export import cli, measure
from tests.fixtures import kits as doors
from tests.fixtures import liveness

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models door.npz (l21) and robust.npz (l1), faces.npz, two key pairs, door.kit and signed.kit."""
    folder = tmp_path_factory.mktemp("export")
    doors.model("pixels", "l21", 4).save(folder / "door.npz")
    doors.model("both", "l1").save(folder / "robust.npz")
    images, names = doors.held_out()
    np.savez(folder / "faces.npz", images=images, labels=names)
    for command in (
        "keygen -o ours.pem",
        "keygen -o theirs.pem",
        "build door.npz -o door.kit --detector none",
        "build door.npz -o signed.kit --detector none --sign ours.pem --kit-version 7 --series north",
    ):
        assert run(folder, command) == 0
    return folder


def run(folder: Path, command: str) -> int:
    """Run a command with files in `folder`. Return its exit code."""
    known = (".npz", ".kit", ".pem", ".pub", ".onnx", ".txt")
    words = [str(folder / word) if word.endswith(known) else word for word in command.split()]
    argv, sys.argv = sys.argv, ["edge-export", *words]
    try:
        cli.main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    finally:
        sys.argv = argv
    raise AssertionError("a command ends with SystemExit")


def test_build_writes_a_private_kit_and_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "build robust.npz -o robust.kit --detector none --data faces.npz") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    for words in ("iterations  agreement  accuracy  microseconds", "<- chosen", "converged", "held-out faces", "not signed"):
        assert words in captured.err
    assert "no false match on 800 blank or noise images" in captured.err
    assert stat.S_IMODE((folder / "robust.kit").stat().st_mode) == 0o600
    assert Recognizer.load(folder / "robust.kit").recognize_crops(doors.held_out()[0][:1])
    assert run(folder, "build robust.npz -o again.kit --detector none --data faces.npz") == 0
    assert (folder / "again.kit").read_bytes() == (folder / "robust.kit").read_bytes()


def test_build_writes_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "build door.npz -o other.kit --detector none --json --iterations 4 --precision fp16") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coding"]["iterations"] == 4
    assert found["precision"] == "fp16"
    assert found["microseconds"]["4"] > 0
    assert found["bytes"] == (folder / "other.kit").stat().st_size


def test_verify_reports_the_comparisons(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "verify door.kit") == 0
    assert "Pass some with --data" in capsys.readouterr().err
    assert run(folder, "verify signed.kit --key ours.pem.pub --data faces.npz --model door.npz") == 0
    report = capsys.readouterr().err
    assert "signature: valid" in report
    assert "24 given crops: same labels" in report
    assert run(folder, "verify door.kit --data faces.npz --json") == 0
    parity = json.loads(capsys.readouterr().out)["parity"]
    assert [found["crops"] for found in parity] == ["random", "given"]
    assert all(found["other_labels"] == 0 and found["score_difference"] < 1e-4 for found in parity)


def test_inspect_shows_no_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "inspect door.kit --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["people"] == 4
    assert found["signature"] == "none"
    assert found["kit"] == kits.read(folder / "door.kit").sha256
    assert (found["version"], found["series"]) == (1, "")
    assert run(folder, "inspect signed.kit --key ours.pem.pub --json") == 0
    signed = json.loads(capsys.readouterr().out)
    assert (signed["version"], signed["series"], signed["signature"]) == (7, "north", "valid")
    assert run(folder, "inspect signed.kit") == 0
    shown = capsys.readouterr().out
    assert "thresholds.provisional" in shown
    assert kits.read(folder / "signed.kit").manifest.thresholds.sentence in shown
    assert not any(name in shown or name in json.dumps(found, ensure_ascii=False) for name in doors.NAMES)


def test_onnx_writes_the_graph_with_all_iterations(folder: Path) -> None:
    assert run(folder, "onnx robust.npz -o graph.onnx") == 0
    model = onnx.load(folder / "graph.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert sum(node.name.startswith("F_") for node in model.graph.node) == doors.model("both", "l1").coding.iterations - 1


def test_keys_are_private_and_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stat.S_IMODE((folder / "ours.pem").stat().st_mode) == 0o600
    before = (folder / "ours.pem").read_bytes()
    assert run(folder, "keygen -o ours.pem") == 2
    assert "exists" in capsys.readouterr().err
    assert (folder / "ours.pem").read_bytes() == before


def write_broken_files(folder: Path) -> None:
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
    ("command", "code", "message"),
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
        ("build missing.npz -o x.kit", 2, "cannot be read"),
        ("build notes.txt -o x.kit", 2, "not a model"),
        ("build door.npz -o x.kit --sign notes.txt", 2, "not an Ed25519 private key"),
        ("build door.npz -o x.kit --detector none --data notes.txt", 2, "not a gallery"),
        ("build door.npz -o /nowhere/x.kit --detector none", 2, "cannot be written"),
        ("build door.npz", 2, "Missing option"),
        ("build door.npz -o x.kit --detector none --kit-version 0", 2, "kit-version"),
        (f"build door.npz -o x.kit --detector none --kit-version {MAX_VERSION}", 2, "kit-version"),
        ("build door.npz -o x.kit --detector none --series no\x07rth", 2, "printable"),
        ("build door.npz -o x.kit --precision int4", 2, "int4"),
    ],
)
def test_each_failure_has_its_message_and_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, code: int, message: str
) -> None:
    write_broken_files(folder)
    assert run(folder, command) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not (folder / "x.kit").exists()


def test_loss_of_precision_has_its_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "LOSS", -1.0)
    assert run(folder, "build door.npz -o x.kit --detector none --precision int8") == 30
    assert "--allow-loss" in capsys.readouterr().err
    assert not (folder / "x.kit").exists()


def test_build_puts_a_liveness_model_into_the_kit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "live.onnx").write_bytes(liveness.network_file())
    options = f"--detector none --liveness onnx:{folder}/live.onnx,zoom=2.5,side={liveness.SIDE} --liveness-threshold 0.6"
    assert run(folder, f"build door.npz -o live.kit {options}") == 0
    assert "A live face needs a score of at least 0.6 (live)." in capsys.readouterr().err
    assert kits.read(folder / "live.kit").manifest.liveness is not None
    assert run(folder, "inspect live.kit --json") == 0
    assert json.loads(capsys.readouterr().out)["parts"]["liveness.onnx"] > 0
    assert run(folder, "build door.npz -o none.kit --detector none --liveness onnx:missing.onnx") == 2
    assert not (folder / "none.kit").exists()
    assert run(folder, "build door.npz -o none.kit --detector none") == 0
    assert "a photo or a phone that shows an enrolled person can open the door" in capsys.readouterr().err
