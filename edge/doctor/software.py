"""Checks of Python and the packages. Packages are loaded in a child process, because a wrong build can crash it."""

import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edge.doctor.report import Check

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

PACKAGE = "lclrr-edge"
CHILD_SECONDS = 60.0
OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")
# Of each package: its distribution, and code that loads it and prints its version. OpenCV prints more.
PROBES = {
    "numpy": ("numpy", "import numpy; print(numpy.__version__)"),
    "opencv": (OPENCV[0], "import cv2; print(cv2.__version__, cv2.getBuildInformation())"),
    "onnxruntime": ("onnxruntime", "from edge.vision import onnx_session as o; print(o.import_onnxruntime().__version__)"),
}


def check_python() -> Iterator[Check]:
    """Check the version of Python, and that it is a 64-bit build."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version()
    supported = SpecifierSet(importlib.metadata.metadata(PACKAGE)["Requires-Python"])
    bits = 64 if sys.maxsize > 2**32 else 32
    is_wrong = bits == 32 or not supports(supported, version)
    advice = f"Use a 64-bit system with Python {supported}."
    yield Check.judge("python", f"{version}, {bits} bits", (is_wrong, "fail", advice))


def check_packages() -> Iterator[Check]:
    """Check that the packages load, and that their versions are supported."""
    required = requirements()
    for name, (distribution, code) in PROBES.items():
        yield check_package(name, required[distribution], run_python(code))
    installed = {found.name for found in importlib.metadata.distributions()}
    clash = [name for name in OPENCV if name in installed]
    if len(clash) > 1:
        advice = f"Run `pip uninstall {' '.join(clash)}`, then `pip install {OPENCV[0]}`."
        yield Check("opencv", "fail", f"installed twice: {', '.join(clash)}", advice)


def check_package(name: str, required: "Requirement", probe: subprocess.CompletedProcess[str]) -> Check:
    """Check what the probe of one package printed."""
    advice = f"Run `pip install '{required}'`."
    version, _, about = probe.stdout.strip().partition(" ")
    if probe.returncode != 0 or not supports(required.specifier, version):
        return Check(name, "fail", describe_failure(probe) if probe.returncode else version, advice)
    if name != "opencv":
        return Check(name, "ok", f"{version}{', telemetry off' if name == 'onnxruntime' else ''}")
    parts = {"FFMPEG": "videos", "V4L2": "USB cameras"}
    missing = [part for part in parts if not re.search(rf"{part}:\s+YES", about, re.IGNORECASE)]
    window = re.search(r"GUI:\s+(?!NONE)(\S+)", about)
    if missing:
        found = f"{version}, built without {' and '.join(missing)}: no {parts[missing[0]]}"
        return Check(name, "warn", found, advice)
    found = f"{version}, with {f'a window system ({window[1]})' if window else 'FFMPEG and V4L2'}"
    return Check.judge(name, found, (window is not None, "warn", f"{OPENCV[0]} is smaller and needs no desktop."))


def requirements() -> "dict[str, Requirement]":
    """Return what the device needs, by package name: without the extras."""
    from packaging.requirements import Requirement

    declared = map(Requirement, importlib.metadata.requires(PACKAGE) or [])
    return {required.name: required for required in declared if required.marker is None}


def supports(specifier: "SpecifierSet", version: str) -> bool:
    """Return whether a version is in a range. Suffixes as in `4.9.0-dev` do not count."""
    number = re.match(r"\d+(\.\d+)*", version)
    return number is not None and specifier.contains(number[0])


def run_python(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script with sys.argv[1:] = arguments. Raises subprocess.TimeoutExpired after CHILD_SECONDS."""
    project = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],  # -P: do not import from the current folder
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
    )


def describe_failure(done: subprocess.CompletedProcess[str]) -> str:
    """Return why a process failed: the last line of its traceback, or how it was ended."""
    if done.returncode == -signal.SIGILL:
        return "illegal instruction: this build does not support this CPU"
    last = (done.stderr.strip().splitlines() or [""])[-1].removeprefix("edge.errors.")
    return last if done.returncode > 0 and last else f"the process ended with code {done.returncode}"
