"""`edge doctor` finds what is wrong with a device, says what to do, and survives whatever it meets."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge import paths
from edge.cli import main as cli
from edge.doctor import checks as doctor
from edge.doctor import device as doctor_device
from edge.doctor import findings
from edge.doctor import software as doctor_software
from edge.doctor.child import run_python
from edge.doctor.device import Device
from edge.doctor.findings import Check
from edge.errors import KitError
from edge.kit import format as kits
from edge.kit.manifest import Manifest
from tests.fixtures import kits as doors
from tests.fixtures import portraits

CPUINFO = "\n\n".join(f"processor\t: {i}\nFeatures\t: fp asimd evtstrm crc32 cpuid" for i in range(4)) + "\n"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def pi(tmp_path: Path) -> Device:
    """A Raspberry Pi 4 in good health."""
    root, commands = tmp_path / "root", tmp_path / "bin"
    commands.mkdir()
    write(root, "proc/cpuinfo", CPUINFO)
    write(root, "proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.5\0")
    write(root, "proc/loadavg", "0.42 0.30 0.20 1/200 1234\n")
    write(root, "proc/meminfo", "MemTotal: 3880000 kB\nMemFree: 100000 kB\nMemAvailable: 3000000 kB\n")
    write(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "ondemand\n")
    write(root, "sys/class/thermal/thermal_zone0/temp", "48312\n")
    write(root, "run/systemd/timesync/synchronized", "")
    command(commands, "vcgencmd", "echo throttled=0x0")
    return Device(root=root, path=str(commands), machine="aarch64", now=NOON)


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def vcgencmd(device: Device, script: str) -> None:
    assert device.path is not None
    command(Path(device.path), "vcgencmd", script)


def no_kit() -> Path:
    raise KitError("There is no kit.", "Make one.")


def one(checks: Iterable[Check], name: str) -> Check:
    (found,) = (check for check in checks if check.name == name)
    return found


def test_a_healthy_pi_has_nothing_to_complain_of(pi: Device) -> None:
    checks = {check.name: check for check in doctor.examine(no_kit, camera=None, device=pi)}
    assert [name for name, check in checks.items() if check.state != "ok"] == ["kit"]
    assert checks["cpu"].found == "Raspberry Pi 4 Model B Rev 1.5, aarch64, 4 cores, asimd"
    assert checks["governor"].found == "ondemand"
    assert checks["temperature"].found == "48 °C"
    assert checks["power"].found == "never throttled"
    assert checks["memory"].found == "2929 MB free"
    assert checks["clock"].found == "2026-03-01 12:00 UTC, synchronised"
    assert checks["threads"].found == "1 of 4 cores, load 0.4"
    assert (checks["kit"].found, checks["kit"].advice) == ("There is no kit.", "Make one.")


@pytest.mark.parametrize(
    ("bits", "state", "now", "before", "advice"),
    [
        ("0x50005", "fail", ["under-voltage", "throttled"], [], "power supply"),
        ("0x50000", "warn", [], ["under-voltage", "throttled"], "power supply"),
        ("0x80008", "warn", ["soft temperature limit"], [], "fan"),
        ("0x20000", "warn", [], ["the CPU's frequency capped"], ""),
        ("0xe0001", "fail", ["under-voltage"], ["the CPU's frequency capped", "throttled", "soft temperature limit"], "fan"),
    ],
)
def test_throttling_is_told_bit_by_bit(
    pi: Device, bits: str, state: str, now: list[str], before: list[str], advice: str
) -> None:
    vcgencmd(pi, f'test "$1" = get_throttled && echo throttled={bits}')
    (check,) = doctor_device.check_throttling(pi)
    told = [f"now: {', '.join(now)}"] * bool(now) + [f"since it was started: {', '.join(before)}"] * bool(before)
    assert (check.state, check.found) == (state, "; ".join(told))
    assert advice in check.advice


def test_throttling_is_read_from_the_kernel_where_the_command_is_missing(pi: Device) -> None:
    vcgencmd(pi, "exit 1")
    assert findings.worst(list(doctor_device.check_throttling(pi))) == "ok"
    write(pi.root, doctor_device.THROTTLED_FILE, "50005\n")
    (check,) = doctor_device.check_throttling(pi)
    assert check.state == "fail"
    assert check.found.startswith("now: under-voltage")


def test_a_command_that_hangs_is_given_up(pi: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_device, "COMMAND_SECONDS", 0.1)
    vcgencmd(pi, "exec sleep 60")
    (check,) = doctor_device.check_throttling(pi)
    assert check.found == "not told by this device"


@pytest.mark.parametrize(("millidegrees", "state"), [(70_000, "ok"), (70_100, "warn"), (80_100, "fail")])
def test_the_hottest_zone_counts(pi: Device, millidegrees: int, state: str) -> None:
    write(pi.root, "sys/class/thermal/thermal_zone1/temp", f"{millidegrees}\n")
    write(pi.root, "sys/class/thermal/thermal_zone2/temp", "no number")
    (check,) = doctor_device.check_temperature(pi)
    assert (check.state, check.found) == (state, f"{millidegrees / 1000:.0f} °C")
    assert bool(check.advice) == (state != "ok")


CHANGES: dict[str, tuple[Callable[[Device], Iterable[Check]], str, str, str, str]] = {
    # check, file, its text, the state and a word of the advice
    "governor": (
        doctor_device.check_cpu,
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "powersave\n",
        "warn",
        "ondemand",
    ),
    "threads": (lambda device: doctor_device.check_threads(device, 1), "proc/loadavg", "9.1 4 3 1/2 3", "warn", "top"),
    "memory": (doctor_device.check_memory, "proc/meminfo", "MemAvailable: 200000 kB\n", "warn", "stop"),
    "little memory": (doctor_device.check_memory, "proc/meminfo", "MemAvailable: 90000 kB\n", "fail", "stop"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_gets_advice(pi: Device, name: str) -> None:
    check, file, text, state, advice = CHANGES[name]
    assert findings.worst(list(check(pi))) == "ok"
    write(pi.root, file, text)
    found = one(check(pi), name.removeprefix("little "))
    assert found.state == state
    assert advice in found.advice


def test_a_desktop_may_say_powersave(pi: Device) -> None:
    write(pi.root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    write(pi.root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n")
    assert findings.worst(list(doctor_device.check_cpu(pi))) == "ok"


def test_more_threads_than_cores(pi: Device) -> None:
    (check,) = doctor_device.check_threads(pi, 5)
    assert (check.state, check.advice) == ("warn", "Use --threads 2.")


@pytest.mark.parametrize(("machine", "state"), [("armv7l", "fail"), ("aarch64", "ok"), ("x86_64", "ok")])
def test_only_64_bits(pi: Device, machine: str, state: str) -> None:
    device = Device(root=pi.root, path=pi.path, machine=machine)
    assert one(doctor_device.check_cpu(device), "cpu").state == state


@pytest.mark.parametrize(("megabytes", "state"), [(99, "warn"), (100, "ok")])
def test_disk(megabytes: int, state: str) -> None:
    (check,) = doctor_device.check_disk(megabytes << 20)
    assert check.state == state


@pytest.mark.parametrize(("said", "state"), [("echo yes", "ok"), ("echo no", "warn"), ("exit 1", "warn")])
def test_the_clock_is_asked_for(pi: Device, said: str, state: str) -> None:
    (pi.root / "run/systemd/timesync/synchronized").unlink()
    assert pi.path is not None
    command(Path(pi.path), "timedatectl", said)
    (check,) = doctor_device.check_clock(pi)
    assert check.state == state


def test_a_clock_that_was_never_set_fails(pi: Device) -> None:
    (check,) = doctor_device.check_clock(Device(root=pi.root, path=pi.path, now=datetime(1970, 1, 1, tzinfo=UTC)))
    assert check.state == "fail"
    assert "set-ntp" in check.advice


@pytest.mark.parametrize(
    ("version", "wanted", "fit"),
    [
        ("1.17.0", ">=1.17,!=1.21.*", True),
        ("1.9.1", ">=1.17", False),
        ("1.21.0", "!=1.21.*,>=1.17", False),
        ("1.21", "!=1.21.*", False),
        ("1.210.1", "!=1.21.*", True),
        ("1.26", ">=1.26.0", True),
        ("5.0.0-pre", ">=4.8,<5.1", True),
        ("2.0.0rc1", "<2", False),
        ("3.1", "==3.1.*", True),
        ("3.1.4", "<=3.1", False),
        ("3.1", ">3.1", False),
        ("0.1", "", True),
    ],
)
def test_versions_are_compared_as_pip_does(version: str, wanted: str, fit: bool) -> None:
    assert doctor_software.fits(version, wanted) is fit


def test_the_ranges_are_those_of_the_package() -> None:
    rules = doctor_software.ranges(
        ["numpy>=1.26", "onnxruntime!=1.21.*,>=1.17", "typer (>=0.19)", 'onnx>=1.16; extra == "trainer"', "x"]
    )
    assert rules == {"numpy": ">=1.26", "onnxruntime": "!=1.21.*,>=1.17", "typer": ">=0.19", "x": ""}


@pytest.mark.parametrize(
    ("said", "state", "word"),
    [
        ({"name": "onnxruntime", "version": "1.21.1"}, "fail", "!=1.21.*"),
        ({"name": "onnxruntime", "version": "1.22.0"}, "ok", ""),
        ({"name": "opencv", "version": "", "error": "ImportError: libGL.so.1"}, "fail", "pip install"),
        ({"name": "opencv", "version": "4.9.0", "FFMPEG": "NO", "V4L2": "YES", "window": "NONE"}, "warn", "pip install"),
        ({"name": "opencv", "version": "4.9.0", "FFMPEG": "YES", "V4L2": "YES", "window": "QT5"}, "warn", "headless"),
        ({"name": "opencv", "version": "4.9.0", "FFMPEG": "YES", "V4L2": "YES", "window": "NONE"}, "ok", ""),
    ],
)
def test_packages_are_judged(said: dict[str, str], state: str, word: str) -> None:
    distribution = {"opencv": "opencv-python-headless"}.get(said["name"], said["name"])
    check = doctor_software.judge_package(
        said, distribution, {"onnxruntime": ">=1.17,!=1.21.*", "opencv-python-headless": ">=4.8"}
    )
    assert check.state == state
    assert word in check.advice


def test_a_package_that_kills_its_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime 1.21 on a Raspberry Pi 4: the one who looks must live to tell."""
    (tmp_path / "onnxruntime.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = one(doctor_software.check_packages(), "onnxruntime")
    assert check.state == "fail"
    assert "illegal instruction" in check.found
    assert "!=1.21.*" in check.advice


def test_two_opencvs_clash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opencv_python", "opencv_python_headless"):
        write(tmp_path, f"{name}-4.9.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.9.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    clash = [check for check in doctor_software.check_packages() if check.name == "opencv"][-1]
    assert clash.state == "fail"
    assert "opencv-python-headless, opencv-python" in clash.found
    assert "pip uninstall" in clash.advice


def test_an_error_in_a_check_is_its_finding() -> None:
    def broken() -> Iterable[Check]:
        yield Check(name="first", state="ok", found="fine")
        raise ZeroDivisionError("oh")

    first, second = doctor.isolated("power", broken)
    assert first.state == "ok"
    assert (second.name, second.state, second.found) == ("power", "fail", "ZeroDivisionError: oh")


def test_a_check_that_hangs_is_given_up() -> None:
    release = threading.Event()

    def hanging() -> Iterable[Check]:
        yield Check(name="first", state="ok", found="fine")
        release.wait(30)

    first, second = doctor.isolated("camera", hanging, seconds=2)
    release.set()
    assert first.state == "ok"
    assert (second.name, second.state) == ("camera", "fail")
    assert "no answer" in second.found


# The kit and the camera, for real.


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With thresholds that noise does not pass."""
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


def test_a_kit_is_examined(kit: Path) -> None:
    checks = {check.name: check for check in doctor.check_kit(kit)}
    assert {name: check.state for name, check in checks.items()} == {
        "kit": "ok",
        "signature": "warn",
        "permissions": "ok",
        "thresholds": "warn",
        "self-test": "ok",
    }
    assert f"{portraits.PEOPLE} people" in checks["kit"].found
    assert "0.8, which was set without having seen strangers" in checks["thresholds"].found
    kit.chmod(0o644)
    assert one(doctor.check_kit(kit), "permissions").state == "warn"
    kit.chmod(0o600)


def test_a_kit_that_names_noise_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "loose.kit"
    path.write_bytes(portraits.kit())
    check = doctor.self_test(path)
    assert check.state == "fail"
    assert "got a name" in check.found
    assert "build it again" in check.advice


def test_a_kit_for_crops_fails_its_self_test(tmp_path: Path) -> None:
    path = tmp_path / "crops.kit"
    path.write_bytes(doors.kit())
    found = {check.name: check for check in doctor.check_kit(path)}
    assert found["detector"].state == "warn"
    assert found["self-test"].state == "fail"
    assert "cropped" in found["self-test"].found


def test_a_damaged_kit_is_a_finding(kit: Path, tmp_path: Path) -> None:
    data = bytearray(kit.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.kit").write_bytes(data)
    (check,) = doctor.isolated("kit", lambda: doctor.check_kit(tmp_path / "bad.kit"))
    assert check.state == "fail"
    assert check.advice


def test_a_recording_is_examined(video: Path) -> None:
    (check,) = doctor.check_camera(str(video))
    assert check.state == "ok"
    assert "640x480, 10 frames a second" in check.found


@pytest.mark.parametrize(
    ("grey", "size", "word"), [(3, (480, 640), "black"), (100, (240, 320), "small"), (100, (480, 640), "")]
)
def test_what_is_wrong_with_a_picture_is_said(tmp_path: Path, grey: int, size: tuple[int, int], word: str) -> None:
    for i in range(3):
        cv2.imwrite(str(tmp_path / f"{i}.png"), np.full((*size, 3), grey, np.uint8))
    (check,) = doctor.check_camera(str(tmp_path))
    assert check.state == ("warn" if word else "ok")
    assert word in check.advice


def test_no_camera_is_a_finding_without_its_password() -> None:
    (check,) = doctor.isolated("camera", lambda: doctor.check_camera("http://user:secret@127.0.0.1:9/video"))
    assert check.state == "fail"
    assert "secret" not in check.found + check.advice


# The command.


def edge(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["edge", *map(str, words)])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_the_command_on_this_machine(
    kit: Path, video: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = edge(monkeypatch, "doctor", kit, "--camera", video, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert found["schema"] == 1
    assert code == (37 if "fail" in states.values() else 0)
    for name in ("python", "numpy", "opencv", "onnxruntime", "cpu", "kit", "self-test", "camera"):
        assert states[name] == "ok", found


def test_the_command_goes_by_the_settings(
    kit: Path, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDGE_KIT", raising=False)
    file = tmp_path / "settings.toml"
    file.write_text(f'[kit]\npath = "{kit}"\nthreads = 60\n[camera]\nsource = "{video}"\n')
    edge(monkeypatch, "doctor", "--settings", file, "--json")
    found = {check["name"]: check["found"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert f"{kit}: version 1, {portraits.PEOPLE} people" in found["kit"]
    assert video.name in found["camera"]
    assert found["threads"].startswith("60 of")
    edge(monkeypatch, "doctor", "--settings", file, "--threads", "59", "--no-camera", "--json")
    found = {check["name"]: check["found"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["threads"].startswith("59 of")
    assert "camera" not in found


def test_the_command_without_a_kit_fails_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", (Path("door.kit"),))
    assert edge(monkeypatch, "doctor", "--no-camera") == 37
    out, err = capsys.readouterr()
    assert "fail  kit          There is no kit." in out
    assert "camera" not in out
    assert "not ready" in err
    assert "Traceback" not in out + err


def test_the_table_is_calm() -> None:
    checks = [
        Check(name="python", state="ok", found="3.11"),
        Check(name="clock", state="warn", found="off", advice="Set it."),
    ]
    shown = findings.table(checks)
    assert shown == (
        "ok    python       3.11\nwarn  clock        off\n                   -> Set it.\n\n"
        "2 checks: 0 failed, 1 with a warning."
    )
    assert (findings.worst(checks), findings.worst(checks[:1]), findings.worst([])) == ("warn", "ok", "ok")


def test_a_child_finds_this_package_whatever_lies_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edge.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    done = run_python("import sys, edge; print(edge.__file__, sys.argv[1])", "word", seconds=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(Path(doctor.__file__).with_name("__init__.py")), "word"]
