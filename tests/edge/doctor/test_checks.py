"""`edge doctor`: packages, kit and camera, isolation of the checks, and the command."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from packaging.requirements import Requirement

import edge
from edge import paths
from edge.camera import sources
from edge.doctor import checks, report, software
from edge.doctor.report import Check
from edge.kit import format as kits
from edge.kit.manifest import Manifest
from tests.fakes.scene_camera import SimulatedCamera
from tests.fixtures import kits as doors
from tests.fixtures import portraits
from tests.fixtures.command import run_edge


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("1.17.0", ">=1.17,!=1.21.*", True),
        ("1.9.1", ">=1.17", False),
        ("1.21", "!=1.21.*,>=1.17", False),
        ("1.210.1", "!=1.21.*", True),
        ("5.0.0-openvino", ">=4.8,<5.1", True),
        ("2.0.0rc1", "<2", False),
        ("unknown", ">=1", False),
    ],
)
def test_version_range(version: str, specifier: str, expected: bool) -> None:
    assert software.supports(Requirement(f"x{specifier}").specifier, version) is expected


def test_requirements_are_those_of_a_device() -> None:
    names = software.requirements()
    assert {"numpy", "onnxruntime", "opencv-python-headless"} <= set(names)
    assert "scipy" not in names


def about_opencv(ffmpeg: str, v4l2: str, window: str) -> str:
    return f"4.9.0 General configuration for OpenCV\n  GUI: {window}\n  FFMPEG:   {ffmpeg}\n  v4l/v4l2: {v4l2} (videodev2.h)\n"


@pytest.mark.parametrize(
    ("name", "printed", "state", "advice"),
    [
        ("onnxruntime", "1.21.1", "fail", "!=1.21.*"),
        ("onnxruntime", "1.22.0", "ok", ""),
        ("opencv", "", "fail", "pip install"),
        ("opencv", about_opencv("NO", "YES", "NONE"), "warn", "pip install"),
        ("opencv", about_opencv("YES", "NO", "NONE"), "warn", "pip install"),
        ("opencv", about_opencv("YES", "YES", "QT5"), "warn", "headless"),
        ("opencv", about_opencv("YES", "YES", "NONE"), "ok", ""),
    ],
)
def test_package_check(name: str, printed: str, state: str, advice: str) -> None:
    distribution, _ = software.PROBES[name]
    error = "Traceback ...:\nImportError: libGL.so.1: cannot open shared object file\n"
    probe = subprocess.CompletedProcess([], 0 if printed else 1, printed, "" if printed else error)
    check = software.check_package(name, software.requirements()[distribution], probe)
    assert check.state == state
    assert advice in check.advice
    assert printed or check.found == "ImportError: libGL.so.1: cannot open shared object file"


@pytest.mark.slow
def test_package_that_crashes_its_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime 1.21 on a Raspberry Pi 4."""
    (tmp_path / "onnxruntime.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (check,) = (check for check in software.check_packages() if check.name == "onnxruntime")
    assert check.state == "fail"
    assert "illegal instruction" in check.found
    assert "!=1.21.*" in check.advice


@pytest.mark.slow
def test_two_installed_opencvs_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opencv-python", "opencv-python-headless"):
        folder = tmp_path / f"{name.replace('-', '_')}-4.9.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.9.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    clash = [check for check in software.check_packages() if check.name == "opencv"][-1]
    assert clash.state == "fail"
    assert "opencv-python-headless, opencv-python" in clash.found
    assert "pip uninstall" in clash.advice


def test_error_in_a_check_is_its_result() -> None:
    def broken() -> Iterable[Check]:
        yield Check("first", "ok", "fine")
        raise ZeroDivisionError("oh")

    first, second = checks.run_isolated("power", broken)
    assert first.state == "ok"
    assert (second.name, second.state, second.found) == ("power", "fail", "ZeroDivisionError: oh")


def test_check_that_hangs_is_a_timeout() -> None:
    started, release = threading.Event(), threading.Event()

    def hanging() -> Iterable[Check]:
        started.set()
        release.wait(30)
        return []

    (check,) = checks.run_isolated("camera", hanging, seconds=0.05)
    assert started.wait(30)
    release.set()
    assert (check.name, check.state) == ("camera", "fail")
    assert "no result" in check.found


def test_child_process_imports_this_package_and_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edge.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    done = software.run_python("import sys, edge; print(edge.__file__, sys.argv[1])", "word")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [edge.__file__, "word"]


def test_table() -> None:
    results = [Check("python", "ok", "3.11"), Check("clock", "warn", "off", "Set it.")]
    assert report.table(results) == (
        "ok    python       3.11\nwarn  clock        off\n                   -> Set it.\n\n"
        "2 checks: 0 failed, 1 with a warning."
    )
    assert report.table(results[:1]).endswith("1 checks: all passed.")
    assert (report.worst(results), report.worst(results[:1]), report.worst([])) == ("warn", "ok", "ok")


# The kit and the camera.


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit whose thresholds noise does not reach."""
    path = tmp_path_factory.mktemp("kit") / "door.kit"
    parts = kits.unpack(portraits.kit())
    manifest = Manifest.from_bytes(parts[kits.MANIFEST])
    strict = replace(manifest, thresholds=replace(manifest.thresholds, confidence=0.8, residual=0.8))
    path.write_bytes(kits.pack(parts | {kits.MANIFEST: strict.to_bytes()}))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "door.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (640, 480))
    for photo in portraits.people()["s1"][:5]:
        writer.write(portraits.in_a_room(photo, width=200))
    writer.release()
    return path


@pytest.mark.slow
def test_kit_check(kit: Path) -> None:
    kit.chmod(0o644)
    found = {check.name: check for check in checks.check_kit(kit)}
    kit.chmod(0o600)
    assert {name: check.state for name, check in found.items()} == {
        "kit": "ok",
        "signature": "warn",
        "permissions": "warn",
        "thresholds": "warn",
        "liveness": "warn",
        "recognition": "ok",
    }
    assert f"{portraits.PEOPLE} people" in found["kit"].found
    assert "0.8" in found["thresholds"].found


@pytest.mark.slow
def test_kit_that_recognises_noise_fails(tmp_path: Path) -> None:
    path = tmp_path / "loose.kit"
    path.write_bytes(portraits.kit())
    check = checks.try_kit(path)
    assert check.state == "fail"
    assert "false matches" in check.found
    assert "build it again" in check.advice


@pytest.mark.slow
def test_kit_for_cropped_photos_fails(tmp_path: Path) -> None:
    path = tmp_path / "crops.kit"
    path.write_bytes(doors.kit())
    found = {check.name: check for check in checks.check_kit(path)}
    assert found["recognition"].state == "fail"
    assert "cropped" in found["recognition"].found


def test_damaged_kit_is_a_result(kit: Path, tmp_path: Path) -> None:
    data = bytearray(kit.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.kit").write_bytes(data)
    (check,) = checks.run_isolated("kit", lambda: checks.check_kit(tmp_path / "bad.kit"))
    assert check.state == "fail"
    assert check.advice


def test_recording_passes_the_camera_check(video: Path) -> None:
    (check,) = checks.check_camera(str(video))
    assert check.state == "ok"
    assert "640x480, 10 frames per second" in check.found


@pytest.mark.parametrize(("grey", "size", "advice"), [(3, (480, 640), "black"), (100, (240, 320), "small")])
def test_bad_image_gets_advice(tmp_path: Path, grey: int, size: tuple[int, int], advice: str) -> None:
    for i in range(3):
        cv2.imwrite(str(tmp_path / f"{i}.png"), np.full((*size, 3), grey, np.uint8))
    (check,) = checks.check_camera(str(tmp_path))
    assert check.state == "warn"
    assert advice in check.advice


@pytest.mark.parametrize(
    ("fps", "has_noise", "state", "advice"),
    [
        (15, True, "ok", ""),
        (4.5, True, "warn", "needs 5 frames per second"),
        (3.9, True, "fail", "grants nothing below 4"),
        (15, False, "fail", "never changes"),
    ],
)
def test_slow_or_still_camera_fails(
    fps: float, has_noise: bool, state: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Grey(SimulatedCamera):
        @property
        def ended(self) -> bool:  # type: ignore[override]
            return self.number == 20

        def image(self) -> Any:
            return np.full((480, 640, 3), 100, np.uint8)

    camera = Grey(fps=fps)
    camera.has_noise = has_noise
    monkeypatch.setattr(sources, "open_camera", lambda source: camera)
    (check,) = checks.check_camera("0", seconds=60.0)
    assert check.state == state
    assert advice in check.advice


def test_missing_camera_is_reported_without_its_password() -> None:
    (check,) = checks.run_isolated("camera", lambda: checks.check_camera("http://user:secret@127.0.0.1:9/video"))
    assert check.state == "fail"
    assert "secret" not in check.found + check.advice


# The command.


@pytest.mark.slow
def test_command_passes_on_this_machine(
    kit: Path, video: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_edge(monkeypatch, "doctor", kit, "--camera", video, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert found["schema"] == 2
    assert code == (37 if "fail" in states.values() else 0)
    for name in ("python", "numpy", "opencv", "onnxruntime", "cpu", "kit", "recognition", "camera"):
        assert states[name] == "ok", found


@pytest.mark.slow
def test_command_uses_the_settings_and_options_override_them(
    kit: Path, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(software, "check_packages", list)
    monkeypatch.setattr(checks, "try_kit", lambda path, threads: Check("recognition", "ok", f"{threads} threads"))
    file = tmp_path / "settings.toml"
    file.write_text(f'[kit]\npath = "{kit}"\nthreads = 60\n[camera]\nsource = "{video}"\n')
    for options, threads in (([], "60"), (["--threads", "59", "--no-camera"], "59")):
        run_edge(monkeypatch, "doctor", "--settings", file, *options, "--json")
        found = {check["name"]: check["found"] for check in json.loads(capsys.readouterr().out)["checks"]}
        assert f"{kit}: version 1, {portraits.PEOPLE} people" in found["kit"]
        assert video.name in found.get("camera", "") or "--no-camera" in options
        assert found["threads"].startswith(f"{threads} of")
    assert "camera" not in found


def test_command_without_a_kit_fails_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", (Path("door.kit"),))
    monkeypatch.setattr(software, "check_packages", list)
    assert run_edge(monkeypatch, "doctor", "--no-camera") == 37
    out, err = capsys.readouterr()
    assert "fail  kit          No kit was found." in out
    assert "camera" not in out
    assert "not ready" in err
    assert "Traceback" not in out + err
