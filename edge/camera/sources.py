"""All kinds of image sources: V4L2 devices, Raspberry Pi cameras, network streams, video files, folders of images."""

import contextlib
import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
from numpy.typing import NDArray

from edge.camera import mjpeg
from edge.camera.base import OPEN_SECONDS, STALL_SECONDS, Camera, Source, display_name
from edge.camera.live import LiveCamera
from edge.camera.photo import SUFFIXES, read_photo
from edge.camera.recording import Recording
from edge.errors import CameraError, GalleryError

READ_SECONDS = 2.0
"""Time limit for one image, where a library accepts a limit."""
MAX_FAILURES = 5
"""A camera is lost after this many failed reads in a row."""
MAX_HOLE = 1000
"""Frames in a row that may be broken in a video file."""

log = logging.getLogger(__name__)


def open_camera(
    source: str = "0", *, stall_seconds: float = STALL_SECONDS, wait: bool = False, images_per_second: float = 10.0
) -> Camera:
    """Open `source`: an index, /dev/videoN, picamera2:N, rtsp://..., http://..., a video file or a folder of images.

    Raises CameraError if the source is invalid. A live camera must also provide a frame, unless `wait` is true: then it may be
    absent and is opened as soon as it is there.
    """
    source = source.strip() or "0"
    connect = live_source(source)
    if connect is None:
        return Recording(source, recorded_images(Path(source), images_per_second))
    return LiveCamera(display_name(source), connect, stall_seconds=stall_seconds, wait=wait)


def live_source(source: str) -> Callable[[], Source] | None:
    """Return a function that opens a live source, or None if `source` is a path."""
    if "://" in source:
        try:
            at = urlsplit(source)
            is_valid = at.scheme in ("rtsp", "rtsps", "http", "https") and at.hostname and at.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise CameraError(
                "The address of the camera is not valid.",
                "Write rtsp:// or http://, then user:password@host:port/path. Write special characters as %40 and so on.",
            )
        if at.scheme.startswith("rtsp"):
            return lambda: _open_ffmpeg(source)
        return lambda: mjpeg.connect(source, timeout=OPEN_SECONDS / 2) or _open_ffmpeg(source)
    if re.fullmatch(r"picamera2(:\d+)?", source):
        try:
            driver = importlib.import_module("picamera2")
        except Exception as error:  # an incompatible numpy raises ValueError
            raise CameraError(
                f"picamera2 cannot be loaded: {error}.",
                "Run `sudo apt install python3-picamera2`, and create the virtual environment with "
                "`python3 -m venv --system-site-packages`. pip cannot install all of picamera2.",
            ) from None
        return lambda: _PiCamera(driver, int(source.partition(":")[2] or 0))
    device = display_name(source)
    return (lambda: _open_v4l2(device)) if device.startswith("/dev/") else None


# Live sources. Opened, read and closed by one thread.


