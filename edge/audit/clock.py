"""Whether the clock may be used to delete old entries. A wrong clock must not delete young ones.

A device without a battery starts in the past, or far ahead, until the network sets its clock.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise

from edge.audit.log import AuditLog
from edge.errors import AuditChainError, AuditError

HISTORY_ENTRIES = 1000
JUMP = timedelta(hours=1)
AWAY = timedelta(days=1)
FIRST_SECONDS = 3600.0
DISTRUST_SECONDS = 86400.0


class ClockTrust:
    """Decides when entries may be deleted: not in the first hour of a run, nor within a day after a jump of the clock."""

    def __init__(self, log: AuditLog, *, now: datetime, running: float) -> None:
        """`now` is the time of day, `running` a clock in seconds that is never set back."""
        is_doubtful = clock_doubt(log, now, entries=HISTORY_ENTRIES) != ""
        self._from = running + (DISTRUST_SECONDS if is_doubtful else FIRST_SECONDS)
        self._offset = now.timestamp() - running

    def allows(self, now: datetime, running: float) -> bool:
        """Return whether entries may be deleted now. Call it often: it compares the two clocks with the last call."""
        offset = now.timestamp() - running
        if abs(offset - self._offset) > JUMP.total_seconds():
            self._from = running + DISTRUST_SECONDS
        self._offset = offset
        return running >= self._from


def clock_doubt(log: AuditLog, now: datetime, *, entries: int = 1) -> str:
    """Return why the clock may be wrong, in one sentence, or an empty text.

    The clock must not be behind the newest entry, nor more than a day ahead. With more `entries`, neither may the clock
    have jumped within the last day: after a restart, the newest entry is one that a wrong clock has just made.
    """
    try:
        times = [*_times(log, entries), now]
    except (AuditChainError, ValueError, TypeError):
        return "The newest entries of the log have no valid time."
    if len(times) > 1 and times[-2] > now:
        return f"The newest entry is of {_text(times[-2])}, but the clock says {_text(now)}."
    for before, after in reversed(list(pairwise(times))):
        if not -JUMP <= after - before <= AWAY:  # entries of several threads may be out of order by seconds
            return f"The clock jumped from {_text(before)}, the time of an entry, to {_text(after)}."
        if now - before > AWAY:
            break
    return ""


def require_clock(log: AuditLog, now: datetime) -> None:
    """Raise if the clock may be wrong."""
    if doubt := clock_doubt(log, now):
        raise AuditError(f"{doubt} Nothing was deleted.", "Check the clock (date -u). If it is right, add --trust-clock.")


def _times(log: AuditLog, entries: int) -> Iterable[datetime]:
    for entry in log.entries(last=entries):
        time = datetime.fromisoformat(str(entry.facts.get("utc")))
        if time.tzinfo is None:
            raise ValueError("no time zone")
        yield time


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
