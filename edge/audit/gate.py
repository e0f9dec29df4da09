"""The audit log at the door: each event is logged before anybody is told, and what is not logged does not act."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from edge.audit.crypto import Seal
from edge.audit.log import AuditLog
from edge.errors import AuditError, ParameterError
from edge.events.event import Background, Event, Sink, StreamClosed, deliver, utc_text
from edge.files import read_bytes

if TYPE_CHECKING:
    from edge.monitor.annotate import View

WAITING = 10_000
JUMP_SECONDS = 3600.0
DAY_SECONDS = 86400.0
JPEG_QUALITY = 80

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """A log of all events that shows whether it was changed."""

    path: Path
    """The file (SQLite)."""
    days: int = 30
    """Entries and pictures are deleted when they are older; 0 keeps them for ever."""
    required: bool = True
    """No grant is acted upon unless it is in the log first: a full disk closes the door."""
    late_seconds: float = 2.0
    """A grant that the disk held up for longer opens nothing: somebody else may stand there by now."""
    picture_key: Path | None = None
    """Keep a picture of each decision, sealed for the holder of this key (PEM, of `edge audit keygen`). Not set: none."""

    def __post_init__(self) -> None:
        if not 0 <= self.days <= 36_500:
            raise ParameterError(f"days must be between 0 and 36500, not {self.days}")
        if not 0 < self.late_seconds <= 60:
            raise ParameterError(f"late_seconds must be more than 0 and at most 60, not {self.late_seconds:g}")


def open_sink(settings: AuditSettings, sinks: Iterable[Sink], *, now: datetime | None = None) -> Audited:
    """The sink of the terminal: it logs, and then tells `sinks`."""
    seal = None if settings.picture_key is None else Seal(read_bytes(settings.picture_key))
    audit = AuditLog.open(settings.path, now=now or datetime.now(UTC))
    return Audited(audit, sinks, required=settings.required, late_seconds=settings.late_seconds, days=settings.days, seal=seal)


class Audited:
    """Writes each event into the log and then gives it to the sinks, on one thread and in order. Frames never wait for it.

    What is not logged does not act: with `required`, the sinks get a grant that could not be written as a denial, and always
    one that was held up for more than `late_seconds`. As a viewer (`publish`) it keeps the picture of each decision, if there
    is a `seal` for it. Close it before the sinks: until then it may have something for them.
    """

    NOT_LOGGED = "not logged"
    LATE = "logged too late"

    def __init__(
        self,
        audit: AuditLog,
        sinks: Iterable[Sink],
        *,
        required: bool = True,
        late_seconds: float = 2.0,
        days: int = 0,
        seal: Seal | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.written = self.failed = self.withheld = self.undelivered = 0
        self.failing = False
        """Whether the last event could not be written."""
        self._audit, self._sinks, self._required, self._late_seconds = audit, sinks, required, late_seconds
        self._days, self._seal, self._clock, self._now = days, seal, clock, now
        self._pruned_on = ""
        self._offset = math.nan
        self._trusted_from = -math.inf
        with suppress(AuditError):  # a log that cannot be read is not pruned either
            if any(str(entry.facts.get("utc")) > utc_text(now()) for entry in audit.entries(last=1)):
                self._trusted_from = clock() + DAY_SECONDS  # a device without a battery wakes up in the past
        self._reader_left = False
        self._decided: list[tuple[str, float]] = []
        self._background: Background[Callable[[], None]] = Background(
            lambda work: work(), waiting=WAITING, name="the audit log", tend=self._prune
        )

    @property
    def dropped(self) -> int:
        """Events that did not fit in the queue: neither logged nor told."""
        return self._background.dropped

    def __call__(self, event: Event) -> None:
        since = self._clock()
        self._background(lambda: self._take(event, since))
        if self._seal is not None and event.kind == "decision":
            captured = (event.monotonic or math.nan) - (event.seconds_from_capture or 0.0)
            self._decided = [*self._decided[-7:], (event.event_id, captured)]
        if self._reader_left:
            raise StreamClosed

    def publish(self, view: View) -> None:
        """Keep this frame, sealed, if a decision was made on it."""
        decided, self._decided = self._decided, []
        for event_id, captured in decided:
            if abs(captured - view.frame.captured) < 1e-4:  # an event's times are rounded
                self._background(lambda of=event_id: self._keep(of, view))  # type: ignore[misc]

    def close(self, seconds: float = 5.0) -> None:
        """Log and tell what is waiting, for `seconds` at most."""
        self._background.close(seconds)
        self._audit.close()

    def _take(self, event: Event, since: float) -> None:
        event = self._logged(event, since)
        try:
            self.undelivered += deliver(self._sinks, event)
        except StreamClosed:
            self._reader_left = True  # the log goes on without
        self._prune()

    def _logged(self, event: Event, since: float) -> Event:
        """The event as it may be acted upon."""
        if event.grants and self._is_late(since):
            event = self._denied(event, self.LATE)
        try:
            self._audit.append(event)
            self.written += 1
            self.failing = False
        except Exception:
            self._not_written()
            if event.grants and self._required:
                event = self._denied(event, self.NOT_LOGGED)
        if event.grants and self._is_late(since):  # writing, or failing to, took its time
            late, event = event, self._denied(event, self.LATE)
            try:
                self._audit.withhold(late, self.LATE, self._now())
            except Exception:
                self._not_written()
        return event

    def _not_written(self) -> None:
        self.failed += 1
        self.failing = True
        log.exception("the audit log was not written")

    def _is_late(self, since: float) -> bool:
        return not self._clock() - since <= self._late_seconds

    def _denied(self, event: Event, reason: str) -> Event:
        self.withheld += 1
        return replace(event, outcome="denied", reason=reason)

    def _keep(self, event_id: str, view: View) -> None:
        import cv2

        assert self._seal is not None
        jpeg = cv2.imencode(".jpg", view.frame.image, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))[1].tobytes()
        self._audit.append_picture(event_id, self._seal(jpeg, event_id.encode()), self._now())

    def _prune(self) -> None:
        """Once a day, and not for a day after the clock was set: one that went wrong must not delete what is young."""
        now, running = self._now(), self._clock()
        offset = now.timestamp() - running
        if abs(offset - self._offset) > JUMP_SECONDS:
            self._trusted_from = running + DAY_SECONDS
        self._offset = offset
        today = utc_text(now)[:10]
        if self._days and today != self._pruned_on and running >= self._trusted_from:
            self._pruned_on = today
            self._audit.prune(self._days, now)
