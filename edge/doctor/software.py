"""Are Python and the packages those that the terminal needs? They are loaded in a process of their own: one may kill it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import signal
import sys
from collections.abc import Iterator

from edge.doctor.child import run_python
from edge.doctor.findings import Check

PACKAGE = "lclrr-edge"
CHILD_SECONDS = 60.0
OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")


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
    from edge.vision.onnx_session import onnxruntime
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
            yield Check(name=name, state="fail", found=death(done.returncode), advice=_other(distribution, rules))
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


def death(code: int) -> str:
    if code == -signal.SIGILL:
        return "dies of an illegal instruction: this build is not made for this CPU"
    return f"cannot be loaded: the process ended with {code}"


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
