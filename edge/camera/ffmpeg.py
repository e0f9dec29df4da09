"""Video that FFMPEG decodes, through OpenCV: RTSP, HTTP other than MJPEG, and files. No frame is larger than a photo may be.

OpenCV passes no size limit to the decoder (`max_pixels` in OPENCV_FFMPEG_CAPTURE_OPTIONS has no effect in 4.8 and 5.0).
So the size in the header is checked before the first frame is decoded, and each frame after it: a stream may change its size.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera import photo
from edge.camera.base import OPEN_SECONDS, Source, display_name
from edge.camera.stamps import CaptureTimes
from edge.errors import CameraError

READ_SECONDS = 2.0
"""Time limit for one image, where a library accepts a limit."""
MAX_FAILURES = 5
"""A camera is lost after this many failed reads in a row."""
MAX_HOLE = 1000
"""Frames in a row that may be broken in a video file."""
CHUNK_BYTES = 2**16

log = logging.getLogger(__name__)


class Capture(Source):
    """A live source that OpenCV reads. Opened, read and closed by one thread."""

    def __init__(self, capture: cv2.VideoCapture, times: CaptureTimes, *, has_stamps: bool = False) -> None:
        self._capture, self._times, self._has_stamps, self._failures = capture, times, has_stamps, 0

    def read(self) -> tuple[NDArray[Any] | None, float, int]:
        if self._capture.grab():
            self._failures = 0
            if self._has_stamps:
                captured = self._times.captured(self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            else:
                captured = self._times.arrived()
            return bounded(self._capture.retrieve()[1]), captured, 0
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise CameraError("The camera stopped sending images.")
        time.sleep(0.02)  # an unplugged camera fails immediately, again and again
        return None, 0.0, 0

    def close(self) -> None:
        self._capture.release()


class PipedCapture(Capture):
    """A live source that FFMPEG reads from a pipe. Another thread copies a response to the pipe.

    FFMPEG itself would follow redirections and playlists to any host, and send its requests through a proxy.
    """

    def __init__(self, response: HTTPResponse, times: CaptureTimes) -> None:
        # A second handle on the connection for interrupt(): the first belongs to the copying thread.
        self._socket = socket.socket(fileno=os.dup(response.fileno()))
        self._output, pipe_input = os.pipe()
        threading.Thread(target=_copy, args=(response, pipe_input), name="camera pipe", daemon=True).start()
        deadline = threading.Timer(OPEN_SECONDS, self.interrupt)  # FFMPEG has no time limit of its own for a pipe
        deadline.daemon = True
        deadline.start()
        try:
            super().__init__(_opened(f"pipe:{self._output}", "at this address"), times)
        except BaseException:
            self._close_pipe()
            raise
        finally:
            deadline.cancel()

    def interrupt(self) -> None:
        """End the copy, and so a waiting read(). Any thread may call this."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self._close_pipe()

    def _close_pipe(self) -> None:
        self.interrupt()
        self._socket.close()
        os.close(self._output)


def _copy(response: HTTPResponse, pipe_input: int) -> None:
    """Copy a response to a pipe until one of them ends."""
    with contextlib.closing(response), open(pipe_input, "wb", buffering=0) as pipe:
        try:
            while data := response.read1(CHUNK_BYTES):
                pipe.write(data)
        except (OSError, HTTPException, ValueError) as error:  # the end of the pipe ends the reader, which reports it
            log.debug("the stream of a camera ended: %s", type(error).__name__)


def open_rtsp(url: str, times: CaptureTimes) -> Source:
    """Open a network stream that FFMPEG fetches itself."""
    os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;tcp")  # UDP loses parts of images
    return Capture(_opened(url, f"at {display_name(url)}"), times)


def _opened(source: str, where: str) -> cv2.VideoCapture:
    open_limit = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(OPEN_SECONDS * 1000)]
    read_limit = [cv2.CAP_PROP_READ_TIMEOUT_MSEC, int(READ_SECONDS * 1000)]
    capture = video_capture(source, cv2.CAP_FFMPEG, open_limit + read_limit)
    if not capture.isOpened():
        raise CameraError(f"No video {where}.", "Check the address, the password and the camera.")
    try:
        _check_header(capture)
    except CameraError:
        capture.release()
        raise
    return capture


def video_capture(*arguments: Any) -> cv2.VideoCapture:
    """Create a cv2.VideoCapture that writes nothing to the terminal, unless the user sets OPENCV_LOG_LEVEL."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    if "OPENCV_LOG_LEVEL" not in os.environ and hasattr(cv2.utils, "logging"):
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    return cv2.VideoCapture(*arguments)


def _check_header(capture: cv2.VideoCapture) -> None:
    """Check the size that the header states, before a frame is decoded."""
    _check_size(capture.get(cv2.CAP_PROP_FRAME_WIDTH) * capture.get(cv2.CAP_PROP_FRAME_HEIGHT))


def bounded(image: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return the image if it is not too large."""
    if image is not None:
        _check_size(float(np.prod(image.shape[:2], dtype=float)))
    return image


def _check_size(pixels: float) -> None:
    if pixels > photo.MAX_PIXELS:
        limit = f"{photo.MAX_PIXELS / 1e6:.0f} million pixels"
        raise CameraError(f"The frames of the video have more than {limit}.", "Use a smaller stream or file.")


def video_images(path: Path) -> Iterator[tuple[NDArray[Any] | None, float]]:
    """Read a video file: its images (None if broken) and their positions in seconds, in order."""
    capture = video_capture(os.path.abspath(path), cv2.CAP_FFMPEG)
    try:
        _check_header(capture)
        count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        rate = capture.get(cv2.CAP_PROP_FPS)
        step = 1 / rate if 1 <= rate <= 1000 else 1 / 25
        position, seen, missed = -step, 0, 0
        # FFMPEG does not distinguish a broken frame from the end: failed reads are broken frames only if a frame follows.
        while missed < MAX_HOLE and (missed == 0 or seen + missed < count):
            good, image = capture.read()
            if not good:
                missed += 1
                continue
            yield from [(None, position)] * missed
            seen, missed = seen + missed + 1, 0
            stamp = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
            position = stamp if position < stamp < position + 60 else position + step
            yield bounded(image), position
        if 0 < seen < 0.9 * count:
            log.warning("%s ends early, after %d of %.0f frames", path, seen, count)
    finally:
        capture.release()
