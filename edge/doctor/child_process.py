"""Run a script in a fresh Python process: a crash, a hang or its memory do not affect the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


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
