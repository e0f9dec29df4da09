"""Will a door work on this device? Each check says what it found, and what to do about it.

No check can stop the others: an error in one is its finding, and one that hangs is given up. OpenCV and onnxruntime are tried
out in a process of their own first, because a build that does not suit the CPU kills whoever loads it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from edge.child import run_python
from edge.errors import EdgeError

State = Literal["ok", "warn", "fail"]

PACKAGE = "lclrr-edge"
COMMAND_SECONDS, CHILD_SECONDS, CHECK_SECONDS = 5.0, 60.0, 90.0
CAMERA_SECONDS = 2.0
HOT, TOO_HOT = 70.0, 80.0  # degrees Celsius; a Raspberry Pi slows down from 80 on
MEMORY_MB, MEMORY_TIGHT_MB = 120, 250
DISK_MB = 100
DARK, SLOW_FPS, OLD_SECONDS, NARROW = 12.0, 5.0, 0.5, 640
RELEASED = datetime(2025, 1, 1, tzinfo=UTC)  # no clock that is right shows an earlier time
# The governor of these drivers is called powersave, and speeds up all the same.
CLEVER_DRIVERS = ("intel_pstate", "amd-pstate", "amd-pstate-epp")
CPU_FEATURES = ("asimd", "asimddp", "asimdhp", "avx", "avx2", "avx512f", "avx512_vnni")
OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")
# What `vcgencmd get_throttled` says: the bit for now; 16 bits further up, the one for since the device was started.
THROTTLED = ("under-voltage", "the CPU's frequency capped", "throttled", "soft temperature limit")
THROTTLED_FILE = "sys/devices/platform/soc/soc:firmware/get_throttled"
POWER = "Use the power supply made for this Raspberry Pi, and a short cable."
RESTART = "Start the device anew; if that does not help, see with `dmesg` what hangs."
COOLING = "Give it a heat sink or a fan, and air."


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found about one matter."""

    name: str
    state: State
    """ok; warn: works, but worse than it could, or unsafely; fail: will not work."""
    found: str
    advice: str = ""
    """What to do, where something should be done."""


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


def examine(
    find_kit: Callable[[], Path],
    *,
    camera: str | None = "0",
    public_key: bytes | None = None,
    threads: int = 1,
    device: Device | None = None,
) -> list[Check]:
    """All checks. `find_kit` says where the kit is, or why there is none; `camera` is a source, or None not to look at it."""
    device = device or Device()
    matters: dict[str, Callable[[], Iterable[Check]]] = {
        "python": check_python,
        "packages": check_packages,
        "cpu": lambda: check_cpu(device),
        "threads": lambda: check_threads(device, threads),
        "temperature": lambda: check_temperature(device),
        "power": lambda: check_throttling(device),
        "memory": lambda: check_memory(device),
        "disk": lambda: check_disk(shutil.disk_usage(device.root).free),
        "clock": lambda: check_clock(device),
        "kit": lambda: check_kit(find_kit(), public_key, threads),
    }
    if camera is not None:
        matters["camera"] = lambda: check_camera(camera)
    return [check for name, matter in matters.items() for check in isolated(name, matter)]


