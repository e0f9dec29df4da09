"""All checks of a device. Each check reports what it found, and advises what to do.

Checks are independent: an error or a hang in one of them is its result. OpenCV and onnxruntime are loaded in a child process
first, because a build that does not support the CPU crashes the process that loads it.
"""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.doctor import device as hardware
from edge.doctor import software
from edge.doctor.device import Device
from edge.doctor.report import Check, State
from edge.doctor.software import describe_failure, run_python
from edge.errors import EdgeError

if TYPE_CHECKING:
    from edge.fleet.fleet import Fleet

CHECK_SECONDS, CAMERA_SECONDS = 90.0, 2.0
MIN_BRIGHTNESS, FAILING_FPS, MAX_AGE_SECONDS, MIN_WIDTH = 12.0, 4.0, 0.5, 640
RESTART = "Restart the device. If that does not help, look for the cause with `dmesg`."


def check_device(
    find_kit: Callable[[], Path],
    *,
    camera: str | None = "0",
    public_key: bytes | None = None,
    threads: int = 1,
    device: Device | None = None,
    open_fleet: "Callable[[], Fleet] | None" = None,
) -> list[Check]:
    """Run all checks. `find_kit` returns the path of the kit or raises; without a `camera` source it is not checked.

    `open_fleet` returns what the terminal has from its fleet; None: it belongs to none.
    """
    device = device or Device()
    checks: dict[str, Callable[[], Iterable[Check]]] = {
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
    if open_fleet is not None:
        checks["fleet"] = lambda: check_the_fleet(open_fleet)
    if camera is not None:
        checks["camera"] = lambda: check_camera(camera)
    return [result for name, check in checks.items() for result in run_isolated(name, check)]


def run_isolated(name: str, check: Callable[[], Iterable[Check]], seconds: float = CHECK_SECONDS) -> list[Check]:
    """Return the results of a check. An error or a timeout is added as a failed result."""
    results: list[Check] = []

    def run() -> None:
        try:
            results.extend(check())
        except EdgeError as error:
            results.append(Check(name, "fail", error.message, error.hint))
        except subprocess.TimeoutExpired as error:
            results.append(_timeout(name, error.timeout))
        except Exception as error:
            results.append(Check(name, "fail", f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=run, name=f"doctor {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    return [*results, _timeout(name, seconds)] if thread.is_alive() else results


def _timeout(name: str, seconds: float) -> Check:
    return Check(name, "fail", f"no result within {seconds:g} seconds", RESTART)


# The fleet.


def check_the_fleet(open_fleet: "Callable[[], Fleet]") -> Iterable[Check]:
    """Check what the terminal needs from its fleet."""
    from edge.doctor.fleet import check_fleet  # it loads OpenCV, which may be missing

    return check_fleet(open_fleet())


# The kit.

SIGNATURES: dict[str, tuple[State, str, str]] = {
    "valid": ("ok", "valid", ""),
    "unchecked": ("warn", "present, not checked", "Pass --public-key, here and to `edge recognize`."),
    "none": (
        "warn",
        "none: anyone who can change the file decides who may pass",
        "Build the kit with --sign, and pass --public-key to `edge recognize`.",
    ),
}
TRY_KIT = """
import json, sys, time
import numpy as np
from edge.vision.recognize import Recognizer
recognizer = Recognizer.load(sys.argv[1], threads=int(sys.argv[2]))
blank = np.zeros((480, 640, 3), np.uint8)
noise = np.random.default_rng(0).integers(0, 256, blank.shape, np.uint8)
named = [face.label for frame in (blank, noise) for face in recognizer.recognize(frame) if face.label]
began = time.perf_counter()
for _ in range(5):
    recognizer.recognize(noise)
milliseconds = (time.perf_counter() - began) / 5 * 1000
crops = np.random.default_rng(1).integers(0, 256, (20, *recognizer.kit.manifest.crop_shape), np.uint8)
named += [face.label for crop in crops for face in recognizer.recognize_crops(crop[None]) if face.label]
print(json.dumps({"named": len(named), "ms": milliseconds}))
"""


def check_kit(path: Path, public_key: bytes | None = None, threads: int = 1) -> Iterator[Check]:
    """Check the file, its signature, its permissions and thresholds, and run it on images without faces."""
    from edge.kit import format as kits

    kit = kits.read(path, public_key)
    manifest = kit.manifest
    series = f" of series {manifest.series}" if manifest.series else ""
    size = f"{len(manifest.labels)} people, {kit.length / 1e6:.1f} MB, {manifest.precision}"
    yield Check("kit", "ok", f"{path}: version {manifest.kit_version}{series}, {size}, {kit.id}")
    yield Check("signature", *SIGNATURES[kit.signature])
    mode = path.stat().st_mode & 0o777
    is_open = mode & 0o027 != 0  # other users need no access, the group may read
    found = f"{mode:o}{': not private' if is_open else ''}"
    yield Check.judge("permissions", found, (is_open, "warn", f"Run `chmod 600 {path}`: it describes faces."))
    thresholds = manifest.thresholds
    advice = "Test the door with people who are not in the kit before you use it."
    yield Check.judge("thresholds", thresholds.sentence, (thresholds.provisional, "warn", advice))
    advice = "See docs/guide/liveness.md, or use a second factor."
    yield Check.judge("liveness", manifest.liveness_sentence, (manifest.liveness is None, "warn", advice))
    yield try_kit(path, threads)


def try_kit(path: Path, threads: int = 1) -> Check:
    """Run the kit in a child process on images without faces: it must not recognise a person in them."""
    done = run_python(TRY_KIT, path.absolute(), str(threads))
    if done.returncode != 0:
        return Check("recognition", "fail", describe_failure(done))
    result: dict[str, Any] = json.loads(done.stdout)
    if result["named"]:
        found = f"{result['named']} false matches on blank or noise images"
        return Check("recognition", "fail", found, "Do not use this kit: build it again.")
    found = f"no false match on blank or noise images; {result['ms']:.1f} ms for a frame without faces"
    return Check("recognition", "ok", found)


# The camera.


def check_camera(source: str, seconds: float = CAMERA_SECONDS) -> Iterator[Check]:
    """Read frames for some seconds, and check their size, brightness, rate and age."""
    from edge.camera.frozen import FrozenCheck  # these load OpenCV, which may be missing
    from edge.camera.sources import open_camera
    from edge.settings import MIN_FPS

    with open_camera(source) as camera:
        began, frozen = time.monotonic(), FrozenCheck()
        frames, ages, new = [], [], 0
        while time.monotonic() < began + seconds and not camera.ended:
            if (frame := camera.frame(0.25)) is not None:
                new += frozen.is_new(frame, camera.now())
                frames.append(frame)
                ages.append(camera.now() - frame.captured)
                del frames[1:-1]
        name, live, broken = camera.name, camera.live, camera.health.broken
    if not frames:
        yield Check("camera", "fail", f"{name}: no frame", "Check the camera and its cable.")
        return
    first, last, age = frames[0], frames[-1], max(ages)
    height, width = last.image.shape[:2]
    brightness = float(last.image.mean())
    fps = (last.number - first.number) / max(last.captured - first.captured, 1e-9) if len(ages) > 1 else 0
    is_still = live and new < 2
    if live:  # repeated frames do not count at a door
        fps *= (new - 1) / max(len(ages) - 1, 1)
    found = f"{name}: {width}x{height}, {fps:.0f} frames per second, brightness {brightness:.0f} of 255"
    if live:
        found += f", frames at most {age * 1000:.0f} ms old"
    low_rate = f"The frame rate is low: a door needs {MIN_FPS:g} frames per second, and grants nothing below {FAILING_FPS:g}."
    problems = {
        "The image is black: remove the lens cap, switch on a light.": brightness < MIN_BRIGHTNESS,
        "The image is small, so faces must be near: use 640x480 or more.": width < MIN_WIDTH,
        f"{low_rate} Use more light, or another mode of the camera.": live and fps < MIN_FPS and not is_still,
        "The frames arrive late: use a cable instead of Wi-Fi, or a smaller stream.": live and age > MAX_AGE_SECONDS,
        "The image never changes: is it a still image?": is_still,
        f"{broken} frames were broken: check the cable.": broken > 0,
    }
    advice = " ".join(text for text, holds in problems.items() if holds)
    cannot_work = is_still or (live and fps < FAILING_FPS)
    yield Check("camera", "fail" if cannot_work else "warn" if advice else "ok", found, advice)
