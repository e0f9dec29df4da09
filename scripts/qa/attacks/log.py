"""Attacks that hide or destroy evidence: the audit log, its clock, its chain and its export."""

from __future__ import annotations

import csv
import io
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edge.audit import report
from edge.audit.gate import AuditGate, AuditSettings
from edge.audit.log import FIRST_HASH, AuditLog, entry_hash
from edge.errors import EdgeError
from edge.sinks.webhook import WebhookSettings, WebhookSink
from scripts.qa.attacks.attack import Range, Score, Tally, attack, grants, run_edge
from tests.fakes.cameras import ManualClock
from tests.fakes.sinks import RecordingSink
from tests.fakes.webhook_server import SECRET, WebhookServer
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until

VICTIM = "mallory"
"""The grants of this person shall vanish."""


@contextmanager
def gate(path: Path, events: Any, **options: Any) -> Iterator[AuditGate]:
    with closing(AuditGate(AuditSettings(path=path), [events], **options)) as opened:
        yield opened


def fresh_log(path: Path, entries: int = 5, when: datetime | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    with closing(AuditLog(path)) as log:
        for _ in range(entries):
            log.append(make_event(utc=when or datetime.now(UTC)))
    return path


def is_hidden(path: Path, events: RecordingSink) -> bool:
    """Whether a grant reached the sinks that the log at the path does not show, and the log counts as valid."""
    try:
        with closing(AuditLog(path, read_only=True)) as log:
            log.verify()
            logged = {entry.facts.get("event_id") for entry in log.entries()}
    except EdgeError:
        return False  # it is seen that this log is not to be trusted
    return bool({event.event_id for event in grants(events)} - logged)


# 6: schemas that swallow entries.

WHEN = f"WHEN json_extract(NEW.json, '$.label') = '{VICTIM}'"
SCHEMAS = {
    "a trigger that deletes": f"CREATE TRIGGER t AFTER INSERT ON entries {WHEN} BEGIN"
    " DELETE FROM entries WHERE seq = NEW.seq; END",
    "a trigger that ignores": f"CREATE TRIGGER t BEFORE INSERT ON entries {WHEN} BEGIN SELECT RAISE(IGNORE); END",
    "a trigger on another table": "CREATE TABLE other (n); CREATE TRIGGER t AFTER INSERT ON entries"
    f" {WHEN} BEGIN INSERT INTO other VALUES (NEW.seq); END;"
    " CREATE TRIGGER u AFTER INSERT ON other BEGIN DELETE FROM entries WHERE seq = NEW.n; END",
    "a view in place of the table": "ALTER TABLE entries RENAME TO kept;"
    " CREATE VIEW entries AS SELECT * FROM kept; CREATE TRIGGER t INSTEAD OF INSERT ON entries"
    f" WHEN json_extract(NEW.json, '$.label') <> '{VICTIM}' BEGIN INSERT INTO kept VALUES (NEW.seq, NEW.json, NEW.hash); END",
    "a constraint that ignores": "CREATE TABLE o AS SELECT * FROM entries; DROP TABLE entries;"
    " CREATE TABLE entries (seq INTEGER PRIMARY KEY, json TEXT NOT NULL, hash TEXT NOT NULL,"
    " label TEXT AS (json_extract(json, '$.outcome')) UNIQUE ON CONFLICT REPLACE);"
    " INSERT INTO entries (seq, json, hash) SELECT * FROM o; DROP TABLE o",
}


def change_schema(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(sql)


@attack("6", "trigger in the audit log")
def schema_of_the_log(where: Range) -> Score:
    """A schema that makes chosen grants vanish, before the start and while the terminal runs."""
    tally = Tally(where, 2 * len(SCHEMAS))
    for i, (name, sql) in enumerate(SCHEMAS.items()):
        for is_running in (False, True):
            path = fresh_log(where.folder / f"{i}{is_running}" / "audit.db")
            events = RecordingSink()
            try:
                if not is_running:
                    change_schema(path, sql)
                with gate(path, events) as opened:
                    if is_running:
                        opened.handle(make_event(outcome="denied"))
                        until(lambda seen=events: len(seen) == 1)  # type: ignore[misc]
                        change_schema(path, sql)
                    opened.handle(make_event(label=VICTIM))
            except EdgeError:  # the start is refused
                pass
            tally.add(is_hidden(path, events), name)
    return tally.score()


# 7: the file is gone.


def unlink(path: Path) -> None:
    path.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def rename_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name(f"{path.parent.name}-elsewhere"))


def replace_file(path: Path) -> None:
    other = fresh_log(path.with_name("other.db"))
    other.replace(path)


def unlink_and_write_another(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
    fresh_log(path)


REMOVALS: tuple[Callable[[Path], None], ...] = (unlink, rename, rename_folder, replace_file, unlink_and_write_another)


@attack("7", "audit log unlinked or renamed")
def log_is_gone(where: Range) -> Score:
    """The file is removed while the terminal runs: grants go to a file without a name."""
    tries = where.tries(1, 5) * len(REMOVALS)
    tally = Tally(where, tries)
    for i in range(tries):
        remove = REMOVALS[i % len(REMOVALS)]
        path = fresh_log(where.folder / f"log{i}" / "audit.db")
        events = RecordingSink()
        with gate(path, events) as opened:
            opened.handle(make_event(outcome="denied"))
            until(lambda seen=events: len(seen) == 1)  # type: ignore[misc]
            remove(path)
            opened.handle(make_event())
            until(lambda seen=events: len(seen) == 2)  # type: ignore[misc]
        tally.add(bool(grants(events)) and (not path.exists() or is_hidden(path, events)), remove.__name__.replace("_", " "))
    return tally.score()


# 8: a clock far ahead.


@attack("8", "clock far ahead")
def clock_ahead(where: Range) -> Score:
    """The clock is years ahead at the start, and stays so for two hours: young entries must not be deleted."""
    tally = Tally(where, 12)
    for days in (40, 400, 4000, 30_000):
        for hours in (0.0, 0.5, 2.0):
            path = fresh_log(where.folder / f"{days}-{hours}" / "audit.db", entries=20)
            clock, events = ManualClock(), RecordingSink()
            ahead = datetime.now(UTC) + timedelta(days=days)
            start = clock.now
            now = lambda start=start, ahead=ahead, clock=clock: ahead + timedelta(seconds=clock.now - start)  # noqa: E731
            with gate(path, events, clock=clock, now=now) as opened:
                for number in range(4):
                    opened.handle(make_event(outcome="denied"))
                    until(lambda seen=events, n=number: len(seen) == n + 1)  # type: ignore[misc]
                    clock.now += hours * 1200.0
            with closing(AuditLog(path, read_only=True)) as log:
                left = log.verify().first == 1
            tally.add(not left, f"pruned with a clock {days} days ahead, after {hours:g} hours")
    return tally.score()


# 9: a new chain.


def without_entry(path: Path, number: int) -> None:
    """Remove an entry and write a valid chain over the others, as a person with write access can."""
    with closing(sqlite3.connect(path)) as db:
        rows = [text for seq, text in db.execute("SELECT seq, json FROM entries ORDER BY seq") if seq != number]
        db.execute("DELETE FROM entries")
        before = FIRST_HASH
        for seq, text in enumerate(rows, 1):
            before = entry_hash(before, seq, text)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, text, before))
        db.commit()


