"""A PNG is measured before it is decoded, and a chunk that states more than the file has is not read."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest

from edge.camera import png
from edge.camera.photo import PhotoError, decode_bytes
from tests.fixtures.command import environment

IMAGE = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
HEADER = len(png.START) + 25  # end of IHDR


def encoded(image: np.ndarray = IMAGE) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def chunk(name: bytes, content: bytes, length: int | None = None) -> bytes:
    stated = len(content) if length is None else length
    return struct.pack(">I", stated) + name + content + struct.pack(">I", zlib.crc32(name + content))


def with_chunk(added: bytes) -> bytes:
    data = encoded()
    return data[:HEADER] + added + data[HEADER:]


@pytest.mark.parametrize("image", [IMAGE, IMAGE[..., 0], IMAGE.astype(np.uint16) * 257, np.dstack([IMAGE, IMAGE[..., 0]])])
def test_normal_images_are_measured_and_decoded(image: np.ndarray) -> None:
    assert png.walk(encoded(image)) == (1200, True)
    assert decode_bytes(encoded(image), colour=True).shape[:2] == (30, 40)
    assert decode_bytes(encoded(image) + b"bytes after the end", colour=True).shape[:2] == (30, 40)


def test_other_chunks_are_allowed() -> None:
    assert decode_bytes(with_chunk(chunk(b"tEXt", b"a\0b")), colour=True).shape == (30, 40, 3)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png.START, (0, False)),
        (encoded()[:20], (0, False)),
        (encoded()[:-1], (1200, False)),
        (encoded()[:HEADER], (1200, False)),
        (encoded().replace(b"IHDR", b"IHDX"), (0, False)),
        (png.START + chunk(b"IHDR", bytes(13)) + chunk(b"IEND", b""), (0, False)),
        (with_chunk(chunk(b"tEXt", b"", 1_300_000_000)), (1200, False)),
        (with_chunk(chunk(b"IEND", b"", 0xFFFFFFFF)), (1200, False)),
    ],
)
def test_walk(data: bytes, expected: tuple[int, bool]) -> None:
    assert png.walk(data) == expected
    with pytest.raises(PhotoError):
        decode_bytes(data, colour=True)


MEMORY = """
import sys
from edge.camera.photo import PhotoError, decode_bytes

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

data = sys.stdin.buffer.read()
before = peak()
try:
    decode_bytes(data, colour=True)
except PhotoError:
    print(peak() - before)
"""


@pytest.mark.parametrize("name", [b"tEXt", b"IDAT"])
def test_chunk_that_states_a_gigabyte_takes_no_memory(name: bytes) -> None:
    data = with_chunk(chunk(name, b"", 1_300_000_000))
    run = subprocess.run([sys.executable, "-c", MEMORY], input=data, capture_output=True, env=environment(), check=True)
    assert int(run.stdout) < 100_000, "kilobytes"
