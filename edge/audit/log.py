"""The audit log: all events of a terminal, in an SQLite file whose entries are chained by hashes.

    hash of entry n = SHA-256 of "<hash of entry n-1>\\n<n>\\n<its JSON>"        (before the first entry: 64 zeros)

An entry that was changed, removed or inserted breaks the chain. But a person who can write the file can also write a new
chain, or cut its end. Against that, keep heads elsewhere: receivers of events get them. See docs/guide/audit-log.md.
"""

import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edge.audit import schema
from edge.audit.head import head_text, parse_head
from edge.errors import AuditChainError, AuditDamagedError, AuditError, UsageError
from edge.events.event import Event, logged_fields, utc_text
from edge.files import locked_folder
from edge.text import printable, strict_json

FIRST_HASH = "0" * 64
PAGE_ENTRIES = 1000
BUSY_SECONDS = 5.0  # how long to wait for another process that writes
DO_NOT_TRUST = "Do not trust this log. Compare it with an export or a backup."
FILE_ENDINGS = ("", "-wal", "-shm")  # the log, SQLite's write-ahead file and its index

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One entry of the log."""

    seq: int
    """Counts from 1, without gaps."""
    json: str
    """The exact text that was written."""
    hash: str
    """Covers this entry and all entries before."""

    @property
    def head(self) -> str:
        return head_text(self.seq, self.hash)

    @property
    def facts(self) -> dict[str, Any]:
        """The decoded JSON."""
        try:
            return dict(json.loads(self.json))
        except (ValueError, TypeError, RecursionError):
            raise AuditChainError(f"Entry {self.seq} was not written by this program.", DO_NOT_TRUST) from None


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A log with a valid chain."""

    entries: int
    first: int
    """Number of the first entry. Entries before it were pruned."""
    pictures: int
    """Number of sealed pictures."""
    head: str | None
    """Number and hash of the last entry. Keep it elsewhere. None if the log is empty."""


def entry_hash(previous: str, seq: int, text: str) -> str:
    return hashlib.sha256(f"{previous}\n{seq}\n{text}".encode()).hexdigest()


