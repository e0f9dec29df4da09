"""A sink that repeats: it sends events, in order, to a receiver that may be slow, offline or restarting."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Protocol

from edge.events.event import Event
from edge.events.worker import CLOSE_SECONDS, DeliveryError, Worker

FIRST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class TemporaryError(Exception):
    """The receiver cannot be reached or is busy: try again. The message contains no names of people."""


class PermanentError(DeliveryError):
    """The receiver will never take this event."""


class Receiver(Protocol):
    """The other side of a RetrySink. All methods run on the sink's thread."""

    name: str

    def send(self, event: Event, age_seconds: float) -> None:
        """Send an event and return when it is acknowledged. Raise TemporaryError or PermanentError."""

    def maintain(self) -> float | None:
        """Do periodic work while no event waits. Return the seconds until the next call, or None."""

    def disconnect(self) -> None:
        """End the connection. Called once."""


class RetrySink(Worker[Event]):
    """A sink that offers each event to `receiver` until it is acknowledged, rejected, or `keep_seconds` old.

    The pause between two attempts doubles up to `pause_seconds`, less a random part so that terminals do not retry at the same
    time. A new event ends a pause.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        capacity: int,
        keep_seconds: float = math.inf,
        pause_seconds: float = 30.0,
        close_seconds: float = CLOSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.receiver = receiver
        self._keep_seconds, self._pause_seconds, self._jitter = keep_seconds, pause_seconds, jitter
        self._failures = 0  # since the last success
        super().__init__(
            self._send,
            name=receiver.name,
            capacity=capacity,
            close_seconds=close_seconds,
            idle=lambda: self._attempt(receiver.maintain),
            finish=receiver.disconnect,
            clock=clock,
        )

    def _send(self, event: Event) -> float | None:
        waited = self.waited_seconds()
        if waited > self._keep_seconds:
            raise PermanentError("an event was not taken in time")
        return self._attempt(lambda: self.receiver.send(event, waited))

    def _attempt(self, action: Callable[[], float | None]) -> float | None:
        """Return the pause before the next attempt, or the action's own result."""
        failures, self._failures = self._failures, 0
        try:
            return action()
        except TemporaryError as problem:
            log.warning("%s: %s; will retry", self.receiver.name, problem)
            self._failures = failures + 1
            return self._pause()

    def _pause(self) -> float:
        longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 30), self._pause_seconds)
        return longest * (0.5 + 0.5 * self._jitter())
