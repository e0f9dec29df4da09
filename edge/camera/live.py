"""Sources of pictures: cameras, streams, video files, folders of images. Each frame is stamped when it was captured.

A live source keeps only its newest frame. Opening and reading happen in a thread of their own, because either can hang for
ever in a driver or a library; a thread that hangs is given up, and nothing that it still brings is used.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera import sources
from edge.camera.sources import OPEN_SECONDS, Source
from edge.errors import CameraError

STALL_SECONDS = 2.0
RETRY_SECONDS = (0.5, 10.0)
"""The first pause before a lost camera is opened again, and the longest; each is twice the one before."""
MAX_HUNG = 3
"""Threads that may hang at a time. With so many the camera is opened again only when one of them returns."""
IMAGES_PER_SECOND = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """One picture of a camera."""

    image: NDArray[np.uint8]
    """(H, W, 3), BGR."""
    captured: float
    """Seconds of the camera's clock at which it was captured, never later; compare with Camera.now()."""
    number: int
    """From 1. Gaps are frames that nobody had time for."""


@dataclass(frozen=True, kw_only=True)
class CameraHealth:
    """How a camera does, at one moment."""

    up: bool
    """Whether frames are coming."""
    frames: int
    """Frames captured."""
    dropped: int
    """Frames captured that a newer one replaced before anybody asked."""
    broken: int
    """Frames that could not be read."""
    reconnects: int
    """Times that the camera was lost and came back."""
    error: str
    """Why it is not up, or empty."""


