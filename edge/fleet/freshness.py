"""How old the data of the fleet are, and whether the clock may be used to judge it. Times are arguments.

The age is the time since the last refresh that verified. It is measured by the time of day and by the running time of the
device, and the larger one counts. So neither a restart nor a clock that is set back makes old data fresh.

The clock is not plausible if it shows a time before this software, or before the last verified refresh and the running time
since then: a device without a battery starts in 1970. Metadata are then judged at the earliest possible time, and only a newer
timestamp than the last one makes the data fresh: a server that repeats what it sent before does not.
"""

import math
import secrets
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from edge.clock import boottime

FIRST_TIME = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
TOLERANCE_SECONDS = 300.0
"""A clock may be set back by so much, for example by NTP."""
RESTART_SECONDS = 900.0
"""Counted for each restart of the device, because the time that it was off is not known."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Times(NamedTuple):
    """All clocks at one moment."""

    utc: float
    """Time of day, in seconds since 1970."""
    running: float
    """Seconds since the device started."""
    boot: str
    """Identifies the start of the device."""

    @classmethod
    def now(cls) -> "Times":
        return cls(time.time(), boottime(), _this_boot())


def boot_id(file: Path = BOOT_ID) -> str:
    """Return what identifies this start of the device. If the system does not say it, each call is another start."""
    try:
        return file.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeError):
        return secrets.token_hex(8)


@cache
def _this_boot() -> str:
    return boot_id()


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """The last refresh that verified, and how long the device has run since then."""

    utc: float | None = None
    """Its time of day; None: there was none that counts."""
    timestamp: int = 0
    """Version of its timestamp."""
    ran: float = 0.0
    """Seconds that the device has run since then, without those since `running`."""
    restarts: int = 0
    """Number of starts of the device since then."""
    running: float = 0.0
    boot: str = ""
    """The clock of the device when `ran` was counted."""

    def resumed(self, now: Times) -> "Freshness":
        """Return the same, counted until now: for the start of a terminal, and to be stored from time to time."""
        is_same = now.boot == self.boot
        return replace(self, ran=self._ran(now), restarts=self.restarts + (not is_same), running=now.running, boot=now.boot)

    def age(self, now: Times) -> float:
        """Return the seconds since the last verified refresh, or infinity if there was none."""
        if self.utc is None:
            return math.inf
        return max(self._ran(now) + self.restarts * RESTART_SECONDS, now.utc - self.utc)

    def earliest(self, now: Times) -> float:
        """Return the earliest possible time of day."""
        return FIRST_TIME if self.utc is None else max(FIRST_TIME, self.utc + self._ran(now))

    def is_plausible(self, now: Times) -> bool:
        """Return whether the clock may be right. It may still be ahead."""
        return now.utc >= self.earliest(now) - TOLERANCE_SECONDS

    def reference(self, now: Times) -> datetime:
        """Return the time at which metadata are judged."""
        return datetime.fromtimestamp(max(now.utc, self.earliest(now)), UTC)

    def after(self, now: Times, timestamp: int) -> "Freshness":
        """Return the freshness after a refresh that verified, with this version of the timestamp."""
        newer = Freshness(utc=now.utc, timestamp=timestamp, running=now.running, boot=now.boot)
        if self.is_plausible(now):
            return newer
        if not self.timestamp:  # nothing shows yet that it is not an old one
            return replace(newer, utc=None)
        return replace(newer, utc=self.earliest(now)) if timestamp > self.timestamp else self

    def _ran(self, now: Times) -> float:
        since = now.running - self.running if now.boot == self.boot else now.running
        return self.ran + max(0.0, since)
