"""Walk over the segments of a JPEG, as libjpeg does: its size and its completeness before anything is decoded."""

import re
import struct

START = b"\xff\xd8\xff"
"""How a JPEG begins, for OpenCV and for us."""

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15; the three between them are other segments
_OTHERS = frozenset({0xC4, 0xCC, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE})  # tables, application data, comments
_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a segment
_SCAN, _END = 0xDA, 0xD9
# libjpeg skips all bytes before a marker, and any number of 0xff before its code. In a scan, 0xff 0 is a byte of the image.
_MARKER = re.compile(rb"\xff([^\x00\xff])")


def walk(data: bytes) -> tuple[int, bool]:
    """Return the number of pixels that the decoder would allocate, and whether the image has an end mark.

    The number is 0 if there is no image, or if there is anything that a decoder may understand in another way: two frame
    headers, an unknown marker, a wrong length. An image in a segment, such as the thumbnail of a camera, does not count.
    """
    if not data.startswith(START):
        return 0, False
    pixels, has_scan, at = 0, False, 2
    while (marker := _MARKER.search(data, at)) is not None:
        code, at = marker[1][0], marker.end()
        if code in _ALONE:
            continue
        if code == _END:
            return (pixels, True) if has_scan else (0, False)
        length = int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data):
            break
        if code in _FRAMES and pixels == 0:
            if length < 8 or at + 8 > len(data):
                return 0, False
            height, width, components = struct.unpack_from(">HHB", data, at + 3)
            if length != 8 + 3 * components or height * width == 0:
                return 0, False
            pixels = height * width
        elif code == _SCAN and pixels:
            has_scan = True
        elif code not in _OTHERS:
            return 0, False
        if length < 2:
            return 0, False
        at += length
    return pixels, False
