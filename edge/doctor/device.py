"""Is the device fit for a door: its CPU, temperature, power, memory, disk and clock?"""

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

from edge.doctor.findings import Check, State

COMMAND_SECONDS = 5.0
HOT, TOO_HOT = 70.0, 80.0  # degrees Celsius; a Raspberry Pi slows down from 80 on
MEMORY_MB, MEMORY_TIGHT_MB = 120, 250
DISK_MB = 100
RELEASED = datetime(2025, 1, 1, tzinfo=UTC)  # no clock that is right shows an earlier time
# The governor of these drivers is called powersave, and speeds up all the same.
CLEVER_DRIVERS = ("intel_pstate", "amd-pstate", "amd-pstate-epp")
CPU_FEATURES = ("asimd", "asimddp", "asimdhp", "avx", "avx2", "avx512f", "avx512_vnni")
# What `vcgencmd get_throttled` says: the bit for now; 16 bits further up, the one for since the device was started.
THROTTLED = ("under-voltage", "the CPU's frequency capped", "throttled", "soft temperature limit")
THROTTLED_FILE = "sys/devices/platform/soc/soc:firmware/get_throttled"
POWER = "Use the power supply made for this Raspberry Pi, and a short cable."
COOLING = "Give it a heat sink or a fan, and air."


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where to look. Tests have a device of their own."""

    root: Path = Path("/")
    """Of the file system."""
    path: str | None = None
    """Where commands are looked for; None as the shell does."""
    machine: str = field(default_factory=platform.machine)
    """x86_64, aarch64..."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The time that its clock shows."""

    def read(self, file: str) -> str | None:
        """The text of a file, or None where there is none."""
        try:
            return (self.root / file).read_text(errors="replace").strip("\0\n ")
        except OSError:
            return None

    def run(self, *words: str) -> str | None:
        """What a command prints, or None where it is missing or fails."""
        command = shutil.which(words[0], path=self.path)
        if command is None:
            return None
        try:
            done = subprocess.run(
                [command, *words[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None


def check_cpu(device: Device) -> Iterator[Check]:
    about = device.read("proc/cpuinfo") or ""
    named = device.read("proc/device-tree/model") or _line(about, "model name") or "unknown"
    flags = set((_line(about, "flags") or _line(about, "Features") or "").split())
    features = " ".join(feature for feature in CPU_FEATURES if feature in flags)
    found = ", ".join(filter(None, [named, device.machine, f"{_cores(device)} cores", features]))
    if device.machine not in ("aarch64", "arm64", "x86_64", "AMD64"):
        advice = "Install a 64-bit system: onnxruntime and OpenCV are not made for 32-bit ones."
        yield Check(name="cpu", state="fail", found=found, advice=advice)
        return
    yield Check(name="cpu", state="ok", found=found)
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = device.read(f"{folder}/scaling_governor"), device.read(f"{folder}/scaling_driver")
    if governor == "powersave" and driver not in CLEVER_DRIVERS:
        advice = f"Run `echo ondemand | sudo tee /{folder.replace('cpu0', 'cpu*')}/scaling_governor`."
        yield Check(name="governor", state="warn", found="powersave: always the lowest frequency", advice=advice)
    elif governor:
        yield Check(name="governor", state="ok", found=governor)


def check_threads(device: Device, threads: int) -> Iterator[Check]:
    cores = _cores(device)
    load = float((device.read("proc/loadavg") or "0").split()[0])
    found = f"{threads} of {cores} cores, load {load:.1f}"
    if threads > cores:
        yield Check(name="threads", state="warn", found=found, advice=f"Use --threads {min(2, cores)}.")
    elif load > cores:
        yield Check(name="threads", state="warn", found=found, advice="See with `top` what else runs here.")
    else:
        yield Check(name="threads", state="ok", found=found)


def check_temperature(device: Device) -> Iterator[Check]:
    zones = [text for zone in device.root.glob("sys/class/thermal/thermal_zone*/temp") if (text := device.read(str(zone)))]
    degrees = [int(text) / 1000 for text in zones if re.fullmatch(r"-?\d+", text)]
    if not degrees:
        yield Check(name="temperature", state="ok", found="not told by this device")
        return
    hottest = max(degrees)
    state: State = "fail" if hottest > TOO_HOT else "warn" if hottest > HOT else "ok"
    yield Check(name="temperature", state=state, found=f"{hottest:.0f} °C", advice="" if state == "ok" else COOLING)


def check_throttling(device: Device) -> Iterator[Check]:
    """Under-voltage corrupts SD cards and drops cameras, so it is the one that fails."""
    said = device.run("vcgencmd", "get_throttled") or device.read(THROTTLED_FILE)
    bits = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]+)", said or "")
    if bits is None:
        yield Check(name="power", state="ok", found="not told by this device")
        return
    value = int(bits[1], 16)
    now = [name for i, name in enumerate(THROTTLED) if value >> i & 1]
    before = [name for i, name in enumerate(THROTTLED) if value >> (i + 16) & 1 and name not in now]
    told = [f"now: {', '.join(now)}"] * bool(now) + [f"since it was started: {', '.join(before)}"] * bool(before)
    state: State = "fail" if THROTTLED[0] in now else "warn" if told else "ok"
    advice = [POWER] * (THROTTLED[0] in now + before) + [COOLING] * bool({*now, *before} & set(THROTTLED[2:]))
    yield Check(name="power", state=state, found="; ".join(told) or "never throttled", advice=" ".join(advice))


def check_memory(device: Device) -> Iterator[Check]:
    free = re.search(r"^MemAvailable:\s+(\d+) kB", device.read("proc/meminfo") or "", re.MULTILINE)
    if free is None:
        yield Check(name="memory", state="ok", found="not told by this device")
        return
    megabytes = int(free[1]) // 1024
    state: State = "fail" if megabytes < MEMORY_MB else "warn" if megabytes < MEMORY_TIGHT_MB else "ok"
    advice = "" if state == "ok" else f"The terminal takes about {MEMORY_MB} MB: stop what else runs here."
    yield Check(name="memory", state=state, found=f"{megabytes} MB free", advice=advice)


def check_disk(free_bytes: int) -> Iterator[Check]:
    megabytes = free_bytes >> 20
    is_low = megabytes < DISK_MB
    advice = "Remove what is not needed: logs, recordings, packages." if is_low else ""
    yield Check(name="disk", state="warn" if is_low else "ok", found=f"{megabytes} MB free", advice=advice)


def check_clock(device: Device) -> Iterator[Check]:
    """Door lists go by the time of day, and events are stamped with it."""
    shown = f"{device.now:%Y-%m-%d %H:%M} UTC"
    synchronised = (device.root / "run/systemd/timesync/synchronized").exists()
    said = "yes" if synchronised else device.run("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if device.now < RELEASED:
        advice = "Run `sudo timedatectl set-ntp true` and connect it to a network, or give it a clock with a battery."
        yield Check(name="clock", state="fail", found=f"{shown}, which is past", advice=advice)
    elif said == "yes":
        yield Check(name="clock", state="ok", found=f"{shown}, synchronised")
    elif said == "no":
        advice = "Run `sudo timedatectl set-ntp true`: door lists go by the time."
        yield Check(name="clock", state="warn", found=f"{shown}, not synchronised", advice=advice)
    else:
        advice = "Compare it with a watch: door lists go by the time."
        yield Check(name="clock", state="warn", found=f"{shown}, and nothing here says whether that is right", advice=advice)


def _cores(device: Device) -> int:
    return len(re.findall(r"^processor\s*:", device.read("proc/cpuinfo") or "", re.MULTILINE)) or os.cpu_count() or 1


def _line(text: str, key: str) -> str | None:
    found = re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None
