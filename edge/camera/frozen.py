"""Notice a camera that repeats itself: a driver, a cable or an attacker may send one picture for ever."""

import math
import zlib
from collections import deque

import numpy as np

from edge.camera.base import FROZEN_SECONDS, Frame

MEMORY = 32
"""Frames that are remembered: a driver may repeat a few old buffers in turn. The noise of a sensor never repeats."""


class FrozenCheck:
    """Distinguishes new frames from repeated ones. Give it every frame, also after the camera was lost and came back."""

    def __init__(self, seconds: float = FROZEN_SECONDS) -> None:
        self._seconds = seconds
        self._checksums: deque[int] = deque(maxlen=MEMORY)
        self._newest = -math.inf
        self._repeats_since: float | None = None
        self.problem = ""
        """Why the camera counts as frozen, in one sentence, or empty."""

    def is_new(self, frame: Frame, now: float) -> bool:
        """Whether the pixels are not those of a recent frame and the capture time is later. `now` is on the same clock.

        Some repeated frames between new ones are normal: a stream may have more frames than its sensor gives.
        """
        image = np.ascontiguousarray(frame.image)
        # If two images share a checksum, a frame is ignored.
        checksum = zlib.crc32(image.data, zlib.crc32(repr(image.shape).encode()))
        is_repeated = checksum in self._checksums
        if is_repeated:
            self._checksums.remove(checksum)
        self._checksums.append(checksum)
        if not is_repeated and frame.captured > self._newest:
            self._newest, self._repeats_since, self.problem = frame.captured, None, ""
            return True
        if self._repeats_since is None:
            self._repeats_since = now
        if now - self._repeats_since >= self._seconds:
            what = "picture" if is_repeated else "time of the frames"
            self.problem = f"The {what} has not changed for {self._seconds:g} seconds."
        return False
