"""Video files and folders of images as a camera."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera, CameraHealth, Frame, is_bgr
from edge.clock import boottime
from edge.errors import CameraError


class Recording(Camera):
    """A video file or a folder of images: all frames in order, on a clock that follows the recording."""

    live = False

    def __init__(self, name: str, images: Iterator[tuple[NDArray[Any] | None, float]]) -> None:
        """`images` yields each image (None if it is broken) and its position in seconds."""
        super().__init__(name)
        self._images = images
        self._lock = threading.Lock()
        self._number = self._broken = 0
        self._captured = self._returned_at = self._start = boottime()
        self._next = self._read()
        if self._next is None:
            raise CameraError(f"{name} contains no readable image.", "Check that other programs can play it.")

    @property
    def ended(self) -> bool:
        return self._next is None

    @property
    def health(self) -> CameraHealth:
        with self._lock:
            up = self._next is not None
            return CameraHealth(up=up, frames=self._number, dropped=0, broken=self._broken, reconnects=0, error="")

    def now(self) -> float:
        with self._lock:
            return self._captured + (boottime() - self._returned_at if self._number else 0)

    def frame(self, timeout: float) -> Frame | None:
        with self._lock:
            if self._next is None:
                return None
            (image, self._captured), self._next = self._next, None  # an error while reading ends the recording
            self._number += 1
            self._next = self._read()
            self._returned_at = boottime()
            return Frame(image=image, captured=self._captured, number=self._number)

    def close(self) -> None:
        with self._lock:
            self._next = None
            self._images = iter(())

    def _read(self) -> tuple[NDArray[np.uint8], float] | None:
        """Return the next image that is not broken, and its time."""
        for image, position in self._images:
            if is_bgr(image):
                return image, self._start + position
            self._broken += 1
        return None