def isolated(name: str, matter: Callable[[], Iterable[Check]], seconds: float = CHECK_SECONDS) -> list[Check]:
    """The findings on a matter, and what kept it from finding more: an error or a hang are findings too."""
    found: list[Check] = []

    def look() -> None:
        try:
            found.extend(matter())
        except EdgeError as error:
            found.append(Check(name=name, state="fail", found=error.message, advice=error.hint))
        except subprocess.TimeoutExpired as error:
            found.append(Check(name=name, state="fail", found=f"no answer within {error.timeout:g} seconds", advice=RESTART))
        except Exception as error:
            found.append(Check(name=name, state="fail", found=f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=look, name=f"doctor {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return [*found, Check(name=name, state="fail", found=f"no answer within {seconds:g} seconds", advice=RESTART)]
    return found


# The software.


def check_python() -> Iterator[Check]:
    version = platform.python_version()
    wanted = importlib.metadata.metadata(PACKAGE)["Requires-Python"]
    bits = 64 if sys.maxsize > 2**32 else 32
    bad = bits == 32 or not fits(version, wanted)
    advice = f"Use a 64-bit system with Python {wanted}." if bad else ""
    yield Check(name="python", state="fail" if bad else "ok", found=f"{version}, {bits} bits", advice=advice)


# Says of one package after the other what it is, so that the one that kills the process is known.
PROBE = """
import json, re, sys
def say(name, version, **more):
    print(json.dumps({"name": name, "version": version, **more}), flush=True)
def numpy():
    import numpy
    say("numpy", numpy.__version__)
def opencv():
    import cv2
    about = cv2.getBuildInformation()
    parts = {key: re.search(pattern + r":\\s+(\\S+)", about) for key, pattern in
             {"FFMPEG": "FFMPEG", "V4L2": "v4l/v4l2", "window": "GUI"}.items()}
    say("opencv", cv2.__version__, **{key: found[1] if found else "" for key, found in parts.items()})
def onnxruntime():
    from edge.runtime import onnxruntime
    say("onnxruntime", onnxruntime().__version__)
for package in (numpy, opencv, onnxruntime):
    try:
        package()
    except Exception as error:
        say(package.__name__, "", error=f"{type(error).__name__}: {error}")
"""


def check_packages() -> Iterator[Check]:
    done = run_python(PROBE, seconds=CHILD_SECONDS)
    said = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    rules = ranges(importlib.metadata.requires(PACKAGE) or [])
    for name, distribution in (("numpy", "numpy"), ("opencv", OPENCV[0]), ("onnxruntime", "onnxruntime")):
        if name not in said:
            yield Check(name=name, state="fail", found=_death(done.returncode), advice=_other(distribution, rules))
            return
        yield judge_package(said[name], distribution, rules)
    clash = [name for name in OPENCV if _is_installed(name)]
    if len(clash) > 1:
        advice = f"Run `pip uninstall {' '.join(clash)}`, then `pip install {OPENCV[0]}`."
        yield Check(name="opencv", state="fail", found=f"installed at once: {', '.join(clash)}", advice=advice)


def judge_package(said: dict[str, str], distribution: str, rules: dict[str, str]) -> Check:
    """What the probe said of one package, against the versions that the project asks for."""
    name, version = said["name"], said["version"]
    if "error" in said:
        return Check(name=name, state="fail", found=said["error"], advice=_other(distribution, rules))
    if not fits(version, rules.get(distribution, "")):
        return Check(name=name, state="fail", found=version, advice=_other(distribution, rules))
    if name != "opencv":
        return Check(name=name, state="ok", found=f"{version}{', telemetry off' if name == 'onnxruntime' else ''}")
    lacking = [part for part in ("FFMPEG", "V4L2") if said[part] != "YES"]
    if lacking:
        found = f"{version}, built without {' and '.join(lacking)}: no {'videos' if 'FFMPEG' in lacking else 'USB cameras'}"
        return Check(name=name, state="warn", found=found, advice=_other(distribution, rules))
    if said["window"] not in ("NONE", ""):
        found = f"{version}, with windows ({said['window']})"
        return Check(name=name, state="warn", found=found, advice=f"{OPENCV[0]} is smaller, and needs no desktop.")
    return Check(name=name, state="ok", found=f"{version}, with FFMPEG and V4L2")


def ranges(requires: list[str]) -> dict[str, str]:
    """The versions that a package asks for, by the name of the other package: without what only extras need."""
    plain = (re.fullmatch(r"([\w.-]+)\s*\(?([^()]*)\)?", line.strip()) for line in requires if ";" not in line)
    return {found[1]: found[2].strip() for found in plain if found}


def fits(version: str, wanted: str) -> bool:
    """Whether a version is in a range as `>=1.17,!=1.21.*`."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", re.match(r"[\d.]*", text)[0])]  # type: ignore[index]

    found = numbers(version)
    for rule in filter(None, wanted.split(",")):
        operator, limit, star = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*([\d.]+?)(\.\*)?\s*", rule).groups()  # type: ignore[union-attr]
        bound = numbers(limit)
        ours = found[: len(bound)] if star else found
        width = max(len(ours), len(bound))
        a, b = (side + [0] * (width - len(side)) for side in (ours, bound))
        if not {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, ">": a > b, "<": a < b}[operator]:
            return False
    return True


def _other(distribution: str, rules: dict[str, str]) -> str:
    return f"Run `pip install '{distribution}{rules.get(distribution, '')}'`."


def _death(code: int) -> str:
    if code == -signal.SIGILL:
        return "dies of an illegal instruction: this build is not made for this CPU"
    return f"cannot be loaded: the process ended with {code}"


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# The device.


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


# The kit.

SELF_TEST = """
import json, sys, time
import numpy as np
from edge.recognize import Recognizer
from edge.errors import EdgeError
try:
    recognizer = Recognizer.load(sys.argv[1], threads=int(sys.argv[2]))
    blank = np.zeros((480, 640, 3), np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, blank.shape, np.uint8)
    named = [face.label for frame in (blank, noise) for face in recognizer.recognize(frame) if face.label]
    began = time.perf_counter()
    for _ in range(5):
        recognizer.recognize(noise)
    milliseconds = (time.perf_counter() - began) / 5 * 1000
    height, width = recognizer.kit.manifest.size
    crops = np.random.default_rng(1).integers(0, 256, (20, height, width), np.uint8)
    named += [face.label for face in recognizer.recognize_crops(crops) if face.label]
    print(json.dumps({"named": len(named), "ms": milliseconds}))
except EdgeError as error:
    print(json.dumps({"error": error.message, "hint": error.hint}))
"""


def check_kit(path: Path, public_key: bytes | None = None, threads: int = 1) -> Iterator[Check]:
    from edge import kit as kits

    kit = kits.read(path, public_key)
    manifest = kit.manifest
    series = f" of series {manifest.series}" if manifest.series else ""
    found = f"{path}: version {manifest.kit_version}{series}, {len(manifest.labels)} people, {kit.length / 1e6:.1f} MB"
    found += f", {manifest.precision}, {kit.sha256[:12]}"
    yield Check(name="kit", state="ok", found=found)
    yield {
        "valid": Check(name="signature", state="ok", found="valid"),
        "unchecked": Check(
            name="signature", state="warn", found="there, but not checked", advice="Pass --public-key, here and at the door."
        ),
    }.get(
        kit.signature,
        Check(
            name="signature",
            state="warn",
            found="none: whoever can change the file decides who gets in",
            advice="Build the kit with --sign, and pass --public-key at the door.",
        ),
    )
    mode = path.stat().st_mode
    if mode & 0o027:  # others may do nothing with it, the group may read it
        advice = f"Run `chmod 600 {path}`: it describes faces."
        yield Check(name="permissions", state="warn", found=f"{mode & 0o777:o}: not private", advice=advice)
    else:
        yield Check(name="permissions", state="ok", found=f"{mode & 0o777:o}")
    limits = manifest.thresholds
    advice = "Try the door with people who are not in the kit before you trust it." if limits.provisional else ""
    yield Check(name="thresholds", state="warn" if limits.provisional else "ok", found=limits.sentence, advice=advice)
    if kit.detector is None:
        advice = "Build the kit with --detector yunet."
        yield Check(name="detector", state="warn", found="none in the kit: OpenCV 4 has an older one", advice=advice)
    yield self_test(path, threads)


def self_test(path: Path, threads: int = 1) -> Check:
    """The kit at work, in another process: nothing that is no face may get a name."""
    done = run_python(SELF_TEST, path.absolute(), str(threads), seconds=CHILD_SECONDS)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Check(name="self-test", state="fail", found=last if done.returncode > 0 else _death(done.returncode))
    said: dict[str, Any] = json.loads(done.stdout)
    if "error" in said:
        return Check(name="self-test", state="fail", found=said["error"], advice=said["hint"])
    if said["named"]:
        found = f"{said['named']} pictures of nothing got a name"
        return Check(name="self-test", state="fail", found=found, advice="Do not use this kit: build it again.")
    return Check(name="self-test", state="ok", found=f"nothing gets no name; {said['ms']:.1f} ms for a frame without faces")


# The camera.


def check_camera(source: str, seconds: float = CAMERA_SECONDS) -> Iterator[Check]:
    from edge.camera import open_camera  # with OpenCV, which may be what is missing

    with open_camera(source) as camera:
        began = time.monotonic()
        frames, ages = [], []
        while time.monotonic() < began + seconds and not camera.ended:
            if (frame := camera.frame(0.25)) is not None:
                frames.append(frame)
                ages.append(camera.now() - frame.captured)
                del frames[1:-1]
        name, live, broken = camera.name, camera.live, camera.health.broken
    if not frames:
        yield Check(name="camera", state="fail", found=f"{name}: no picture", advice="Check the camera and its cable.")
        return
    height, width = frames[-1].image.shape[:2]
    brightness = float(frames[-1].image.mean())
    fps = (frames[-1].number - frames[0].number) / max(frames[-1].captured - frames[0].captured, 1e-9) if len(ages) > 1 else 0
    age = max(ages)
    found = f"{name}: {width}x{height}, {fps:.0f} frames a second, brightness {brightness:.0f} of 255"
    if live:
        found += f", {age * 1000:.0f} ms old at most"
    complaints = {
        "The picture is black: take off the lens cap, switch on a light.": brightness < DARK,
        "The picture is small: faces must be near. Ask the camera for 640x480 or more.": width < NARROW,
        "It is slow: more light, or another mode of the camera, gives more frames.": live and fps < SLOW_FPS,
        "Its pictures arrive late: use a cable instead of Wi-Fi, or the camera's smaller stream.": live and age > OLD_SECONDS,
        "The picture never changes: is it a still?": live and len(frames) > 1 and _same(frames[0].image, frames[-1].image),
        f"{broken} pictures were broken: check the cable.": broken > 0,
    }
    advice = " ".join(text for text, holds in complaints.items() if holds)
    yield Check(name="camera", state="warn" if advice else "ok", found=found, advice=advice)


def _same(one: Any, other: Any) -> bool:
    return bool((one == other).all())


# The report.


def facts(checks: list[Check]) -> dict[str, Any]:
    """For JSON."""
    return {"state": worst(checks), "checks": [vars(check) for check in checks]}


def worst(checks: list[Check]) -> State:
    states: tuple[State, ...] = ("fail", "warn", "ok")
    return next(state for state in states if state == "ok" or any(check.state == state for check in checks))


def table(checks: list[Check]) -> str:
    """For people."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:5} {check.name:12} {check.found}")
        if check.advice:
            lines.append(f"{'':19}-> {check.advice}")
    count = {state: sum(check.state == state for check in checks) for state in ("fail", "warn")}
    lines += ["", f"{len(checks)} checks: {count['fail']} failed, {count['warn']} with a warning."]
    return "\n".join(lines)
