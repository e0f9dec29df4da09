"""Walk over the chunks of a PNG: its size and its completeness before anything is decoded."""

import struct

START = b"\x89PNG\r\n\x1a\n"
_HEAD, _CHECKSUM = struct.Struct(">I4s"), 4
_SIZE = struct.Struct(">II")


def walk(data: bytes) -> tuple[int, bool]:
    """Return the number of pixels that the first chunk states, and whether all chunks are inside the file, up to the end mark.

    OpenCV 5 allocates the length that a chunk states: a gigabyte for a file of four kilobytes.
    """
    at, pixels = len(START), 0
    while at + _HEAD.size <= len(data):
        length, name = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        if pixels == 0:
            if name != b"IHDR" or length < _SIZE.size or start + _SIZE.size > len(data):
                return 0, False
            width, height = _SIZE.unpack_from(data, start)
            pixels = width * height
            if pixels == 0:
                return 0, False
        at = start + length + _CHECKSUM
        if at > len(data):
            break
        if name == b"IEND":
            return pixels, True
    return pixels, False
