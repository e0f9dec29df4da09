"""The liveness challenge asks the visitor to turn the head or to nod. docs/guide/liveness.md lists what it does not stop.

Also the rule that says from several frames whether a face looks like a picture. edge/vision/liveness.py measures the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import ParameterError

if TYPE_CHECKING:  # decisions do not load OpenCV
    from edge.vision.liveness import Relief, Surface

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

SHORTER, SLIMMER = 1.25, 2.0  # by at most so much of what its nose moves, a head; a photo has to be tilted far for little
FRONTAL = 0.15  # how far from the middle the nose of a face that looks into the camera may lie
HELD = 2  # frames that must agree on where the head has turned to: one may be a slip of the detector
TOWARDS = 0.8  # the cosine of the angle by which a movement may miss its direction
GAP_SECONDS = 0.5  # out of sight for longer, and it may be another face

PICTURE = "looks like a picture"
RIPPLE = 4.5  # a peak in the spectrum of a face, over what lies around it: of heads and a real video at most 3.2
EDGES, EDGES_MOVE = 3, 0.0015  # sides of a picture that are seen; face widths by which they move from frame to frame


@dataclass(frozen=True, kw_only=True)
class LivenessSettings:
    """Photos held up to the camera. Off unless asked for; docs/guide/liveness.md says what this does not stop."""

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
