"""Events to a remote receiver that may be slow, offline or restarting: the message, and a sink that repeats it."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from edge.events.event import Event, utc_text
from edge.events.worker import CLOSE_SECONDS, DeliveryError, Worker

FIRST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class TemporaryError(Exception):
    """The receiver cannot be reached or is busy: try again. The message contains no names of people."""


class RetrySink(Worker[Event]):
    """A sink that calls `send(event, seconds_since_the_event)` until it succeeds or the event is `keep_seconds` old.

    After a TemporaryError it tries again. The pause doubles up to `pause_seconds`, less a random part so that terminals do not
    retry at the same time; a new event ends it. After a DeliveryError the event is not repeated. `idle` may raise both, too.
    """

    def __init__(
        self,
        send: Callable[[Event, float], None],
        *,
        name: str,
        capacity: int,
        keep_seconds: float = math.inf,
        pause_seconds: float = 30.0,
        close_seconds: float = CLOSE_SECONDS,
        idle: Callable[[], float | None] = lambda: None,
        finish: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._deliver, self._keep_seconds, self._pause_seconds, self._jitter = send, keep_seconds, pause_seconds, jitter
        self._failures = 0  # since the last success
        super().__init__(
            self._send,
            name=name,
            capacity=capacity,
            close_seconds=close_seconds,
            idle=lambda: self._attempt(idle),
            finish=finish,
            clock=clock,
        )

    def _send(self, event: Event) -> float | None:
        waited = self.waited_seconds()
        if waited > self._keep_seconds:
            raise DeliveryError("an event was not taken in time")
        return self._attempt(lambda: self._deliver(event, waited))

    def _attempt(self, action: Callable[[], float | None]) -> float | None:
        """Return the pause before the next attempt, or the action's own result."""
        failures, self._failures = self._failures, 0
        try:
            return action()
        except TemporaryError as problem:
            log.warning("%s: %s; will retry", self._name, problem)
            self._failures = failures + 1
            longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 30), self._pause_seconds)
            return longest * (0.5 + 0.5 * self._jitter())


def message(event: Event, *, age_seconds: float, grant_seconds: float, names: bool) -> dict[str, Any]:
    """Return the fields to send `age_seconds` after the event. `names` keeps the label. Only a valid grant has a nonce."""
    fields = asdict(event) | {"nonce": None, "expires": None}
    if not names:
        fields["label"] = None
    if event.grants:
        fields["expires"] = utc_text(datetime.fromisoformat(event.utc) + timedelta(seconds=grant_seconds))
        if age_seconds < grant_seconds:
            fields["nonce"] = event.event_id
        else:  # a receiver that looks for `granted` opens nothing
            fields |= {"outcome": "expired", "reason": "granted, but not delivered in time"}
    return fields
