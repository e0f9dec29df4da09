"""onnxruntime writes no telemetry file and opens no socket, not even from native code."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import kits as doors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
RECOGNISE = """
import sys
import numpy as np
from edge.vision.recognize import Recognizer
recognizer = Recognizer.load(sys.argv[1])
assert len(recognizer.recognize_crops(np.zeros((2, 24, 20), np.uint8))) == 2
"""
# The kernel kills the process if any code in it opens a socket (a seccomp filter, which needs no privileges). A Python
# audit hook would see only the sockets of Python.
NO_SOCKETS = """
import ctypes, os, platform, struct
ALLOW, KILL, NO_NEW_PRIVS, SECCOMP, FILTER = 0x7FFF0000, 0x80000000, 38, 22, 2
number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, KILL), (0x06, 0, 0, ALLOW)]  # load, compare, return
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, program, 0, 0):
    os._exit(99)
"""


def run(script: str, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script with an empty home folder. Variables of CI are hidden, because telemetry switches itself off in CI."""
    hidden = ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": str(home)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 99:
        pytest.skip("this system has no seccomp filters")
    return done


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    path = tmp_path / "door.kit"
    path.write_bytes(doors.kit())
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


needs_filter = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="the filter is for 64-bit Linux"
)


@needs_filter
def test_recognition_opens_no_socket_and_writes_no_file(kit: Path, home: Path) -> None:
    done = run(NO_SOCKETS + RECOGNISE, home, kit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.rglob("*")) == []


@needs_filter
@pytest.mark.parametrize(
    "script",
    [
        "import socket; socket.socket()",
        "import threading\nt = threading.Thread(target=lambda: libc.socket(2, 1, 0))\nt.start()\nt.join()\n",
    ],
    ids=["Python", "native thread"],
)
def test_filter_detects_sockets(script: str, home: Path) -> None:
    assert run(NO_SOCKETS + script, home).returncode == -signal.SIGSYS


def test_plain_onnxruntime_does_write_files(home: Path) -> None:
    """So the empty home folder above means something. Older versions have no telemetry."""
    assert run("import onnxruntime", home).returncode == 0
    if not list(home.rglob("*")):
        pytest.skip("this onnxruntime has no telemetry")
    assert list(home.rglob("*.db"))
