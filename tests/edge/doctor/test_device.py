"""Checks of the hardware, on a fake device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge.doctor import checks, device, report
from edge.doctor.device import Device
from edge.doctor.report import Check
from edge.errors import KitError

CPUINFO = "\n\n".join(f"processor\t: {i}\nFeatures\t: fp asimd evtstrm crc32 cpuid" for i in range(4)) + "\n"
GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
DRIVER = "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
SYNCHRONISED = "run/systemd/timesync/synchronized"


@pytest.fixture
def pi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A Raspberry Pi 4 without problems."""
    root, commands = tmp_path / "root", tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands))
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.5\0",
        "proc/loadavg": "0.42 0.30 0.20 1/200 1234\n",
        "proc/meminfo": "MemTotal: 3880000 kB\nMemFree: 100000 kB\nMemAvailable: 3000000 kB\n",
        GOVERNOR: "ondemand\n",
        "sys/class/thermal/thermal_zone0/temp": "48312\n",
        SYNCHRONISED: "",
    }
    for file, text in files.items():
        write(root, file, text)
    pi = Device(root=root, machine="aarch64", now=datetime(2026, 3, 1, 12, tzinfo=UTC))
    add_command(pi, "vcgencmd", "echo throttled=0x0")
    return pi


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def add_command(pi: Device, name: str, script: str) -> None:
    file = pi.root.parent / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def no_kit() -> Path:
    raise KitError("No kit was found.", "Make one.")


@pytest.mark.slow
def test_healthy_device_passes_all_checks(pi: Device) -> None:
    found = {check.name: check for check in checks.check_device(no_kit, camera=None, device=pi)}
    assert [name for name, check in found.items() if check.state != "ok"] == ["kit"]
    assert (found["kit"].found, found["kit"].advice) == ("No kit was found.", "Make one.")
    assert found["cpu"].found == "Raspberry Pi 4 Model B Rev 1.5, aarch64, 4 cores, asimd"
    assert found["governor"].found == "ondemand"
    assert found["temperature"].found == "48 °C"
    assert found["power"].found == "never throttled"
    assert found["memory"].found == "2929 MB free"
    assert found["clock"].found == "2026-03-01 12:00 UTC, synchronised"
    assert found["threads"].found == "1 of 4 cores, load 0.4"


@pytest.mark.parametrize(
    ("bits", "state", "now", "before", "advice"),
    [
        ("0x50005", "fail", ["under-voltage", "throttled"], [], "power supply"),
        ("0x50000", "warn", [], ["under-voltage", "throttled"], "power supply"),
        ("0x80008", "warn", ["soft temperature limit"], [], "fan"),
        ("0x20000", "warn", [], ["CPU frequency capped"], ""),
        ("0xe0001", "fail", ["under-voltage"], ["CPU frequency capped", "throttled", "soft temperature limit"], "fan"),
    ],
)
def test_throttling_names_each_bit(pi: Device, bits: str, state: str, now: list[str], before: list[str], advice: str) -> None:
    add_command(pi, "vcgencmd", f'test "$1" = get_throttled && echo throttled={bits}')
    (check,) = device.check_throttling(pi)
    parts = [f"now: {', '.join(now)}"] * bool(now) + [f"since the start: {', '.join(before)}"] * bool(before)
    assert (check.state, check.found) == (state, "; ".join(parts))
    assert advice in check.advice


def test_throttling_is_read_from_the_kernel_if_the_command_fails(pi: Device) -> None:
    add_command(pi, "vcgencmd", "exit 1")
    assert report.worst(list(device.check_throttling(pi))) == "ok"
    write(pi.root, device.THROTTLED_FILE, "50005\n")
    (check,) = device.check_throttling(pi)
    assert check.state == "fail"
    assert check.found.startswith("now: under-voltage")


def test_command_that_hangs_is_stopped(pi: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "COMMAND_SECONDS", 0.1)
    add_command(pi, "vcgencmd", "exec /bin/sleep 60")
    (check,) = device.check_throttling(pi)
    assert check.found == "not reported by this device"


@pytest.mark.parametrize(("millidegrees", "state"), [(70_000, "ok"), (70_100, "warn"), (80_100, "fail")])
def test_hottest_sensor_counts(pi: Device, millidegrees: int, state: str) -> None:
    write(pi.root, "sys/class/thermal/thermal_zone1/temp", f"{millidegrees}\n")
    write(pi.root, "sys/class/thermal/thermal_zone2/temp", "no number")
    (check,) = device.check_temperature(pi)
    assert (check.state, check.found) == (state, f"{millidegrees / 1000:.0f} °C")
    assert bool(check.advice) == (state != "ok")


Checker = Callable[[Device], Iterable[Check]]


def threads(number: int) -> Checker:
    return lambda pi: device.check_threads(pi, number)


@pytest.mark.parametrize(
    ("check", "files", "name", "state", "advice"),
    [
        (device.check_cpu, {GOVERNOR: "powersave\n"}, "governor", "warn", "ondemand"),
        (device.check_cpu, {GOVERNOR: "powersave\n", DRIVER: "intel_pstate\n"}, "governor", "ok", ""),
        (threads(1), {"proc/loadavg": "9.1 4 3 1/2 3"}, "threads", "warn", "top"),
        (threads(5), {}, "threads", "warn", "--threads 2"),
        (device.check_memory, {"proc/meminfo": "MemAvailable: 200000 kB\n"}, "memory", "warn", "stop"),
        (device.check_memory, {"proc/meminfo": "MemAvailable: 90000 kB\n"}, "memory", "fail", "stop"),
        (lambda _: device.check_disk(99 << 20), {}, "disk", "warn", "Delete"),
        (lambda _: device.check_disk(100 << 20), {}, "disk", "ok", ""),
        (lambda pi: device.check_cpu(replace(pi, machine="armv7l")), {}, "cpu", "fail", "64-bit"),
        (lambda pi: device.check_cpu(replace(pi, machine="x86_64")), {}, "cpu", "ok", ""),
        (lambda pi: device.check_clock(replace(pi, now=datetime(1970, 1, 1, tzinfo=UTC))), {}, "clock", "fail", "set-ntp"),
    ],
)
def test_problem_gets_advice(pi: Device, check: Checker, files: dict[str, str], name: str, state: str, advice: str) -> None:
    for file, text in files.items():
        write(pi.root, file, text)
    (found,) = (result for result in check(pi) if result.name == name)
    assert found.state == state
    assert advice in found.advice


@pytest.mark.parametrize(("script", "state"), [("echo yes", "ok"), ("echo no", "warn"), ("exit 1", "warn")])
def test_clock_synchronisation_is_read_from_timedatectl(pi: Device, script: str, state: str) -> None:
    (pi.root / SYNCHRONISED).unlink()
    add_command(pi, "timedatectl", script)
    (check,) = device.check_clock(pi)
    assert check.state == state
