"""The audit log: what the terminal decided, in an SQLite file whose entries are chained by hashes.

    hash of entry n = SHA-256 of "<hash of entry n-1>\\n<n>\\n<its JSON>"        (before the first: 64 zeros)

An entry that was changed, taken out or put in breaks the chain. Whoever can write the file can also write a new chain: against
that, and against a cut at the end, keep a head (`edge audit verify` prints it) elsewhere. docs/audit.md says more.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.errors import AuditChainError, AuditDamagedError, AuditError, ParameterError, UsageError
from edge.events import Background, Event, Sink, StreamClosed, deliver, printable, strict_json, utc_text
from edge.files import write_atomically
from edge.seal import Seal, open_box

if TYPE_CHECKING:
    from edge.annotate import View

APPLICATION = 0x1C1A0D17  # SQLite's mark of whose file this is
VERSION = 1
SCHEMA = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, json TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX once ON entries (json_extract(json, '$.event_id'));
CREATE TABLE pictures (event_id TEXT PRIMARY KEY, box BLOB NOT NULL) STRICT;
"""
START = "0" * 64
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
            raise AuditChainError(f"Entry {self.seq} was not written by this program.", _TELL) from None

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
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            mode = "ro" if read_only else "rw"
            self._db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                timeout=busy_seconds,
                check_same_thread=False,
            )
            try:
                self._prepare(read_only)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, read_only: bool) -> None:
        one = lambda pragma: self._db.execute(f"PRAGMA {pragma}").fetchone()[0]  # noqa: E731
        if not read_only:
            one("journal_mode=WAL")
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

    @classmethod
    def open(cls, path: str | Path, *, now: datetime) -> AuditLog:
        """To write to. A damaged file is moved aside, never deleted, and the new log begins by saying so."""
        path = Path(path)
        try:
            return cls(path)
        except AuditDamagedError:
            aside = path.with_name(f"{path.name}.damaged-{now.astimezone(UTC):%Y%m%dT%H%M%S%fZ}")
            with _in_words(path):
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

    def then(self, sinks: Iterable[Sink], **settings: Any) -> Audited:
        """A sink that logs each event before it goes to `sinks`."""
        return Audited(self, sinks, **settings)

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
            if last is None:
                yield from self._rows("ORDER BY seq")
            else:
                yield from reversed(list(self._rows("ORDER BY seq DESC LIMIT ?", (last,))))

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
                raise AuditChainError(f"Entry {seq} is missing.", _TELL)
            if entry.hash != chained(previous, seq, entry.json):
                raise AuditChainError(f"Entry {seq} was changed, or something before it taken out.", _TELL)
            if wanted is not None and wanted[0] == seq and wanted[1] != entry.hash:
                raise AuditChainError(f"Entry {seq} is not the one of that head: the log was written anew.", _TELL)
            facts = entry.facts
            if facts.get("kind") == "picture":
                box = self.picture(str(facts.get("of")))
                if box is None or hashlib.sha256(box).hexdigest() != facts.get("sha256"):
                    raise AuditChainError(f"The picture of entry {seq} is missing or was changed.", _TELL)
                pictures += 1
            previous, count = entry.hash, count + 1
        if wanted is not None and wanted[0] > seq:
            raise AuditChainError(f"The log ends at entry {seq}, but once had entry {wanted[0]}: its end is missing.", _TELL)
        if wanted is not None and wanted[0] < first - 1:
            raise AuditError(f"Entry {wanted[0]} was pruned since.", f"Give a head of entry {first - 1} or later.")
        if wanted is not None and wanted[0] == first - 1 and wanted[1] != self._base(first):
            raise AuditChainError(f"Entry {wanted[0]} was pruned, but is not the one of that head.", _TELL)
        if pictures != self._one("SELECT count(*) FROM pictures"):
            raise AuditChainError("There are pictures that no entry speaks of.", _TELL)
        return Verified(entries=count, first=first, pictures=pictures, head=f"{seq}:{previous}" if seq else None)

    def _base(self, first: int) -> str:
        """The hash that the first entry follows: of nothing, or of the last one pruned, which an entry must tell."""
        if first == 1:
            return START
        pruned = next(self._rows("WHERE json_extract(json, '$.kind') = 'pruned' ORDER BY seq DESC LIMIT 1"), None)
        if pruned is None or pruned.facts.get("until") != first - 1:
            raise AuditChainError(f"The entries before {first} are missing, and were not pruned.", _TELL)
        return str(pruned.facts.get("hash"))

    def _rows(self, rest: str, values: Sequence[Any] = ()) -> Iterator[Entry]:
        for seq, text, digest in self._db.execute(f"SELECT seq, json, hash FROM entries {rest}", values):
            yield Entry(seq=seq, json=text, hash=digest)

    def _one(self, query: str, values: Any = ()) -> Any:
        return self._db.execute(query, values).fetchone()[0]


_TELL = "Do not trust this log: compare it with an export or a backup."


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


# At the door.


def open_sink(settings: AuditSettings, sinks: Iterable[Sink], *, now: datetime | None = None) -> Audited:
    """The sink of the terminal: it logs, and then tells `sinks`."""
    seal = None
    if settings.picture_key is not None:
        try:
            seal = Seal(settings.picture_key.read_bytes())
        except OSError as error:
            raise UsageError(f"{settings.picture_key} cannot be read ({error.strerror}).", "Check picture_key.") from None
    audit = AuditLog.open(settings.path, now=now or datetime.now(UTC))
    return audit.then(sinks, required=settings.required, late_seconds=settings.late_seconds, days=settings.days, seal=seal)


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
            lambda work: work(), waiting=WAITING, name="the audit log"
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


# At the desk.


def line(entry: Entry) -> str:
    """For people."""
    facts = entry.facts
    words = [str(facts.get(key) or "") for key in ("kind", "outcome", "label", "reason")]
    kind, outcome, label, reason = map(printable, words)
    return f"{entry.seq:>6}  {printable(str(facts.get('utc')))}  {kind:<9} {outcome:<8} {label:<12}  {reason}".rstrip()


def export(entries: Iterable[Entry], form: str) -> Iterator[str]:
    """Lines of JSON, or of CSV with the fields of events as columns and all else in the last."""
    if form == "jsonl":
        for entry in entries:
            yield f'{{"seq": {entry.seq}, "hash": "{entry.hash}", "entry": {entry.json}}}'
        return
    columns = [field.name for field in fields(Event)]
    yield _csv(["seq", "hash", *columns, "more"])
    for entry in entries:
        facts = entry.facts
        values = [facts.pop(name, None) for name in columns]
        yield _csv([entry.seq, entry.hash, *values, strict_json(facts) if facts else None])


def _csv(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def unseal(audit: AuditLog, private_key: bytes, folder: Path, event_id: str | None = None) -> list[Path]:
    """Write the pictures of all events, or of one, into `folder`; the files."""
    written = []
    for entry in audit.entries():
        facts = entry.facts
        of = str(facts.get("of"))
        if facts.get("kind") != "picture" or (event_id is not None and of != event_id):
            continue
        box = audit.picture(of)
        if box is None or not of.isalnum():
            raise AuditChainError(f"The picture of entry {entry.seq} is missing.", _TELL)
        picture = open_box(box, of.encode(), private_key)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / f"{of}.jpg", picture)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written ({error.strerror}).", "Choose another place.") from None
        written.append(folder / f"{of}.jpg")
    return written
