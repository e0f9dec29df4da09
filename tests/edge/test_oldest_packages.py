"""A kit gives the same results with the oldest onnxruntime and OpenCV that pyproject.toml allows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.files import locked_folder
from edge.kit.format import parse
from edge.vision.recognize import OUTPUTS, Recognizer
from export.nodes import Precision
from tests.fixtures import kits as doors
from tests.fixtures import portraits
from tests.fixtures.data import ROOT

pytestmark = pytest.mark.slow
ENVIRONMENT = ROOT / ".venv-oldest"
OPENCV = "opencv-python-headless==4.8.*"
SCRIPT = """
import json, sys
import cv2
import numpy as np
from edge.vision.recognize import Recognizer
from edge.vision.onnx_session import import_onnxruntime
recognizer = Recognizer.load(sys.argv[1])
if sys.argv[2].endswith(".png"):
    faces = recognizer.recognize(cv2.imread(sys.argv[2]))
    print(json.dumps([cv2.__version__, [face.facts() for face in faces], [face.landmarks.tolist() for face in faces]]))
    sys.exit()
np.savez(sys.argv[3], **recognizer.outputs(np.load(sys.argv[2])))
faces = recognizer.recognize_crops(np.load(sys.argv[2]))
print(json.dumps([import_onnxruntime().__version__, [face.reason for face in faces]]))
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)


def oldest_version() -> str:
    """Return the lowest onnxruntime for this Python that the range allows."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (floor,) = (re.fullmatch(r"onnxruntime>=([\d.]+),!=1\.21\.\*", line) for line in wanted if line.startswith("onnxruntime"))
    assert floor is not None
    listing = run(sys.executable, "-m", "pip", "index", "versions", "onnxruntime", "--disable-pip-version-check")
    found = re.search(r"Available versions: (.*)", listing.stdout)
    if found is None:
        pytest.skip("the package index cannot be reached")

    def number(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split("."))

    allowed = [v for v in found[1].split(", ") if number(v) >= number(floor[1]) and number(v)[:2] != (1, 21)]
    return min(allowed, key=number)


@pytest.fixture(scope="module")
def oldest() -> tuple[Path, str]:
    """Python and onnxruntime version of an environment with the oldest packages. It stays for later runs."""
    version = oldest_version()
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    with locked_folder(ROOT):  # another xdist worker may build it now
        if not stamp.exists() or stamp.read_text() != version + OPENCV:
            venv.create(ENVIRONMENT, clear=True, with_pip=True)
            numpy = "numpy<2" if sys.version_info < (3, 13) else "numpy"  # wheels of that age were built for it
            wanted = (f"onnxruntime=={version}", OPENCV, numpy)
            made = run(python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *wanted)
            if made.returncode != 0:
                pytest.skip(f"onnxruntime {version} cannot be installed: {made.stderr.strip().splitlines()[-1]}")
            stamp.write_text(version + OPENCV)
    return python, version


@pytest.mark.parametrize(("coding", "precision"), [("l1", "fp32"), ("l21", "int8"), ("l1", "fp16")])
def test_old_and_new_onnxruntime_agree(oldest: tuple[Path, str], coding: str, precision: Precision, tmp_path: Path) -> None:
    python, version = oldest
    data = doors.kit(coding, precision)
    crops = np.concatenate([doors.held_out()[0], doors.strange_crops()])
    kit, given, outputs = tmp_path / "door.kit", tmp_path / "crops.npy", tmp_path / "outputs.npz"
    kit.write_bytes(data)
    np.save(given, crops)
    done = run(python, "-c", SCRIPT, kit, given, outputs)
    assert done.returncode == 0, done.stderr
    used, reasons = json.loads(done.stdout)
    assert used == version
    recognizer = Recognizer(parse(data))
    assert reasons == [face.reason for face in recognizer.recognize_crops(crops)]
    here = recognizer.outputs(crops)
    with np.load(outputs) as there:
        for name in OUTPUTS:
            if name != "label":
                np.testing.assert_allclose(there[name], here[name], atol=1e-4, rtol=0)
        faces = slice(len(doors.held_out()[0]))
        np.testing.assert_array_equal(there["label"][faces], here["label"][faces])


def test_old_and_new_opencv_agree(oldest: tuple[Path, str], tmp_path: Path) -> None:
    """Detection, alignment and quality of a face do not depend on the version of OpenCV."""
    kit, frame = tmp_path / "door.kit", tmp_path / "frame.png"
    kit.write_bytes(portraits.kit())
    cv2.imwrite(str(frame), portraits.in_a_room(portraits.people()["s1"][8], width=170))
    done = run(oldest[0], "-c", SCRIPT, kit, frame)
    assert done.returncode == 0, done.stderr
    used, (there,), (points,) = json.loads(done.stdout)
    assert used.startswith("4.8.")
    assert used != cv2.__version__
    recognizer = Recognizer(parse(portraits.kit()))
    (here,) = recognizer.recognize(portraits.in_a_room(portraits.people()["s1"][8], width=170))
    assert (there["label"], there["reason"]) == (here.label, here.reason) == ("s1", "recognised")
    assert there["confidence"] == pytest.approx(here.confidence, abs=0.005)
    assert here.landmarks is not None
    np.testing.assert_allclose(points, here.landmarks, atol=0.05)
