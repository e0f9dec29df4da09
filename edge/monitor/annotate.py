"""What the terminal saw, drawn: boxes, names and reasons on a frame, and a video of such frames."""

from __future__ import annotations

import logging
import os
import queue
import tempfile
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import UsageError

if TYPE_CHECKING:
    from edge.camera.base import Frame

log = logging.getLogger(__name__)

Image = NDArray[np.uint8]

COLOURS = {  # BGR
    "granted": (94, 197, 34),
    "denied": (68, 68, 239),
    "watching": (248, 189, 56),
    "refused": (36, 191, 251),
}
INK, PAPER = (24, 20, 16), (255, 255, 255)
FONT = cv2.FONT_HERSHEY_DUPLEX
DEFAULT_FPS = 10.0
CODECS = {".mp4": "mp4v", ".avi": "MJPG"}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One face on a frame, and what is thought of it."""

    box_xyxy: tuple[float, float, float, float]
    """Left, top, right, bottom in frame pixels."""
    landmarks: NDArray[Any] | None = None
    """Points (N, 2) in frame pixels."""
    text: str = ""
    """The name. cv2 draws ASCII only: accents are dropped, and other letters become question marks."""
    detail: str = ""
    """A second, smaller line: the reason, a number."""
    colour: str = "watching"
    """granted, denied, watching, or refused (not good enough to judge)."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A frame with its marks: what the video and the preview show."""

    frame: Frame
    marks: Sequence[Mark] = ()
    caption: str = ""
    """One line at the bottom."""

    def drawn(self) -> Image:
        return draw(self.frame.image, self.marks, self.caption)


def draw(image: Image, marks: Sequence[Mark], caption: str = "") -> Image:
    """A copy of `image` (H, W, 3) with the marks and the caption on it."""
    canvas = np.ascontiguousarray(image).copy()
    unit = max(min(canvas.shape[:2]) / 480, 0.4)  # of the sizes below: pixels at 480 lines
    shown = [mark for mark in marks if np.isfinite(mark.box_xyxy).all()][::-1]  # the first, and largest, on top
    for mark in shown:
        _draw_face(canvas, mark, unit)
    for mark in shown:
        _draw_label(canvas, mark, unit)
    if caption:
        _draw_caption(canvas, caption, unit)
    return canvas


def to_ascii(text: str) -> str:
    """The letters that cv2 can draw."""
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
    """Name and detail on a plate above the box, below it where there is no room, and always inside the frame."""
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
        line.write(canvas, (x + pad, y), INK)


def _draw_caption(canvas: Image, caption: str, unit: float) -> None:
    height, width = canvas.shape[:2]
    pad = max(3, round(6 * unit))
    line = _fitted(to_ascii(caption), 0.5 * unit, width - 2 * pad)
    canvas[-(line.height + 2 * pad) :] //= 3
    line.write(canvas, (pad, height - pad), PAPER)


@dataclass(frozen=True, kw_only=True)
class _Line:
    text: str
    scale: float
    weight: int
    width: int
    height: int

    def write(self, canvas: Image, at: tuple[int, int], ink: tuple[int, int, int]) -> None:
        cv2.putText(canvas, self.text, at, FONT, self.scale, ink, self.weight, cv2.LINE_AA)


def _fitted(text: str, scale: float, width: int) -> _Line:
    """`text` at `scale`, or larger where nobody could read it, cut where it is too long for `width`."""
    scale = max(scale, 0.36)
    weight = max(1, round(scale))
    shown, kept = text, min(len(text), 80)
    while (size := cv2.getTextSize(shown, FONT, scale, weight)[0])[0] > width and kept > 0:
        kept -= 1
        shown = text[:kept] + ".."
    return _Line(text=shown, scale=scale, weight=weight, width=size[0], height=size[1])


def _colour(mark: Mark) -> tuple[int, int, int]:
    return COLOURS.get(mark.colour, COLOURS["watching"])


def _corners(canvas: Image, mark: Mark) -> tuple[int, int, int, int]:
    height, width = canvas.shape[:2]
    left, top, right, bottom = np.clip(np.round(mark.box_xyxy), 0, (width - 1, height - 1) * 2).astype(int).tolist()
    return left, top, max(left, right), max(top, bottom)


