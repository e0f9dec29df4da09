"""Drawing: boxes, labels and reasons on a frame."""

import unicodedata
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.events.view import Mark, View

Image = NDArray[np.uint8]

COLOURS = {  # by state of a mark, BGR
    "granted": (94, 197, 34),
    "denied": (68, 68, 239),
    "watching": (248, 189, 56),
    "unusable": (36, 191, 251),
}
INK, PAPER = (24, 20, 16), (255, 255, 255)
FONT = cv2.FONT_HERSHEY_DUPLEX


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
