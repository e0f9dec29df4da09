"""Cameras with simulated images. Their clock moves only from frame to frame: no test depends on the speed of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.camera.base import Camera, CameraHealth, Frame
from tests.fixtures.noise import with_noise
from tests.fixtures.orl_door import FPS


class SimulatedCamera(Camera):
    """A live camera whose images come from a subclass."""

    live = True
    ended = False
    has_noise = True
    """Whether each image differs from all others, as those of a sensor do."""

    def __init__(self, name: str = "simulated", *, clock: float = 1000.0, fps: float = FPS) -> None:
        super().__init__(name)
        self.clock, self.number, self._fps = clock, 0, fps

    def image(self) -> Any:
        """Return the image at `clock`, of frame `number`, or None if there is no frame."""
        raise NotImplementedError

    def captured(self) -> float:
        """Return the capture time of the current frame."""
        return self.clock

    @property
    def health(self) -> CameraHealth:
        return CameraHealth(up=True, frames=self.number, dropped=0, broken=0, reconnects=0, error="")

    def now(self) -> float:
        return self.clock

    def frame(self, timeout: float) -> Frame | None:
        self.clock += 1 / self._fps
        self.number += 1
        image = self.image()
        if image is None:
            return None
        image = with_noise(image, self.number) if self.has_noise else image
        return Frame(image=image, captured=self.captured(), number=self.number)

    def close(self) -> None:
        """Nothing to close."""


class SceneCamera(SimulatedCamera):
    """Shows scenes, one after the other. `stamps` computes a capture time from frame number and clock."""

    def __init__(
        self, *scenes: Any, age: float = 0.0, stamps: Callable[[int, float], float] | None = None, fps: float = FPS
    ) -> None:
        super().__init__(fps=fps)
        self._images = [image for scene in scenes for image in scene]
        self._stamps = stamps or (lambda number, now: now - age)

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self.number == len(self._images)

    def image(self) -> Any:
        return self._images[self.number - 1]

    def captured(self) -> float:
        return self._stamps(self.number, self.clock)


class RepeatingCamera(SceneCamera):
    """A camera without noise: equal images have equal pixels. It is lost while the image is None."""

    has_noise = False

    @property
    def health(self) -> CameraHealth:
        up = self.number == 0 or self.image() is not None
        return CameraHealth(up=up, frames=self.number, dropped=0, broken=0, reconnects=0, error="" if up else "no cable")
