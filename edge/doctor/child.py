"""A fresh Python with this package: for what must not bring down, slow or fill the process that asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_python(script: str, *words: str | Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a script with sys.argv[1:] = words; subprocess.TimeoutExpired after so many seconds."""
    here = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, words)],  # -P: a file in this folder may have any name
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
