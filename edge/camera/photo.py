"""Read photo files. The trainer and the device use the same code."""

import re
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera import jpeg, png
from edge.errors import GalleryError

SUFFIXES = (".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp")
MAX_BYTES = 1 << 28
MAX_PIXELS = 1 << 26
"""A small file can claim a size beyond the memory of the device. OpenCV accepts up to 1 << 30."""

_NETPBM = re.compile(rb"P[1-6]" + 2 * rb"(?:\s|#[^\r\n]*[\r\n])+([0-9]{1,9})" + rb"\s")


class PhotoError(Exception):
    """A photo that cannot be used. The message gives the reason in two or three words."""


def read_photo(path: str | Path, *, colour: bool = False) -> NDArray[np.uint8]:
    """Read a photo file as uint8: grey (H, W) or BGR (H, W, 3). JPEG and PNG are turned upright by their EXIF data."""
    try:
        return to_8_bit(decode(Path(path), colour=colour))
    except PhotoError as reason:
        raise GalleryError(f"{path} cannot be used: {reason}.", "Replace it.") from None


def to_8_bit(image: NDArray[Any]) -> NDArray[np.uint8]:
    if image.dtype == np.uint16:
        image = (image.astype(np.uint32) + 128) // 257  # 65535 = 255 * 257, rounded
    return np.ascontiguousarray(image, dtype=np.uint8)


def decode(path: Path, *, colour: bool = False) -> NDArray[Any]:
    """Read a photo file as grey (H, W) or BGR (H, W, 3), uint8 or uint16. The content decides the format, not the suffix.

    WebP images keep the orientation in which they are stored: only some versions of OpenCV read it.
    """
    return decode_bytes(read_file(path), colour=colour)


def read_file(path: Path) -> bytes:
    """Return the content of a photo file."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: not a file name
        raise PhotoError(getattr(error, "strerror", None) or "cannot be opened") from None


def decode_bytes(data: bytes, *, colour: bool) -> NDArray[Any]:
    """As `decode`, for the content of a file."""
    if not data:
        raise PhotoError("empty file")
    number, is_complete = measure(data)
    if len(data) > MAX_BYTES or number > MAX_PIXELS:
        raise PhotoError("too large")
    if number == 0:  # OpenCV reads more formats, and each decoder is a risk
        raise PhotoError("not a readable image")
    if not is_complete:  # some versions of OpenCV fill the missing part with grey, or write to the terminal
        raise PhotoError("truncated file")
    flags = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
    if data.startswith(b"RIFF"):
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None or image.dtype not in (np.uint8, np.uint16):
        raise PhotoError("not a readable image")
    if image.shape[0] * image.shape[1] > MAX_PIXELS:  # the decoder read another size than we did
        raise PhotoError("too large")
    if (image.ndim == 3) == colour:
        return image
    return cv2.cvtColor(image, cv2.COLOR_GRAY2BGR if colour else cv2.COLOR_BGR2GRAY)


def measure(data: bytes) -> tuple[int, bool]:
    """Return the number of pixels that the header of a JPEG, PNG, WebP, BMP or Netpbm file states, and whether it is complete.

    The number is 0 for other data. The end of a WebP, BMP or Netpbm file is not checked.
    """
    try:
        if data.startswith(jpeg.START):
            return jpeg.walk(data)
        if data.startswith(png.START):
            return png.walk(data)
        if data.startswith(b"BM"):
            is_old = data[14:18] == b"\x0c\0\0\0"
            width, height = struct.unpack_from("<HH" if is_old else "<ii", data, 18)
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            if data[12:16] == b"VP8X":
                width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
            elif data[12:16] == b"VP8L":
                (bits,) = struct.unpack_from("<I", data, 21)
                width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
            else:
                width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        else:
            found = _NETPBM.match(data)
            width, height = (int(side) for side in found.groups()) if found else (0, 0)
    except struct.error:  # the header itself is truncated
        return 0, False
    return abs(width * height), True
