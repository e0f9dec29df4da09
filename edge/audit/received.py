"""Compare an audit log with the events that a receiver stored. The receiver has heads that the log cannot take back.

A line of a receiver's file is an event as JSON, the retained head of MQTT, or a line of `edge audit export`. Text before the
first brace (a topic, a time) is ignored.
"""

import hmac
import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from edge.audit.head import head_mac, parse_head
from edge.audit.log import DO_NOT_TRUST, AuditLog, LogEntry, Verified
from edge.errors import AuditChainError, AuditError

MAX_GAPS = 100


@dataclass(frozen=True, kw_only=True)
class Received:
    """What a receiver has of one event."""

    line: int
    """Its line in the file, from 1."""
    head: str
    """Number and hash of its entry in the log."""
    mac: bytes
    """The HMAC of the head; empty if there is none."""
    facts: dict[str, Any]
    """The fields of the event; of a retained head, fewer."""

    @property
    def sequence(self) -> int | None:
        found = self.facts.get("sequence")
        return found if type(found) is int else None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A log that contains everything that the receiver has."""

    compared: int
    """Heads that the log contains with the same hash."""
    pruned: int
    """Heads of entries that were pruned: they cannot be compared."""
    ignored: int
    """Lines without a head."""
    gaps: list[list[int]]
    """First and last number of each run of events that the receiver did not get; the first 100 runs."""


ReceivedEvents = tuple[list[Received], int]
"""The events with a head, and the number of other lines that are not empty."""


def read_received(text: str) -> ReceivedEvents:
    """Return what a receiver stored."""
    found, ignored = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        received = _parse(number, line)
        if received is None:
            ignored += 1
        else:
            found.append(received)
    return found, ignored


def compare(
    log: AuditLog, received: ReceivedEvents, *, head: str | None = None, key: bytes | None = None
) -> tuple[Verified, Compared]:
    """Verify the log, and that it contains all received heads. With a `key`, each head must have a valid MAC."""
    events, ignored = received
    by_number: dict[int, list[Received]] = defaultdict(list)
    for event in events:
        parsed = parse_head(event.head)
        if parsed is None:
            raise AuditChainError(f"Line {event.line}: its head is not a number, a colon and a hash.", DO_NOT_TRUST)
        if key is not None and not hmac.compare_digest(head_mac(key, event.head).encode(), event.mac):
            raise AuditChainError(
                f"Line {event.line}: the MAC of its head is missing or wrong. The terminal did not make it with this key.",
                "Do not trust this line. Check the key, and who may write to the receiver.",
            )
        by_number[parsed[0]].append(event)

    def inspect(entry: LogEntry) -> None:
        for event in by_number.pop(entry.seq, ()):
            _check_same(entry, event)

    verified = log.verify(head, inspect=inspect)
    rest = [event for events in by_number.values() for event in events]
    for number, missing in by_number.items():
        if number >= verified.first:
            raise AuditChainError(
                f"Line {missing[0].line}: the log does not contain its entry {number}. The end of the log was cut off.",
                DO_NOT_TRUST,
            )
    if len(rest) == len(events):
        raise AuditError(
            f"Nothing can be compared with the log: {len(rest)} entries were pruned, {ignored} lines have no head.",
            "Use events that were received later, from a terminal with an audit log.",
        )
    return verified, Compared(compared=len(events) - len(rest), pruned=len(rest), ignored=ignored, gaps=_gaps(events))


def _parse(number: int, line: str) -> Received | None:
    try:
        fields = json.loads(line[line.index("{") :])
    except (ValueError, RecursionError):
        return None
    head, mac = fields.get("head"), fields.get("head_mac")
    if isinstance(entry := fields.get("entry"), dict):  # a line of `edge audit export`
        head, fields = f"{fields.get('seq')}:{fields.get('hash')}", entry
    if not isinstance(head, str):
        return None
    return Received(line=number, head=head, mac=str(mac or "").encode("utf-8", "replace"), facts=fields)


def _check_same(entry: LogEntry, event: Received) -> None:
    if entry.head != event.head.lower():
        raise AuditChainError(f"Line {event.line}: entry {entry.seq} of the log was rewritten.", DO_NOT_TRUST)
    logged = entry.facts
    is_same = all(event.facts.get(name) in (None, logged.get(name)) for name in ("event_id", "sequence"))
    if not is_same or (event.facts.get("outcome") == "granted" and logged.get("outcome") != "granted"):
        raise AuditChainError(
            f"Line {event.line}: entry {entry.seq} of the log is another event. The line was changed on the way or later.",
            "Do not trust this line. Check who may write to the receiver.",
        )


def _gaps(events: list[Received]) -> list[list[int]]:
    """Return the runs of missing numbers. A retained head is not an event, but shows that there was one."""
    numbers = {event.sequence for event in events if event.sequence is not None and "event_id" in event.facts}
    if not numbers:
        return []
    newest = max(event.sequence or 0 for event in events if event.facts.get("kind") != "pruned")
    ends = [*sorted(numbers), newest + 1]
    return [[before + 1, after - 1] for before, after in pairwise(ends) if after - before > 1][:MAX_GAPS]