class AuditLog:
    """An audit log to write to, or with `read_only` to read. Several threads and processes may use it."""

    def __init__(self, path: str | Path, *, read_only: bool = False, must_exist: bool = False) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._files: dict[str, tuple[int, int] | None] = {}  # device and inode of the files that are being written
        self._schema_difference = ""  # once found, it stays: SQLite may still use what it has read
        with _plain_errors(self.path):
            if (read_only or must_exist) and not self.path.exists():
                raise AuditError(f"There is no audit log at {self.path}.", "Check the path.")
            if not read_only:
                # Private from the start: SQLite gives its own files the same mode. An existing file is not opened here:
                # closing it would release all locks of this process on it.
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            uri = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
            try:
                schema.protect(self._db)
                if not read_only:
                    self._prepare_writing()
                self._check_file()
                if not read_only:
                    real = os.path.realpath(self.path)  # SQLite puts its files beside the target of a link
                    names = [os.path.abspath(self.path), *(f"{real}{ending}" for ending in FILE_ENDINGS[1:])]
                    self._files = {name: _identity(name) for name in names}
            except BaseException:
                self._db.close()
                raise

    def _prepare_writing(self) -> None:
        self._use_write_ahead_log(time.monotonic() + BUSY_SECONDS)
        self._db.execute("PRAGMA synchronous=FULL")  # on disk before any sink acts on an event
        self._db.execute("PRAGMA secure_delete=ON")  # pruned entries leave no traces in the file
        with self._begun("IMMEDIATE"):
            if not any(self._value(f"PRAGMA {name}") for name in ("user_version", "application_id", "schema_version")):
                schema.create(self._db)

    def _use_write_ahead_log(self, deadline: float) -> None:
        """Try again while SQLite is busy: it does not wait if two processes change the mode at the same moment."""
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check_file(self) -> None:
        if self._value("PRAGMA application_id") != schema.APPLICATION_ID:
            raise AuditError(f"{self.path} is not an audit log.", "Choose another file.")
        if self._value("PRAGMA user_version") != schema.VERSION:
            raise AuditError(f"{self.path} belongs to another version of this program.", "Choose another file.")
        with self._transaction("DEFERRED"):
            self._check_pages("quick_check")

    def _check_pages(self, check: str) -> None:
        if self._value(f"PRAGMA {check}(1)") != "ok":
            raise AuditDamagedError(f"{self.path} is damaged.", "Restore a copy, or read the rest with sqlite3.")

    def check(self) -> None:
        """Raise unless this is still the file that was opened, with the tables that this program created."""
        with self._transaction("DEFERRED"):
            pass

    def _check_files(self) -> None:
        """Entries that go to a file without a name, or to another folder, are lost."""
        for name, identity in self._files.items():
            if identity is None or _identity(name) != identity:
                hint = "Put it back, or restart the terminal to begin a new log."
                raise AuditError(f"{name} was removed or replaced while it was in use.", hint)

    def _check_schema(self) -> None:
        self._schema_difference = self._schema_difference or schema.difference(self._db)
        if self._schema_difference:
            raise AuditChainError(
                f"{self.path} has other tables, indexes or triggers than an audit log: {printable(self._schema_difference)}.",
                "Do not trust this log. Keep it as evidence: move it to another place, then start the terminal.",
            )

    @classmethod
    def open(cls, path: str | Path, *, now: datetime) -> "AuditLog":
        """Open a log to write to. A damaged file is renamed, never deleted, and the new log starts with an entry about it."""
        path = Path(path)
        with _plain_errors(path), locked_folder(path.parent):  # two processes must not rename each other's file
            with suppress(AuditDamagedError):
                return cls(path)
            aside = path.with_name(f"{path.name}.damaged-{now.astimezone(UTC):%Y%m%dT%H%M%S%fZ}")
            for ending in reversed(FILE_ENDINGS):  # the log itself last: after a crash there is still a file to rename
                with suppress(FileNotFoundError):
                    os.rename(f"{path}{ending}", f"{aside}{ending}")
            log.error("the audit log was damaged: it is kept as %s, and a new log was started", aside.name)
            fresh = cls(path)
            fresh._append({"kind": "replaced", "utc": utc_text(now), "reason": f"damaged, kept as {aside.name}"})
            return fresh

    def close(self) -> None:
        if self._lock.acquire(timeout=1.0):  # else the disk hangs: the end of the process closes the file
            self._db.close()
            self._lock.release()

    # Writing

    def append(self, event: Event) -> LogEntry:
        """Write an event to disk. An event that is already in the log is not written again."""
        return self._append(logged_fields(event))

    def append_picture(self, event_id: str, box: bytes, now: datetime) -> LogEntry:
        """Write the sealed picture of an event, and its hash into the chain."""
        facts = {"kind": "picture", "utc": utc_text(now), "of": event_id, "sha256": hashlib.sha256(box).hexdigest()}
        return self._append(facts, picture=(event_id, box))

    def withhold(self, event: Event, reason: str, now: datetime) -> LogEntry:
        """Write that no sink acted on a logged grant."""
        return self._append({"kind": "withheld", "utc": utc_text(now), "of": event.event_id, "reason": reason})

    def prune(self, days: float, now: datetime) -> int:
        """Delete entries older than `days`, and return their number. A new entry about it keeps the chain valid."""
        oldest, latest = utc_text(now - timedelta(days=days)), utc_text(now)
        with self._transaction():
            # Up to the first entry that is recent enough. Entries of a clock that ran ahead must not keep all others.
            until = self._value(
                "SELECT coalesce("
                " (SELECT min(seq) - 1 FROM entries WHERE json_extract(json, '$.utc') BETWEEN :oldest AND :latest),"
                " (SELECT max(seq) FROM entries WHERE json_extract(json, '$.utc') < :oldest), 0)",
                {"oldest": oldest, "latest": latest},
            )
            last = next(self._entries("WHERE seq = ?", (until,)), None)
            if last is None:
                return 0
            facts = {
                "kind": "pruned",
                "utc": latest,
                "until": last.seq,
                "hash": last.hash,
                "reason": f"older than {days:g} days",
            }
            entry = self._insert(facts | {"sequence": self._last_sequence()})
            self._db.execute(
                "DELETE FROM pictures WHERE event_id IN (SELECT json_extract(json, '$.of') FROM entries"
                " WHERE seq <= ? AND json_extract(json, '$.kind') = 'picture')",
                (until,),
            )
            deleted = self._db.execute("DELETE FROM entries WHERE seq <= ?", (until,)).rowcount
        self._read_back(entry)
        with _plain_errors(self.path), self._lock:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the write-ahead file still contains the deleted entries
        return deleted

    def _append(self, facts: Mapping[str, Any], *, picture: tuple[str, bytes] | None = None) -> LogEntry:
        with self._transaction():
            entry = next(self._entries("WHERE json_extract(json, '$.event_id') = ?", (facts.get("event_id"),)), None)
            if entry is None:
                if picture is not None:
                    self._db.execute("INSERT INTO pictures VALUES (?, ?)", picture)
                entry = self._insert(facts)
            elif entry.json != strict_json(facts):
                raise AuditChainError(f"Entry {entry.seq} has the id of another event.", DO_NOT_TRUST)
        self._read_back(entry, picture)
        return entry

    def _read_back(self, entry: LogEntry, picture: tuple[str, bytes] | None = None) -> None:
        """Raise unless the log contains what was written. No sink has acted on it yet."""
        with self._transaction("DEFERRED"):
            stored = next(self._entries("WHERE seq = ?", (entry.seq,)), None)
            if stored != entry or (picture is not None and self._picture(picture[0]) != picture[1]):
                raise AuditChainError(f"Entry {entry.seq} was not stored as it was written.", DO_NOT_TRUST)

    def _insert(self, facts: Mapping[str, Any]) -> LogEntry:
        last = next(self._entries("ORDER BY seq DESC LIMIT 1"), None)
        seq, previous = (1, FIRST_HASH) if last is None else (last.seq + 1, last.hash)
        text = strict_json(facts)
        entry = LogEntry(seq=seq, json=text, hash=entry_hash(previous, seq, text))
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", (entry.seq, entry.json, entry.hash))
        return entry

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Write all or nothing, and only into the log that was opened.

        Immediate: no other process appends between reading the last hash and writing the next.
        """
        with self._begun(kind):
            self._check_files()
            self._check_schema()
            yield

    @contextmanager
    def _begun(self, kind: str) -> Iterator[None]:
        with _plain_errors(self.path), self._lock:
            self._db.execute(f"BEGIN {kind}")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # Reading

    def entries(self, *, last: int | None = None) -> Iterator[LogEntry]:
        """Yield all entries, or the `last` ones, in order."""
        if last is not None:
            yield from reversed(self._page("ORDER BY seq DESC LIMIT ?", (last,)))
            return
        # Page by page: the write-ahead file grows as long as a query is open.
        seq = 0
        while page := self._page("WHERE seq > ? ORDER BY seq LIMIT ?", (seq, PAGE_ENTRIES)):
            yield from page
            seq = page[-1].seq

    def picture(self, event_id: str) -> bytes | None:
        """Return the sealed picture of an event, or None."""
        with self._transaction("DEFERRED"):
            return self._picture(event_id)

    def last_sequence(self) -> int:
        """Return the sequence number of the newest event; in a log without these numbers, the number of its events."""
        with self._transaction("DEFERRED"):
            return self._last_sequence()

    def verify(self, head: str | None = None, *, inspect: Callable[[LogEntry], object] = lambda entry: None) -> Verified:
        """Check every hash. With the `head` of an earlier time, check that the log still contains all entries up to it.

        `inspect` is called with each entry, in order, and may raise.
        """
        old, old_hash = None, ""
        if head is not None:
            if (found := parse_head(head)) is None:
                raise UsageError("A head is a number, a colon and 64 hexadecimal digits.", "Copy it from `edge audit verify`.")
            old, old_hash = found
        with self._transaction("DEFERRED"):  # one state of the log, even if another process writes meanwhile
            first = self._value("SELECT min(seq) FROM entries") or 1
            base = self._hash_before(first)
            seq, previous, pictures = first - 1, base, 0
            for entry in self._entries("ORDER BY seq"):
                seq += 1
                if entry.seq != seq:
                    raise AuditChainError(f"Entry {seq} is missing.", DO_NOT_TRUST)
                if entry.hash != entry_hash(previous, seq, entry.json):
                    raise AuditChainError(f"Entry {seq} was changed, or an entry before it was removed.", DO_NOT_TRUST)
                if seq == old and entry.hash != old_hash:
                    raise AuditChainError(f"Entry {seq} does not match that head: the log was rewritten.", DO_NOT_TRUST)
                pictures += self._check_picture(entry)
                inspect(entry)
                previous = entry.hash
            if old is not None and old > seq:
                raise AuditChainError(f"The log ends at entry {seq}, but had entry {old}: its end is missing.", DO_NOT_TRUST)
            if old is not None and old < first - 1:
                raise AuditError(f"Entry {old} was pruned.", f"Use a head of entry {first - 1} or later.")
            if old == first - 1 and old_hash != base:
                raise AuditChainError(f"Entry {old} was pruned, but does not match that head.", DO_NOT_TRUST)
            if pictures != self._value("SELECT count(*) FROM pictures"):
                raise AuditChainError("The log contains pictures without an entry.", DO_NOT_TRUST)
            self._check_pages("integrity_check")  # also that the index `once` belongs to these entries
        return Verified(
            entries=seq - first + 1, first=first, pictures=pictures, head=head_text(seq, previous) if seq else None
        )

    def _check_picture(self, entry: LogEntry) -> bool:
        """Whether the entry is about a picture, which must be unchanged."""
        facts = entry.facts
        if facts.get("kind") != "picture":
            return False
        box = self._picture(str(facts.get("of")))
        if box is None or hashlib.sha256(box).hexdigest() != facts.get("sha256"):
            raise AuditChainError(f"The picture of entry {entry.seq} is missing or was changed.", DO_NOT_TRUST)
        return True

    def _hash_before(self, first: int) -> str:
        """Return the hash before the first entry. After pruning, the last entry about it contains that hash."""
        if first == 1:
            return FIRST_HASH
        pruned = next(self._entries("WHERE json_extract(json, '$.kind') = 'pruned' ORDER BY seq DESC LIMIT 1"), None)
        if pruned is None or pruned.facts.get("until") != first - 1:
            raise AuditChainError(f"The entries before {first} are missing and were not pruned.", DO_NOT_TRUST)
        return str(pruned.facts.get("hash"))

    def _last_sequence(self) -> int:
        # Of the newest entry that has one: it may be the entry about pruning. Invalid JSON is for `verify` to report.
        (number,) = self._db.execute(
            "WITH facts AS (SELECT seq, CASE WHEN json_valid(json) THEN json END AS json FROM entries) SELECT coalesce("
            " (SELECT json_extract(json, '$.sequence') FROM facts WHERE json_type(json, '$.sequence') = 'integer'"
            "  ORDER BY seq DESC LIMIT 1),"
            " (SELECT count(json_extract(json, '$.event_id')) FROM facts))"
        ).fetchone()
        return int(number)

    def _picture(self, event_id: str) -> bytes | None:
        found = self._db.execute("SELECT box FROM pictures WHERE event_id = ?", (event_id,)).fetchone()
        return None if found is None else bytes(found[0])

    def _page(self, condition: str, values: Sequence[Any]) -> list[LogEntry]:
        with self._transaction("DEFERRED"):
            return list(self._entries(condition, values))

    def _entries(self, condition: str, values: Sequence[Any] = ()) -> Iterator[LogEntry]:
        for seq, text, digest in self._db.execute(f"SELECT seq, json, hash FROM entries {condition}", values):
            yield LogEntry(seq=seq, json=text, hash=digest)

    def _value(self, query: str, values: Mapping[str, str] | None = None) -> Any:
        return self._db.execute(query, values or {}).fetchone()[0]


def _identity(name: str) -> tuple[int, int] | None:
    """Return what identifies a file whatever its name is, or None if there is no such file."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as AuditError."""
    try:
        yield
    except (UnicodeDecodeError, sqlite3.Error) as error:
        name = getattr(error, "sqlite_errorname", None) or str(error)
        if isinstance(error, UnicodeDecodeError) or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise AuditDamagedError(f"{path} is damaged or not an audit log.", "Restore a copy, or move the file.") from error
        for start, problem, hint in (
            ("SQLITE_FULL", "cannot be written: the disk is full", "Free some space."),
            ("SQLITE_BUSY", "is locked by another program", "End that program, or try again."),
            ("SQLITE_READONLY", "cannot be written: it is read-only", "Check the permissions of the file and the disk."),
            ("SQLITE_CANTOPEN", "cannot be opened", "Check the path, and the permissions of the folder."),
            ("", f"cannot be read or written ({name})", "Check the disk."),
        ):
            if name.startswith(start):
                raise AuditError(f"{path} {problem}.", hint) from error
    except OSError as error:
        raise AuditError(f"{path} cannot be opened ({error.strerror}).", "Check the path and its permissions.") from None
