"""A small file that declares gigabytes is rejected before they are allocated."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from edge.errors import GalleryError, ModelError
from tests.fixtures.data import ROOT
from trainer.data.archives import FREE_BYTES, TooLargeError, check_mat, open_npz
from trainer.data.arrays import read_arrays
from trainer.model import Model
from trainer.paper.experiments import CELLS, load_arrays

BOMB_BYTES = 3 * FREE_BYTES // 2


def array_bytes(shape: tuple[int, ...], dtype: str = "|u1", data: bytes = b"") -> bytes:
    """Return an .npy file with this header and data."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


def bomb(path: Path, name: str) -> Path:
    """Write an archive of less than 2 MB with an array of 384 MB of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(f"{name}.npy", "w") as member:
            member.write(array_bytes((BOMB_BYTES >> 20, 1024, 1024)))
            for _ in range(BOMB_BYTES >> 20):
                member.write(bytes(1 << 20))
        archive.writestr("labels.npy", array_bytes((1,), data=b"1"))
    assert path.stat().st_size < 2 << 20
    return path


def matlab_bomb(path: Path) -> Path:
    """Write a .mat file of less than 1 MB with a matrix of 384 MB of zeros."""
    scipy.io.savemat(path, {"images": np.zeros((2, 2))}, do_compression=True)
    packer = zlib.compressobj(1)
    packed = packer.compress(struct.pack("<II", 14, BOMB_BYTES))
    packed += b"".join(packer.compress(bytes(1 << 20)) for _ in range(BOMB_BYTES >> 20)) + packer.flush()
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 15, len(packed)) + packed)
    assert path.stat().st_size < 2 << 20
    return path


LOAD = """
import resource, sys
from pathlib import Path
import scipy.io
from edge.errors import EdgeError
from trainer.data.arrays import read_arrays
from trainer.model import Model

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {"gallery": lambda: read_arrays(Path(sys.argv[2])), "model": lambda: Model.load(sys.argv[2])}[sys.argv[1]]()
except EdgeError as error:
    print(error.message)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gallery", "model", "matlab"])
def test_small_file_takes_little_memory(kind: str, tmp_path: Path) -> None:
    path = matlab_bomb(tmp_path / "f.mat")
    if kind != "matlab":
        path = bomb(tmp_path / "f.npz", "images" if kind == "gallery" else "header")
    command = [sys.executable, "-c", LOAD, "model" if kind == "model" else "gallery", str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    message, megabytes = run.stdout.splitlines()
    assert "MB of memory" in message
    assert int(megabytes) < 50


@pytest.mark.parametrize(
    "member",
    [
        array_bytes((1 << 40,)),
        array_bytes((1 << 20, 1 << 20), "<f8", bytes(80)),
        array_bytes((2,), "<U100000000", bytes(80)),
        array_bytes((-1, -10), data=bytes(10)).replace(b"-1, -10", b"-5, -02"),
        array_bytes((1 << 60,), "<U0"),
        array_bytes((3,), data=bytes(4)),
    ],
    ids=["no data", "little data", "long text", "negative", "empty text", "more data"],
)
def test_header_that_does_not_fit_is_rejected(member: bytes, tmp_path: Path) -> None:
    for name, load, error in (
        ("images", read_arrays, GalleryError),
        ("header", Model.load, ModelError),
        ("images", lambda path: load_arrays(path, CELLS[0]), GalleryError),
    ):
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            archive.writestr(f"{name}.npy", member)
            archive.writestr("labels.npy", array_bytes((1,), data=b"1"))
        with pytest.raises(error):
            load(tmp_path / "f.npz")
        with pytest.raises(ValueError, match=r"does not fit its bytes|header"), open_npz(tmp_path / "f.npz"):
            pass


def test_many_small_members_count_together(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "f.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(3):
            with archive.open(f"{number}.npy", "w") as member:
                length = FREE_BYTES // 2
                member.write(array_bytes((length,)))
                for _ in range(length >> 20):
                    member.write(bytes(1 << 20))
    with pytest.raises(TooLargeError, match="would take at least 384 MB"), open_npz(tmp_path / "f.npz"):
        pass


def test_other_compressions_are_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "f.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", array_bytes((1,), data=b"1"))
    with pytest.raises(ValueError, match="compression"), open_npz(tmp_path / "f.npz"):
        pass


def test_honest_archives_are_opened(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "zeros": np.zeros((100, 100, 100)),
        "text": np.array(["anna"] * 1000),
        "none": np.zeros((0, 5)),
        "one": np.array(3.0),
        "turned": np.asfortranarray(np.arange(6).reshape(2, 3)),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "f.npz", **arrays)
        with open_npz(tmp_path / "f.npz") as archive:
            for name, array in arrays.items():
                np.testing.assert_array_equal(archive[name], array)


# --- MATLAB ---


@pytest.mark.parametrize("form", ["4", "5"])
@pytest.mark.parametrize("compressed", [False, True])
def test_honest_matlab_files_are_checked(form: str, compressed: bool, tmp_path: Path) -> None:
    contents: dict[str, Any] = {"images": np.arange(24.0).reshape(2, 3, 4), "labels": np.arange(4), "text": "anna"}
    if form == "4":
        contents["images"] = contents["images"][0]
    else:
        contents |= {"cells": np.array(["anna", "li"], dtype=object), "one": {"two": {"three": [1, 2]}}, "empty": []}
    scipy.io.savemat(tmp_path / "f.mat", contents, format=form, do_compression=compressed and form == "5")
    check_mat(tmp_path / "f.mat")
    assert scipy.io.loadmat(tmp_path / "f.mat").keys() >= contents.keys()


def test_matlab_sizes_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "f.mat"
    scipy.io.savemat(path, {"images": np.array(["anna", "ben"], dtype=object)})
    data = path.read_bytes()
    dimensions = struct.pack("<II2i", 5, 8, 1, 2)
    assert dimensions in data
    for changed in (
        data.replace(dimensions, struct.pack("<II2i", 5, 8, 1 << 20, 1 << 10)),  # a billion cells
        data.replace(dimensions, struct.pack("<II2i", 5, 8, 1, -2)),
        data.replace(dimensions, struct.pack("<II2i", 5, 4 << 20, 1, 2)),
        data[:132] + struct.pack("<I", 1 << 31) + data[136:],
        struct.pack("<5i", 0, 1 << 30, 1 << 30, 0, 7) + b"images\0",  # MATLAB 4
        struct.pack("<5i", 0, -1, -1, 0, 7) + b"images\0" + bytes(8),
    ):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"longer than|more elements"):
            check_mat(path)
        with pytest.raises(GalleryError, match="not a readable"):
            read_arrays(path)


def test_cells_inside_each_other_have_a_limit(tmp_path: Path) -> None:
    cell: Any = np.zeros((1, 1))
    for _ in range(60):
        outer = np.empty((1, 1), dtype=object)
        outer[0, 0] = cell
        cell = outer
    scipy.io.savemat(tmp_path / "f.mat", {"images": cell})
    with pytest.raises(ValueError, match="inside each other"):
        check_mat(tmp_path / "f.mat")
