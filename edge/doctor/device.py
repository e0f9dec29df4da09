"""Checks of the hardware and the system: CPU, temperature, power, memory, disk and clock."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from edge.doctor.report import Check, State

COMMAND_SECONDS = 5.0
HOT, TOO_HOT = 70.0, 80.0  # degrees Celsius; a Raspberry Pi slows down from 80 on
MEMORY_MB, MEMORY_TIGHT_MB = 120, 250
DISK_MB = 100
RELEASED = datetime(2025, 1, 1, tzinfo=UTC)  # a correct clock shows a later time
# With these drivers the governor `powersave` still raises the frequency under load.
DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate", "amd-pstate-epp")
CPU_FEATURES = ("asimd", "asimddp", "asimdhp", "avx", "avx2", "avx512f", "avx512_vnni")
# Bits of `vcgencmd get_throttled`: now; the same 16 bits higher: since the device was started.
THROTTLED = ("under-voltage", "CPU frequency capped", "throttled", "soft temperature limit")
THROTTLED_FILE = "sys/devices/platform/soc/soc:firmware/get_throttled"
POWER = "Use the power supply made for this Raspberry Pi, and a short cable."
COOLING = "Add a heat sink or a fan."


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where the checks read. Tests use a fake one."""

    root: Path = Path("/")
    """Root of the file system."""
    path: str | None = None
    """Search path for commands; None: PATH."""
    machine: str = field(default_factory=platform.machine)
    """x86_64, aarch64..."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time of its clock."""

    def read(self, file: str) -> str | None:
        """Return the text of a file, or None if it cannot be read."""
        try:
            return (self.root / file).read_text(errors="replace").strip("\0\n ")
        except OSError:
            return None

    def run(self, *arguments: str) -> str | None:
        """Return the output of a command, or None if it is missing or fails."""
        command = shutil.which(arguments[0], path=self.path)
        if command is None:
            return None
        try:
            done = subprocess.run(
                [command, *arguments[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None


def check_cpu(device: Device) -> Iterator[Check]:
    """Check the processor and its frequency governor."""
    about = device.read("proc/cpuinfo") or ""
    named = device.read("proc/device-tree/model") or _line(about, "model name") or "unknown"
    flags = set((_line(about, "flags") or _line(about, "Features") or "").split())
    features = " ".join(feature for feature in CPU_FEATURES if feature in flags)
    found = ", ".join(filter(None, [named, device.machine, f"{_cores(device)} cores", features]))
    if device.machine not in ("aarch64", "arm64", "x86_64", "AMD64"):
        advice = "Install a 64-bit system: onnxruntime and OpenCV do not support 32-bit systems."
        yield Check("cpu", "fail", found, advice)
        return
    yield Check("cpu", "ok", found)
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = device.read(f"{folder}/scaling_governor"), device.read(f"{folder}/scaling_driver")
    if governor == "powersave" and driver not in DYNAMIC_DRIVERS:
        advice = f"Run `echo ondemand | sudo tee /{folder.replace('cpu0', 'cpu*')}/scaling_governor`."
        yield Check("governor", "warn", "powersave: always the lowest frequency", advice)
    elif governor:
        yield Check("governor", "ok", governor)


def check_threads(device: Device, threads: int) -> Iterator[Check]:
    """Compare the number of threads with the cores and the load."""
    cores = _cores(device)
    load = float((device.read("proc/loadavg") or "0").split()[0])
    found = f"{threads} of {cores} cores, load {load:.1f}"
    if threads > cores:
        yield Check("threads", "warn", found, f"Use --threads {min(2, cores)}.")
    elif load > cores:
        yield Check("threads", "warn", found, "Look for other busy programs with `top`.")
    else:
        yield Check("threads", "ok", found)


def check_temperature(device: Device) -> Iterator[Check]:
    """Check the hottest sensor."""
    zones = [text for zone in device.root.glob("sys/class/thermal/thermal_zone*/temp") if (text := device.read(str(zone)))]
    degrees = [int(text) / 1000 for text in zones if re.fullmatch(r"-?\d+", text)]
    if not degrees:
        yield Check("temperature", "ok", "not reported by this device")
        return
    hottest = max(degrees)
    state: State = "fail" if hottest > TOO_HOT else "warn" if hottest > HOT else "ok"
    yield Check("temperature", state, f"{hottest:.0f} °C", "" if state == "ok" else COOLING)


def check_throttling(device: Device) -> Iterator[Check]:
    """Check power and throttling. Under-voltage fails: it damages SD cards and disconnects cameras."""
    said = device.run("vcgencmd", "get_throttled") or device.read(THROTTLED_FILE)
    bits = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]+)", said or "")
    if bits is None:
        yield Check("power", "ok", "not reported by this device")
        return
    value = int(bits[1], 16)
    now = [name for i, name in enumerate(THROTTLED) if value >> i & 1]
    before = [name for i, name in enumerate(THROTTLED) if value >> (i + 16) & 1 and name not in now]
    messages = [f"now: {', '.join(now)}"] * bool(now) + [f"since the start: {', '.join(before)}"] * bool(before)
    state: State = "fail" if THROTTLED[0] in now else "warn" if messages else "ok"
    advice = [POWER] * (THROTTLED[0] in now + before) + [COOLING] * bool({*now, *before} & set(THROTTLED[2:]))
    yield Check("power", state, "; ".join(messages) or "never throttled", " ".join(advice))


def check_memory(device: Device) -> Iterator[Check]:
    """Check the free memory."""
    free = re.search(r"^MemAvailable:\s+(\d+) kB", device.read("proc/meminfo") or "", re.MULTILINE)
    if free is None:
        yield Check("memory", "ok", "not reported by this device")
        return
    megabytes = int(free[1]) // 1024
    state: State = "fail" if megabytes < MEMORY_MB else "warn" if megabytes < MEMORY_TIGHT_MB else "ok"
    advice = "" if state == "ok" else f"The terminal needs about {MEMORY_MB} MB: stop other programs."
    yield Check("memory", state, f"{megabytes} MB free", advice)


def check_disk(free_bytes: int) -> Iterator[Check]:
    """Check the free disk space."""
    megabytes = free_bytes >> 20
    is_low = megabytes < DISK_MB
    advice = "Delete old logs, recordings or packages." if is_low else ""
    yield Check("disk", "warn" if is_low else "ok", f"{megabytes} MB free", advice)


def check_clock(device: Device) -> Iterator[Check]:
    """Check the clock: door lists and events use the time."""
    shown = f"{device.now:%Y-%m-%d %H:%M} UTC"
    synchronised = (device.root / "run/systemd/timesync/synchronized").exists()
    said = "yes" if synchronised else device.run("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if device.now < RELEASED:
        advice = "Run `sudo timedatectl set-ntp true` and connect the device to a network, or add a battery-backed clock."
        yield Check("clock", "fail", f"{shown}, which is in the past", advice)
    elif said == "yes":
        yield Check("clock", "ok", f"{shown}, synchronised")
    elif said == "no":
        advice = "Run `sudo timedatectl set-ntp true`: door lists use the time."
        yield Check("clock", "warn", f"{shown}, not synchronised", advice)
    else:
        advice = "Compare it with another clock: door lists use the time."
        yield Check("clock", "warn", f"{shown}, unknown whether synchronised", advice)


def _cores(device: Device) -> int:
    return len(re.findall(r"^processor\s*:", device.read("proc/cpuinfo") or "", re.MULTILINE)) or os.cpu_count() or 1


def _line(text: str, key: str) -> str | None:
    found = re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None
