"""The audit log is complete, chained, private, and valid after a kill at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.audit.log import AuditLog, LogEntry, _plain_errors
from edge.errors import AuditChainError, AuditDamagedError, AuditError, UsageError
from edge.events.event import notice
from tests.fixtures.databases import alter
from tests.fixtures.events import NOON, make_event

DAY = timedelta(days=1)


def without_head(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event that are in the log: it gets its head only there."""
    return {name: value for name, value in fields.items() if not name.startswith("head")}


def head_of(entry: LogEntry) -> str:
    return f"{entry.seq}:{entry.hash}"


def independently_valid(path: Path) -> bool:
    """Check the chain as docs/guide/audit-log.md describes it, without our code."""
    with closing(sqlite3.connect(path)) as db:
        before = "0" * 64
        for seq, text, digest in db.execute("SELECT seq, json, hash FROM entries ORDER BY seq"):
            if hashlib.sha256(f"{before}\n{seq}\n{text}".encode()).hexdigest() != digest:
                return False
            before = digest
    return True


# Chain


def test_entries_are_read_in_order(log: AuditLog, path: Path) -> None:
    events = [make_event(label="Zoë\n\u2028"), make_event(outcome="denied"), notice("stop", now=1, utc=NOON)]
    for event in events:
        log.append(event)
    logged = [json.loads(event.to_json()) for event in events]
    assert [entry.facts for entry in log.entries()] == [without_head(fields) for fields in logged]
    assert [entry.seq for entry in log.entries(last=2)] == [2, 3]
    found = log.verify()
    assert (found.entries, found.first, found.pictures) == (3, 1, 0)
    assert found.head == head_of(list(log.entries())[-1])
    assert independently_valid(path)


def test_event_is_logged_once(log: AuditLog) -> None:
    event = make_event()
    assert log.append(event) == log.append(event)
    assert log.verify().entries == 1


def test_empty_log_is_valid(log: AuditLog) -> None:
    assert log.verify().head is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["UPDATE entries SET json = replace(json, 'denied', 'granted') WHERE seq = 3"], "Entry 3 was changed"),
        (["UPDATE entries SET json = replace(json, 'anna', 'ben') WHERE seq = 1"], "Entry 1 was changed"),
        (["UPDATE entries SET hash = (SELECT hash FROM entries WHERE seq = 2) WHERE seq = 3"], "Entry 3 was changed"),
        (["DELETE FROM entries WHERE seq = 3"], "Entry 3 is missing"),
        (["DELETE FROM entries WHERE seq = 1"], "before 2 are missing"),
        (["DELETE FROM entries WHERE seq = 3", "UPDATE entries SET seq = seq - 1 WHERE seq > 3"], "Entry 3 was changed"),
        (["UPDATE entries SET seq = 99 WHERE seq = 2", "UPDATE entries SET seq = 2 WHERE seq = 3"], "Entry 2 was changed"),
        (["INSERT INTO pictures VALUES ('x', x'00')"], "pictures without an entry"),
    ],
)
def test_change_of_the_file_is_detected(log: AuditLog, path: Path, change: list[str], message: str) -> None:
    for number in range(5):
        log.append(make_event(outcome="granted" if number == 0 else "denied"))
    alter(path, *change)
    with pytest.raises(AuditChainError, match=message):
        log.verify()


def test_entry_that_is_not_an_object_is_rejected() -> None:
    for text in ("3", "{", "[" * 100_000):
        with pytest.raises(AuditChainError, match="Entry 7 was not written"):
            LogEntry(seq=7, json=text, hash="").facts  # noqa: B018


def test_failed_write_leaves_the_log_usable(log: AuditLog) -> None:
    log.append_picture("a", b"box", NOON)
    with pytest.raises(AuditError, match="SQLITE_CONSTRAINT"):
        log.append_picture("a", b"another box", NOON)
    log.append(make_event())
    assert log.verify().entries == 2
    log.close()
    assert not log._lock.locked()


def test_cut_and_rewritten_end_is_detected_with_a_head(log: AuditLog, path: Path) -> None:
    for _ in range(5):
        log.append(make_event())
    head = log.verify().head
    log.append(make_event())
    assert log.verify(head).entries == 6  # it grew since
    alter(path, "DELETE FROM entries WHERE seq > 4")
    assert log.verify().entries == 4  # not detected without the head
    with pytest.raises(AuditChainError, match="end is missing"):
        log.verify(head)
    log.append(make_event())  # another entry 5
    with pytest.raises(AuditChainError, match="rewritten"):
        log.verify(head)


@pytest.mark.parametrize("head", ["", "5", "x:" + "0" * 64, "-1:" + "0" * 64, "1:00"])
def test_invalid_head_is_rejected(log: AuditLog, head: str) -> None:
    with pytest.raises(UsageError):
        log.verify(head)


