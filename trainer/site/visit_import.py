"""Read visits from files of a terminal: its audit log with sealed pictures, or events as JSON lines."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from edge.audit.log import AuditLog, LogEntry
from edge.errors import EdgeError, UsageError
from edge.text import plural, printable
from trainer.site import doors, trail, visit_retention, visits
from trainer.site.folder import Site, transaction
from trainer.site.visits import DENIED, Stored

SQLITE = b"SQLite format 3\0"
MAX_FILE = 256 << 20  # bytes of an upload
BATCH = 200  # events of one transaction: a webhook can write in between
HINT = "Use the audit log of a terminal, the output of `edge audit export`, or of `edge recognize --json`."

Sourced = tuple[Mapping[str, Any], bytes | None]
"""An event and its sealed picture."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import found."""

    new: int
    completed: int
    """Visits that were known, and got a name or a picture."""
    known: int
    other: int
    """Entries that are not decisions."""
    unreadable: int
    """Lines that are no events."""
    deleted: int
    """Visits that were deleted after the import: they are older than the site keeps."""
    is_verified: bool
    """Whether the file was an audit log with a valid chain."""

    @property
    def visits(self) -> int:
        return self.new + self.completed + self.known


def import_file(site: Site, door: str, file: Path, *, who: str, now: datetime, name: str = "") -> Imported:
    """Store the visits of a file. Those that are stored already are not stored again. `name` is shown for an upload."""
    door = doors.find(site, door).name
    try:
        return _import(site, door, file, who, now, name or file.name)
    except EdgeError as error:  # the person knows the name of the file, not our copy of it
        raise type(error)(error.message.replace(str(file), printable(name or str(file))), error.hint) from None


def _import(site: Site, door: str, file: Path, who: str, now: datetime, name: str) -> Imported:
    try:
        with open(file, "rb") as opened:
            is_log = opened.read(len(SQLITE)) == SQLITE
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).", "Check the path.") from None
    counts: Counter[str] = Counter()
    with site.database() as database:
        if is_log:
            with closing(AuditLog(file, read_only=True)) as log:
                _store_all(database, door, _events_of_log(log), counts)
        else:
            _store_all(database, door, _events_of_lines(file, counts), counts)
        found = Imported(
            new=counts[Stored.NEW],
            completed=counts[Stored.COMPLETED],
            known=counts[Stored.KNOWN],
            other=counts[Stored.NOT_A_VISIT],
            unreadable=counts["unreadable"],
            deleted=0,
            is_verified=is_log,
        )
        if not found.visits and not found.other:
            raise UsageError(f"{printable(name)} contains no events.", HINT)
        how = "audit log with a valid chain" if is_log else "JSON lines"
        details = f"{plural(found.new, 'new visit')}, {found.completed} completed, {found.known} known; {how}"
        trail.record(database, who, "import visits", door, f"{printable(name)}: {details}")
        return replace(found, deleted=visit_retention.prune_by_setting(database, who=who, now=now))


def _store_all(database: sqlite3.Connection, door: str, events: Iterable[Sourced], counts: Counter[str]) -> None:
    for batch in _batches(events):
        with transaction(database):
            for event, picture in batch:
                try:
                    counts[visits.store(database, door, event, picture)] += 1
                except UsageError:
                    counts["unreadable"] += 1


def _batches(events: Iterable[Sourced]) -> Iterator[list[Sourced]]:
    """Yield lists of at most BATCH events, and few pictures at once."""
    batch: list[Sourced] = []
    size = 0
    for event, picture in events:
        batch.append((event, picture))
        size += len(picture or b"")
        if len(batch) == BATCH or size > visits.MAX_PICTURE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _events_of_log(log: AuditLog) -> Iterator[Sourced]:
    """Verify the whole log, then yield its entries with their pictures. An entry without an event id is yielded, too."""
    withheld: dict[str, str] = {}
    pictured: set[str] = set()

    def inspect(entry: LogEntry) -> None:
        facts = entry.facts
        if facts.get("kind") == "withheld":
            withheld[str(facts.get("of"))] = str(facts.get("reason"))
        elif facts.get("kind") == "picture":
            pictured.add(str(facts.get("of")))

    verified = log.verify(inspect=inspect)
    for entry in log.entries():
        if entry.seq >= verified.first + verified.entries:
            return  # written after the check: for the next import
        facts = entry.facts
        event_id = str(facts.get("event_id"))
        yield _with_effect(facts, withheld), log.picture(event_id) if event_id in pictured else None


def _with_effect(event: Mapping[str, Any], withheld: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the event as the sinks got it: a grant that was logged and then withheld opened nothing."""
    reason = withheld.get(str(event.get("event_id")))
    return event if reason is None else {**event, "outcome": DENIED, "reason": reason}


def _events_of_lines(file: Path, counts: Counter[str]) -> Iterator[Sourced]:
    withheld = {
        str(event.get("of")): str(event.get("reason")) for event in _lines(file, Counter()) if event.get("kind") == "withheld"
    }
    for event in _lines(file, counts):
        yield _with_effect(event, withheld), None


def _lines(file: Path, counts: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the event of each line: an event as JSON, or a line of `edge audit export`."""
    with open(file, "rb") as opened:
        while line := opened.readline(visits.MAX_EVENT + 1):
            if len(line) > visits.MAX_EVENT:
                raise UsageError("The file has a line that is too long for an event.", HINT)
            event = _parse(line)
            if event is not None:
                yield event
            elif line.strip():
                counts["unreadable"] += 1


def _parse(line: bytes) -> Mapping[str, Any] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(fields, dict) and isinstance(fields.get("entry"), dict):
        fields = fields["entry"]
    return fields if isinstance(fields, dict) else None