def without_end(path: Path, number: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM entries WHERE seq >= ?", (number,))
        db.commit()


def received_by_webhook(folder: Path, path: Path, events: int) -> Path:
    """Run a gate with a webhook, and return what the receiver stored: one message per line."""
    secret, stored = folder / "secret", folder / "received.jsonl"
    secret.write_text(SECRET)
    with closing(WebhookServer()) as server:
        sink = WebhookSink(WebhookSettings(url=f"http://127.0.0.1:{server.port}/", secret_file=secret))
        with closing(sink), gate(path, sink) as opened:
            for i in range(events):
                opened.handle(make_event(label=VICTIM if i == 3 else "anna"))
            until(lambda: sink.health().delivered == events)
        stored.write_bytes(b"".join(body + b"\n" for _, _, body in server.got))
    return stored


@attack("9", "rewritten chain")
def rewritten_chain(where: Range) -> Score:
    """The log is rewritten or cut. A receiver of the events must see it with `edge audit verify --against`."""
    attacks = [(change, entry) for change in (without_entry, without_end) for entry in where_to_cut(where)]
    tally = Tally(where, len(attacks))
    for i, (change, entry) in enumerate(attacks):
        folder = where.folder / str(i)
        folder.mkdir()
        path = folder / "audit.db"
        stored = received_by_webhook(folder, path, 8)
        honest = run_edge("audit", "verify", "--against", stored, path).returncode
        change(path, entry)
        forged = run_edge("audit", "verify", "--against", stored, path).returncode
        tally.add(honest != 0 or forged in (0, 2), f"{change.__name__.replace('_', ' ')} {entry}")
    return tally.score()


def where_to_cut(where: Range) -> tuple[int, ...]:
    return (4,) if where.quick else (1, 2, 4, 8)


# 16: names in a table.

NAMES = (
    "=1+1", "+1+1", "-2+3", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1+1", "\r=1+1", " =1+1", "\uff1d1+1", "\x1b[2J",
    "\x1b]0;x\x07", "\u202egpj.exe", "\u2066a\u2069", "a\u200fb", "\x9b2J", "a\nb", 'a"\n=1+1', "\x00", "\x85", "\u2028=1",
)  # fmt: skip


def is_dangerous(cell: str) -> bool:
    """Whether a spreadsheet could compute a cell, or a terminal obey it."""
    starts = cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
    return starts or any(unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") for letter in cell)


@attack("16", "hostile names in CSV")
def names_in_csv(where: Range) -> Score:
    tally = Tally(where, 2 * len(NAMES))
    for i, name in enumerate(NAMES):
        for field in ("label", "camera"):
            path = where.folder / f"{i}{field}.db"
            with closing(AuditLog(path)) as log:
                changed: dict[str, Any] = {field: name}
                log.append(replace(make_event(), **changed))
            rows = list(csv.DictReader(io.StringIO(export(path), newline="")))
            tally.add(len(rows) != 1 or is_dangerous(rows[0][field]), f"{field} {name!r}")
    return tally.score()


def export(path: Path) -> str:
    with closing(AuditLog(path, read_only=True)) as log:
        return "".join(f"{line}\n" for line in report.export(log.entries(), "csv"))
