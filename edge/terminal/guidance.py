"""What a face of a frame should do next, for the page that visitors see."""

from edge.camera.base import Frame
from edge.decision.door import Decision
from edge.events.view import WELCOME_SECONDS, Guidance
from edge.vision.detect import Face
from edge.vision.quality import (
    BLURRED,
    CUT_OFF,
    FULL_SIZE,
    LOW_CONTRAST,
    TOO_BRIGHT,
    TOO_CLOSE,
    TOO_DARK,
    TOO_SMALL,
    TURNED_AWAY,
)
from edge.vision.recognize import Recognition

LARGE = 0.5  # a face that is cut off is too close if it fills more than this part of the frame's width or height

BY_REASON = {
    TOO_SMALL: Guidance.CLOSER,
    TURNED_AWAY: Guidance.LOOK,
    TOO_DARK: Guidance.LIGHT,
    TOO_BRIGHT: Guidance.LIGHT,
    LOW_CONTRAST: Guidance.LIGHT,
    BLURRED: Guidance.STILL,
    TOO_CLOSE: Guidance.BACK,
}
"""For each reason of a low quality, except CUT_OFF."""


def guide(frame: Frame, face: Face, *, decision: Decision | None, prompt: str | None, seen: Recognition | None) -> Guidance:
    """Return the guidance for a face: from the decision about its visit, its prompt, and the last look at it."""
    if decision is not None:
        if decision.outcome != "granted":
            return Guidance.DENIED
        return Guidance.GRANTED if frame.captured - decision.captured <= WELCOME_SECONDS else Guidance.AGAIN
    if prompt is not None:
        return Guidance(prompt)
    if seen is None or seen.quality is None:
        return Guidance.WAIT
    reason = seen.quality.reason
    if reason == CUT_OFF:
        return Guidance.BACK if _is_large(frame, face) else Guidance.CENTRE
    if reason is not None:
        return BY_REASON[reason]
    # A larger face is recognised better, up to a size.
    return Guidance.CLOSER if seen.label is None and seen.quality.size < FULL_SIZE else Guidance.WAIT


def _is_large(frame: Frame, face: Face) -> bool:
    left, top, right, bottom = face.box_xyxy
    height, width = frame.image.shape[:2]
    return bool(right - left > LARGE * width or bottom - top > LARGE * height)
