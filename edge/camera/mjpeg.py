"""MJPEG over HTTP: JPEGs in a multipart reply that never ends, as network cameras send them.

Read here and not by FFMPEG, which keeps several frames back, hides the broken ones, and says nothing of when they came.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
import time
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import MAX_PIXELS, _is_cut_short, pixels
from edge.errors import CameraError

MAX_FRAME_BYTES = 8 * 2**20
MAX_HEADER_BYTES = 8 * 2**10
CHUNK_BYTES = 2**16
MAX_BACKLOG_BYTES = 4 * MAX_FRAME_BYTES

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class MjpegError(Exception):
    """A reply that is no MJPEG, or one whose parts are larger than any camera's."""


class Part(NamedTuple):
    """The body of one part."""

    data: bytes
    arrived: float
    """When its first byte arrived: the picture was taken before that, however slowly the rest came."""


class Parts:
    """Multipart bytes in, whole parts out. Holds at most one frame, one header and what it was fed last."""

    def __init__(self, boundary: bytes) -> None:
        # Many cameras count the dashes to the boundary's name; the delimiter has them once more or not.
        self._delimiter = boundary if boundary.startswith(b"--") else b"--" + boundary
        self._buffer = bytearray()
        self._in_body = False
        self._length: int | None = None
        self._arrived: float | None = None
        self._searched = 0

    def feed(self, data: bytes, now: float) -> list[Part]:
        """The parts that `data`, which arrived at `now`, completes."""
        self._buffer += data
        parts = []
        while self._in_body or self._enter_body():
            if self._arrived is None and self._buffer:
                self._arrived = now
            body = self._body()
            if body is None:
                break
            parts.append(Part(body, now if self._arrived is None else self._arrived))
            self._in_body, self._arrived = False, None
        return parts

    def _enter_body(self) -> bool:
        """Step over the next delimiter and its headers. What stands before a delimiter is nobody's."""
        buffer, delimiter = self._buffer, self._delimiter
        start = buffer.find(delimiter)
        if start < 0:
            del buffer[: max(0, len(buffer) - len(delimiter) + 1)]
            return False
        del buffer[:start]
        blank = _BLANK_LINE.search(buffer)
        if (blank.start() if blank else len(buffer)) > MAX_HEADER_BYTES:
            raise MjpegError("a header without end")
        if blank is None:
            return False
        headers = bytes(buffer[buffer.rfind(delimiter, 0, blank.start()) : blank.start()])
        length = _LENGTH.search(headers)
        # Nine digits are too many already, and int() takes its time over thousands.
        self._length = int(length[1][:9]) if length else None
        if self._length is not None and self._length > MAX_FRAME_BYTES:
            raise MjpegError("a frame too large")
        del buffer[: blank.end()]
        self._in_body, self._searched = True, 0
        return True

    def _body(self) -> bytes | None:
        """The body, once it is whole: as long as its header said, or up to the next delimiter."""
        buffer = self._buffer
        end = self._length
        if end is None:
            end = buffer.find(self._delimiter, self._searched)
            self._searched = max(0, len(buffer) - len(self._delimiter) + 1)
        if end < 0 or end > len(buffer):
            if len(buffer) > MAX_FRAME_BYTES:
                raise MjpegError("a frame too large")
            return None
        body = bytes(buffer[:end])
        del buffer[:end]
        # The line end before a delimiter belongs to it, as do dashes that the boundary's name does not count.
        return body if self._length is not None else body.rstrip(b"\r\n-")


def decode(jpeg: bytes) -> NDArray[Any] | None:
    """BGR, or None for a JPEG that is cut short, too large or none at all."""
    if not jpeg.startswith(b"\xff\xd8") or _is_cut_short(jpeg) or pixels(jpeg) > MAX_PIXELS:
        return None
    try:
        return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None


class MjpegStream:
    """One connection to a camera that sends MJPEG."""

    def __init__(self, response: HTTPResponse, boundary: bytes) -> None:
        self._response = response
        self._parts = Parts(boundary)
        # A second handle on the connection, for interrupt(): the first belongs to the reading thread.
        self._line = socket.socket(fileno=os.dup(response.fileno()))
        self._poll = select.poll()
        self._poll.register(self._line, select.POLLIN)

    def read(self) -> tuple[NDArray[Any] | None, float, int]:
        """The newest picture (None if broken), when it came, and how many older ones were passed over.

        All that has already arrived is read before one picture is decoded: who decodes every picture and is slower than
        the camera falls behind, and takes old pictures for new.
        """
        newest: Part | None = None
        seen = backlog = 0
        try:
            while newest is None or (backlog < MAX_BACKLOG_BYTES and self._poll.poll(0)):
                data = self._response.read1(CHUNK_BYTES)
                if not data:
                    if newest is None:
                        raise CameraError("The camera ended the connection.")
                    break
                backlog += len(data)
                parts = self._parts.feed(data, time.monotonic())
                seen += len(parts)
                newest = parts[-1] if parts else newest
        except MjpegError as error:
            raise CameraError(f"The camera sends what is no MJPEG: {error}.") from None
        except (OSError, HTTPException) as error:
            raise CameraError(f"The connection broke: {reason(error)}.") from None
        return decode(newest.data), newest.arrived, seen - 1

    def interrupt(self) -> None:
        """From any thread: a read() that waits fails at once."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.interrupt()
        self._line.close()
        self._response.close()


def connect(url: str, timeout: float) -> MjpegStream | None:
    """The stream at `url`, or None where something other than MJPEG is served. Basic and digest log-in, no proxy."""
    at = urlsplit(url)
    host = at.netloc.rpartition("@")[2]
    plain = at._replace(netloc=host).geturl()
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    if at.username is not None:
        passwords.add_password(None, f"{at.scheme}://{host}/", unquote(at.username), unquote(at.password or ""))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),  # a camera stands in the house
        urllib.request.HTTPBasicAuthHandler(passwords),
        urllib.request.HTTPDigestAuthHandler(passwords),
    )
    try:
        response = opener.open(plain, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        hint = "Write the address as http://user:password@host/path." if error.code in (401, 403) else ""
        raise CameraError(f"The camera answers with the error {error.code}.", hint) from None
    except (OSError, HTTPException, ValueError, LookupError) as error:  # the last two: of a log-in that makes no sense
        raise CameraError(f"The camera cannot be reached: {reason(error)}.") from None
    boundary = _boundary(response.headers)
    if boundary is None:
        response.close()
        return None
    return MjpegStream(response, boundary)


def _boundary(headers: Message) -> bytes | None:
    boundary = headers.get_param("boundary")
    if headers.get_content_maintype() != "multipart" or not isinstance(boundary, str) or not boundary.strip("-"):
        return None
    return boundary.encode("ascii", "replace")


def reason(error: BaseException) -> str:
    """Why a connection failed, without the address: that may hold a password."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, ssl.SSLError):
        return f"TLS, {cause.reason or 'handshake failed'}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return type(cause).__name__
