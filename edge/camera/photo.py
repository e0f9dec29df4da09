"""One photo file to an upright image: what the trainer learns from and the device recognises is read by the same code."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import GalleryError

SUFFIXES = (".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp")
MAX_BYTES = 1 << 28
MAX_PIXELS = 1 << 26
"""A file of a few bytes may call itself larger than a device's memory, and OpenCV believes up to 1 << 30."""

# The header of a frame: anywhere, as an embedded preview has one too, and with a length that fits, as noise has not.
_JPEG_FRAME = re.compile(rb"\xff[\xc0-\xcf]\0[\x0b\x0e\x11\x14][\x02-\x10](..)(..)[\1-\4]", re.DOTALL)
_NETPBM = re.compile(rb"P[1-6]" + 2 * rb"(?:\s|#[^\r\n]*[\r\n])+([0-9]{1,9})" + rb"\s")


class PhotoError(Exception):
    """A photo that cannot be used; the text says why in two or three words."""


def read_grey(path: str | Path) -> NDArray[np.uint8]:
    """One photo file as uint8 (H, W): upright by its EXIF data, grey by OpenCV's weights, alpha dropped."""
    try:
        return to_8_bit(decode(Path(path)))
    except PhotoError as bad:
        raise GalleryError(f"{path} cannot be used: {bad}.", "Replace it.") from None


def read_colour(path: str | Path) -> NDArray[np.uint8]:
    """One photo file as uint8 (H, W, 3), BGR: upright by its EXIF data, alpha dropped."""
    try:
        return to_8_bit(decode(Path(path), colour=True))
    except PhotoError as bad:
        raise GalleryError(f"{path} cannot be used: {bad}.", "Replace it.") from None


def to_8_bit(image: NDArray[Any]) -> NDArray[np.uint8]:
    if image.dtype == np.uint16:
        image = (image.astype(np.uint32) + 128) // 257  # 65535 = 255 * 257, rounded
    return np.ascontiguousarray(image, dtype=np.uint8)


def decode(path: Path, *, colour: bool = False) -> NDArray[Any]:
    """Grey (H, W), or BGR (H, W, 3); uint8 or uint16, upright. The content decides the format, not the suffix."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: not a file name
        raise PhotoError(getattr(error, "strerror", None) or "cannot be opened") from None
    if not data:
        raise PhotoError("empty file")
    if len(data) > MAX_BYTES or pixels(data) > MAX_PIXELS:
        raise PhotoError("too large")
    if not pixels(data):  # OpenCV knows more formats, and each is one more way into it
        raise PhotoError("not a readable image")
    # Some versions of OpenCV fill the missing part of a photo with grey, or complain on the terminal.
    if _is_cut_short(data):
        raise PhotoError("cut short")
    flags = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    if is_webp:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None or image.dtype not in (np.uint8, np.uint16):
        raise PhotoError("not a readable image")
    if is_webp:
        image = _upright(image, _webp_orientation(data))
    if colour:
        return image if image.ndim == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image


def pixels(data: bytes) -> int:
    """How many a JPEG, PNG, WebP, BMP or Netpbm file says it has, before anything is made of them; 0 for all else."""
    try:
        if data.startswith(b"\xff\xd8"):
            sides = (struct.unpack(">HH", b"".join(found.groups())) for found in _JPEG_FRAME.finditer(data))
            return max((height * width for height, width in sides), default=0)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(b"BM"):
            is_old = data[14:18] == b"\x0c\0\0\0"
            width, height = struct.unpack_from("<HH" if is_old else "<ii", data, 18)
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            width, height = _webp_sides(data)
        else:
            found = _NETPBM.match(data)
            width, height = (int(side) for side in found.groups()) if found else (0, 0)
    except struct.error:  # the header itself is cut short
        return 0
    return abs(width * height)


def _webp_sides(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _is_cut_short(data: bytes) -> bool:
    """Whether a JPEG or PNG lacks its end mark."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return b"IEND" not in data
    if not data.startswith(b"\xff\xd8"):
        return False
    # Step over the header's segments: an embedded thumbnail has an end mark of its own.
    at = 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda":
        is_filler = data[at + 1 : at + 2] == b"\xff"
        at += 1 if is_filler else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(b"\xff\xd9", at) < 0


def _webp_orientation(data: bytes) -> int:
    """EXIF orientation (1 to 8). OpenCV turns JPEG and PNG itself, but WebP only in its later versions."""
    at = 12
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF":
            return _exif_orientation(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + length % 2
    return 1


def _exif_orientation(tiff: bytes) -> int:
    def number(at: int, length: int) -> int:
        return int.from_bytes(tiff[at : at + length], "little" if tiff[:2] == b"II" else "big")

    directory = number(4, 4)
    for entry in range(directory + 2, directory + 2 + 12 * number(directory, 2), 12):
        if number(entry, 2) == 0x0112:
            return number(entry + 8, 2)
    return 1


def _upright(image: NDArray[Any], orientation: int) -> NDArray[Any]:
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(image[::rows, ::columns])
