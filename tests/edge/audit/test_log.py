"""The audit log: complete, chained, private, and whole after a kill at any moment."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.audit.log import AuditLog
from edge.errors import AuditChainError, AuditDamagedError, AuditError, UsageError
from edge.events.event import notice
from tests.fixtures.events import NOON, make_event

DAY = timedelta(days=1)


def alter(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def independently_valid(path: Path) -> bool:
    """The check of docs/guide/audit-log.md, which shares no code with ours."""
    with closing(sqlite3.connect(path)) as db:
        before = "0" * 64
        for seq, text, digest in db.execute("SELECT seq, json, hash FROM entries ORDER BY seq"):
            if hashlib.sha256(f"{before}\n{seq}\n{text}".encode()).hexdigest() != digest:
                return False
            before = digest
    return True


# The chain


def test_what_was_logged_is_read_again_in_order(log: AuditLog, path: Path) -> None:
    events = [make_event(label="Zoë\n\u2028"), make_event(outcome="denied"), notice("stop", now=1, utc=NOON)]
    for event in events:
        log.append(event)
    assert [entry.json for entry in log.entries()] == [event.to_json() for event in events]
    assert [entry.seq for entry in log.entries(last=2)] == [2, 3]
    found = log.verify()
    assert (found.entries, found.first, found.pictures) == (3, 1, 0)
    assert found.head == list(log.entries())[-1].head
    assert independently_valid(path)


def test_an_event_is_logged_once(log: AuditLog) -> None:
    event = make_event()
    assert log.append(event) == log.append(event)
    assert log.verify().entries == 1


def test_an_empty_log_is_valid(log: AuditLog) -> None:
    assert log.verify().head is None


@pytest.mark.parametrize(
    "change",
    [
        ["UPDATE entries SET json = replace(json, 'denied', 'granted') WHERE seq = 3"],
        ["UPDATE entries SET json = replace(json, 'anna', 'ben') WHERE seq = 1"],
        ["UPDATE entries SET hash = (SELECT hash FROM entries WHERE seq = 2) WHERE seq = 3"],
        ["DELETE FROM entries WHERE seq = 3"],
        ["DELETE FROM entries WHERE seq = 1"],
        ["DELETE FROM entries WHERE seq = 3", "UPDATE entries SET seq = seq - 1 WHERE seq > 3"],
        ["UPDATE entries SET seq = 99 WHERE seq = 2", "UPDATE entries SET seq = 2 WHERE seq = 3"],
        ["INSERT INTO pictures VALUES ('x', x'00')"],
    ],
)
def test_a_change_is_found(log: AuditLog, path: Path, change: list[str]) -> None:
    for number in range(5):
        log.append(make_event(outcome="granted" if number == 0 else "denied"))
    alter(path, *change)
    with pytest.raises(AuditChainError):
        log.verify()


def test_a_cut_at_the_end_takes_a_head_kept_elsewhere(log: AuditLog, path: Path) -> None:
    for _ in range(5):
        log.append(make_event())
    head = log.verify().head
    log.append(make_event())
    assert log.verify(head).entries == 6  # grown since
    alter(path, "DELETE FROM entries WHERE seq > 4")
    assert log.verify().entries == 4  # the chain itself cannot know
    with pytest.raises(AuditChainError, match="end is missing"):
        log.verify(head)
    log.append(make_event())  # number 5 again, but another
    with pytest.raises(AuditChainError, match="written anew"):
        log.verify(head)


@pytest.mark.parametrize("head", ["", "5", "x:" + "0" * 64, "-1:" + "0" * 64, "1:00"])
def test_a_head_that_is_none_is_refused(log: AuditLog, head: str) -> None:
    with pytest.raises(UsageError):
        log.verify(head)


@given(st.lists(st.tuples(st.integers(-40, 5), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=30)
def test_any_mix_of_writing_and_pruning_leaves_a_valid_chain(steps: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(AuditLog(Path(folder) / "audit.db")) as log:
        log._db.execute("PRAGMA synchronous=OFF")  # no power fails here
        for days, prunes in steps:
            log.append(make_event(utc=NOON + days * DAY))
            if prunes:
                log.prune(7, NOON)
                log.verify()
        log.prune(7, NOON)
        log.verify()
        # What is old and still there came after something young: it goes when that goes.
        first = next(log.entries(), None)
        assert first is None or datetime.fromisoformat(first.facts["utc"]) >= NOON - 7 * DAY


# Pruning


def test_pruning_deletes_what_is_old_and_the_chain_holds(log: AuditLog, path: Path) -> None:
    for days in range(10):
        log.append(make_event(label=f"person-{days}", utc=NOON + days * DAY))
    head = log.verify().head
    assert log.prune(3, NOON + 9 * DAY) == 6
    found = log.verify(head)
    assert (found.first, found.entries) == (7, 5)  # days 6 to 9, and the entry that tells of it
    assert log.prune(3, NOON + 9 * DAY) == 0  # nothing to tell
    assert log.prune(1, NOON + 30 * DAY) == 5
    assert log.verify().entries == 1
    log.append(make_event(utc=NOON + 30 * DAY))
    with pytest.raises(AuditError, match="pruned"):
        log.verify("3:" + "0" * 64)
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"person-" not in files  # not in free pages, nor in the write-ahead file


def test_what_was_pruned_by_hand_is_found(log: AuditLog, path: Path) -> None:
    for days in range(10):
        log.append(make_event(utc=NOON + days * DAY))
    log.prune(3, NOON + 9 * DAY)
    alter(path, "DELETE FROM entries WHERE seq = (SELECT min(seq) FROM entries)")
    with pytest.raises(AuditChainError, match="not pruned"):
        log.verify()


def test_a_clock_that_was_wrong_neither_deletes_all_nor_keeps_all(log: AuditLog) -> None:
    log.append(make_event(utc=NOON))
    log.append(make_event(utc=NOON + 20_000 * DAY))  # the clock ran ahead for a moment
    log.append(make_event(utc=NOON + DAY))
    assert log.prune(7, datetime(1970, 1, 9, tzinfo=UTC)) == 0  # it has forgotten the time altogether
    assert log.prune(7, NOON + 2 * DAY) == 0
    assert log.prune(7, NOON + 30 * DAY) == 3


# Death


def test_a_hundred_kills_in_mid_write_cost_nothing_that_was_acknowledged(path: Path) -> None:
    """A nursery forks a writer a hundred times and kills it at a random moment: while it opens, writes or commits."""
    script = """
