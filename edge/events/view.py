"""The view: a frame with its marks, and the contract of those who show or store it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge.camera.base import Frame


WELCOME_SECONDS = 3.0
"""Time after a grant in which a visitor is welcomed. Later the door may be locked again."""


class Guidance(StrEnum):
    """What a visitor should see. It says nothing about why a person is denied."""

    LOOK = "look"
    """Look here: there is no face, or it is turned away."""
    CLOSER = "closer"
    BACK = "back"
    CENTRE = "centre"
    STILL = "still"
    LIGHT = "light"
    WAIT = "wait"
    LEFT = "left"
    """This and the next two are the prompts of the liveness challenge."""
    RIGHT = "right"
    DOWN = "down"
    GRANTED = "granted"
    DENIED = "denied"
    AGAIN = "again"
    """Granted a while ago. The next decision needs a new visit."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One face on a frame, with its state."""

    box_xyxy: tuple[float, float, float, float]
    """Left, top, right, bottom in frame pixels."""
    landmarks: "NDArray[Any] | None" = None
    """Points (N, 2) in frame pixels."""
    text: str = ""
    """The first line: a label or a prompt."""
    detail: str = ""
    """A second, smaller line: the reason or a number."""
    state: str = "watching"
    """granted, denied, watching, or unusable (quality too low)."""
    guidance: Guidance = Guidance.WAIT
    """What this person should see."""
    visit: int | None = None
    """Number of the visit, as in its events."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A frame with its marks."""

    frame: "Frame"
    """The frame, without marks."""
    marks: Sequence[Mark] = ()
    """One mark for each face on it."""


class Viewer(Protocol):
    """Receives a view of each frame."""

    def show(self, view: View) -> None:
        """Take a view. Must return at once: a viewer that encodes or writes uses a Worker."""
