"""The scripts in docs/research/examples: each runs by itself, draws its picture, and shows what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.fixtures.data import ROOT
from tests.fixtures.portraits import find_orl

FOLDER = ROOT / "docs" / "research" / "examples"
pytestmark = pytest.mark.slow


def run_example(name: str, folder: Path) -> str:
    """Run an example in an empty folder, without a connection. Return what it prints."""
    find_orl()
    proxy = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # Without the font cache of the user matplotlib writes a line about its own to stderr.
    environment = (
        os.environ | proxy | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    )
    done = subprocess.run([sys.executable, FOLDER / f"{name}.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in folder.iterdir()} - {"cache"} == {f"{name}.png"}, "an example writes only its picture"
    picture = cv2.imread(str(folder / f"{name}.png"))
    assert picture is not None
    assert min(picture.shape[:2]) > 200
    assert np.mean(picture != picture[0, 0]) > 0.02, "the picture is blank"
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers in the groups of a pattern, of all places where it fits."""
    found = re.findall(pattern, text)
    assert found, text
    return [float(value) for match in found for value in (match if isinstance(match, tuple) else (match,))]


def table(text: str) -> dict[str, list[float]]:
    """The means of the table that `trainer tables` printed, by row."""
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE)
    return {title: numbers(r"([\d.]+)(?:\*\*)? ±", entries) for title, entries in rows}


def test_every_example_is_tested_and_listed() -> None:
    names = {file.stem for file in FOLDER.glob("*.py")} - {"faces"}
    assert names == set(re.findall(r'run_example\("(\w+)"', Path(__file__).read_text()))
    assert names == set(re.findall(r"^\| \[(\w+)\.py\]", (FOLDER / "README.md").read_text(), re.MULTILINE))


def test_denoising(tmp_path: Path) -> None:
    text = run_example("denoising", tmp_path)
    (residual,) = numbers(r"X - DZ - E: ([\d.e+-]+)", text)
    assert residual < 1e-4, "X = DZ + E"
    before, after, of_means = numbers(r"X ([\d.]+), DZ ([\d.]+), mean of the person ([\d.]+)", text)
    assert after < 0.75 * before
    assert after < of_means, "each photograph, and not only the person"


def test_choose_lam(tmp_path: Path) -> None:
    text = run_example("choose_lam", tmp_path)
    lams, accuracies = np.reshape(numbers(r"lam +([\d.]+): ([\d.]+) %", text), (-1, 2)).T
    (chosen,) = numbers(r"lam +([\d.]+): [\d.]+ % \(chosen\)", text)
    assert accuracies[lams == chosen] >= accuracies.max() - 2
    assert accuracies[0] < accuracies.max() - 5, "a small lam is worse"
    assert lams[0] < chosen < lams[-1]


def test_grid_search(tmp_path: Path) -> None:
    held_out, tested = numbers(r"folds: ([\d.]+) %, test photographs: ([\d.]+) %", run_example("grid_search", tmp_path))
    assert min(held_out, tested) > 80


def test_own_method_is_in_the_table(tmp_path: Path) -> None:
    rows = table(run_example("own_method", tmp_path))
    assert list(rows) == ["LCLRRDL", "NearestSubspace", "SRW"]
    assert min(rows["NearestSubspace"]) > 80


def test_own_data_is_in_the_table(tmp_path: Path) -> None:
    text = run_example("own_data", tmp_path)
    assert "### Own data: covered.npz." in text
    rows = table(text)
    assert list(rows) == ["LCLRRDL", "LRR", "SRW", "LLC"]
    for title, (few, _, many) in rows.items():
        assert 60 < few < many, title


def test_kit_recognises_as_the_estimator_does(tmp_path: Path) -> None:
    text = run_example("to_kit", tmp_path)
    assert numbers(r"estimator: ([\d.]+) %", text) == [100]
    known, strangers = numbers(r"label: ([\d.]+) %, strangers with a label: ([\d.]+) %", text)
    assert known > 50
    assert strangers < 10
