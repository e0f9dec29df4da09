"""Will a door work on this device? Each check says what it found, and what to do about it.

No check can stop the others: an error in one is its finding, and one that hangs is given up. OpenCV and onnxruntime are tried
out in a process of their own first, because a build that does not suit the CPU kills whoever loads it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from edge.doctor import device as hardware
from edge.doctor import software
from edge.doctor.child import run_python
from edge.doctor.device import Device
from edge.doctor.findings import Check
from edge.errors import EdgeError

CHECK_SECONDS, CAMERA_SECONDS = 90.0, 2.0
DARK, SLOW_FPS, OLD_SECONDS, NARROW = 12.0, 5.0, 0.5, 640
RESTART = "Start the device anew; if that does not help, see with `dmesg` what hangs."


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
        "python": software.check_python,
        "packages": software.check_packages,
        "cpu": lambda: hardware.check_cpu(device),
        "threads": lambda: hardware.check_threads(device, threads),
        "temperature": lambda: hardware.check_temperature(device),
        "power": lambda: hardware.check_throttling(device),
        "memory": lambda: hardware.check_memory(device),
        "disk": lambda: hardware.check_disk(shutil.disk_usage(device.root).free),
        "clock": lambda: hardware.check_clock(device),
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


# The kit.

SELF_TEST = """
import json, sys, time
import numpy as np
from edge.vision.recognize import Recognizer
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
    from edge.kit import format as kits

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
    done = run_python(SELF_TEST, path.absolute(), str(threads), seconds=software.CHILD_SECONDS)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Check(name="self-test", state="fail", found=last if done.returncode > 0 else software.death(done.returncode))
    said: dict[str, Any] = json.loads(done.stdout)
    if "error" in said:
        return Check(name="self-test", state="fail", found=said["error"], advice=said["hint"])
    if said["named"]:
        found = f"{said['named']} pictures of nothing got a name"
        return Check(name="self-test", state="fail", found=found, advice="Do not use this kit: build it again.")
    return Check(name="self-test", state="ok", found=f"nothing gets no name; {said['ms']:.1f} ms for a frame without faces")


# The camera.


def check_camera(source: str, seconds: float = CAMERA_SECONDS) -> Iterator[Check]:
    from edge.camera.open import open_camera  # with OpenCV, which may be what is missing

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
