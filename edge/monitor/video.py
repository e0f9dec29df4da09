"""A video of the views that the terminal saw."""

import logging
import os
import tempfile
from pathlib import Path

import cv2
import numpy as np

from edge.errors import UsageError
from edge.events.view import View
from edge.events.worker import Worker
from edge.monitor.annotate import Image, draw

DEFAULT_FPS = 10.0
CAPACITY = 8
CLOSE_SECONDS = 60.0
CODECS = {".mp4": "mp4v", ".avi": "MJPG"}

log = logging.getLogger(__name__)


class VideoWriter(Worker[View]):
    """A viewer that writes an .mp4 or .avi file with a constant frame rate.

    Without `fps` the rate is that of the first two frames. Gaps are filled, up to a second, and a frame too many is left out.
    With `live`, frames that do not fit into the queue are dropped; without, the caller waits.
    """

    def __init__(self, path: str | Path, fps: float | None = None, *, live: bool = False) -> None:
        self.path, self.written = Path(path), 0
        if fps is not None and not 0 < fps <= 240:
            raise UsageError(f"A video cannot have {fps:g} frames per second.", "Use a number from 1 to 240.")
        if self.path.suffix.lower() not in CODECS:
            raise UsageError(f"{path} is not a supported video.", f"Use a name that ends in {' or '.join(CODECS)}.")
        if self.path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file in it.")
        self._fps = fps or 0.0
        try:  # private, because it shows faces; the suffix gives OpenCV the format
            handle, name = tempfile.mkstemp(f".part{self.path.suffix.lower()}", f".{self.path.stem}.", self.path.parent)
        except OSError as error:
            problem = f"{path} cannot be written ({error.strerror})."
            raise UsageError(problem, "Choose an existing folder that you own.") from None
        os.close(handle)
        self._part = Path(name)
        self._writer: cv2.VideoWriter | None = None
        self._size = (0, 0)
        self._start = 0.0
        self._first: View | None = None
        self._last: Image | None = None
        super().__init__(
            self._write,
            name=f"the video {self.path.name}",
            capacity=CAPACITY,
            wait_if_full=not live,
            close_seconds=CLOSE_SECONDS,
            finish=self._end,
        )

    def show(self, view: View) -> None:
        self.handle(view)

    def _write(self, view: View) -> None:
        if not self._fps:
            if self._first is None:
                self._first = view
                return
            seconds = view.frame.captured - self._first.frame.captured
            self._fps = round(min(max(1 / seconds if seconds > 0 else DEFAULT_FPS, 1), 60), 2)
            self._write_at_rate(self._first)
        self._write_at_rate(view)

    def _end(self) -> None:
        """Complete the file and give it its name. Without a frame there is no file."""
        try:
            if not self._fps and self._first is not None:
                self._fps = DEFAULT_FPS
                self._write_at_rate(self._first)
        finally:
            if self._writer is not None:
                self._writer.release()
            if self.written:
                os.replace(self._part, self.path)
            else:
                self._part.unlink(missing_ok=True)
                log.warning("%s was not written: there was no frame", self.path)

    def _write_at_rate(self, view: View) -> None:
        image = draw(view)
        writer = self._writer or self._open(image, view.frame.captured)
        width, height = self._size
        frame = image if image.shape[:2] == (height, width) else np.asarray(cv2.resize(image, self._size), np.uint8)
        missing = round((view.frame.captured - self._start) * self._fps) + 1 - self.written
        second = max(1, round(self._fps))
        if missing > second:  # the camera was lost: the video's clock stands still for the rest
            self._start += (missing - second) / self._fps
            missing = second
        for _ in range(missing - 1):
            writer.write(frame if self._last is None else self._last)
        if missing > 0:
            writer.write(frame)
            self.written += missing
        self._last = frame

    def _open(self, image: Image, captured: float) -> cv2.VideoWriter:
        height, width = image.shape[:2]
        self._size, self._start = (width - width % 2, height - height % 2), captured  # codecs need even sizes
        code = cv2.VideoWriter.fourcc(*CODECS[self.path.suffix.lower()])
        writer = cv2.VideoWriter(str(self._part), code, self._fps, self._size)
        if not writer.isOpened():
            raise RuntimeError("OpenCV has no encoder for this kind of video")
        self._writer = writer
        return writer