import os, random, signal, sys, time
from datetime import UTC, datetime
from pathlib import Path
from edge.audit.log import AuditLog
from tests.fixtures.events import make_event

path, random = Path(sys.argv[1]), random.Random(7)
acknowledged = 0
for round in range(100):
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
    assert int(run.stdout) >= 75
    assert not list(path.parent.glob("*damaged*"))
    assert independently_valid(path)


def test_two_processes_append_to_one_chain(path: Path) -> None:
    script = (
        "import sys\nfrom edge.audit.log import AuditLog\nfrom tests.fixtures.events import make_event\n"
        "log = AuditLog(sys.argv[1], busy_seconds=60)\nfor _ in range(50): log.append(make_event())\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    runs = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": "."}) for _ in range(2)]
    assert [run.wait(60) for run in runs] == [0, 0]
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().entries == 100


def test_a_log_that_two_begin_at_the_same_moment_is_begun_once(tmp_path: Path) -> None:
    def begin(path: Path, both: threading.Barrier) -> None:
        both.wait()
        with closing(AuditLog(path, busy_seconds=60)) as log:
            log.append(make_event())

    with ThreadPoolExecutor(2) as pool:
        for round_ in range(50):  # without trying again, about one in four fails
            path, both = tmp_path / f"{round_}.db", threading.Barrier(2, timeout=60)
            for begun in [pool.submit(begin, path, both) for _ in range(2)]:
                begun.result()
            with closing(AuditLog(path, read_only=True)) as log:
                assert log.verify().entries == 2


# Disks


