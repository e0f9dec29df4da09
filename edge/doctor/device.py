"""Checks of the hardware and the system: CPU, temperature, power, memory, disk and clock."""

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from edge.doctor.report import Check
from edge.terminal.temperature import read_temperature

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
SET_CLOCK = "Run `sudo timedatectl set-ntp true`"
NOT_REPORTED = "not reported by this device"


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where the checks read. Tests use a fake one."""

    root: Path = Path("/")
    """Root of the file system."""
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
        try:
            return subprocess.check_output(
                arguments, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, timeout=COMMAND_SECONDS
            ).strip()
        except (OSError, subprocess.SubprocessError):
            return None


def check_cpu(device: Device) -> Iterator[Check]:
    """Check the processor and its frequency governor."""
    about = device.read("proc/cpuinfo") or ""
    named = device.read("proc/device-tree/model") or _line(about, "model name") or "unknown"
    flags = set((_line(about, "flags") or _line(about, "Features") or "").split())
    features = " ".join(feature for feature in CPU_FEATURES if feature in flags)
    found = ", ".join(filter(None, [named, device.machine, f"{_cores(device)} cores", features]))
    is_32_bit = device.machine not in ("aarch64", "arm64", "x86_64", "AMD64")
    advice = "Install a 64-bit system: onnxruntime and OpenCV do not support 32-bit systems."
    yield Check.judge("cpu", found, (is_32_bit, "fail", advice))
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = device.read(f"{folder}/scaling_governor"), device.read(f"{folder}/scaling_driver")
    if governor:
        is_slow = governor == "powersave" and driver not in DYNAMIC_DRIVERS
        advice = f"Run `echo ondemand | sudo tee /{folder.replace('cpu0', 'cpu*')}/scaling_governor`."
        found = "powersave: always the lowest frequency" if is_slow else governor
        yield Check.judge("governor", found, (is_slow, "warn", advice))


def check_threads(device: Device, threads: int) -> Iterator[Check]:
    """Compare the number of threads with the cores and the load."""
    cores = _cores(device)
    load = float((device.read("proc/loadavg") or "0").split()[0])
    yield Check.judge(
        "threads",
        f"{threads} of {cores} cores, load {load:.1f}",
        (threads > cores, "warn", f"Use --threads {min(2, cores)}."),
        (load > cores, "warn", "Look for other busy programs with `top`."),
    )


def check_temperature(device: Device) -> Iterator[Check]:
    """Check the hottest sensor."""
    degrees = read_temperature(device.root)
    hottest = 0.0 if degrees is None else degrees
    found = NOT_REPORTED if degrees is None else f"{hottest:.0f} °C"
    yield Check.judge("temperature", found, (hottest > TOO_HOT, "fail", COOLING), (hottest > HOT, "warn", COOLING))


def check_throttling(device: Device) -> Iterator[Check]:
    """Check power and throttling. Under-voltage fails: it damages SD cards and disconnects cameras."""
    said = device.run("vcgencmd", "get_throttled") or device.read(THROTTLED_FILE)
    bits = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]+)", said or "")
    value = int(bits[1], 16) if bits else 0
    now = [name for i, name in enumerate(THROTTLED) if value >> i & 1]
    before = [name for i, name in enumerate(THROTTLED) if value >> (i + 16) & 1 and name not in now]
    messages = [f"now: {', '.join(now)}"] * bool(now) + [f"since the start: {', '.join(before)}"] * bool(before)
    advice = " ".join([POWER] * (THROTTLED[0] in now + before) + [COOLING] * bool({*now, *before} & set(THROTTLED[2:])))
    found = "; ".join(messages) or ("never throttled" if bits else NOT_REPORTED)
    yield Check.judge("power", found, (THROTTLED[0] in now, "fail", advice), (bool(messages), "warn", advice))


def check_memory(device: Device) -> Iterator[Check]:
    """Check the free memory."""
    sizes = re.findall(r"^MemAvailable:\s+(\d+) kB", device.read("proc/meminfo") or "", re.MULTILINE)
    megabytes = int(sizes[0]) // 1024 if sizes else MEMORY_TIGHT_MB
    advice = f"The terminal needs about {MEMORY_MB} MB: stop other programs."
    is_low, is_tight = megabytes < MEMORY_MB, megabytes < MEMORY_TIGHT_MB
    found = f"{megabytes} MB free" if sizes else NOT_REPORTED
    yield Check.judge("memory", found, (is_low, "fail", advice), (is_tight, "warn", advice))


def check_disk(free_bytes: int) -> Iterator[Check]:
    """Check the free disk space."""
    megabytes = free_bytes >> 20
    advice = "Delete old logs, recordings or packages."
    yield Check.judge("disk", f"{megabytes} MB free", (megabytes < DISK_MB, "warn", advice))


def check_clock(device: Device) -> Iterator[Check]:
    """Check the clock: door lists and events use the time."""
    synchronised = (device.root / "run/systemd/timesync/synchronized").exists()
    said = "yes" if synchronised else device.run("timedatectl", "show", "--property=NTPSynchronized", "--value")
    is_past = device.now < RELEASED
    state = {"yes": "synchronised", "no": "not synchronised"}.get(said or "", "unknown whether synchronised")
    yield Check.judge(
        "clock",
        f"{device.now:%Y-%m-%d %H:%M} UTC, {'which is in the past' if is_past else state}",
        (is_past, "fail", f"{SET_CLOCK} and connect the device to a network, or add a battery-backed clock."),
        (said == "no", "warn", f"{SET_CLOCK}: door lists use the time."),
        (said != "yes", "warn", "Compare it with another clock: door lists use the time."),
    )


def _cores(device: Device) -> int:
    return len(re.findall(r"^processor\s*:", device.read("proc/cpuinfo") or "", re.MULTILINE)) or os.cpu_count() or 1


def _line(text: str, key: str) -> str | None:
    found = re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None
