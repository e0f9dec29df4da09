"""The visits of all doors: the decisions that terminals sent or logged, searched by person, door, outcome and time.

A visit comes by webhook or from an imported file (trainer.site.visit_import), maybe more than once. Door and event id identify
it. A later copy adds what is missing (the name, the picture) and changes nothing else. It adds nothing to the visit of a
deleted person.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from edge.decision.reasons import UNKNOWN_PERSON
from edge.errors import UsageError
from edge.events.event import utc_text
from edge.text import same_spelling, strict_json
from trainer.site.folder import containing

GRANTED, DENIED, EXPIRED = OUTCOMES = ("granted", "denied", "expired")
"""Expired: granted at the door, but the event came too late for a receiver that opens doors."""
STRANGER, IS = "stranger", "is "
"""Verdicts: no enrolled person, or a person, whose name follows."""
MAX_EVENT = 64 << 10  # bytes of JSON
MAX_PICTURE = 16 << 20  # bytes of a sealed picture
MAX_TEXT = 300  # letters of a name or reason
PAGE_ROWS, COUNTED = 50, 1000
MAX_NUMBER = (1 << 63) - 1  # of SQLite
FORGOTTEN = "forgotten"
"""Key in the event of a visit whose person was deleted: a later copy must not bring name and picture back."""

_EVENT_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Stored(StrEnum):
    """What became of an event."""

    NEW = "new"
    COMPLETED = "completed"
    KNOWN = "known"
    NOT_A_VISIT = "not a visit"


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One decision at a door."""

    id: int
    door: str
    event_id: str
    utc: str
    outcome: str
    label: str | None
    reason: str | None
    confidence: float | None
    threshold: float | None
    kit: str | None
    verdict: str | None
    """What a second look at the picture found: None, STRANGER, or IS and a name."""
    verdict_file: str | None
    """Name of the file that the verdict made."""
    has_picture: bool

    @property
    def verdict_name(self) -> str | None:
        """The person that the second look found."""
        return self.verdict.removeprefix(IS) if self.verdict is not None and self.verdict.startswith(IS) else None

    @property
    def is_unknown(self) -> bool:
        """Whether no person was recognised. A visit of a known person may have no name: it was not sent, or was deleted."""
        return self.reason == UNKNOWN_PERSON

    @property
    def local(self) -> datetime:
        """The time in the zone of this computer."""
        return datetime.fromisoformat(self.utc).astimezone()

    @property
    def cursor(self) -> str:
        """Continues a search from this visit on."""
        return f"{self.utc}_{self.id}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which visits to show."""

    person: str = ""
    """The exact name of a person with visits; else a part of the name."""
    unknown: bool = False
    """Only visits of unknown people."""
    door: str = ""
    outcome: str = ""
    since: str = ""
    """Earliest time: `utc_bound`."""
    until: str = ""
    """Time before which a visit was."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One page of a search."""

    visits: tuple[Visit, ...]
    """Newest first."""
    older: str | None
    """Cursor of the page with older visits; None if there are none."""
    newer: str | None
    """Cursor of the page with newer visits; None if there are none."""


_COLUMNS = ", ".join(
    "typeof(picture) = 'blob' AS has_picture" if field.name == "has_picture" else field.name for field in fields(Visit)
)


def store(database: sqlite3.Connection, door: str, event: Mapping[str, Any], picture: bytes | None = None) -> Stored:
    """Store the event of a decision once, with its sealed picture if there is one. Other events are not visits.

    UsageError if it is not an event of this program.
    """
    kind = event.get("kind")
    if not isinstance(kind, str):
        raise _not_an_event("kind")
    if kind != "decision":
        return Stored.NOT_A_VISIT
    row = _row(door, event) | {"picture": picture if picture is None or len(picture) <= MAX_PICTURE else None}
    names = ", ".join(row)
    added = database.execute(
        f"INSERT INTO visits ({names}) VALUES (:{names.replace(', ', ', :')}) ON CONFLICT (door, event_id) DO NOTHING", row
    )
    if added.rowcount:
        return Stored.NEW
    completed = database.execute(
        "UPDATE visits SET label = coalesce(label, :label), picture = coalesce(picture, :picture),"
        " event = CASE WHEN (label IS NULL AND :label IS NOT NULL) OR (outcome = 'expired' AND :outcome != 'expired')"
        "  THEN :event ELSE event END,"
        " reason = CASE outcome WHEN 'expired' THEN :reason ELSE reason END,"
        " outcome = CASE outcome WHEN 'expired' THEN :outcome ELSE outcome END"
        f" WHERE door = :door AND event_id = :event_id AND json_extract(event, '$.{FORGOTTEN}') IS NULL"
        "  AND ((label IS NULL AND :label IS NOT NULL)"
        "  OR (picture IS NULL AND :picture IS NOT NULL) OR (outcome = 'expired' AND :outcome != 'expired'))",
        row,
    )
    return Stored.COMPLETED if completed.rowcount else Stored.KNOWN


