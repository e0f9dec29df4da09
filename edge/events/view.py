"""The view: a frame with its marks, and the contract of those who show or store it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge.camera.base import Frame


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


@dataclass(frozen=True, kw_only=True)
class View:
    """A frame with its marks."""

    frame: "Frame"
    marks: Sequence[Mark] = ()


class Viewer(Protocol):
    """Receives a view of each frame."""

    def show(self, view: View) -> None:
        """Take a view. Must return at once: a viewer that encodes or writes uses a Worker."""
