"""The audit log: all events of a terminal, in an SQLite file whose entries are chained by hashes.

    hash of entry n = SHA-256 of "<hash of entry n-1>\\n<n>\\n<its JSON>"        (before the first entry: 64 zeros)

An entry that was changed, removed or inserted breaks the chain. But a person who can write the file can also write a new
chain, or cut its end. Against that, keep a head (`edge audit verify` prints it) elsewhere. See docs/guide/audit-log.md.
"""

import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edge.errors import AuditChainError, AuditDamagedError, AuditError, UsageError
from edge.events.event import Event, utc_text
from edge.files import locked_folder
from edge.text import strict_json

APPLICATION_ID = 0x1C1A0D17  # in the header of the SQLite file
VERSION = 1
TABLES_SQL = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, json TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX once ON entries (json_extract(json, '$.event_id'));
CREATE TABLE pictures (event_id TEXT PRIMARY KEY, box BLOB NOT NULL) STRICT;
"""
FIRST_HASH = "0" * 64
PAGE_ENTRIES = 1000
BUSY_SECONDS = 5.0  # how long to wait for another process that writes
DO_NOT_TRUST = "Do not trust this log. Compare it with an export or a backup."

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
                if not read_only:
                    self._prepare_writing()
                self._check_file()
            except BaseException:
                self._db.close()
                raise

    def _prepare_writing(self) -> None:
        self._use_write_ahead_log(time.monotonic() + BUSY_SECONDS)
        self._db.execute("PRAGMA synchronous=FULL")  # on disk before any sink acts on an event
        self._db.execute("PRAGMA secure_delete=ON")  # pruned entries leave no traces in the file
        with self._transaction():
            if not any(self._value(f"PRAGMA {name}") for name in ("user_version", "application_id", "schema_version")):
                for statement in TABLES_SQL.split(";")[:-1]:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version={VERSION}")

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
        if self._value("PRAGMA application_id") != APPLICATION_ID:
            raise AuditError(f"{self.path} is not an audit log.", "Choose another file.")
        if self._value("PRAGMA user_version") != VERSION:
            raise AuditError(f"{self.path} belongs to another version of this program.", "Choose another file.")
        if self._value("PRAGMA quick_check(1)") != "ok":
            raise AuditDamagedError(f"{self.path} is damaged.", "Restore a copy, or read the rest with sqlite3.")

    @classmethod
    def open(cls, path: str | Path, *, now: datetime) -> "AuditLog":
        """Open a log to write to. A damaged file is renamed, never deleted, and the new log starts with an entry about it."""
        path = Path(path)
        with _plain_errors(path), locked_folder(path.parent):  # two processes must not rename each other's file
            with suppress(AuditDamagedError):
                return cls(path)
            aside = path.with_name(f"{path.name}.damaged-{now.astimezone(UTC):%Y%m%dT%H%M%S%fZ}")
            for ending in ("-wal", "-shm", ""):  # the log itself last: after a crash there is still a file to rename
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
        return self._append(asdict(event))

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
            reason = f"older than {days:g} days"
            self._insert({"kind": "pruned", "utc": latest, "until": last.seq, "hash": last.hash, "reason": reason})
            self._db.execute(
                "DELETE FROM pictures WHERE event_id IN (SELECT json_extract(json, '$.of') FROM entries"
                " WHERE seq <= ? AND json_extract(json, '$.kind') = 'picture')",
                (until,),
            )
            deleted = self._db.execute("DELETE FROM entries WHERE seq <= ?", (until,)).rowcount
        with _plain_errors(self.path), self._lock:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the write-ahead file still contains the deleted entries
        return deleted

    def _append(self, facts: Mapping[str, Any], *, picture: tuple[str, bytes] | None = None) -> LogEntry:
        with self._transaction():
            for entry in self._entries("WHERE json_extract(json, '$.event_id') = ?", (facts.get("event_id"),)):
                return entry
            if picture is not None:
                self._db.execute("INSERT INTO pictures VALUES (?, ?)", picture)
            return self._insert(facts)

    def _insert(self, facts: Mapping[str, Any]) -> LogEntry:
        last = next(self._entries("ORDER BY seq DESC LIMIT 1"), None)
        seq, previous = (1, FIRST_HASH) if last is None else (last.seq + 1, last.hash)
        text = strict_json(facts)
        entry = LogEntry(seq=seq, json=text, hash=entry_hash(previous, seq, text))
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", (entry.seq, entry.json, entry.hash))
        return entry

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Write all or nothing. Immediate: no other process appends between reading the last hash and writing the next."""
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
        with _plain_errors(self.path):
            if last is not None:
                yield from reversed(list(self._entries("ORDER BY seq DESC LIMIT ?", (last,))))
                return
            # Page by page: the write-ahead file grows as long as a query is open.
            seq = 0
            while page := list(self._entries("WHERE seq > ? ORDER BY seq LIMIT ?", (seq, PAGE_ENTRIES))):
                yield from page
                seq = page[-1].seq

    def picture(self, event_id: str) -> bytes | None:
        """Return the sealed picture of an event, or None."""
        with _plain_errors(self.path):
            found = self._db.execute("SELECT box FROM pictures WHERE event_id = ?", (event_id,)).fetchone()
        return None if found is None else bytes(found[0])

    def verify(self, head: str | None = None) -> Verified:
        """Check every hash. With the `head` of an earlier time, check that the log still contains all entries up to it."""
        old, old_hash = None, ""
        if head is not None:
            if (found := re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", head.lower())) is None:
                raise UsageError("A head is a number, a colon and 64 hexadecimal digits.", "Copy it from `edge audit verify`.")
            old, old_hash = int(found[1]), found[2]
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
                previous = entry.hash
            if old is not None and old > seq:
                raise AuditChainError(f"The log ends at entry {seq}, but had entry {old}: its end is missing.", DO_NOT_TRUST)
            if old is not None and old < first - 1:
                raise AuditError(f"Entry {old} was pruned.", f"Use a head of entry {first - 1} or later.")
            if old == first - 1 and old_hash != base:
                raise AuditChainError(f"Entry {old} was pruned, but does not match that head.", DO_NOT_TRUST)
            if pictures != self._value("SELECT count(*) FROM pictures"):
                raise AuditChainError("The log contains pictures without an entry.", DO_NOT_TRUST)
        return Verified(entries=seq - first + 1, first=first, pictures=pictures, head=f"{seq}:{previous}" if seq else None)

    def _check_picture(self, entry: LogEntry) -> bool:
        """Whether the entry is about a picture, which must be unchanged."""
        facts = entry.facts
        if facts.get("kind") != "picture":
            return False
        box = self.picture(str(facts.get("of")))
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

    def _entries(self, condition: str, values: Sequence[Any] = ()) -> Iterator[LogEntry]:
        for seq, text, digest in self._db.execute(f"SELECT seq, json, hash FROM entries {condition}", values):
            yield LogEntry(seq=seq, json=text, hash=digest)

    def _value(self, query: str, values: Mapping[str, str] | None = None) -> Any:
        return self._db.execute(query, values or {}).fetchone()[0]


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
