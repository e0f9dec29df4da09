"""The one worker: a thread with a bounded queue, so that no sink and no viewer delays a frame."""

import logging
import math
import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from edge.clock import boottime
from edge.events.sink import OutputClosed, SinkHealth
from edge.text import plural

CLOSE_SECONDS = 1.0
"""Usual time for the last items: a service must stop within 2 seconds."""
RETRY_SECONDS = 0.5  # the first pause before another attempt

log = logging.getLogger(__name__)
T = TypeVar("T")


class DeliveryError(Exception):
    """An expected failure to deliver one item. The message contains no names of people."""


class TemporaryError(Exception):
    """The receiver cannot be reached or is busy: try again. The message contains no names of people."""


class Worker(Generic[T]):
    """Calls `work(item)` for each item, in order, on its own thread. A Worker of events is a complete sink.

    - If `work` raises TemporaryError, it is called again with the same item, until the item is `keep_seconds` old. The pause
      doubles up to `pause_seconds`, less a random part so that terminals do not retry at the same time. A new item or the end
      shortens it. After any other exception the item has failed.
    - `idle` is called when the queue is empty. It returns the seconds until its next call, or None: not before the next item.
    - `finish` is called once at the end, on the same thread.
    - `accepts` says which items are handled; others are ignored.
    - `capacity` limits the waiting items, including the current one. Items that do not fit are dropped and counted; with
      `wait_if_full` the caller waits instead.
    """

    def __init__(
        self,
        work: Callable[[T], object],
        *,
        name: str,
        accepts: Callable[[T], bool] = lambda item: True,
        capacity: int = 256,
        wait_if_full: bool = False,
        keep_seconds: float = math.inf,
        pause_seconds: float = 30.0,
        close_seconds: float = CLOSE_SECONDS,
        idle: Callable[[], float | None] = lambda: None,
        finish: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = boottime,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._counts = Counter[str]()
        self._since = 0.0
        self._failures = 0  # temporary errors since the last success
        self._keep_seconds, self._pause_seconds, self._jitter = keep_seconds, pause_seconds, jitter
        self._work, self._idle, self._finish, self._name = work, idle, finish, name
        self._accepts, self._clock = accepts, clock
        self._capacity, self._wait_if_full, self._close_seconds = capacity, wait_if_full, close_seconds
        self._queue: deque[tuple[float, T]] = deque()  # (time of entry, item)
        self._changed = threading.Condition()  # never held while `work` or `idle` runs
        self._closing = self._output_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def handle(self, item: T) -> None:
        """Put an item into the queue."""
        if not self._accepts(item):
            return
        with self._changed:
            if self._output_closed:
                raise OutputClosed
            if self._wait_if_full:
                self._changed.wait_for(lambda: self._closing or len(self._queue) < self._capacity)
            fits = not self._closing and len(self._queue) < self._capacity
            if fits:
                self._queue.append((self._clock(), item))
                self._changed.notify_all()
            else:
                self._counts["dropped"] += 1
        if not fits:
            log.warning("%s: the queue is full or closed, %d dropped so far", self._name, self._counts["dropped"])

    def close(self) -> None:
        """Handle the waiting items, for `close_seconds` at most, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._close_seconds)
        with self._changed:
            left = len(self._queue)
            self._counts["dropped"] += left
            self._queue.clear()
        if left:
            log.warning("%s: the last %s not delivered", self._name, plural(left, "item was", "items were"))
        elif self._thread.is_alive():
            log.warning("%s did not stop in time", self._name)

    def health(self) -> SinkHealth:
        """Return the counts. Any thread may call it."""
        return SinkHealth(**self._counts, waiting=len(self._queue))

    def waited_seconds(self) -> float:
        """Return how long the current item has been in the queue. Only for `work`."""
        return self._clock() - self._since

    def _run(self) -> None:
        try:
            while (waiting := len(self._queue)) or not self._closing:
                pause = self._handle_first() if waiting else self._call_idle()
                if waiting and pause is None:
                    continue
                if waiting and self._closing:  # there is no time for another attempt
                    break
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or len(self._queue) > waiting, pause)
        except OutputClosed:
            with self._changed:
                self._output_closed = True
                self._queue.clear()
                self._changed.notify_all()
        try:
            self._finish()
        except Exception:
            log.exception("%s was not closed cleanly", self._name)

    def _handle_first(self) -> float | None:
        """Work on the first item. Return the pause before another attempt, or None if the item is out of the queue."""
        with self._changed:
            if not self._queue:  # close() has just given up
                return None
            self._since, item = self._queue[0]
        try:
            if self.waited_seconds() > self._keep_seconds:
                raise DeliveryError("an item was not delivered in time")
            self._work(item)
            self._counts["delivered"] += 1
        except OutputClosed:
            raise
        except TemporaryError as problem:
            self._counts["retried"] += 1
            return self._pause(problem)
        except DeliveryError as problem:
            self._counts["failed"] += 1
            log.warning("%s: %s", self._name, problem)
        except Exception:
            self._counts["failed"] += 1
            log.exception("%s: an item was not delivered", self._name)
        self._failures = 0
        with self._changed:
            if self._queue:
                self._queue.popleft()
            self._changed.notify_all()
        return None

    def _call_idle(self) -> float | None:
        try:
            pause = self._idle()
        except TemporaryError as problem:
            return self._pause(problem)
        except Exception:
            self._counts["failed"] += 1
            log.exception("%s failed while it waited for items", self._name)
            return RETRY_SECONDS
        self._failures = 0
        return pause

    def _pause(self, problem: TemporaryError) -> float:
        log.warning("%s: %s; will retry", self._name, problem)
        longest = min(RETRY_SECONDS * 2.0 ** min(self._failures, 30), self._pause_seconds)
        self._failures += 1
        return longest * (0.5 + 0.5 * self._jitter())
