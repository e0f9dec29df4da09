"""MJPEG over HTTP: an endless multipart response of JPEG images, as network cameras send it.

FFMPEG is not used here: it buffers several frames, hides broken frames, and does not report when a frame arrived.
"""

import contextlib
import os
import re
import select
import socket
from http.client import HTTPException, HTTPResponse
from typing import Any

from numpy.typing import NDArray

from edge.camera import jpeg
from edge.camera.http_stream import reason
from edge.camera.photo import PhotoError, decode_bytes
from edge.camera.stamps import CaptureTimes
from edge.errors import CameraError

MAX_FRAME_BYTES = 8 * 2**20
MAX_HEADER_BYTES = 8 * 2**10
CHUNK_BYTES = 2**16
MAX_BACKLOG_BYTES = 4 * MAX_FRAME_BYTES

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Parts:
    """A parser of multipart bytes. It holds at most one frame, one header and the bytes it received last."""

    def __init__(self, boundary: bytes) -> None:
        # Many cameras include the dashes in the name of the boundary; their delimiter may have two more or not.
        self._delimiter = boundary if boundary.startswith(b"--") else b"--" + boundary
        self._buffer = bytearray()
        self._arrived: float | None = None

    def feed(self, data: bytes, now: float) -> list[tuple[bytes, float]]:
        """Add `data`, which arrived at `now`. Return the bodies that are complete, and when their first bytes arrived."""
        buffer, delimiter = self._buffer, self._delimiter
        buffer += data
        parts: list[tuple[bytes, float]] = []
        while True:
            start = buffer.find(delimiter)
            del buffer[: start if start >= 0 else max(0, len(buffer) - len(delimiter) + 1)]  # bytes between parts
            blank = _BLANK_LINE.search(buffer) if start >= 0 else None
            if (blank.start() if blank else len(buffer)) > MAX_HEADER_BYTES:
                raise CameraError("The camera does not send valid MJPEG: header too large.")
            if blank is None:
                return parts
            body = blank.end()
            length = _LENGTH.search(buffer, buffer.rfind(delimiter, 0, blank.start()), blank.start())
            # A body ends at the length in its header, or at the next delimiter. Nine digits are enough to be too large; int()
            # is slow on thousands of digits.
            end = body + int(length[1][:9]) if length else buffer.find(delimiter, body)
            if (end if end >= 0 else len(buffer)) - body > MAX_FRAME_BYTES:
                raise CameraError("The camera does not send valid MJPEG: frame too large.")
            if self._arrived is None and len(buffer) > body:
                self._arrived = now
            if not 0 <= end <= len(buffer):
                return parts
            found = bytes(buffer[body:end])
            # The line end before a delimiter belongs to it, and so do dashes that are not in the name of the boundary.
            parts.append((found if length else found.rstrip(b"\r\n-"), now if self._arrived is None else self._arrived))
            del buffer[:end]
            self._arrived = None


def decode(data: bytes) -> NDArray[Any] | None:
    """Decode a JPEG to BGR. Return None if it is truncated, too large or not a JPEG."""
    try:
        return decode_bytes(data, colour=True) if data.startswith(jpeg.START) else None
    except PhotoError:
        return None


class MjpegStream:
    """One connection to a camera that sends MJPEG."""

    def __init__(self, response: HTTPResponse, boundary: bytes, times: CaptureTimes) -> None:
        self._response, self._times = response, times
        self._parts = Parts(boundary)
        # A second handle on the connection for interrupt(): the first belongs to the reading thread.
        self._socket = socket.socket(fileno=os.dup(response.fileno()))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def read(self) -> tuple[NDArray[Any] | None, float, int]:
        """Return the newest image (None if broken), when it arrived, and how many older images were skipped.

        All bytes that have arrived are read before one image is decoded. A device that is slower than the camera would
        otherwise fall behind and treat old images as new.
        """
        newest: tuple[bytes, float] | None = None
        seen = backlog = 0
        try:
            while newest is None or (backlog < MAX_BACKLOG_BYTES and self._poll.poll(0)):
                data = self._response.read1(CHUNK_BYTES)
                if not data:
                    if newest is None:
                        raise CameraError("The camera closed the connection.")
                    break
                backlog += len(data)
                parts = self._parts.feed(data, self._times.arrived())
                seen += len(parts)
                newest = parts[-1] if parts else newest
        except (OSError, HTTPException) as error:
            raise CameraError(f"The connection failed: {reason(error)}.") from None
        return decode(newest[0]), newest[1], seen - 1

    def interrupt(self) -> None:
        """Make a waiting read() fail at once. Any thread may call this."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.interrupt()
        self._socket.close()
        self._response.close()


def stream(response: HTTPResponse, times: CaptureTimes) -> MjpegStream | None:
    """Return the stream of a response, or None if it is not MJPEG."""
    boundary = response.headers.get_param("boundary")
    if response.headers.get_content_maintype() == "multipart" and isinstance(boundary, str) and boundary.strip("-"):
        return MjpegStream(response, boundary.encode("ascii", "replace"), times)
    return None
