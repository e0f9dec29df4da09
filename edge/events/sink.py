"""The contract of a sink, and the delivery of an event to all sinks."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from edge.events.event import Event

log = logging.getLogger(__name__)


class OutputClosed(Exception):  # noqa: N818 (not an error: the reader has seen enough, as in `| head`)
    """The reader of the events is gone. A sink raises it to end the run."""


@dataclass(frozen=True, kw_only=True)
class SinkHealth:
    """Counts of a sink since its start."""

    delivered: int = 0
    """Events that the receiver took."""
    failed: int = 0
    """Events that the receiver did not take."""
    dropped: int = 0
    """Events that did not fit into the queue, or were left at the end."""
    retried: int = 0
    """Attempts that failed and were repeated."""
    waiting: int = 0
    """Events in the queue now."""


class Sink(Protocol):
    """Receives events. A subclass needs only `handle`."""

    def handle(self, event: Event) -> None:
        """Take an event. Must return at once: a sink that writes or waits uses a Worker. Raise OutputClosed to end the run."""

    def close(self) -> None:
        """Deliver the waiting events and stop, within the time that the sink allows itself."""
        return

    def health(self) -> SinkHealth:
        """Return the counts. Any thread may call it."""
        return SinkHealth()


def deliver(sinks: Iterable[Sink], event: Event) -> int:
    """Pass `event` to each sink in turn and return how many failed. OutputClosed is raised after all had their turn."""
    failed, closed = 0, False
    for sink in sinks:
        try:
            sink.handle(event)
        except OutputClosed:
            closed = True
        except Exception:
            failed += 1
            log.exception("an event was not delivered to %s", type(sink).__name__)
    if closed:
        raise OutputClosed
    return failed
