"""The status of a door for its owner, as JSON over MQTT and in health.json. No names of people."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from edge.clock import boottime
from edge.events.event import utc_text
from edge.events.health import Count, Health
from edge.fleet.fleet import Fleet
from edge.kit.format import Kit
from edge.kit.store import KitChange

SCHEMA = 1
FAILING = ("failed", "stale")
"""The states in which a person should look at the door."""
HOUR = 3600.0
SAMPLE_SECONDS = 60.0


class Rates:
    """How often something happened lately, from counters that only grow."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._samples: deque[tuple[float, int, int]] = deque()  # time, frames, decisions

    def rates(self, frames: int, decisions: int) -> tuple[float, int]:
        """Return frames per second since about a minute, and decisions in the last hour. Both are from the counters of now."""
        now = self._clock()
        with self._lock:
            self._add(now, frames, decisions)
            since = [sample for sample in self._samples if now - sample[0] >= SAMPLE_SECONDS]
            recent, oldest = (since or self._samples)[-1 if since else 0], self._samples[0]
        seconds = now - recent[0]
        return (frames - recent[1]) / seconds if seconds > 0 else 0.0, decisions - oldest[2]

    def _add(self, now: float, frames: int, decisions: int) -> None:
        """Keep one sample a minute, for an hour."""
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((now, frames, decisions))
        while len(self._samples) > 1 and now - self._samples[1][0] >= HOUR:
            self._samples.popleft()


class FleetStatus:
    """What is published about a door. `facts` changes seldom; `message` has numbers that always change, too."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        kit: Callable[[], Kit],
        list_version: Callable[[], str],
        health: Callable[[], Health],
        refused: Callable[[], KitChange | None],
        rates: Rates | None = None,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`kit`, `list_version` and `health` are those in use at the door. `refused` is the last kit that did not work."""
        self._fleet, self._kit, self._list_version, self._health, self._utc = fleet, kit, list_version, health, utc
        self._refused = refused
        self._rates = rates or Rates()

    def facts(self) -> Mapping[str, Any]:
        """Return what is published again when it changes."""
        kit, refused = self._kit(), self._refused()
        found = self._fleet.status()
        del found["timestamp"], found["verified"]
        return {
            "schema": SCHEMA,
            **found,
            "kit": kit.id,
            "kit_version": kit.manifest.kit_version,
            "refused_kit": None if refused is None else {"outcome": refused.outcome, "reason": refused.reason},
            "list": self._list_version(),
        }

    def message(self) -> Mapping[str, Any]:
        """Return everything."""
        health, found = self._health(), self._fleet.status()
        counters = health["counters"]
        decisions = counters[Count.GRANTED] + counters[Count.DENIED]
        fps, in_an_hour = self._rates.rates(counters[Count.FRAMES], decisions)
        return {
            **self.facts(),
            "verified": found["verified"],
            "timestamp": found["timestamp"],
            "decisions_per_hour": in_an_hour,
            "frames_per_second": round(fps, 1),
            "temperature_celsius": health["temperature_celsius"],
            "bytes_received": self._fleet.received,
            "utc": utc_text(self._utc()),
        }
