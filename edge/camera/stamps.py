"""Capture times of live cameras, on the clock of edge.clock."""

import math
import time
from collections.abc import Callable

from edge.clock import boottime
from edge.errors import CameraError

NEVER = -math.inf
"""The capture time of a frame whose true time is not known, though its source knows times: it counts for nothing."""
SUSPEND_SECONDS = 0.5
"""A shorter suspend does not make a frame too old. The measurement of a suspend is inexact on a busy device."""


class CaptureTimes:
    """Gives each frame of one configured source its capture time. It outlives connections.

    A source whose stamps were ever valid must have valid stamps for ever: a sensor that stands still is not read as new.
    """

    def __init__(
        self,
        *,
        is_monotonic: bool = False,
        now: Callable[[], float] = boottime,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_monotonic`: the driver stamps frames with time.monotonic(), as V4L2 does, and not with the clock of the door."""
        self._is_monotonic, self._now, self._monotonic = is_monotonic, now, monotonic
        self._had_stamp = False
        self.connected()

    def connected(self) -> None:
        """Start with a new connection: nothing waits in its buffers."""
        self._offset = self._now() - self._monotonic()  # grows by the length of each suspend

    def arrived(self) -> float:
        """Return the present as the time of a frame without a stamp.

        CameraError if the device was suspended since the last frame: images from before may wait in any buffer on the way.
        """
        now, before = self._measured()
        if self._offset - before > SUSPEND_SECONDS:
            raise CameraError("The device was suspended.")
        return now

    def captured(self, stamp: float) -> float:
        """Return the capture time of a frame that was just read, from the stamp of its driver in seconds.

        A stamp in the past is believed, whatever its age. Any other stamp is the stamp of a source without stamps, or NEVER.
        """
        now, before = self._measured()
        if self._is_monotonic:  # the frame may be from before a suspend
            stamp += min(before, self._offset) if stamp > 0 else 0.0
        if 0 < stamp <= now:
            self._had_stamp = True
            return stamp
        if not self._had_stamp and self._offset - before > SUSPEND_SECONDS:
            raise CameraError("The device was suspended.")
        return NEVER if self._had_stamp else now

    def _measured(self) -> tuple[float, float]:
        """Measure the offset. Return the present, and the offset at the last frame."""
        before, now = self._offset, self._now()
        self._offset = now - self._monotonic()  # in this order: a pause between the two makes frames older, not newer
        return now, before
