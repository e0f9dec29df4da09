"""The audit log: what the terminal decided, in an SQLite file whose entries are chained by hashes.

    hash of entry n = SHA-256 of "<hash of entry n-1>\\n<n>\\n<its JSON>"        (before the first: 64 zeros)

An entry that was changed, taken out or put in breaks the chain. Whoever can write the file can also write a new chain: against
that, and against a cut at the end, keep a head (`edge audit verify` prints it) elsewhere. docs/guide/audit-log.md says more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edge.errors import AuditChainError, AuditDamagedError, AuditError, UsageError
from edge.events.event import Event, utc_text
from edge.files import locked_folder
from edge.text import strict_json

APPLICATION = 0x1C1A0D17  # SQLite's mark of whose file this is
VERSION = 1
SCHEMA = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, json TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX once ON entries (json_extract(json, '$.event_id'));
CREATE TABLE pictures (event_id TEXT PRIMARY KEY, box BLOB NOT NULL) STRICT;
"""
START = "0" * 64
PAGE = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the log."""

    seq: int
    """Counts from 1, without gaps."""
    json: str
    """What was written, to the letter."""
    hash: str
    """Of this and all before."""

    @property
    def facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.json))
        except (ValueError, TypeError, RecursionError):
            raise AuditChainError(f"Entry {self.seq} was not written by this program.", TELL) from None

    @property
    def head(self) -> str:
        """Names this entry and vouches for all before."""
        return f"{self.seq}:{self.hash}"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A log whose chain holds."""

    entries: int
    """How many there are."""
    first: int
    """Number of the first; those before were pruned."""
    pictures: int
    """Sealed pictures, each as it was stored."""
    head: str | None
    """Of the last entry: keep it elsewhere. None of an empty log."""


def chained(previous: str, seq: int, text: str) -> str:
    return hashlib.sha256(f"{previous}\n{seq}\n{text}".encode()).hexdigest()


