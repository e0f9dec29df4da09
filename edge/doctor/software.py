"""Checks of Python and the packages. Packages are loaded in a child process, because a wrong build can crash it."""

from __future__ import annotations

import importlib.metadata
import json
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
# Prints one line per package, so that the parent knows which package crashed the process.
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
    from edge.vision.onnx_session import import_onnxruntime
    say("onnxruntime", import_onnxruntime().__version__)
for package in (numpy, opencv, onnxruntime):
    try:
        package()
    except Exception as error:
        say(package.__name__, "", error=f"{type(error).__name__}: {error}")
"""


def check_python() -> Iterator[Check]:
    """Check the version of Python, and that it is a 64-bit build."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version()
    supported = SpecifierSet(importlib.metadata.metadata(PACKAGE)["Requires-Python"])
    bits = 64 if sys.maxsize > 2**32 else 32
    if bits == 32 or not supports(supported, version):
        yield Check("python", "fail", f"{version}, {bits} bits", f"Use a 64-bit system with Python {supported}.")
    else:
        yield Check("python", "ok", f"{version}, {bits} bits")


def check_packages() -> Iterator[Check]:
    """Check that the packages load, and that their versions are supported."""
    done = run_python(PROBE, seconds=CHILD_SECONDS)
    loaded = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    required = requirements()
    for name, distribution in (("numpy", "numpy"), ("opencv", OPENCV[0]), ("onnxruntime", "onnxruntime")):
        if name not in loaded:
            yield Check(name, "fail", describe_exit(done.returncode), _install(required[distribution]))
            return
        yield check_package(loaded[name], required[distribution])
    installed = {found.name for found in importlib.metadata.distributions()}
    clash = [name for name in OPENCV if name in installed]
    if len(clash) > 1:
        advice = f"Run `pip uninstall {' '.join(clash)}`, then `pip install {OPENCV[0]}`."
        yield Check("opencv", "fail", f"installed twice: {', '.join(clash)}", advice)


def check_package(loaded: dict[str, str], required: Requirement) -> Check:
    """Check what the probe printed about one package."""
    name, version, advice = loaded["name"], loaded["version"], _install(required)
    if "error" in loaded:
        return Check(name, "fail", loaded["error"], advice)
    if not supports(required.specifier, version):
        return Check(name, "fail", version, advice)
    if name != "opencv":
        return Check(name, "ok", f"{version}{', telemetry off' if name == 'onnxruntime' else ''}")
    missing = [part for part in ("FFMPEG", "V4L2") if loaded[part] != "YES"]
    if missing:
        effect = "videos" if "FFMPEG" in missing else "USB cameras"
        return Check(name, "warn", f"{version}, built without {' and '.join(missing)}: no {effect}", advice)
    if loaded["window"] not in ("NONE", ""):
        found = f"{version}, with a window system ({loaded['window']})"
        return Check(name, "warn", found, f"{OPENCV[0]} is smaller and needs no desktop.")
    return Check(name, "ok", f"{version}, with FFMPEG and V4L2")


def requirements() -> dict[str, Requirement]:
    """Return what the device needs, by package name: without the extras."""
    from packaging.requirements import Requirement

    declared = map(Requirement, importlib.metadata.requires(PACKAGE) or [])
    return {required.name: required for required in declared if required.marker is None}


def supports(specifier: SpecifierSet, version: str) -> bool:
    """Return whether a version is in a range. Suffixes as in `4.9.0-dev` do not count."""
    number = re.match(r"\d+(\.\d+)*", version)
    return number is not None and specifier.contains(number[0])


def _install(required: Requirement) -> str:
    return f"Run `pip install '{required}'`."


def run_python(script: str, *arguments: str | Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a script with sys.argv[1:] = arguments. Raises subprocess.TimeoutExpired after so many seconds."""
    project = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],  # -P: do not import from the current folder
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def describe_exit(code: int) -> str:
    """Return the reason why a process that loads a package ended."""
    if code == -signal.SIGILL:
        return "illegal instruction: this build does not support this CPU"
    return f"cannot be loaded: the process ended with code {code}"
