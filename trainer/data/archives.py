"""Open `.npz` files, and check `.mat` files, before an array is allocated: a small file may declare gigabytes.

Arrays must have exactly the bytes that their headers declare. Unpacked, a file may have 256 MB, or 20 times its own size.
"""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FREE_BYTES = 256 << 20
MAX_RATIO = 20  # photos shrink by far less; models and many small files are not compressed at all
MAX_DEPTH = 32  # of cells and structures in a .mat file

_COMPRESSED, _MATRIX = 15, 14  # data types of elements in a .mat file
_CONTAINERS = (1, 2, 3)  # classes of matrices whose elements are matrices: cell, structure, object
_MAT4_BYTES = {0: 8, 1: 4, 2: 4, 3: 2, 4: 2, 5: 1}  # of a number, by its type in a .mat file of version 4


class TooLargeError(Exception):
    """A file would take too much memory."""

    def __init__(self, unpacked: int, packed: int) -> None:
        super().__init__(f"has {-(-packed >> 10)} KB, but would take at least {unpacked >> 20} MB of memory")


def max_unpacked(packed: int) -> int:
    """Return how many bytes a file of this size may unpack to."""
    return max(FREE_BYTES, MAX_RATIO * packed)


@contextmanager
def open_npz(path: str | Path) -> Iterator[Any]:
    """Open an archive of np.savez after a check of its sizes. Raises TooLargeError, ValueError and errors of zipfile."""
    with open(path, "rb") as file:
        _check_npz(file)
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            yield archive


def _check_npz(file: BinaryIO) -> None:
    packed = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if (unpacked := sum(member.file_size for member in members)) > max_unpacked(packed):
            raise TooLargeError(unpacked, packed)
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("NumPy does not write this kind of compression")
            with archive.open(member) as opened:
                if opened.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                    continue  # NumPy reads it as bytes
                opened.seek(0)
                shape, _, dtype = array_header(opened)
                there = member.file_size - opened.tell()
            if dtype.hasobject:
                continue  # NumPy does not open it
            length, count = int(dtype.itemsize), math.prod(shape)
            if count * length != there or (count and not length):
                raise ValueError("the header of an array does not fit its bytes")


def array_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of the array that starts here, and move to its data."""
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def check_mat(path: Path) -> None:
    """Check a file that scipy.io.loadmat will read. Raises TooLargeError, ValueError, and errors of zlib and struct."""
    with path.open("rb") as file:
        packed, head = os.fstat(file.fileno()).st_size, file.read(128)
        if len(head) < 20 or 0 in head[:4]:
            _check_mat4(file, packed)
            return
        order = "<" if head[126:128] == b"IM" else ">"
        unpacked, limit = 0, max_unpacked(packed)
        while tag := file.read(8):
            kind, length = struct.unpack(f"{order}II", tag)
            if length > packed - file.tell():
                raise ValueError("an element is longer than the file")
            data, unpacker = file.read(length), zlib.decompressobj()
            if is_compressed := kind == _COMPRESSED:  # one matrix; its tag says how long it is
                kind, length = struct.unpack(f"{order}II", unpacker.decompress(data, 8))
            unpacked += length
            if unpacked > limit:
                raise TooLargeError(unpacked, packed)
            if is_compressed:
                data = unpacker.decompress(unpacker.unconsumed_tail, length or 1)  # 0 would mean no limit
                if len(data) < length:
                    raise ValueError("a matrix is longer than its element")
            if kind == _MATRIX:
                _check_matrix(memoryview(data)[:length], order, 0)


def _check_matrix(data: memoryview, order: str, depth: int) -> None:
    """Check the body of a matrix: flags, dimensions, name, numbers or matrices."""
    parts = _check_elements(data, order, depth + 1)
    if len(parts) < 2 or len(parts[0]) < 4:
        return  # an empty matrix, or scipy rejects it
    if struct.unpack_from(f"{order}I", parts[0])[0] & 0xFF in _CONTAINERS:
        count = math.prod(struct.unpack(f"{order}{len(parts[1]) // 4}i", parts[1][: len(parts[1]) // 4 * 4]))
        if not 0 <= count <= len(data) // 8:  # each element has a tag of 8 bytes
            raise ValueError("a cell array has more elements than bytes")


def _check_elements(data: memoryview, order: str, depth: int) -> list[memoryview]:
    """Check elements that follow each other, and the matrices among them. Return their bodies."""
    if depth > MAX_DEPTH:
        raise ValueError("too many matrices inside each other")
    bodies, position = [], 0
    while position < len(data):
        (kind,) = struct.unpack_from(f"{order}I", data, position)
        start, length = position + 4, kind >> 16  # a short element: its length and type share four bytes
        if not length:
            (length,), start = struct.unpack_from(f"{order}I", data, start), position + 8
        body = data[start : start + length]
        if len(body) < length:
            raise ValueError("an element is longer than its matrix")
        if kind == _MATRIX:
            _check_matrix(body, order, depth)
        bodies.append(body)
        position = start + length + (-(start + length) % 8)
    return bodies


def _check_mat4(file: BinaryIO, packed: int) -> None:
    """Check a file of MATLAB 4: for each variable a header of five integers, a name and the numbers."""
    file.seek(0)
    while head := file.read(20):
        order = "<" if 0 <= struct.unpack("<i", head[:4])[0] < 5000 else ">"
        kind, rows, columns, is_complex, name = struct.unpack(f"{order}5i", head)
        length = name + rows * columns * _MAT4_BYTES[kind // 10 % 10] * (2 if is_complex else 1)
        if min(rows, columns, name) < 0 or length > packed - file.tell():
            raise ValueError("a variable is longer than the file")
        file.seek(length, os.SEEK_CUR)
