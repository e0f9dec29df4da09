"""The audit gate: it writes each event to the audit log before the sinks get it. A grant that is not logged opens nothing."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from edge.audit.clock import ClockTrust
from edge.audit.crypto import Seal
from edge.audit.head import head_mac, read_head_key
from edge.audit.log import AuditLog
from edge.clock import boottime
from edge.errors import AuditError, require
from edge.events.event import Event, utc_text
from edge.events.health import Count
from edge.events.sink import OutputClosed, Sink, SinkHealth, deliver
from edge.events.view import View
from edge.events.worker import Worker
from edge.files import read_bytes

CAPACITY = 10_000
CLOSE_SECONDS = 5.0
MAINTAIN_SECONDS = 60.0
JPEG_QUALITY = 80
NOT_WRITTEN = "audit log not written"
TOO_LATE = "audit log too slow"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """A log of all events that shows whether it was changed."""

    path: Path
    """The file (SQLite)."""
    days: int = 30
    """Entries and pictures are deleted after so many days; 0: never."""
    required: bool = True
    """A grant that cannot be logged is denied: a full disk closes the door."""
    late_seconds: float = 2.0
    """A grant that waited longer for the disk is denied: another person may stand at the door by then."""
    picture_key: Path | None = None
    """Store a picture of each decision, sealed for this public key (PEM, see `edge audit keygen`). Not set: no pictures."""
    head_key_file: Path | None = None
    """File with a secret in its first line, 16 characters or more. Events then carry `head_mac`, which proves their head."""

    def __post_init__(self) -> None:
        require(0 <= self.days <= 36_500, f"days must be between 0 and 36500, not {self.days}")
        require(0 < self.late_seconds <= 60, f"late_seconds must be more than 0 and at most 60, not {self.late_seconds:g}")


class AuditGate:
    """A sink that logs each event and then delivers it to `sinks`, on one thread and in order. Frames never wait.

    A grant that could not be written, or that waited too long, reaches the sinks as a denial (see the settings). With a
    `picture_key` it is also a viewer that stores a picture of each decision. Close it before the sinks: until then it may
    still deliver to them.
    """

    def __init__(
        self,
        settings: AuditSettings,
        sinks: Iterable[Sink],
        *,
        clock: Callable[[], float] = boottime,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._write_failed = self._check_failed = False  # the last time
        self._counts = Counter[str](dict.fromkeys((Count.UNDELIVERED, Count.LOGGED, Count.NOT_LOGGED, Count.WITHHELD), 0))
        self._settings, self._sinks, self._clock, self._now = settings, tuple(sinks), clock, now
        self._seal = None if settings.picture_key is None else Seal(read_bytes(settings.picture_key))
        self._head_key = None if settings.head_key_file is None else read_head_key(settings.head_key_file)
        self._audit = AuditLog.open(settings.path, now=now())
        self.next_sequence = self._audit.last_sequence() + 1
        """The sequence number of the first event of this run."""
        self._pruned_on = ""
        self._clock_trust = ClockTrust(self._audit, now=now(), running=clock())
        self._output_closed = False
        self._undepicted: list[tuple[str, float]] = []  # decisions whose frame was not yet shown: id, time of capture
        self._worker: Worker[Callable[[], None]] = Worker(
            lambda job: job(), name="the audit log", capacity=CAPACITY, close_seconds=CLOSE_SECONDS, idle=self._maintain
        )

    @property
    def is_failing(self) -> bool:
        """Whether the last event could not be written, or the log is not the one that was opened."""
        return self._write_failed or self._check_failed

    def handle(self, event: Event) -> None:
        self._worker.handle(partial(self._process, event, self._clock()))
        if self._seal is not None and event.kind == "decision":
            captured = (event.monotonic or math.nan) - (event.seconds_from_capture or 0.0)
            self._undepicted = [*self._undepicted[-7:], (event.event_id, captured)]
        if self._output_closed:
            raise OutputClosed

    def show(self, view: View) -> None:
        """Store this frame, sealed, if a decision was based on it."""
        decisions, self._undepicted = self._undepicted, []
        for event_id, captured in decisions:
            if abs(captured - view.frame.captured) < 1e-4:  # the times of an event are rounded
                self._worker.handle(partial(self._store_picture, event_id, view))

    def close(self) -> None:
        """Log and deliver the waiting events, then close the log."""
        self._worker.close()
        self._audit.close()

    def health(self) -> SinkHealth:
        return replace(self._worker.health(), delivered=self._counts[Count.LOGGED], failed=self._counts[Count.NOT_LOGGED])

    def counters(self) -> dict[str, int]:
        return {**self._counts, Count.NOT_LOGGED: self._counts[Count.NOT_LOGGED] + self._worker.health().dropped}

    def _process(self, event: Event, since: float) -> None:
        event = self._logged(event, since)
        try:
            self._counts[Count.UNDELIVERED] += deliver(self._sinks, event)
        except OutputClosed:
            self._output_closed = True  # logging continues

    def _logged(self, event: Event, since: float) -> Event:
        """Write the event and return the one that the sinks may act on."""
        if self._is_late(event, since):
            event = self._denied(event, TOO_LATE)
        try:
            head = self._audit.append(event).head
            mac = None if self._head_key is None else head_mac(self._head_key, head)
            event = replace(event, head=head, head_mac=mac)
            self._counts[Count.LOGGED] += 1
            self._write_failed = self._check_failed = False
        except Exception:
            self._count_failure()
            if event.grants and self._settings.required:
                event = self._denied(event, NOT_WRITTEN)
        if self._is_late(event, since):  # the attempt to write took too long
            late, event = event, self._denied(event, TOO_LATE)
            try:
                self._audit.withhold(late, TOO_LATE, self._now())
            except Exception:
                self._count_failure()
        return event

    def _count_failure(self) -> None:
        self._counts[Count.NOT_LOGGED] += 1
        self._write_failed = True
        log.exception("the audit log was not written")

    def _is_late(self, event: Event, since: float) -> bool:
        return event.grants and not self._clock() - since <= self._settings.late_seconds

    def _denied(self, event: Event, reason: str) -> Event:
        self._counts[Count.WITHHELD] += 1
        return replace(event, outcome="denied", reason=reason)

    def _store_picture(self, event_id: str, view: View) -> None:
        import cv2

        assert self._seal is not None
        jpeg = cv2.imencode(".jpg", view.frame.image, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))[1].tobytes()
        self._audit.append_picture(event_id, self._seal(jpeg, event_id.encode()), self._now())

    def _maintain(self) -> float:
        """Check the log also without events, and delete old entries once a day if the clock can be trusted."""
        now, running = self._now(), self._clock()
        may_delete, today = self._clock_trust.allows(now, running), utc_text(now)[:10]
        try:
            self._audit.check()
            self._check_failed = False
        except AuditError as problem:
            self._check_failed = True
            log.error("the audit log cannot be used: %s", problem)
            return MAINTAIN_SECONDS
        if self._settings.days and today != self._pruned_on and may_delete:
            self._pruned_on = today
            self._audit.prune(self._settings.days, now)
        return MAINTAIN_SECONDS
