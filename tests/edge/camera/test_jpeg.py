"""The walk over a JPEG: it knows the size that OpenCV allocates, whatever the bytes between the segments look like."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edge.camera import jpeg, photo
from edge.camera.photo import PhotoError, decode_bytes
from tests.fixtures.data import ROOT
from tests.fixtures.photos import encode, smooth_image

GREY = smooth_image(7)
COLOUR = np.dstack([smooth_image(1), smooth_image(2), smooth_image(3)])
SOI, EOI = b"\xff\xd8", b"\xff\xd9"


def segment(code: int, body: bytes) -> bytes:
    return bytes([0xFF, code]) + struct.pack(">H", len(body) + 2) + body


def frame_header(side: int, code: int = 0xC0, precision: int = 8) -> bytes:
    return segment(code, struct.pack(">BHHB", precision, side, side, 1) + b"\1\x11\0")


def bomb(side: int) -> bytes:
    """A lossless JPEG of 172 bytes. Its comment ends like a small frame header, and the true header begins inside that."""
    decoy = b"\xff\xc0\0\x0b\x08"
    table, scan = segment(0xC4, b"\0\1" + bytes(16)), segment(0xDA, b"\1\1\0\1\0\0")
    start = SOI + segment(0xFE, 44 * b"x" + decoy) + frame_header(side, 0xC3, precision=4) + table + scan
    return start + bytes(170 - len(start)) + EOI


MEMORY_OF_A_BOMB = """
import sys
import cv2
import numpy as np
image = cv2.imdecode(np.frombuffer(bytes.fromhex(sys.argv[1]), np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(0 if image is None else image.size, 1024 * int(peak))
"""


@pytest.mark.slow
def test_header_that_overlaps_another_one_is_too_large() -> None:
    assert len(bomb(30000)) == 172
    assert jpeg.walk(bomb(30000)) == (30000**2, True)
    with pytest.raises(PhotoError, match="too large"):
        decode_bytes(bomb(30000), colour=True)
    command = [sys.executable, "-c", MEMORY_OF_A_BOMB, bomb(30000).hex()]
    size, peak = map(int, subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    if size:  # OpenCV before 5 decodes no lossless JPEG
        assert size == 30000**2
        assert peak > size


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (SOI + frame_header(8) + segment(0xDA, b"") + b"\xff\0 x \xff\xd3 y" + EOI, (64, True)),
        (SOI + b"\xff\xff" + frame_header(8) + b"garbage \xff\0" + segment(0xDA, b"") + b"x\xff\xff\xd9", (64, True)),
        (SOI + segment(0xE1, SOI + frame_header(99) + EOI) + frame_header(8) + segment(0xDA, b"") + EOI, (64, True)),
        (
            SOI + frame_header(8) + segment(0xDA, b"") + b"x" + segment(0xC4, b"t") + segment(0xDA, b"") + b"y" + EOI,
            (64, True),
        ),
        (SOI + frame_header(8) + segment(0xDA, b"") + b"x", (64, False)),
        (SOI + frame_header(8) + segment(0xDA, b"") + segment(0xFE, EOI), (64, False)),
        (SOI + frame_header(8) + segment(0xDA, b"") + b"\xff\xc4\xff", (64, False)),
        (SOI + frame_header(8) + EOI, (0, False)),
        (SOI + frame_header(8) + frame_header(9) + segment(0xDA, b"") + EOI, (0, False)),
        (SOI + frame_header(8) + segment(0xDA, b"") + frame_header(9) + EOI, (0, False)),
        (SOI + segment(0xDA, b"") + frame_header(8) + EOI, (0, False)),
        (SOI + b"\xff\xfe\0\1" + frame_header(8) + segment(0xDA, b"") + EOI, (0, False)),
        (SOI + b"\xff\x02" + frame_header(8) + segment(0xDA, b"") + EOI, (0, False)),
        (SOI + b"\xff\xd8" + frame_header(8) + segment(0xDA, b"") + EOI, (0, False)),
        (SOI + segment(0xC0, b"\x08\0\x09\0\x09\1") + segment(0xDA, b"") + EOI, (0, False)),
        (SOI + frame_header(0) + segment(0xDA, b"") + EOI, (0, False)),
        (SOI + b"\0" + frame_header(8) + segment(0xDA, b"") + EOI, (0, False)),
        (b"", (0, False)),
    ],
)
def test_walk(data: bytes, expected: tuple[int, bool]) -> None:
    assert jpeg.walk(data) == expected


def pillow(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def with_thumbnail() -> bytes:
    data = pillow(Image.fromarray(COLOUR))
    return data[:2] + segment(0xE1, b"Exif\0\0" + encode(GREY[:16, :16], ".jpg")) + data[2:]


NORMAL: dict[str, Callable[[], bytes]] = {
    "baseline": lambda: encode(COLOUR, ".jpg"),
    "grey": lambda: encode(GREY, ".jpg"),
    "progressive": lambda: encode(COLOUR, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "restart markers": lambda: encode(COLOUR, ".jpg", cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
    "optimised": lambda: encode(COLOUR, ".jpg", cv2.IMWRITE_JPEG_OPTIMIZE, 1),
    "Pillow": lambda: pillow(Image.fromarray(COLOUR), quality=95, comment=b"\xff\xc0 a comment"),
    "Pillow progressive": lambda: pillow(Image.fromarray(COLOUR), progressive=True, subsampling=0),
    "CMYK": lambda: pillow(Image.fromarray(COLOUR).convert("CMYK")),
    "colour profile": lambda: pillow(Image.fromarray(COLOUR), icc_profile=bytes(70_000)),
    "thumbnail": with_thumbnail,
    "trailing bytes": lambda: encode(COLOUR, ".jpg") + b"\xff\xda trailing bytes",
}


@pytest.mark.parametrize("kind", NORMAL)
def test_normal_jpegs_are_decoded(kind: str) -> None:
    data = NORMAL[kind]()
    assert jpeg.walk(data) == (GREY.size, True)
    assert decode_bytes(data, colour=True).shape == COLOUR.shape
    for end in range(len(data.removesuffix(b"\xff\xda trailing bytes"))):
        assert not jpeg.walk(data[:end])[1], "a truncated file has no end mark"


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(NORMAL)),
    st.lists(st.tuples(st.integers(0, 800), st.binary(max_size=12), st.integers(0, 12)), max_size=4),
)
def test_walk_and_decoder_agree_on_the_size(kind: str, changes: list[tuple[int, bytes, int]]) -> None:
    data = NORMAL[kind]()
    for at, inserted, removed in changes:
        data = data[:at] + inserted + data[at + removed :]
    pixels, _ = jpeg.walk(data)
    if 0 < pixels <= photo.MAX_PIXELS:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert image is None or image.shape[0] * image.shape[1] == pixels


def test_decoded_size_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photo, "MAX_PIXELS", GREY.size)
    monkeypatch.setattr(photo, "measure", lambda data: (1, True))
    assert decode_bytes(encode(GREY, ".png"), colour=False).shape == GREY.shape
    with pytest.raises(PhotoError, match="too large"):
        decode_bytes(encode(np.vstack([GREY, GREY]), ".png"), colour=False)