def _row(door: str, event: Mapping[str, Any]) -> dict[str, Any]:
    event_id, outcome, whole = event.get("event_id"), event.get("outcome"), _whole(event)
    if not isinstance(event_id, str) or not _EVENT_ID.fullmatch(event_id) or outcome not in OUTCOMES:
        raise _not_an_event("event_id or outcome")
    if len(whole.encode()) > MAX_EVENT:
        raise _not_an_event("size")
    label = _text(event, "label")
    return {
        "door": door,
        "event_id": event_id,
        "utc": _utc(event.get("utc")),
        "outcome": outcome,
        "label": None if label is None else same_spelling(label),
        "reason": _text(event, "reason"),
        "confidence": _number(event, "confidence"),
        "threshold": _number(event, "threshold"),
        "kit": _text(event, "kit"),
        "event": whole,
    }


def _whole(event: Mapping[str, Any]) -> str:
    try:
        return strict_json(dict(event))
    except RecursionError:
        raise _not_an_event("depth") from None


def _utc(value: Any) -> str:
    try:
        return utc_text(datetime.fromisoformat(value))
    except (ValueError, TypeError, OverflowError):
        raise _not_an_event("utc") from None


def _text(event: Mapping[str, Any], name: str) -> str | None:
    value = event.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT):
        raise _not_an_event(name)
    return None if value is None else value.encode("utf-8", "replace").decode()


def _number(event: Mapping[str, Any], name: str) -> float | None:
    value = event.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e6:
        raise _not_an_event(name)
    return float(value)


def _not_an_event(field: str) -> UsageError:
    return UsageError(f"This is not an event of a terminal: its {field} is not valid.", "Check where it comes from.")


def find(database: sqlite3.Connection, number: int) -> Visit | None:
    """Return a visit by its number."""
    if number > MAX_NUMBER:
        return None
    row = database.execute(f"SELECT {_COLUMNS} FROM visits WHERE id = ?", (number,)).fetchone()
    return None if row is None else _visit(row)


def get(database: sqlite3.Connection, number: int) -> Visit:
    """Return a visit by its number; UsageError if there is none."""
    found = find(database, number)
    if found is None:
        raise UsageError("There is no such visit.", "It may be deleted because of its age. Search for others.")
    return found


def event_of(database: sqlite3.Connection, number: int) -> dict[str, Any]:
    """Return all fields of a visit's event."""
    (text,) = database.execute("SELECT event FROM visits WHERE id = ?", (number,)).fetchone()
    return dict(json.loads(text))


def search(
    database: sqlite3.Connection, wanted: Search, *, older_than: str = "", newer_than: str = "", most: int = PAGE_ROWS
) -> Found:
    """Return the newest `most` visits, or those directly before or after a cursor."""
    inner, values = _query(database, wanted, older_than, newer_than)
    query = f"SELECT {_COLUMNS} FROM visits WHERE id IN ({inner} LIMIT ?) ORDER BY utc DESC, id DESC"
    found = [_visit(row) for row in database.execute(query, (*values, most + 1))]
    is_full = len(found) > most
    if newer_than and not is_full:
        return search(database, wanted, most=most)  # the newest page is full, if there are so many
    shown = found[-most:] if newer_than else found[:most]
    return Found(
        visits=tuple(shown),
        older=shown[-1].cursor if newer_than or is_full else None,
        newer=shown[0].cursor if shown and (newer_than or older_than) else None,
    )


