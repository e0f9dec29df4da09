"""All kinds of image sources: V4L2 devices, Raspberry Pi cameras, network streams, video files, folders of images."""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import cv2
from numpy.typing import NDArray

from edge.camera import ffmpeg, http_stream, mjpeg
from edge.camera.base import OPEN_SECONDS, STALL_SECONDS, Camera, Source, display_name
from edge.camera.live import LiveCamera
from edge.camera.photo import SUFFIXES, read_photo
from edge.camera.recording import Recording
from edge.camera.stamps import CaptureTimes
from edge.errors import CameraError, GalleryError

T = TypeVar("T")


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
        return _connector(ffmpeg.open_rtsp if at.scheme.startswith("rtsp") else _open_http, source, CaptureTimes())
    if re.fullmatch(r"picamera2(:\d+)?", source):
        try:
            driver = importlib.import_module("picamera2")
        except Exception as error:  # an incompatible numpy raises ValueError
            raise CameraError(
                f"picamera2 cannot be loaded: {error}.",
                "Run `sudo apt install python3-picamera2`, and create the virtual environment with "
                "`python3 -m venv --system-site-packages`. pip cannot install all of picamera2.",
            ) from None
        open_pi = partial(_PiCamera, driver)
        return _connector(open_pi, int(source.partition(":")[2] or 0), CaptureTimes())  # libcamera's stamps count suspends
    device = display_name(source)
    return _connector(_open_v4l2, device, CaptureTimes(is_monotonic=True)) if device.startswith("/dev/") else None


def _connector(open_source: Callable[[T, CaptureTimes], Source], where: T, times: CaptureTimes) -> Callable[[], Source]:
    """Return a function that opens a source. All its connections share `times`, which remember what the source can do."""

    def connect() -> Source:
        times.connected()
        return open_source(where, times)

    return connect


# Live sources. Opened, read and closed by one thread.


class _PiCamera(Source):
    """A Raspberry Pi camera, which OpenCV cannot open."""

    def __init__(self, driver: Any, number: int, times: CaptureTimes) -> None:
        self._times = times
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
            request = self._camera.capture_request(wait=False).get_result(timeout=ffmpeg.READ_SECONDS)
        except TimeoutError:
            raise CameraError("The Raspberry Pi camera stopped sending images.", "Check its cable.") from None
        try:
            captured = self._times.captured(request.get_metadata().get("SensorTimestamp", 0) / 1e9)
            return request.make_array("main"), captured, 0
        finally:
            request.release()

    def close(self) -> None:
        self._camera.close()


def _open_http(url: str, times: CaptureTimes) -> Source:
    response = http_stream.open_stream(url, timeout=OPEN_SECONDS / 2)
    return mjpeg.stream(response, times) or ffmpeg.PipedCapture(response, times)


def _open_v4l2(path: str, times: CaptureTimes) -> Source:
    device = os.path.realpath(path)  # /dev/v4l/by-id/... stays valid when cameras are plugged in in another order
    if not os.path.exists(device):
        raise CameraError(f"Camera {path} was not found.", "Plug it in. The Raspberry Pi camera is picamera2:0.")
    number = re.fullmatch(r"/dev/video(\d+)", device)
    if number is None:
        raise CameraError(f"{path} is not a camera.", "Camera devices are /dev/video0 and so on.")
    if not os.access(device, os.R_OK | os.W_OK):
        raise CameraError(f"No permission to use {path}.", "Add the user to the group video: sudo usermod -aG video $USER.")
    os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "2")  # seconds; the default is 10
    capture = ffmpeg.video_capture(int(number[1]), cv2.CAP_V4L2)
    if not capture.isOpened():
        hint = "Check that no other program uses it. The Raspberry Pi camera is picamera2:0, not /dev/videoN."
        raise CameraError(f"The camera {path} cannot be opened.", hint)
    capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
    return ffmpeg.Capture(capture, times, has_stamps=True)


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
            return _images([path], images_per_second) if path.suffix.lower() in SUFFIXES else ffmpeg.video_images(path)
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
