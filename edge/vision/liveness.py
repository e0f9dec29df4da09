"""A head, or a picture of one? A challenge: turn your head, or nod, when asked to. docs/liveness.md: what it does not stop.

Five points of a plane keep two numbers however the plane is turned, tilted, moved or brought closer: where the fifth lies once
a homography has put the other four into fixed places. Here the four are the eyes and the corners of the mouth, and the fifth
is the nose, which stands out of their plane. Of a photo that is waved about it stays in place; of a head that turns it moves.

And a look at the picture itself, which asks nobody for anything: the ripples of a screen's grid, straight edges that move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import ParameterError

PROMPTS = {
    "left": "Turn your head to the left, and back.",
    "right": "Turn your head to the right, and back.",
    "down": "Nod: look down, and up again.",
}
"""What may be asked. Left and right are the visitor's own. Not up: from below YuNet's nose hardly moves; nor to blink: it has
no eyelids."""
NOT_MET = "challenge not met"
LATE, WRONG, LOST = "too late", "another movement", "lost from sight"
NOT_ALONE, OTHER = "not alone", "somebody else"

CORNERS = np.array([[-0.5, 0], [0.5, 0], [-0.36, 1.1], [0.36, 1.1]], np.float32)  # eyes and mouth, in eye distances
NOD = 0.8  # of a nod the nose moves less than of a turn to a side
SHORTER, SLIMMER = 1.25, 2.0  # by at most so much of what its nose moves, a head; a photo has to be tilted far for little
FRONTAL = 0.15  # how far from the middle the nose of a face that looks into the camera may lie
HELD = 2  # frames that must agree on where the head has turned to: one may be a slip of the detector
TOWARDS = 0.8  # the cosine of the angle by which a movement may miss its direction
GAP_SECONDS = 0.5  # out of sight for longer, and it may be another face

PICTURE = "looks like a picture"
RIPPLE = 4.5  # a peak in the spectrum of a face, over what lies around it: of heads and a real video at most 3.2
EDGES, EDGES_MOVE = 3, 0.0015  # sides of a picture that are seen; face widths by which they move from frame to frame
SQUARE, LEAST = 128, 64  # pixels in which ripples are looked for


@dataclass(frozen=True, kw_only=True)
class LivenessSettings:
    """Photos held up to the camera. Off unless asked for; docs/liveness.md says what this does not stop."""

    challenge: bool = False
    """Ask whoever would be let in to turn the head or to nod, as chosen at random."""
    turns: int = 2
    """How often: a recorded video does the right thing once in 3, twice in 9, three times in 27 cases."""
    challenge_seconds: float = 6.0
    """Time for each."""
    min_turn: float = 0.12
    """How far the nose must move before the plane of the face, in eye distances: 0.12 is a turn by about 25 degrees."""
    mirrored: bool = False
    """The camera shows people as a mirror does."""
    screen: bool = False
    """Refuse faces with the ripples of a screen on them, or with straight edges around them that move: a phone, a print."""

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= 10:
            raise ParameterError(f"turns must be between 1 and 10, not {self.turns}")
        if not 1 <= self.challenge_seconds <= 60:
            raise ParameterError(f"challenge_seconds must be between 1 and 60, not {self.challenge_seconds:g}")
        if not 0.05 <= self.min_turn <= 0.3:
            raise ParameterError(f"min_turn must be between 0.05 and 0.3, not {self.min_turn:g}")

    def way(self, prompt: str) -> tuple[float, float]:
        """Where the nose goes in the frame when the visitor does what was asked: x to the right, y down."""
        x, y = {"left": (1.0, 0.0), "right": (-1.0, 0.0), "down": (0.0, 1.0)}[prompt]
        return (-x if self.mirrored else x, y)


class Relief(NamedTuple):
    """How a face stands out, from its five landmarks. Of a flat picture x and y are the same in every view."""

    x: float
    """Where the nose lies, to the right of the middle between the eyes..."""
    y: float
    """...and below it, in eye distances, once eyes and mouth are in their places."""
    slim: float
    """Logarithm of height over width, of eyes and mouth."""

    def moved(self, rest: Relief) -> tuple[float, float]:
        """By how much the nose has, since it was at rest: to the right, and down."""
        return self.x - rest.x, (self.y - rest.y) / NOD


def relief(landmarks: NDArray[Any]) -> Relief | None:
    """Of landmarks (5, 2). None where they are no face."""
    points = np.asarray(landmarks, np.float32)
    if points.shape != (5, 2) or not np.isfinite(points).all():
        return None
    eyes_and_mouth = points[[0, 1, 3, 4]]
    if not cv2.isContourConvex(eyes_and_mouth[[0, 1, 3, 2]]):
        return None
    x, y, w = map(float, cv2.getPerspectiveTransform(eyes_and_mouth, CORNERS) @ (*points[2], 1.0))
    eyes, mouth = points[1] - points[0], points[4] - points[3]
    across = math.hypot(*eyes) + math.hypot(*mouth)
    down = math.hypot(*(points[3] + points[4] - points[0] - points[1]))
    found = Relief(x / (w or math.nan), y / (w or math.nan), math.log(down / across))
    return found if all(map(math.isfinite, found)) else None


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a challenge sees of its visitor in one frame."""

    captured: float
    """When it was taken."""
    label: str | None
    """Whom the face was recognised as."""
    relief: Relief | None
    """None where the frame is of no use."""
    is_alone: bool
    """Whether there is no other face."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """Of one visit. At first it waits for a face that looks into the camera alone; then it asks for `turns` movements."""

    label: str
    """Who would be let in."""
    since: float
    """When the movement was asked for, or the waiting began."""
    last: float
    """When the face was last seen."""
    prompt: str | None = None
    """The movement that is asked for; None while waiting."""
    rest: Relief | None = None
    """How the face stood before; None while waiting."""
    held: int = 0
    """Frames in a row in which the head is turned: as asked if above 0, in another way if below."""
    is_out: bool = False
    """Whether the head has turned as asked, and has only to come back."""
    is_known: bool = False
    """Whether the person was recognised on the way, too: a photo may be taken away for a moment, and a head be shown."""
    done: int = 0
    """Movements that were made, out and back."""

    def asked(self, prompt: str, rest: Relief, now: float) -> Challenge:
        return replace(self, prompt=prompt, rest=rest, since=now, held=0, is_out=False, is_known=False)

    def faces(self, look: Look, settings: LivenessSettings) -> bool:
        """Whether the head is as it was before."""
        if look.relief is None or self.rest is None:
            return False
        return math.hypot(*look.relief.moved(self.rest)) <= settings.min_turn / 2

    def seen(self, look: Look, settings: LivenessSettings) -> Challenge | str:
        """The challenge after one more frame; or why it is not met."""
        if look.label not in (None, self.label):
            return OTHER
        if self.prompt is not None and not look.is_alone:
            return NOT_ALONE
        if not 0 < look.captured - self.last <= GAP_SECONDS:
            return LOST
        if look.captured - self.since > settings.challenge_seconds:
            return LATE
        after = replace(self, last=look.captured)
        if self.prompt is None or self.rest is None or look.relief is None or self.done == settings.turns:
            return after
        x, y = look.relief.moved(self.rest)
        far, way = math.hypot(x, y), settings.way(self.prompt)
        towards = x * way[0] + y * way[1] >= TOWARDS * far
        if look.label is not None and towards and far >= settings.min_turn / 2:
            after = replace(after, is_known=True)
        if self.is_out:
            return replace(after, done=self.done + 1) if after.is_known and self.faces(look, settings) else after
        if far < settings.min_turn or not -SHORTER * far <= look.relief.slim - self.rest.slim <= SLIMMER * far:
            return replace(after, held=0)
        held = max(self.held, 0) + 1 if towards else min(self.held, 0) - 1
        return WRONG if held <= -HELD else replace(after, held=held, is_out=held >= HELD)


class Surface(NamedTuple):
    """What one frame shows of what the face may be on."""

    ripple: float
    """The highest peak in the spectrum of the face, over what lies around it."""
    width: float
    """Of the face, in pixels."""
    sides: tuple[float, float, float, float]
    """Where in the frame the next straight edges are: x of those to the left and right, y of those above and below. nan where
    there is none."""


def surface(grey: NDArray[np.uint8], box_xyxy: Sequence[float]) -> Surface:
    """Of a face in a grey frame."""
    return Surface(_ripple(grey, box_xyxy), max(box_xyxy[2] - box_xyxy[0], 1.0), _sides(grey, box_xyxy))


def picture(surfaces: Sequence[Surface]) -> str | None:
    """Why the face of some frames, one after another, looks like a picture of a face; or None."""
    if not surfaces:
        return None
    if float(np.median([seen.ripple for seen in surfaces])) >= RIPPLE:
        return f"{PICTURE}: ripples of a screen"
    sides = np.array([seen.sides for seen in surfaces])
    steps = np.abs(np.diff(sides, axis=0)) / np.median([seen.width for seen in surfaces])
    framed = np.isfinite(steps).sum(axis=1) >= EDGES  # of static ones, a window or a door frame, all stay where they are
    if framed.any() and framed.mean() >= 0.5 and float(np.nanmedian(steps[framed])) >= EDGES_MOVE:
        return f"{PICTURE}: edges that move"
    return None


def _ripple(grey: NDArray[np.uint8], box_xyxy: Sequence[float]) -> float:
    left, top, right, bottom = np.clip(np.rint(box_xyxy), 0, grey.shape[::-1] * 2).astype(int)
    side = min(SQUARE, right - left, bottom - top)
    if side < LEAST:
        return 0.0
    x, y = (left + right - side) // 2, (top + bottom - side) // 2
    face = grey[y : y + side, x : x + side].astype(np.float32)
    window = np.hanning(side).astype(np.float32)
    fine = (face - cv2.GaussianBlur(face, (0, 0), 2.0)) * np.outer(window, window)
    spectrum = np.abs(np.fft.fftshift(np.fft.fft2(fine))).astype(np.float32)
    across, down = np.meshgrid(*[np.arange(side) - side // 2] * 2)
    radius = np.hypot(across, down) / side  # in cycles per pixel
    ring = (radius > 0.09) & (radius < 0.5)
    around = cv2.medianBlur(spectrum, 5) + 0.3 * spectrum[ring].mean()
    return float((spectrum[ring] / np.maximum(around[ring], 1e-6)).max())


def _sides(grey: NDArray[np.uint8], box_xyxy: Sequence[float]) -> tuple[float, float, float, float]:
    """Of lines nearly as long as the face, those next to it on each side, and near enough to be a picture's."""
    left, top, right, bottom = box_xyxy
    size, middle = np.array([right - left, bottom - top]), np.array([left + right, top + bottom]) / 2
    nearest = np.array([[-np.inf, np.inf]] * 2)
    found = cv2.HoughLinesP(
        cv2.Canny(grey, 40, 120), 1, np.pi / 360, 40, minLineLength=0.7 * float(size[1]), maxLineGap=0.06 * float(size[1])
    )
    for ends in [] if found is None else found.reshape(-1, 2, 2).astype(float):
        along = ends[1] - ends[0]
        axis = int(abs(along[0]) > abs(along[1]))  # 0: an upright line, at some x
        other = 1 - axis
        slanted = abs(along[axis]) > 0.36 * abs(along[other])
        past = np.abs(np.clip(middle[other], *sorted(ends[:, other])) - middle[other]) < 0.3 * size[other]
        if slanted or not past:
            continue
        at = ends[0, axis] + along[axis] * (middle[other] - ends[0, other]) / along[other]
        away = (at - middle[axis]) / size[axis]
        if -2 < away < -0.45:
            nearest[axis, 0] = max(nearest[axis, 0], at)
        elif 0.45 < away < 2:
            nearest[axis, 1] = min(nearest[axis, 1], at)
    one, two, three, four = np.where(np.isfinite(nearest), nearest, np.nan).ravel().tolist()
    return one, two, three, four