class AuditLog:
    """An audit log to write to; with `read_only`, one to look into. May be used by several threads and processes."""

    def __init__(
        self, path: str | Path, *, read_only: bool = False, must_exist: bool = False, busy_seconds: float = 5.0
    ) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        with _in_words(self.path):
            if (read_only or must_exist) and not self.path.exists():
                raise AuditError(f"There is no audit log at {self.path}.", "Check the path.")
            if not read_only:  # private from the start: SQLite gives its own files the same mode
                # One that is there is left alone: closing it would take off all locks that this process has on it.
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            mode = "ro" if read_only else "rw"
            self._db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                timeout=busy_seconds,
                check_same_thread=False,
            )
            try:
                self._prepare(read_only, busy_seconds)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, read_only: bool, busy_seconds: float) -> None:
        one = lambda pragma: self._db.execute(f"PRAGMA {pragma}").fetchone()[0]  # noqa: E731
        if not read_only:
            self._write_ahead(time.monotonic() + busy_seconds)
            self._db.execute("PRAGMA synchronous=FULL")  # on the disk before anybody acts upon it
            self._db.execute("PRAGMA secure_delete=ON")  # what was pruned leaves no traces in the file
            with self._transaction():
                if one("user_version") == 0 and one("application_id") == 0 and one("schema_version") == 0:
                    for statement in SCHEMA.split(";")[:-1]:
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA application_id={APPLICATION}")
                    self._db.execute(f"PRAGMA user_version={VERSION}")
        if one("application_id") != APPLICATION:
            raise AuditError(f"{self.path} is no audit log.", "Choose another file.")
        if one("user_version") != VERSION:
            raise AuditError(f"{self.path} is of another version of this program.", "Use that one, or choose another file.")
        if one("quick_check(1)") != "ok":
            raise AuditDamagedError(f"{self.path} is damaged.", "Restore a copy; what is left can be read with sqlite3.")

    def _write_ahead(self, deadline: float) -> None:
        """Of two that make one file write-ahead at the same moment, SQLite sends one away at once: it is to try again."""
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @classmethod
    def open(cls, path: str | Path, *, now: datetime) -> AuditLog:
        """To write to. A damaged file is moved aside, never deleted, and the new log begins by saying so."""
        path = Path(path)
        with _in_words(path), locked_folder(path.parent):  # lest two move it aside, and the second what the first began
            with suppress(AuditDamagedError):
                return cls(path)
            aside = path.with_name(f"{path.name}.damaged-{now.astimezone(UTC):%Y%m%dT%H%M%S%fZ}")
            for ending in ("-wal", "-shm", ""):  # the log itself last: until then a crash leaves something to move
                with suppress(FileNotFoundError):
                    os.rename(f"{path}{ending}", f"{aside}{ending}")
            log.error("the audit log was damaged: it is kept as %s, and a new one begins", aside.name)
            fresh = cls(path)
            fresh._append({"kind": "replaced", "utc": utc_text(now), "reason": f"damaged, kept as {aside.name}"})
            return fresh

    def close(self) -> None:
        if self._lock.acquire(timeout=1.0):  # else a disk that hangs has it: the end of the process closes the file as well
            self._db.close()
            self._lock.release()

    # Writing.

    def append(self, event: Event) -> Entry:
        """On the disk when this returns. An event that is already there is not written again."""
        return self._append(asdict(event))

    def append_picture(self, event_id: str, box: bytes, now: datetime) -> Entry:
        """A sealed picture of an event. The chain holds its hash."""
        facts = {"kind": "picture", "utc": utc_text(now), "of": event_id, "sha256": hashlib.sha256(box).hexdigest()}
        return self._append(facts, ("INSERT INTO pictures VALUES (?, ?)", (event_id, box)))

    def withhold(self, event: Event, reason: str, now: datetime) -> Entry:
        """Say that a logged grant was not acted upon after all."""
        return self._append({"kind": "withheld", "utc": utc_text(now), "of": event.event_id, "reason": reason})

    def prune(self, days: float, now: datetime) -> int:
        """Delete what is older than `days`; how many entries. A new one that says so keeps the chain."""
        oldest, latest = utc_text(now - timedelta(days=days)), utc_text(now)
        with self._writing():
            # Up to the first that is young enough. Entries of a clock that ran ahead do not hold back the rest for ever.
            until = self._one(
                "SELECT coalesce("
                " (SELECT min(seq) - 1 FROM entries WHERE json_extract(json, '$.utc') BETWEEN :oldest AND :latest),"
                " (SELECT max(seq) FROM entries WHERE json_extract(json, '$.utc') < :oldest), 0)",
                {"oldest": oldest, "latest": latest},
            )
            last = self._db.execute("SELECT seq, hash FROM entries WHERE seq = ?", (until,)).fetchone()
            if last is None:
                return 0
            facts = {"kind": "pruned", "utc": latest, "until": last[0], "hash": last[1], "reason": f"older than {days:g} days"}
            self._insert(facts)
            self._db.execute(
                "DELETE FROM pictures WHERE event_id IN (SELECT json_extract(json, '$.of') FROM entries"
                " WHERE seq <= ? AND json_extract(json, '$.kind') = 'picture')",
                (until,),
            )
            gone = self._db.execute("DELETE FROM entries WHERE seq <= ?", (until,)).rowcount
        with _in_words(self.path), self._lock:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the write-ahead file still holds what was deleted
        return gone

    def _append(self, facts: dict[str, Any], *more: tuple[str, Sequence[Any]]) -> Entry:
        with self._writing():
            known = self._rows("WHERE json_extract(json, '$.event_id') = ?", (facts.get("event_id"),))
            for entry in known:
                return entry
            for statement, values in more:
                self._db.execute(statement, values)
            return self._insert(facts)

    def _insert(self, facts: dict[str, Any]) -> Entry:
        seq, previous = self._db.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone() or (0, START)
        text = strict_json(facts)
        entry = Entry(seq=seq + 1, json=text, hash=chained(previous, seq + 1, text))
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", (entry.seq, entry.json, entry.hash))
        return entry

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _in_words(self.path), self._lock, self._transaction():
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Immediate: nobody else appends between reading the last hash and writing the next."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # Reading.

    def entries(self, *, last: int | None = None) -> Iterator[Entry]:
        """In order; only the `last` ones, if asked."""
        with _in_words(self.path):
            if last is not None:
                yield from reversed(list(self._rows("ORDER BY seq DESC LIMIT ?", (last,))))
                return
            # Some at a time: while a reader is in the middle of something, the write-ahead file only grows.
            seq = 0
            while page := list(self._rows("WHERE seq > ? ORDER BY seq LIMIT ?", (seq, PAGE))):
                yield from page
                seq = page[-1].seq

    def picture(self, event_id: str) -> bytes | None:
        """The sealed picture of an event, if there is one."""
        with _in_words(self.path):
            found = self._db.execute("SELECT box FROM pictures WHERE event_id = ?", (event_id,)).fetchone()
        return None if found is None else found[0]

    def verify(self, head: str | None = None) -> Verified:
        """Check every hash; with a `head` of some time, also that the log still holds what it held then."""
        wanted = _head(head)
        with _in_words(self.path), self._lock:
            self._db.execute("BEGIN")  # one state of the log, whoever writes meanwhile
            try:
                return self._verify(wanted)
            finally:
                self._db.execute("ROLLBACK")

    def _verify(self, wanted: tuple[int, str] | None) -> Verified:
        first = self._one("SELECT min(seq) FROM entries") or 1
        seq, previous, count, pictures = first - 1, self._base(first), 0, 0
        for entry in self._rows("ORDER BY seq"):
            seq += 1
            if entry.seq != seq:
                raise AuditChainError(f"Entry {seq} is missing.", TELL)
            if entry.hash != chained(previous, seq, entry.json):
                raise AuditChainError(f"Entry {seq} was changed, or something before it taken out.", TELL)
            if wanted is not None and wanted[0] == seq and wanted[1] != entry.hash:
                raise AuditChainError(f"Entry {seq} is not the one of that head: the log was written anew.", TELL)
            facts = entry.facts
            if facts.get("kind") == "picture":
                box = self.picture(str(facts.get("of")))
                if box is None or hashlib.sha256(box).hexdigest() != facts.get("sha256"):
                    raise AuditChainError(f"The picture of entry {seq} is missing or was changed.", TELL)
                pictures += 1
            previous, count = entry.hash, count + 1
        if wanted is not None and wanted[0] > seq:
            raise AuditChainError(f"The log ends at entry {seq}, but once had entry {wanted[0]}: its end is missing.", TELL)
        if wanted is not None and wanted[0] < first - 1:
            raise AuditError(f"Entry {wanted[0]} was pruned since.", f"Give a head of entry {first - 1} or later.")
        if wanted is not None and wanted[0] == first - 1 and wanted[1] != self._base(first):
            raise AuditChainError(f"Entry {wanted[0]} was pruned, but is not the one of that head.", TELL)
        if pictures != self._one("SELECT count(*) FROM pictures"):
            raise AuditChainError("There are pictures that no entry speaks of.", TELL)
        return Verified(entries=count, first=first, pictures=pictures, head=f"{seq}:{previous}" if seq else None)

    def _base(self, first: int) -> str:
        """The hash that the first entry follows: of nothing, or of the last one pruned, which an entry must tell."""
        if first == 1:
            return START
        pruned = next(self._rows("WHERE json_extract(json, '$.kind') = 'pruned' ORDER BY seq DESC LIMIT 1"), None)
        if pruned is None or pruned.facts.get("until") != first - 1:
            raise AuditChainError(f"The entries before {first} are missing, and were not pruned.", TELL)
        return str(pruned.facts.get("hash"))

    def _rows(self, rest: str, values: Sequence[Any] = ()) -> Iterator[Entry]:
        for seq, text, digest in self._db.execute(f"SELECT seq, json, hash FROM entries {rest}", values):
            yield Entry(seq=seq, json=text, hash=digest)

    def _one(self, query: str, values: Any = ()) -> Any:
        return self._db.execute(query, values).fetchone()[0]