class Camera(ABC):
    """A source of frames. Thread-safe; a context manager that closes it."""

    live: ClassVar[bool]
    """Whether frames come at their own pace, and are lost if nobody takes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        """What the user gave, without passwords."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no frame will ever come: after a recording's last one, or after close()."""

    @property
    @abstractmethod
    def health(self) -> CameraHealth: ...

    @abstractmethod
    def now(self) -> float:
        """The clock that frames are stamped by."""

    @abstractmethod
    def frame(self, timeout: float) -> Frame | None:
        """A frame that was not handed out before, waiting for it at most `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Within a second, also while a driver hangs; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_camera(
    source: str = "0",
    *,
    stall_seconds: float = STALL_SECONDS,
    wait: bool = False,
    images_per_second: float = IMAGES_PER_SECOND,
) -> Camera:
    """The camera that `source` names: an index, /dev/videoN, picamera2:N, rtsp:// or http://, a video file, a folder.

    Raises CameraError for what can never work; with `wait` a live camera may be absent for now, without it must give a frame.
    """
    source = source.strip() or "0"
    connect = sources.live(source)
    if connect is None:
        return Recording(source, sources.pictures(Path(source), images_per_second))
    return LiveCamera(sources.name(source), connect, stall_seconds=stall_seconds, wait=wait)


def _bgr(image: NDArray[Any] | None) -> NDArray[np.uint8] | None:
    """uint8 (H, W, 3), or None for what is no picture."""
    if image is None or image.size == 0 or image.dtype != np.uint8:
        return None
    channels = image.shape[2] if image.ndim == 3 else 1 if image.ndim == 2 else 0
    if channels == 1:
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR), np.uint8)
    if channels == 4:
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGRA2BGR), np.uint8)
    return image if channels == 3 else None


class _Reader(threading.Thread):
    """One connection and the thread that opens, reads and closes it: given up as a whole when it hangs."""

    def __init__(self, camera: LiveCamera, connect: Callable[[], Source]) -> None:
        super().__init__(name="camera", daemon=True)
        self.frames = 0
        self.heard = time.monotonic()
        self._camera = camera
        self._connect = connect
        self._source: Source | None = None

    def run(self) -> None:
        try:
            source = self._connect()
            self._source = source
            with contextlib.closing(source):
                while self._camera.is_read_by(self):
                    self._camera.take(self, *source.read())
        except CameraError as error:
            self._camera.lose(self, error)
        except Exception as error:  # drivers raise what they like; the text of it may hold an address
            self._camera.lose(self, CameraError(f"The camera failed with {type(error).__name__}."))

    def interrupt(self) -> None:
        if self._source is not None:
            self._source.interrupt()


class LiveCamera(Camera):
    """A camera that is read as fast as it comes, noticed when it stalls, and opened again until it is back."""

    live = True

    def __init__(
        self, name: str, connect: Callable[[], Source], *, stall_seconds: float = STALL_SECONDS, wait: bool = False
    ) -> None:
        super().__init__(name)
        self._connect = connect
        self._wait = wait
        self._stall_seconds = stall_seconds
        self._changed = threading.Condition()
        self._closed = False
        self._newest: Frame | None = None
        self._number = self._dropped = self._broken = self._reconnects = 0
        self._failures = 0  # attempts since the last frame
        self._error: CameraError | None = None
        self._retry_at = 0.0
        self._hung: list[_Reader] = []
        self._reader: _Reader | None = None
        with self._changed:
            self._watch()
        if not wait:
            self._await_first_frame()

    @property
    def ended(self) -> bool:
        return self._closed

    @property
    def health(self) -> CameraHealth:
        with self._changed:
            self._watch()
            return CameraHealth(
                up=self._reader is not None and self._reader.frames > 0,
                frames=self._number,
                dropped=self._dropped,
                broken=self._broken,
                reconnects=self._reconnects,
                error=self._error.message if self._error else "",
            )

    def now(self) -> float:
        return time.monotonic()

    def frame(self, timeout: float) -> Frame | None:
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                self._watch()
                newest, self._newest = self._newest, None
                left = until - time.monotonic()
                if newest is not None or self._closed or left <= 0:
                    return None if self._closed else newest
                self._changed.wait(min(left, 0.02 * self._stall_seconds))

    def _await_first_frame(self) -> None:
        """CameraError if the first attempt to open the camera fails."""
        try:
            with self._changed:
                while self._newest is None:
                    self._watch()
                    if self._error is not None:
                        raise self._error
                    self._changed.wait(0.1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._changed:
            self._closed = True
            reader, self._reader = self._reader, None
            self._newest = None
            self._changed.notify_all()
        if reader is not None:
            reader.interrupt()
            reader.join(0.8)

    def _watch(self) -> None:
        """Give up a reader that hangs, and start one when it is time. Whoever asks for frames or health comes by here."""
        now = time.monotonic()
        reader = self._reader
        if self._closed:
            return
        if reader is not None:
            patience = self._stall_seconds if reader.frames else max(OPEN_SECONDS, self._stall_seconds)
            if now - reader.heard > 0.95 * patience:  # so that it is noticed within that time
                self._hung.append(reader)
                reader.interrupt()
                self.lose(reader, CameraError(f"No picture for {patience:g} seconds.", "Check the camera and its cable."))
        elif now >= self._retry_at:
            self._hung = [hung for hung in self._hung if hung.is_alive()]
            if len(self._hung) < MAX_HUNG:
                self._reader = _Reader(self, self._connect)
                self._reader.start()

    # What the reader's thread calls. A reader that was given up is not the camera's any more: what it says is not heard.

    def is_read_by(self, reader: _Reader) -> bool:
        return self._reader is reader

    def take(self, reader: _Reader, image: NDArray[Any] | None, captured: float, passed_over: int) -> None:
        picture = _bgr(image)
        with self._changed:
            if self._reader is not reader:
                return
            is_back = self._error is not None and self._number > 0
            self._number += passed_over
            self._dropped += passed_over
            if picture is None:
                self._broken += 1
                return
            if is_back:
                self._reconnects += 1
                log.info("the camera %s is back", self.name)
            self._error = None
            self._failures = 0
            self._number += 1
            self._dropped += self._newest is not None
            self._newest = Frame(image=picture, captured=captured, number=self._number)
            reader.frames += 1
            reader.heard = time.monotonic()
            self._changed.notify_all()

    def lose(self, reader: _Reader, error: CameraError) -> None:
        with self._changed:
            if self._reader is not reader:
                return
            if self._error is None and (self._wait or self._number):  # else the caller is told
                log.warning("no pictures of the camera %s: %s", self.name, error)
            first, longest = RETRY_SECONDS
            self._retry_at = time.monotonic() + min(longest, first * 2.0 ** min(self._failures, 30))
            self._failures += 1
            self._error = error
            self._reader = None
            self._changed.notify_all()


class Recording(Camera):
    """A video file or a folder of images: every frame in order, on the recording's own clock."""

    live = False

    def __init__(self, name: str, pictures: Iterator[tuple[NDArray[Any] | None, float]]) -> None:
        super().__init__(name)
        self._pictures = pictures
        self._lock = threading.Lock()
        self._number = self._broken = 0
        self._captured = self._handed_out = self._start = time.monotonic()
        self._next = self._read()
        if self._next is None:
            raise CameraError(f"{name} holds no picture that can be read.", "Is it a video that other programs play?")

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
            return self._captured + (time.monotonic() - self._handed_out if self._number else 0)

    def frame(self, timeout: float) -> Frame | None:
        with self._lock:
            if self._next is None:
                return None
            image, self._captured = self._next
            self._number += 1
            self._next = self._read()
            self._handed_out = time.monotonic()
            return Frame(image=image, captured=self._captured, number=self._number)

    def close(self) -> None:
        with self._lock:
            self._next = None
            self._pictures = iter(())

    def _read(self) -> tuple[NDArray[np.uint8], float] | None:
        """The next good picture, and its time."""
        for image, position in self._pictures:
            picture = _bgr(image)
            if picture is not None:
                return picture, self._start + position
            self._broken += 1
        return None