def count(database: sqlite3.Connection, wanted: Search, most: int = COUNTED) -> int:
    """Return the number of visits; `most` + 1 if there are more than `most`."""
    inner, values = _query(database, wanted)
    (number,) = database.execute(f"SELECT count(*) FROM ({inner} LIMIT ?)", (*values, most + 1)).fetchone()
    return int(number)


def _query(database: sqlite3.Connection, wanted: Search, older_than: str = "", newer_than: str = "") -> tuple[str, list[Any]]:
    """Return the SELECT of the ids, nearest to the cursor first, by an index that has all columns of the search."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, *of: Any) -> None:
        conditions.append(condition)
        values.extend(of)

    index = "visits_by_time"
    if wanted.outcome:
        index = "visits_by_outcome"
        where("outcome = ?", wanted.outcome)
    if wanted.door:
        index = "visits_by_door"
        where("door = ?", same_spelling(wanted.door))
    person = same_spelling(wanted.person.strip())
    if wanted.unknown:
        index = "visits_of_unknown"
        where(f"reason = '{UNKNOWN_PERSON}'")  # not a parameter: SQLite must see that the index has these visits only
    elif person and _is_label(database, person):
        index = "visits_by_label"
        where("label = ?", person)
    elif person:
        where("label LIKE ? ESCAPE '!'", containing(person))
    if wanted.since:
        where("utc >= ?", wanted.since)
    if wanted.until:
        where("utc < ?", wanted.until)
    if older_than:
        where("(utc, id) < (?, ?)", *_parse_cursor(older_than))
    elif newer_than:
        where("(utc, id) > (?, ?)", *_parse_cursor(newer_than))
    rest = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "utc, id" if newer_than and not older_than else "utc DESC, id DESC"
    return f"SELECT id FROM visits INDEXED BY {index}{rest} ORDER BY {order}", values


def _is_label(database: sqlite3.Connection, person: str) -> bool:
    return database.execute("SELECT 1 FROM visits WHERE label = ? LIMIT 1", (person,)).fetchone() is not None


def _parse_cursor(cursor: str) -> tuple[str, int]:
    utc, _, number = cursor.rpartition("_")
    if len(cursor) > 60 or not re.fullmatch(r"[0-9]{1,18}", number):
        raise UsageError("The address of this page is not complete.", "Search again.")
    return utc, int(number)


def _visit(row: sqlite3.Row) -> Visit:
    return Visit(**{name: row[name] for name in row.keys() if name != "has_picture"}, has_picture=bool(row["has_picture"]))  # noqa: SIM118


def utc_bound(text: str, *, is_end: bool = False) -> str:
    """Return a time that a person wrote, such as 2026-11-18 or 2026-11-18 14:03, as a bound of a search.

    Without a zone, it is in that of this computer. A day as an end includes the day.
    """
    text = text.strip()
    if not text:
        return ""
    try:
        when = datetime.fromisoformat(text)
        if is_end and len(text) <= len("2026-11-18"):
            when += timedelta(days=1)
        return utc_text(when.astimezone())
    except (ValueError, OverflowError):
        raise UsageError(f"{text[:40]!r} is not a time.", "Write it as 2026-11-18, or as 2026-11-18 14:03.") from None


def doors(database: sqlite3.Connection) -> list[str]:
    """Return the names of all doors with visits: one seek in the index for each."""
    rows = database.execute(
        "WITH RECURSIVE names(door) AS (SELECT min(door) FROM visits UNION ALL"
        " SELECT (SELECT min(door) FROM visits WHERE door > names.door) FROM names WHERE names.door IS NOT NULL)"
        " SELECT door FROM names WHERE door IS NOT NULL"
    )
    return [row[0] for row in rows]


def of_person(database: sqlite3.Connection, name: str) -> Iterator[tuple[Visit, dict[str, Any], bytes | None]]:
    """Yield everything that is held about the visits of a person: visit, event, sealed picture."""
    rows = database.execute(f"SELECT {_COLUMNS}, event, picture FROM visits WHERE {_OF_PERSON} ORDER BY id", (name, IS + name))
    for row in rows:
        values = {field.name: row[field.name] for field in fields(Visit)} | {"has_picture": row["picture"] is not None}
        yield Visit(**values), json.loads(row["event"]), row["picture"]


_OF_PERSON = "id IN (SELECT id FROM visits WHERE label = ? UNION SELECT id FROM visits WHERE verdict = ?)"
