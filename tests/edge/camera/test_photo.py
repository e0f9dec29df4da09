"""Photo files: formats, depth, colour and orientation."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.camera.photo import read_photo
from edge.errors import GalleryError
from tests.fixtures.photos import encode, smooth_image, write_photo

IMAGE = smooth_image(7)


def exif(orientation: int, order: str) -> bytes:
    """A TIFF header and a directory with two entries: a resolution unit, and the orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entries = [(0x0128, 2), (0x0112, orientation)]
    directory = b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    return mark + struct.pack(f"{order}IH", 8, len(entries)) + directory + bytes(4)


def exif_jpeg(tiff: bytes) -> bytes:
    segment = b"Exif\0\0" + tiff
    data = encode(IMAGE, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 100)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]


def exif_png(tiff: bytes) -> bytes:
    data, chunk, header = encode(IMAGE, ".png"), b"eXIf" + tiff, 8 + 25  # signature and IHDR
    return data[:header] + struct.pack(">I", len(tiff)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[header:]


def exif_webp(tiff: bytes) -> bytes:
    height, width = IMAGE.shape
    features = b"\x08\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", len(features)) + features + encode(IMAGE, ".webp")[12:]
    body += b"EXIF" + struct.pack("<I", len(tiff)) + tiff + bytes(len(tiff) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


# What a viewer does with the stored image, by EXIF's definition of row 0 and column 0.
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).T,
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_applied_to_jpeg_and_png(tmp_path: Path, orientation: int) -> None:
    expected = UPRIGHT[orientation](IMAGE)
    for write, suffix in ((exif_jpeg, ".jpg"), (exif_png, ".png")):
        for order in "<>":
            grey = read_photo(write_photo(tmp_path / f"1{suffix}", write(exif(orientation, order))))
            assert grey.shape == expected.shape
            assert np.abs(grey.astype(int) - expected).max() <= 4


def test_webp_photos_are_read_as_stored(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_photo(write_photo(tmp_path / "1.webp", exif_webp(exif(6, "<")))), IMAGE)


def test_16_bits_are_rounded_to_8(tmp_path: Path) -> None:
    values = np.array([[0, 128, 129, 256, 257, 65535, 65406]], np.uint16)
    assert read_photo(write_photo(tmp_path / "1.png", values)).tolist() == [[0, 0, 1, 1, 1, 255, 254]]


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_colour_becomes_grey_by_opencv_weights(tmp_path: Path, depth: type) -> None:
    colour = np.dstack([smooth_image(1), smooth_image(2), smooth_image(3)])
    scale = 257 if depth == np.uint16 else 1
    grey = read_photo(write_photo(tmp_path / "1.png", colour.astype(depth) * depth(scale)))
    blue, green, red = colour.astype(float).transpose(2, 0, 1)
    assert np.abs(grey - (0.114 * blue + 0.587 * green + 0.299 * red)).max() <= 1


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_alpha_is_dropped(tmp_path: Path, suffix: str) -> None:
    colour = np.dstack([smooth_image(1), smooth_image(2), smooth_image(3)])
    with_alpha = read_photo(write_photo(tmp_path / f"1{suffix}", np.dstack([colour, np.full(IMAGE.shape, 200, np.uint8)])))
    np.testing.assert_array_equal(with_alpha, read_photo(write_photo(tmp_path / f"2{suffix}", colour)))


def test_jpeg_with_filler_and_trailing_bytes_is_read(tmp_path: Path) -> None:
    data = encode(IMAGE, ".jpg")
    odd = data[:2] + b"\xff\xff" + data[2:] + b"\xff\xda trailing bytes of a moving picture"
    expected = read_photo(write_photo(tmp_path / "2.jpg", data))
    np.testing.assert_array_equal(read_photo(write_photo(tmp_path / "1.jpg", odd)), expected)


def test_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match=r"1\.png cannot be used: empty file\. Replace it"):
        read_photo(write_photo(tmp_path / "1.png", b""))
