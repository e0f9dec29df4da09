"""Cameras that are a stage: what stands before them is made up, and their clock stands still between frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.camera.base import Camera, CameraHealth, Frame
from tests.fixtures.orl_door import FPS


class Play(Camera):
    """A live camera before which something is played. No test with it depends on how fast the machine is."""

    live = True
    ended = False

    def __init__(self, name: str = "a stage", *, clock: float = 1000.0, fps: float = FPS) -> None:
        super().__init__(name)
        self.clock, self.given, self._fps = clock, 0, fps

    def picture(self) -> Any:
        """What is seen at `clock`, in frame number `given`; None where there is no frame."""
        raise NotImplementedError

    def stamp(self) -> float:
        """When that frame was taken."""
        return self.clock

    @property
    def health(self) -> CameraHealth:
        return CameraHealth(up=True, frames=self.given, dropped=0, broken=0, reconnects=0, error="")

    def now(self) -> float:
        return self.clock

    def frame(self, timeout: float) -> Frame | None:
        self.clock += 1 / self._fps
        self.given += 1
        image = self.picture()
        return None if image is None else Frame(image=image, captured=self.stamp(), number=self.given)

    def close(self) -> None:
        """Nothing to close."""


class Stage(Play):
    """The scenes, one after the other."""

    def __init__(self, *scenes: Any, age: float = 0.0, stamps: Callable[[int, float], float] | None = None) -> None:
        super().__init__()
        self._images = [image for scene in scenes for image in scene]
        self._stamps = stamps or (lambda number, now: now - age)

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self.given == len(self._images)

    def picture(self) -> Any:
        return self._images[self.given - 1]

    def stamp(self) -> float:
        return self._stamps(self.given, self.clock)
