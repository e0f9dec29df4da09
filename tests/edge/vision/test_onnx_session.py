"""A door terminal tells nobody anything: no file of onnxruntime's telemetry, and no socket, not even from native code."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import kits as doors

ROOT = Path(__file__).resolve().parents[3]
RECOGNISE = """
import sys
import numpy as np
from edge.vision.recognize import Recognizer
recognizer = Recognizer.load(sys.argv[1])
assert len(recognizer.recognize_crops(np.zeros((2, 24, 20), np.uint8))) == 2
"""
# The kernel ends the process, whoever in it asks for a socket: a filter of system calls (seccomp), which needs no rights.
# An audit hook would see Python's sockets only.
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


def run(script: str, home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """In a home of its own. Telemetry switches itself off where it sees CI, which would make this too easy."""
    hidden = ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": str(home)}
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 99:
        pytest.skip("this system does not let a process filter its own system calls")
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
def test_recognising_opens_no_socket_and_leaves_no_file(kit: Path, home: Path) -> None:
    done = run(NO_SOCKETS + RECOGNISE, home, kit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.rglob("*")) == []


@needs_filter
def test_the_filter_sees_sockets(home: Path) -> None:
    assert run(NO_SOCKETS + "import socket; socket.socket()", home).returncode == -signal.SIGSYS


@needs_filter
def test_the_filter_sees_sockets_of_native_threads(home: Path) -> None:
    """As telemetry would open one: not through Python, and not in the first thread."""
    native = "import threading\nt = threading.Thread(target=lambda: libc.socket(2, 1, 0))\nt.start()\nt.join()\n"
    assert run(NO_SOCKETS + native, home).returncode == -signal.SIGSYS


def test_left_alone_onnxruntime_does_leave_files(home: Path) -> None:
    """So that an empty home means something. Older versions have no telemetry to switch off."""
    assert run("import onnxruntime", home).returncode == 0
    if not list(home.rglob("*")):
        pytest.skip("this onnxruntime has no telemetry")
    assert list(home.rglob("*.db"))