class _Capture(Source):
    """A source that OpenCV reads: V4L2 or FFMPEG."""

    def __init__(self, capture: cv2.VideoCapture, *, stamps: bool = False) -> None:
        self._capture, self._stamps, self._failures = capture, stamps, 0

    def read(self) -> tuple[NDArray[Any] | None, float, int]:
        grabbed = self._capture.grab()
        captured = time.monotonic()
        if grabbed:
            self._failures = 0
            if self._stamps:
                captured = _capture_time(captured, self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            return self._capture.retrieve()[1], captured, 0
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise CameraError("The camera stopped sending images.")
        time.sleep(0.02)  # an unplugged camera fails immediately, again and again
        return None, captured, 0

    def close(self) -> None:
        self._capture.release()


class _PiCamera(Source):
    """A Raspberry Pi camera, which OpenCV cannot open."""

    def __init__(self, driver: Any, number: int) -> None:
        try:
            self._camera = driver.Picamera2(number)
        except (IndexError, RuntimeError):
            hint = "Run `rpicam-hello --list-cameras`, and check that no other program uses the camera."
            raise CameraError(f"Raspberry Pi camera {number} was not found, or is in use.", hint) from None
        try:
            # libcamera names formats by a little-endian word: "RGB888" is stored as B, G, R, the order that OpenCV uses.
            self._camera.configure(self._camera.create_video_configuration(main={"format": "RGB888"}))
            self._camera.start()
        except BaseException:
            self._camera.close()
            raise

    def read(self) -> tuple[NDArray[Any] | None, float, int]:
        try:
            request = self._camera.capture_request(wait=False).get_result(timeout=READ_SECONDS)
        except TimeoutError:
            raise CameraError("The Raspberry Pi camera stopped sending images.", "Check its cable.") from None
        captured = time.monotonic()
        try:
            captured = _capture_time(captured, request.get_metadata().get("SensorTimestamp", 0) / 1e9)
            return request.make_array("main"), captured, 0
        finally:
            request.release()

    def close(self) -> None:
        self._camera.close()


def _capture_time(now: float, stamp: float) -> float:
    """The driver's time stamp if it is plausible, else `now`. An image may have waited in a buffer."""
    return stamp if now - 60 < stamp < now and stamp > 0 else now


def _open_v4l2(path: str) -> Source:
    device = os.path.realpath(path)  # /dev/v4l/by-id/... stays valid when cameras are plugged in in another order
    if not os.path.exists(device):
        raise CameraError(f"Camera {path} was not found.", "Plug it in. The Raspberry Pi camera is picamera2:0.")
    number = re.fullmatch(r"/dev/video(\d+)", device)
    if number is None:
        raise CameraError(f"{path} is not a camera.", "Camera devices are /dev/video0 and so on.")
    if not os.access(device, os.R_OK | os.W_OK):
        raise CameraError(f"No permission to use {path}.", "Add the user to the group video: sudo usermod -aG video $USER.")
    os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "2")  # seconds; the default is 10
    capture = _video_capture(int(number[1]), cv2.CAP_V4L2)
    if not capture.isOpened():
        hint = "Check that no other program uses it. The Raspberry Pi camera is picamera2:0, not /dev/videoN."
        raise CameraError(f"The camera {path} cannot be opened.", hint)
    capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
    return _Capture(capture, stamps=True)


def _open_ffmpeg(url: str) -> Source:
    os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;tcp")  # UDP loses parts of images
    open_limit = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, int(OPEN_SECONDS * 1000)]
    read_limit = [cv2.CAP_PROP_READ_TIMEOUT_MSEC, int(READ_SECONDS * 1000)]
    capture = _video_capture(url, cv2.CAP_FFMPEG, open_limit + read_limit)
    if not capture.isOpened():
        raise CameraError(f"No video at {display_name(url)}.", "Check the address, the password and the camera.")
    return _Capture(capture)


def _video_capture(*arguments: Any) -> cv2.VideoCapture:
    """Create a cv2.VideoCapture that writes nothing to the terminal, unless the user sets OPENCV_LOG_LEVEL."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    if "OPENCV_LOG_LEVEL" not in os.environ and hasattr(cv2.utils, "logging"):
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    return cv2.VideoCapture(*arguments)


# Recordings: images (None if broken) and their positions in seconds, in order.


def recorded_images(path: Path, images_per_second: float) -> Iterator[tuple[NDArray[Any] | None, float]]:
    """Read a video file, a folder of images, or one image."""
    try:
        if path.is_dir():
            images = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            if not images:
                raise CameraError(f"The folder {path} contains no images.", f"Supported files: {', '.join(SUFFIXES)}.")
            return _images(images, images_per_second)
        if path.is_file():
            return _images([path], images_per_second) if path.suffix.lower() in SUFFIXES else _video(path)
    except (OSError, ValueError) as error:
        raise CameraError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    raise CameraError(
        f"{path} is not a camera, a video file or a folder.",
        "Give an index, /dev/videoN, picamera2:N, rtsp://..., http://..., a video file or a folder of images.",
    )


def _images(paths: list[Path], images_per_second: float) -> Iterator[tuple[NDArray[Any] | None, float]]:
    for i, path in enumerate(paths):
        image = None
        with contextlib.suppress(GalleryError):
            image = read_photo(path, colour=True)
        yield image, i / images_per_second


def _video(path: Path) -> Iterator[tuple[NDArray[Any] | None, float]]:
    capture = _video_capture(os.path.abspath(path), cv2.CAP_FFMPEG)
    try:
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
            yield image, position
        if 0 < seen < 0.9 * count:
            log.warning("%s ends early, after %d of %.0f frames", path, seen, count)
    finally:
        capture.release()