class VideoWriterSink:
    """Writes views to an .mp4 or .avi file, at a constant rate, on a thread of its own.

    Without `fps` the rate is that of the first two frames. The video keeps the pace of the frames' times: one that comes late
    is preceded by copies of the one before it, for a second at most, and one too many is left out. With `live`, frames that
    the disk has no time for are dropped and counted; without, the caller waits, and every frame is written. The file has its
    name when it is complete and not before.
    """

    def __init__(self, path: str | Path, fps: float | None = None, *, live: bool = False) -> None:
        self.path, self.fps, self.live = Path(path), fps or 0.0, live
        self.written = self.dropped = self.failed = 0
        if fps is not None and not 0 < fps <= 240:
            raise UsageError(f"A video cannot have {fps:g} frames a second.", "Give it 1 to 240.")
        if self.path.suffix.lower() not in CODECS:
            raise UsageError(f"{path} is no video that can be written.", f"Let its name end in {' or '.join(CODECS)}.")
        if self.path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file in it.")
        self._part = _part_beside(self.path)
        self._writer: Any = None
        self._size = (0, 0)
        self._start = 0.0
        self._first: View | None = None
        self._last: Image | None = None
        self._queue: queue.Queue[View | None] = queue.Queue(maxsize=8)
        self._thread = threading.Thread(target=self._work, name="video", daemon=True)
        self._thread.start()

    def __enter__(self) -> VideoWriterSink:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def __call__(self, view: View) -> None:
        try:
            self._queue.put(view, block=not self.live)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Finish the file and give it its name. Without a single frame there is none."""
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join()
        if self._writer is not None:
            self._writer.release()
        if self.written:
            os.replace(self._part, self.path)
        else:
            self._part.unlink(missing_ok=True)
            log.warning("%s was not written: there was nothing to show", self.path)

    def _work(self) -> None:
        while (view := self._queue.get()) is not None:
            if self.fps:
                self._try(view)
            elif self._first is None:
                self._first = view
            else:
                apart = view.frame.captured - self._first.frame.captured
                self.fps = round(min(max(1 / apart if apart > 0 else DEFAULT_FPS, 1), 60), 2)
                self._try(self._first)
                self._try(view)
        if not self.fps and self._first is not None:
            self.fps = DEFAULT_FPS
            self._try(self._first)

    def _try(self, view: View) -> None:
        try:
            self._write(view)
        except Exception:
            self.failed += 1
            if self.failed == 1:
                log.exception("a frame could not be written to %s", self.path)

    def _write(self, view: View) -> None:
        image = view.drawn()
        if self._writer is None:
            self._open(image, view.frame.captured)
        frame = _letterboxed(image, self._size)
        missing = round((view.frame.captured - self._start) * self.fps) + 1 - self.written
        second = max(1, round(self.fps))
        if missing > second:  # the camera was away: the video goes on, and its clock stands still for the rest
            self._start += (missing - second) / self.fps
            missing = second
        for _ in range(missing - 1):
            self._writer.write(self._last)
        if missing > 0:
            self._writer.write(frame)
            self.written += missing
        self._last = frame

    def _open(self, image: Image, captured: float) -> None:
        height, width = image.shape[:2]
        self._size, self._start = (width + width % 2, height + height % 2), captured  # codecs want even sizes
        code = cv2.VideoWriter.fourcc(*CODECS[self.path.suffix.lower()])
        writer = cv2.VideoWriter(str(self._part), code, self.fps, self._size)
        if not writer.isOpened():
            raise RuntimeError("OpenCV has no encoder for this kind of video")
        self._writer = writer


def _part_beside(path: Path) -> Path:
    """An empty file in the same folder, private, as what it will show are faces. The suffix tells OpenCV the format."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=f".part{path.suffix.lower()}")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}).", "Choose a folder that exists and is yours."
        ) from None
    os.close(handle)
    return Path(name)


def _letterboxed(image: Image, size: tuple[int, int]) -> Image:
    """`image` as large as fits into size (width, height), centred on black."""
    width, height = size
    if image.shape[:2] == (height, width):
        return image
    scale = min(width / image.shape[1], height / image.shape[0])
    if not (scale >= 1 and width - image.shape[1] < 2 and height - image.shape[0] < 2):  # an odd size is only filled up
        fitted = (max(1, min(width, round(image.shape[1] * scale))), max(1, min(height, round(image.shape[0] * scale))))
        image = np.asarray(cv2.resize(image, fitted, interpolation=cv2.INTER_AREA), np.uint8)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    return canvas
