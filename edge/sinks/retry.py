"""A courier: carries events, in order, to a receiver that may be slow, away or restarting."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from edge.events.event import Event

FIRST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class Later(Exception):  # noqa: N818 (the courier tries again: nothing is lost yet)
    """The receiver cannot be reached, or asks for patience. The words say why, without names."""


class Refused(Exception):  # noqa: N818
    """The receiver will not take this event, however often it is offered."""


class Courier:
    """Offers each event to `send(event, age_seconds)` on a thread of its own until it is taken.

    `send` returns when the receiver has acknowledged, and raises Later to be called again or Refused to be spared. At most
    `waiting` events are kept: what does not fit is dropped and counted, and nothing that was taken in is let go for it.
    Between attempts it pauses, longer each time up to `pause_seconds`, less a random part so that terminals do not knock in
    step; a new event ends a pause. `tend` is called about once a second while nothing is to be sent, `hang_up` at the end.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Event, float], None],
        *,
        waiting: int,
        keep_seconds: float = math.inf,
        pause_seconds: float = 30.0,
        tend: Callable[[], object] | None = None,
        hang_up: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.delivered = self.failed = self.dropped = self.retried = 0
        self._name, self._send, self._waiting, self._keep_seconds = name, send, waiting, keep_seconds
        self._pause_seconds, self._tend, self._hang_up = pause_seconds, tend, hang_up
        self._clock, self._jitter = clock, jitter
        self._queue: deque[tuple[float, Event]] = deque()
        self._changed = threading.Condition()  # held for moments only: never while something is sent
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=f"events to {name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Events that were taken in and not yet acknowledged."""
        return len(self._queue)

    def __call__(self, event: Event) -> None:
        with self._changed:
            fits = not self._closing and len(self._queue) < self._waiting
            if fits:
                self._queue.append((self._clock(), event))
                self._changed.notify()
            else:
                self.dropped += 1
        if not fits:
            log.warning("%s does not take events: one was dropped, %d so far", self._name, self.dropped)

    def close(self, seconds: float = 3.0) -> None:
        """Deliver what can be delivered at once, for `seconds` at most. The rest is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            left = len(self._queue)
            self.dropped += left
            self._queue.clear()
        if left:
            log.warning("%s was not told of the last %d events", self._name, left)

    def _work(self) -> None:
        pauses = 0
        while True:
            try:
                self._step()
                pauses = 0
            except Exception as problem:
                self.retried += 1
                pauses += 1
                log.warning("%s: %s; trying again", self._name, problem, exc_info=not isinstance(problem, Later))
            if (pauses and self._closing) or not self._wait(pauses):
                break
        if self._hang_up is not None:
            try:
                self._hang_up()
            except Exception:
                log.exception("%s was not left in order", self._name)

    def _wait(self, pauses: int) -> bool:
        """Until there is something to do. False when all is done and nothing more will come."""
        with self._changed:
            before = len(self._queue) if pauses else 0
            seconds = None if self._tend is None else 1.0
            if pauses:
                longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(pauses - 1, 30), self._pause_seconds)
                seconds = longest * (0.5 + 0.5 * self._jitter())
            self._changed.wait_for(lambda: self._closing or len(self._queue) > before, seconds)
            return bool(self._queue) or not self._closing

    def _step(self) -> None:
        with self._changed:
            since, event = self._queue[0] if self._queue else (0.0, None)
        if event is None:
            if self._tend is not None:
                self._tend()
            return
        try:
            if self._clock() - since > self._keep_seconds:
                raise Refused("it was offered for too long")
            self._send(event, self._clock() - since)
        except Later:
            raise
        except Exception as problem:  # of Refused, and of a bug: it must not come back for ever
            self.failed += 1
            log.warning("%s was not told of an event: %s", self._name, problem, exc_info=not isinstance(problem, Refused))
        else:
            self.delivered += 1
        with self._changed:
            if self._queue:  # not if it was closed meanwhile
                self._queue.popleft()
