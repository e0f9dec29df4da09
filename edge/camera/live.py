"""A camera or stream that is read continuously. Only the newest frame is kept.

Opening and reading happen in a thread of their own, because either can hang forever in a driver or a library. A thread that
hangs is abandoned: its later results are ignored.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from edge.camera.base import OPEN_SECONDS, STALL_SECONDS, Camera, CameraHealth, Frame, Source, is_bgr
from edge.clock import boottime
from edge.errors import CameraError

RETRY_SECONDS = (0.5, 10.0)
"""The first and the longest pause before a lost camera is opened again. Each pause is twice the one before."""
MAX_HUNG_THREADS = 3
"""With this many abandoned threads, the camera is opened again only when one of them returns."""

log = logging.getLogger(__name__)


class _Reader(threading.Thread):
    """The thread of one connection."""

    def __init__(self, read: "Callable[[_Reader], None]", now: float) -> None:
        super().__init__(name="camera", daemon=True, target=read, args=(self,))
        self.frames, self.last_frame_at = 0, now
        self.source: Source | None = None

    def interrupt(self) -> None:
        if self.source is not None:
            self.source.interrupt()


class LiveCamera(Camera):
    """A live source that is opened again whenever it stalls or fails."""

    live = True

    def __init__(
        self,
        name: str,
        connect: Callable[[], Source],
        *,
        stall_seconds: float = STALL_SECONDS,
        wait: bool = False,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`connect` opens the source. Unless `wait` is true, the first attempt must give a frame, or CameraError is raised."""
        super().__init__(name)
        self._connect, self._wait, self._stall_seconds, self._clock = connect, wait, stall_seconds, clock
        self._changed = threading.Condition()
        self._closed = False
        self._newest: Frame | None = None
        self._number = self._dropped = self._broken = self._reconnects = 0
        self._error: CameraError | None = None
        self._pause, self._retry_at = RETRY_SECONDS[0], 0.0
        self._hung: list[_Reader] = []
        self._reader: _Reader | None = None
        try:
            with self._changed:
                self._supervise()
                while not wait and self._newest is None:
                    if self._error is not None:
                        raise self._error
                    self._changed.wait(0.1)
                    self._supervise()
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        return self._closed

    @property
    def health(self) -> CameraHealth:
        with self._changed:
            self._supervise()
            return CameraHealth(
                up=self._reader is not None and self._reader.frames > 0,
                frames=self._number,
                dropped=self._dropped,
                broken=self._broken,
                reconnects=self._reconnects,
                error=self._error.message if self._error else "",
            )

    def now(self) -> float:
        return self._clock()

    def frame(self, timeout: float) -> Frame | None:
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                self._supervise()
                newest, self._newest = self._newest, None
                left = until - time.monotonic()
                if newest is not None or self._closed or left <= 0:
                    return newest
                self._changed.wait(min(left, 0.02 * self._stall_seconds))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            reader, self._reader = self._reader, None
            self._newest = None
            self._changed.notify_all()
        if reader is not None:
            reader.interrupt()
            reader.join(0.8)

    def _supervise(self) -> None:
        """Abandon a reader that hangs, and start a new one when it is time. Every request for a frame or health calls this."""
        now = self._clock()
        reader = self._reader
        if self._closed:
            return
        if reader is not None:
            limit = self._stall_seconds if reader.frames else max(OPEN_SECONDS, self._stall_seconds)
            if now - reader.last_frame_at > 0.95 * limit:  # so that the stall is noticed within the limit
                self._hung.append(reader)
                reader.interrupt()
                self._lose(reader, CameraError(f"No frame for {limit:g} seconds.", "Check the camera and its cable."))
        elif now >= self._retry_at:
            self._hung = [hung for hung in self._hung if hung.is_alive()]
            if len(self._hung) < MAX_HUNG_THREADS:
                self._reader = _Reader(self._read, now)
                self._reader.start()

    # In the reader's thread. An abandoned reader has no effect.

    def _read(self, reader: _Reader) -> None:
        try:
            reader.source = source = self._connect()
            with contextlib.closing(source):
                while self._reader is reader:
                    self._add_frame(reader, *source.read())
        except CameraError as error:
            self._lose(reader, error)
        except Exception as error:  # drivers raise any type; the message may contain an address with a password
            self._lose(reader, CameraError(f"The camera failed with {type(error).__name__}."))

    def _add_frame(self, reader: _Reader, image: NDArray[Any] | None, captured: float, skipped: int) -> None:
        with self._changed:
            if self._reader is not reader:
                return
            is_back = self._error is not None and self._number > 0
            self._number += skipped
            self._dropped += skipped
            if not is_bgr(image):
                self._broken += 1
                return
            if is_back:
                self._reconnects += 1
                log.info("the camera %s is back", self.name)
            self._error, self._pause = None, RETRY_SECONDS[0]
            self._number += 1
            self._dropped += self._newest is not None
            self._newest = Frame(image=image, captured=captured, number=self._number)
            reader.frames += 1
            reader.last_frame_at = self._clock()
            self._changed.notify_all()

    def _lose(self, reader: _Reader, error: CameraError) -> None:
        with self._changed:
            if self._reader is not reader:
                return
            if self._error is None and (self._wait or self._number):  # otherwise the caller gets the error
                log.warning("no frames from the camera %s: %s", self.name, error)
            self._retry_at = self._clock() + self._pause
            self._pause = min(2 * self._pause, RETRY_SECONDS[1])
            self._error, self._reader = error, None
            self._changed.notify_all()