@given(st.lists(st.tuples(st.integers(-40, 5), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=30)
def test_any_order_of_writing_and_pruning_leaves_a_valid_chain(steps: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(AuditLog(Path(folder) / "audit.db")) as log:
        log._db.execute("PRAGMA synchronous=OFF")  # no power failure in tests
        for days, prunes in steps:
            log.append(make_event(utc=NOON + days * DAY))
            if prunes:
                log.prune(7, NOON)
                log.verify()
        log.prune(7, NOON)
        log.verify()
        # An old entry may be left behind a recent one. It is deleted together with that one.
        first = next(log.entries(), None)
        assert first is None or datetime.fromisoformat(first.facts["utc"]) >= NOON - 7 * DAY


# Sequence numbers


def test_sequence_continues_after_all_events_were_pruned(log: AuditLog) -> None:
    assert log.last_sequence() == 0
    for number in range(1, 8):
        log.append(replace(make_event(utc=NOON), sequence=number))
    assert log.last_sequence() == 7
    log.prune(1, NOON + 9 * DAY)
    assert [entry.facts["kind"] for entry in log.entries()] == ["pruned"]
    assert log.last_sequence() == 7


def test_sequence_of_a_log_without_numbers_starts_after_its_events(log: AuditLog) -> None:
    for _ in range(3):
        facts = without_head(json.loads(make_event().to_json()))
        del facts["sequence"]
        log._append(facts)  # as an earlier version wrote it
    log.append_picture("a", b"box", NOON)
    assert log.last_sequence() == 3
    log.append(replace(make_event(), sequence=4))
    assert log.last_sequence() == 4


# Pruning


def test_pruning_deletes_old_entries_and_keeps_the_chain_valid(log: AuditLog, path: Path) -> None:
    for days in range(10):
        log.append(make_event(label=f"person-{days}", utc=NOON + days * DAY))
    head, last_pruned = log.verify().head, head_of(list(log.entries())[5])
    assert log.prune(3, NOON + 9 * DAY) == 6
    found = log.verify(head)
    assert (found.first, found.entries) == (7, 5)  # days 6 to 9, and the entry about pruning
    assert log.prune(3, NOON + 9 * DAY) == 0  # nothing to delete
    assert log.verify(last_pruned).first == 7
    with pytest.raises(AuditChainError, match="does not match"):
        log.verify("6:" + "0" * 64)
    assert log.prune(1, NOON + 30 * DAY) == 5
    assert log.verify().entries == 1
    log.append(make_event(utc=NOON + 30 * DAY))
    with pytest.raises(AuditError, match="pruned"):
        log.verify("3:" + "0" * 64)
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"person-" not in files  # neither in free pages nor in the write-ahead file


def test_entries_deleted_by_hand_are_detected(log: AuditLog, path: Path) -> None:
    for days in range(10):
        log.append(make_event(utc=NOON + days * DAY))
    log.prune(3, NOON + 9 * DAY)
    alter(path, "DELETE FROM entries WHERE seq = (SELECT min(seq) FROM entries)")
    with pytest.raises(AuditChainError, match="not pruned"):
        log.verify()


def test_wrong_clock_neither_deletes_nor_keeps_all_entries(log: AuditLog) -> None:
    log.append(make_event(utc=NOON))
    log.append(make_event(utc=NOON + 20_000 * DAY))  # the clock was wrong for a moment
    log.append(make_event(utc=NOON + DAY))
    assert log.prune(7, datetime(1970, 1, 9, tzinfo=UTC)) == 0  # the clock is not set
    assert log.prune(7, NOON + 2 * DAY) == 0
    assert log.prune(7, NOON + 30 * DAY) == 3


# Several processes, and kills


@pytest.mark.slow
def test_kills_while_writing_lose_no_acknowledged_entry(path: Path) -> None:
    """A process forks a writer 40 times and kills it at a random moment: while it opens, writes or commits."""
    script = """
import os, random, signal, sys, time
from datetime import UTC, datetime
from pathlib import Path
from edge.audit.log import AuditLog
from tests.fixtures.events import make_event

path, random = Path(sys.argv[1]), random.Random(7)
acknowledged = 0
for round in range(40):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        log = AuditLog.open(path, now=datetime.now(UTC))
        while True:
            os.write(writer, log.append(make_event(label="a" * 300)).seq.to_bytes(8, "big"))
    os.close(writer)
    if round % 4:  # else it may not even be open yet
        acknowledged = max(acknowledged, int.from_bytes(os.read(reader, 8), "big"))
    time.sleep(random.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(reader, 8):
        acknowledged = max(acknowledged, int.from_bytes(data, "big"))
    os.close(reader)
    log = AuditLog(path)
    found = log.verify()
    assert found.first == 1 and acknowledged <= found.entries <= acknowledged + 1, (found, acknowledged)
    acknowledged = found.entries
    log.close()
print(acknowledged)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) >= 30
    assert not list(path.parent.glob("*damaged*"))
    assert independently_valid(path)


@pytest.mark.slow
def test_two_processes_append_to_one_chain(path: Path) -> None:
    script = (
        "import sys\nfrom edge.audit import log\nfrom tests.fixtures.events import make_event\nlog.BUSY_SECONDS = 60\n"
        "audit = log.AuditLog(sys.argv[1])\nfor _ in range(50): audit.append(make_event())\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    runs = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": "."}) for _ in range(2)]
    assert [run.wait(60) for run in runs] == [0, 0]
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().entries == 100


def test_two_threads_can_create_the_log_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.audit.log.BUSY_SECONDS", 60)

    def create(path: Path, both: threading.Barrier) -> None:
        both.wait()
        with closing(AuditLog(path)) as log:
            log.append(make_event())

    with ThreadPoolExecutor(2) as pool:
        for round_ in range(20):  # without a retry, about one in four fails
            path, both = tmp_path / f"{round_}.db", threading.Barrier(2, timeout=60)
            for begun in [pool.submit(create, path, both) for _ in range(2)]:
                begun.result()
            with closing(AuditLog(path, read_only=True)) as log:
                assert log.verify().entries == 2


# Files and disks


class BusyDatabase:
    """Fails a number of times with an error code of SQLite."""

    def __init__(self, failures: int, code: int) -> None:
        self.failures, self.code, self.calls = failures, code, 0

    def execute(self, statement: str) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            error = sqlite3.OperationalError(statement)
            error.sqlite_errorcode = self.code
            raise error


def test_only_a_busy_database_is_tried_again(log: AuditLog) -> None:
    connection = log._db
    for code, seconds, calls in ((sqlite3.SQLITE_BUSY, 60, 3), (sqlite3.SQLITE_BUSY, -1, 1), (sqlite3.SQLITE_IOERR, 60, 1)):
        busy = BusyDatabase(2, code)
        log._db = busy  # type: ignore[assignment]
        with suppress(sqlite3.OperationalError):
            log._use_write_ahead_log(time.monotonic() + seconds)
        assert busy.calls == calls
    log._db = connection


def test_undecodable_text_means_a_damaged_file(path: Path) -> None:
    with pytest.raises(AuditDamagedError), _plain_errors(path):
        b"\xff".decode()


def test_files_are_private(log: AuditLog, path: Path) -> None:
    log.append(make_event())
    files = list(path.parent.iterdir())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (0x1C1A0D17,), "existing logs must stay readable"
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert (log._value("PRAGMA secure_delete"), log._value("PRAGMA synchronous")) == (1, 2)
    assert len(files) == 3  # the log, the write-ahead file and its index
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_full_disk_is_an_error_and_writing_continues_later(log: AuditLog) -> None:
    log.append(make_event())
    pages = log._value("PRAGMA page_count")
    log._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(AuditError, match="disk is full") as full:
        deque(map(log.append, (make_event() for _ in range(1000))))
    written = log.verify().entries
    assert full.value.exit_code == 40
    log._db.execute("PRAGMA max_page_count=1000000")
    log.append(make_event())
    assert log.verify().entries == written + 1


def test_locked_log_is_an_error(log: AuditLog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.audit.log.BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(AuditLog(path)) as mine:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditError, match="another program"):
            mine.append(make_event())
        other.execute("ROLLBACK")
        mine.append(make_event())


def test_path_that_cannot_be_opened_or_written_is_an_error(tmp_path: Path, log: AuditLog, path: Path) -> None:
    for place in ("/proc/audit.db", tmp_path / "none" / "audit.db", tmp_path):
        with pytest.raises(AuditError, match="cannot be opened"):
            AuditLog(place)
    with closing(AuditLog(path, read_only=True)) as reader, pytest.raises(AuditError, match="read-only"):
        reader.append(make_event())
    for reading in ({"read_only": True}, {"must_exist": True}):
        with pytest.raises(AuditError, match="no audit log at"):
            AuditLog(tmp_path / "none.db", **reading)
    assert not (tmp_path / "none.db").exists()


def test_other_database_is_not_changed(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.db"
    alter(other, "CREATE TABLE mine (a)")
    before = other.read_bytes()
    with pytest.raises(AuditError, match="not an audit log"):
        AuditLog.open(other, now=NOON)
    assert sqlite3.connect(other).execute("SELECT count(*) FROM mine").fetchone() == (0,)
    assert len(before) == other.stat().st_size
    AuditLog(path).close()
    alter(path, "PRAGMA user_version=2")
    with pytest.raises(AuditError, match="another version"):
        AuditLog.open(path, now=NOON)


@pytest.mark.parametrize("damage", ["text", "middle", "half"])
def test_damaged_log_is_renamed_and_a_new_log_starts(path: Path, damage: str) -> None:
    with closing(AuditLog(path)) as log:
        for _ in range(100):
            log.append(make_event())
    data = bytearray(path.read_bytes())
    if damage == "text":
        data = bytearray(b"no database at all, but text" * 100)
    elif damage == "middle":
        data[4096 : len(data) - 4096] = bytes(len(data) - 8192)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(AuditDamagedError) as damaged:
        AuditLog(path)
    assert damaged.value.exit_code == 41
    with closing(AuditLog.open(path, now=NOON)) as log:
        log.append(make_event())
        first, second = log.entries()
        assert (first.facts["kind"], second.facts["kind"]) == ("replaced", "decision")
        log.verify()
    (aside,) = [file for file in path.parent.glob("*damaged*") if file.name in first.facts["reason"]]
    assert aside.read_bytes() == data


@pytest.mark.slow
def test_two_processes_share_the_log_that_replaces_a_damaged_one(path: Path) -> None:
    script = """
import sys
from datetime import UTC, datetime
from edge.audit.log import AuditLog
print(flush=True)
sys.stdin.readline()
log = AuditLog.open(sys.argv[1], now=datetime.now(UTC))
print(flush=True)
sys.stdin.readline()
log._append({"kind": "seen"})
log.close()
"""
    for _ in range(2):
        path.write_bytes(b"no database at all, but text" * 100)
        command = [sys.executable, "-c", script, str(path)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        both: list[Any] = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": "."}, **pipes) for _ in range(2)]
        for _ in range(2):  # both open it at the same moment, and write when both have opened it
            for each in both:
                each.stdout.readline()
            for each in both:
                each.stdin.write("\n")
                each.stdin.flush()
        for each in both:
            each.communicate(timeout=60)
            assert each.returncode == 0
        with closing(AuditLog(path)) as log:
            assert [entry.facts["kind"] for entry in log.entries()] == ["replaced", "seen", "seen"]
            log.verify()
        (aside,) = path.parent.glob("*damaged*")
        aside.unlink()
        path.unlink()


def test_log_that_is_opened_twice_keeps_its_locks(path: Path, log: AuditLog) -> None:
    """Otherwise another process deletes the write-ahead file while this one uses it."""
    log.append(make_event())
    AuditLog(path).close()
    script = (
        "import sys\nfrom edge.audit.log import AuditLog\n"
        "log = AuditLog(sys.argv[1])\nprint(log.verify().entries)\nlog.close()"
    )
    command = [sys.executable, "-c", script, str(path)]
    for entries in (1, 2):
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}, timeout=60)
        assert (run.stdout, run.stderr) == (f"{entries}\n", "")
        log.append(make_event())


def test_paused_reader_does_not_make_the_log_grow(path: Path, log: AuditLog) -> None:
    """For example `edge audit export | less`, left open."""
    log._db.execute("PRAGMA synchronous=OFF")  # no power failure in tests
    log.append(make_event())
    with closing(AuditLog(path, read_only=True)) as reader:
        entries = reader.entries()
        next(entries)
        for _ in range(1500):
            log.append(make_event())
        assert (path.parent / "audit.db-wal").stat().st_size < 8 << 20
        assert [entry.seq for entry in entries] == list(range(2, 1502)), "entries written meanwhile are read, too"


def test_changed_or_missing_picture_is_detected(log: AuditLog, path: Path) -> None:
    log.append_picture("a", b"box a", NOON)
    log.append_picture("b", b"box b", NOON)
    assert log.verify().pictures == 2
    alter(path, "UPDATE pictures SET box = x'00' WHERE event_id = 'b'")
    with pytest.raises(AuditChainError, match="picture"):
        log.verify()
    alter(path, "DELETE FROM pictures WHERE event_id = 'b'")
    with pytest.raises(AuditChainError, match="picture"):
        log.verify()


def test_pictures_are_pruned_with_their_entries(log: AuditLog, path: Path) -> None:
    log.append_picture("old", b"the old box", NOON)
    log.append_picture("new", b"the new box", NOON + 9 * DAY)
    log.prune(3, NOON + 9 * DAY)
    assert (log.picture("old"), log.picture("new")) == (None, b"the new box")
    assert log.verify().pictures == 1
    assert b"the old box" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