TELL = "Do not trust this log: compare it with an export or a backup."


def _head(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    number, _, digest = text.partition(":")
    if not (number.isdecimal() and number.isascii() and len(digest) == 64):
        raise UsageError("A head is a number, a colon and 64 hexadecimal digits.", "Copy it from `edge audit verify`.")
    return int(number), digest.lower()


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """What SQLite and the system say, as sentences."""
    try:
        yield
    except UnicodeDecodeError as error:  # of what a damaged file says of itself
        raise AuditDamagedError(f"{path} is damaged.", "Restore a copy, or move it away.") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or str(error)
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise AuditDamagedError(f"{path} is damaged, or no audit log.", "Restore a copy, or move it away.") from error
        for start, sentence, hint in (
            ("SQLITE_FULL", f"The disk is full: {path} cannot be written.", "Free some space."),
            ("SQLITE_BUSY", f"{path} is held by another program.", "End that one, or try again."),
            ("SQLITE_READONLY", f"{path} cannot be written: it is read-only.", "Check the file's rights, and the disk."),
            ("SQLITE_CANTOPEN", f"{path} cannot be opened.", "Check the path, and the rights of its folder."),
        ):
            if name.startswith(start):
                raise AuditError(sentence, hint) from error
        raise AuditError(f"{path} cannot be read or written ({name}).", "Check the disk.") from error
    except OSError as error:
        raise AuditError(f"{path} cannot be opened ({error.strerror}).", "Check the path, and its rights.") from None
