"""Drawing: boxes, labels and reasons on a frame, and a video of such frames."""

import logging
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import UsageError
from edge.events.view import Mark, View
from edge.events.worker import Worker

Image = NDArray[np.uint8]

COLOURS = {  # by state of a mark, BGR
    "granted": (94, 197, 34),
    "denied": (68, 68, 239),
    "watching": (248, 189, 56),
    "unusable": (36, 191, 251),
}
INK, PAPER = (24, 20, 16), (255, 255, 255)
FONT = cv2.FONT_HERSHEY_DUPLEX
DEFAULT_FPS = 10.0
CAPACITY = 8
CLOSE_SECONDS = 60.0
CODECS = {".mp4": "mp4v", ".avi": "MJPG"}

log = logging.getLogger(__name__)


def draw(view: View) -> Image:
    """Return a copy of the frame (H, W, 3) with the marks."""
    canvas: Image = np.ascontiguousarray(view.frame.image).copy()
    unit = max(min(canvas.shape[:2]) / 480, 0.4)  # scale of the sizes below, which are pixels at 480 lines
    shown = [mark for mark in view.marks if np.isfinite(mark.box_xyxy).all()][::-1]  # the first, and largest, on top
    for mark in shown:
        _draw_face(canvas, mark, unit)
    for mark in shown:
        _draw_label(canvas, mark, unit)
    return canvas


def to_ascii(text: str) -> str:
    """Return text that cv2 can draw: accents are dropped, other letters become question marks."""
    plain = "".join(part for part in unicodedata.normalize("NFKD", text) if not unicodedata.combining(part))
    return "".join(letter if " " <= letter <= "~" else "?" for letter in plain)


def _draw_face(canvas: Image, mark: Mark, unit: float) -> None:
    height, width = canvas.shape[:2]
    colour = _colour(mark)
    left, top, right, bottom = _corners(canvas, mark)
    thin, thick = max(1, round(unit)), max(2, round(3 * unit))
    cv2.rectangle(canvas, (left, top), (right, bottom), colour, thin, cv2.LINE_AA)
    arm = min(right - left, bottom - top) // 5
    for x, along in ((left, arm), (right, -arm)):
        for y, down in ((top, arm), (bottom, -arm)):
            cv2.line(canvas, (x, y), (x + along, y), colour, thick, cv2.LINE_AA)
            cv2.line(canvas, (x, y), (x, y + down), colour, thick, cv2.LINE_AA)
    if mark.landmarks is not None:
        for x, y in np.asarray(mark.landmarks, float).reshape(-1, 2).tolist():
            if 0 <= x < width and 0 <= y < height:
                cv2.circle(canvas, (round(x), round(y)), max(1, round(2 * unit)), PAPER, -1, cv2.LINE_AA)


def _draw_label(canvas: Image, mark: Mark, unit: float) -> None:
    """Draw text and detail on a plate above the box, or below it if there is no room, always inside the frame."""
    height, width = canvas.shape[:2]
    left, top, _, bottom = _corners(canvas, mark)
    pad = max(3, round(6 * unit))
    wanted = ((mark.text, 0.62 * unit), (mark.detail, 0.45 * unit))
    lines = [_fitted(to_ascii(text), scale, width - 2 * pad) for text, scale in wanted if text]
    if not lines:
        return
    plate_width = max(line.width for line in lines) + 2 * pad
    plate_height = sum(line.height for line in lines) + pad * (len(lines) + 1)
    above, below = top - plate_height - pad // 2, bottom + pad // 2
    x = max(0, min(left, width - plate_width))
    y = max(0, above if above >= 0 else min(below, height - plate_height))
    cv2.rectangle(canvas, (x, y), (x + plate_width, y + plate_height), _colour(mark), -1)
    for line in lines:
        y += pad + line.height
        cv2.putText(canvas, line.text, (x + pad, y), FONT, line.scale, INK, line.weight, cv2.LINE_AA)


class _Line(NamedTuple):
    text: str
    scale: float
    weight: int
    width: int
    height: int


def _fitted(text: str, scale: float, width: int) -> _Line:
    """Return `text` at `scale` or the smallest readable scale, cut to fit `width`."""
    scale = max(scale, 0.36)
    weight = max(1, round(scale))
    shown, length = text, min(len(text), 80)
    while (size := cv2.getTextSize(shown, FONT, scale, weight)[0])[0] > width and length > 0:
        length -= 1
        shown = text[:length] + ".."
    return _Line(shown, scale, weight, *size)


def _colour(mark: Mark) -> tuple[int, int, int]:
    return COLOURS.get(mark.state, COLOURS["watching"])


def _corners(canvas: Image, mark: Mark) -> tuple[int, int, int, int]:
    height, width = canvas.shape[:2]
    left, top, right, bottom = np.clip(np.round(mark.box_xyxy), 0, (width - 1, height - 1) * 2).astype(int).tolist()
    return left, top, max(left, right), max(top, bottom)


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