def test_the_files_are_private(log: AuditLog, path: Path) -> None:
    log.append(make_event())
    files = list(path.parent.iterdir())
    assert len(files) == 3  # with the write-ahead file and its index
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_full_disk_is_said_and_the_chain_goes_on_when_there_is_room(log: AuditLog) -> None:
    log.append(make_event())
    pages = log._one("PRAGMA page_count")
    log._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(AuditError, match="disk is full") as full:
        deque(map(log.append, (make_event() for _ in range(1000))))
    written = log.verify().entries
    assert full.value.exit_code == 40
    log._db.execute("PRAGMA max_page_count=1000000")
    log.append(make_event())
    assert log.verify().entries == written + 1


def test_a_log_that_somebody_holds_is_said(log: AuditLog, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(AuditLog(path, busy_seconds=0.01)) as mine:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditError, match="another program"):
            mine.append(make_event())
        other.execute("ROLLBACK")
        mine.append(make_event())


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, log: AuditLog, path: Path) -> None:
    for place in ("/proc/audit.db", tmp_path / "none" / "audit.db", tmp_path):
        with pytest.raises(AuditError, match="cannot be opened"):
            AuditLog(place)
    with closing(AuditLog(path, read_only=True)) as reader, pytest.raises(AuditError, match="read-only"):
        reader.append(make_event())
    for reading in ({"read_only": True}, {"must_exist": True}):
        with pytest.raises(AuditError, match="no audit log at"):
            AuditLog(tmp_path / "none.db", **reading)
    assert not (tmp_path / "none.db").exists()


def test_what_is_no_audit_log_is_left_alone(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.db"
    alter(other, "CREATE TABLE mine (a)")
    before = other.read_bytes()
    with pytest.raises(AuditError, match="no audit log"):
        AuditLog.open(other, now=NOON)
    assert sqlite3.connect(other).execute("SELECT count(*) FROM mine").fetchone() == (0,)
    assert len(before) == other.stat().st_size
    AuditLog(path).close()
    alter(path, "PRAGMA user_version=2")
    with pytest.raises(AuditError, match="another version"):
        AuditLog.open(path, now=NOON)


@pytest.mark.parametrize("damage", ["text", "middle", "half"])
def test_a_damaged_log_is_moved_aside_and_a_new_one_says_so(path: Path, damage: str) -> None:
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


def test_two_that_find_one_damaged_log_keep_it_once_and_share_the_new_one(path: Path) -> None:
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
    for _ in range(5):
        path.write_bytes(b"no database at all, but text" * 100)
        command = [sys.executable, "-c", script, str(path)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        both: list[Any] = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": "."}, **pipes) for _ in range(2)]
        for _ in range(2):  # to open it at the same moment, and to write when both have
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


def test_a_log_that_is_opened_twice_keeps_its_locks(path: Path, log: AuditLog) -> None:
    """Else another program takes itself for the last one, and deletes the write-ahead file below this one."""
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


def test_a_reader_who_takes_a_break_does_not_let_the_log_grow(path: Path, log: AuditLog) -> None:
    """As `edge audit export | less`, left open over night."""
    log._db.execute("PRAGMA synchronous=OFF")  # no power fails here
    log.append(make_event())
    with closing(AuditLog(path, read_only=True)) as reader:
        entries = reader.entries()
        next(entries)
        for _ in range(1500):
            log.append(make_event())
        assert (path.parent / "audit.db-wal").stat().st_size < 8 << 20
        assert [entry.seq for entry in entries] == list(range(2, 1502)), "and what came meanwhile is read as well"


def test_a_picture_that_was_changed_or_taken_is_found(log: AuditLog, path: Path) -> None:
    log.append_picture("a", b"box a", NOON)
    log.append_picture("b", b"box b", NOON)
    assert log.verify().pictures == 2
    alter(path, "UPDATE pictures SET box = x'00' WHERE event_id = 'b'")
    with pytest.raises(AuditChainError, match="picture"):
        log.verify()
    alter(path, "DELETE FROM pictures WHERE event_id = 'b'")
    with pytest.raises(AuditChainError, match="picture"):
        log.verify()


def test_pictures_go_with_their_entries(log: AuditLog, path: Path) -> None:
    log.append_picture("old", b"the old box", NOON)
    log.append_picture("new", b"the new box", NOON + 9 * DAY)
    log.prune(3, NOON + 9 * DAY)
    assert (log.picture("old"), log.picture("new")) == (None, b"the new box")
    assert log.verify().pictures == 1
    assert b"the old box" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
