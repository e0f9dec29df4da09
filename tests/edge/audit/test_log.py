"""The audit log: complete, chained, private, and whole after a kill at any moment."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.audit import gate as audited
from edge.audit.crypto import Seal, open_box, write_keys
from edge.audit.gate import Audited, AuditSettings, open_sink
from edge.audit.log import AuditLog, Entry
from edge.audit.report import unseal
from edge.camera.live import Frame
from edge.errors import AuditChainError, AuditDamagedError, AuditError, ParameterError, UsageError
from edge.events import event as events
from edge.events.event import Event, StreamClosed, notice
from edge.monitor.annotate import View
from tests.edge.events.test_event import NOON, Gate, told
from tests.fakes.mqtt_broker import until

DAY = timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    with closing(AuditLog(path)) as log:
        yield log


def alter(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def independently_valid(path: Path) -> bool:
    """The check of docs/audit.md, which shares no code with ours."""
    with closing(sqlite3.connect(path)) as db:
        before = "0" * 64
        for seq, text, digest in db.execute("SELECT seq, json, hash FROM entries ORDER BY seq"):
            if hashlib.sha256(f"{before}\n{seq}\n{text}".encode()).hexdigest() != digest:
                return False
            before = digest
    return True


# The chain


def test_what_was_logged_is_read_again_in_order(log: AuditLog, path: Path) -> None:
    events = [told(label="Zoë\n\u2028"), told(outcome="denied"), notice("stop", now=1, utc=NOON)]
    for event in events:
        log.append(event)
    assert [entry.json for entry in log.entries()] == [event.to_json() for event in events]
    assert [entry.seq for entry in log.entries(last=2)] == [2, 3]
    found = log.verify()
    assert (found.entries, found.first, found.pictures) == (3, 1, 0)
    assert found.head == list(log.entries())[-1].head
    assert independently_valid(path)


def test_an_event_is_logged_once(log: AuditLog) -> None:
    event = told()
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
        log.append(told(outcome="granted" if number == 0 else "denied"))
    alter(path, *change)
    with pytest.raises(AuditChainError):
        log.verify()


def test_a_cut_at_the_end_takes_a_head_kept_elsewhere(log: AuditLog, path: Path) -> None:
    for _ in range(5):
        log.append(told())
    head = log.verify().head
    log.append(told())
    assert log.verify(head).entries == 6  # grown since
    alter(path, "DELETE FROM entries WHERE seq > 4")
    assert log.verify().entries == 4  # the chain itself cannot know
    with pytest.raises(AuditChainError, match="end is missing"):
        log.verify(head)
    log.append(told())  # number 5 again, but another
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
            log.append(told(utc=NOON + days * DAY))
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
        log.append(told(label=f"person-{days}", utc=NOON + days * DAY))
    head = log.verify().head
    assert log.prune(3, NOON + 9 * DAY) == 6
    found = log.verify(head)
    assert (found.first, found.entries) == (7, 5)  # days 6 to 9, and the entry that tells of it
    assert log.prune(3, NOON + 9 * DAY) == 0  # nothing to tell
    assert log.prune(1, NOON + 30 * DAY) == 5
    assert log.verify().entries == 1
    log.append(told(utc=NOON + 30 * DAY))
    with pytest.raises(AuditError, match="pruned"):
        log.verify("3:" + "0" * 64)
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"person-" not in files  # not in free pages, nor in the write-ahead file


def test_what_was_pruned_by_hand_is_found(log: AuditLog, path: Path) -> None:
    for days in range(10):
        log.append(told(utc=NOON + days * DAY))
    log.prune(3, NOON + 9 * DAY)
    alter(path, "DELETE FROM entries WHERE seq = (SELECT min(seq) FROM entries)")
    with pytest.raises(AuditChainError, match="not pruned"):
        log.verify()


def test_a_clock_that_was_wrong_neither_deletes_all_nor_keeps_all(log: AuditLog) -> None:
    log.append(told(utc=NOON))
    log.append(told(utc=NOON + 20_000 * DAY))  # the clock ran ahead for a moment
    log.append(told(utc=NOON + DAY))
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
from tests.edge.events.test_event import told

path, random = Path(sys.argv[1]), random.Random(7)
acknowledged = 0
for round in range(100):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        log = AuditLog.open(path, now=datetime.now(UTC))
        while True:
            os.write(writer, log.append(told(label="a" * 300)).seq.to_bytes(8, "big"))
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
        "import sys\nfrom edge.audit.log import AuditLog\nfrom tests.edge.events.test_event import told\n"
        "log = AuditLog(sys.argv[1], busy_seconds=60)\nfor _ in range(50): log.append(told())\n"
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
            log.append(told())

    with ThreadPoolExecutor(2) as pool:
        for round_ in range(50):  # without trying again, about one in four fails
            path, both = tmp_path / f"{round_}.db", threading.Barrier(2, timeout=60)
            for begun in [pool.submit(begin, path, both) for _ in range(2)]:
                begun.result()
            with closing(AuditLog(path, read_only=True)) as log:
                assert log.verify().entries == 2


# Disks


def test_the_files_are_private(log: AuditLog, path: Path) -> None:
    log.append(told())
    files = list(path.parent.iterdir())
    assert len(files) == 3  # with the write-ahead file and its index
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_full_disk_is_said_and_the_chain_goes_on_when_there_is_room(log: AuditLog) -> None:
    log.append(told())
    pages = log._one("PRAGMA page_count")
    log._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(AuditError, match="disk is full") as full:
        deque(map(log.append, (told() for _ in range(1000))))
    written = log.verify().entries
    assert full.value.exit_code == 40
    log._db.execute("PRAGMA max_page_count=1000000")
    log.append(told())
    assert log.verify().entries == written + 1


def test_a_log_that_somebody_holds_is_said(log: AuditLog, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(AuditLog(path, busy_seconds=0.01)) as mine:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditError, match="another program"):
            mine.append(told())
        other.execute("ROLLBACK")
        mine.append(told())


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, log: AuditLog, path: Path) -> None:
    for place in ("/proc/audit.db", tmp_path / "none" / "audit.db", tmp_path):
        with pytest.raises(AuditError, match="cannot be opened"):
            AuditLog(place)
    with closing(AuditLog(path, read_only=True)) as reader, pytest.raises(AuditError, match="read-only"):
        reader.append(told())
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
            log.append(told())
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
        log.append(told())
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
    log.append(told())
    AuditLog(path).close()
    script = "import sys; from edge.audit.log import AuditLog; log = AuditLog(sys.argv[1]); print(log.verify().entries); log.close()"
    command = [sys.executable, "-c", script, str(path)]
    for entries in (1, 2):
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}, timeout=60)
        assert (run.stdout, run.stderr) == (f"{entries}\n", "")
        log.append(told())


def test_a_reader_who_takes_a_break_does_not_let_the_log_grow(path: Path, log: AuditLog) -> None:
    """As `edge audit export | less`, left open over night."""
    log._db.execute("PRAGMA synchronous=OFF")  # no power fails here
    log.append(told())
    with closing(AuditLog(path, read_only=True)) as reader:
        entries = reader.entries()
        next(entries)
        for _ in range(1500):
            log.append(told())
        assert (path.parent / "audit.db-wal").stat().st_size < 8 << 20
        assert [entry.seq for entry in entries] == list(range(2, 1502)), "and what came meanwhile is read as well"


# At the door


def test_what_is_old_goes_also_while_nobody_comes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "TEND_SECONDS", 0.01)
    now = [NOON]
    sink = Audited(AuditLog(path), [], days=5, now=lambda: now[0], clock=lambda: now[0].timestamp())
    sink(told(utc=NOON))
    until(lambda: sink.written == 1)
    now[0] += 6 * DAY
    with closing(AuditLog(path, read_only=True)) as log:
        until(lambda: [entry.facts["kind"] for entry in log.entries()] == ["pruned"])
    sink.close(60)


def chained(log: AuditLog, *sinks: Any, **other: Any) -> Audited:
    return Audited(log, sinks, **other)


def test_an_event_is_in_the_log_before_anybody_is_told(log: AuditLog, path: Path) -> None:
    logged: list[int] = []

    def tell(event: Event) -> None:
        with closing(sqlite3.connect(path)) as db:
            found = db.execute("SELECT count(*) FROM entries WHERE json_extract(json, '$.event_id') = ?", (event.event_id,))
            logged.append(found.fetchone()[0])

    sink = chained(log, tell)
    for _ in range(5):
        sink(told())
    sink.close(60)
    assert logged == [1] * 5
    assert (sink.written, sink.failed, sink.withheld, sink.dropped) == (5, 0, 0, 0)


@pytest.mark.parametrize("required", [True, False])
def test_what_cannot_be_logged_opens_nothing_where_the_log_is_required(log: AuditLog, required: bool) -> None:
    served: list[Event] = []
    log._db.execute("DROP TABLE entries")
    sink = chained(log, served.append, required=required)
    grant, denial = told(), told(outcome="denied")
    sink(grant)
    sink(denial)
    sink.close(60)
    withheld = replace(grant, outcome="denied", reason="not logged")
    assert served == [withheld if required else grant, denial]
    assert (sink.written, sink.failed, sink.withheld) == (0, 2, int(required))


def test_a_grant_that_the_disk_held_up_opens_nothing_and_the_log_says_so(log: AuditLog) -> None:
    now = [0.0]
    served: list[Event] = []
    append = log.append

    def slow(event: Event) -> Entry:
        now[0] += 2.5 if event.grants else 0.0
        return append(event)

    log.append = slow  # type: ignore[method-assign]
    sink = chained(log, served.append, clock=lambda: now[0])
    grant = told()
    sink(grant)
    until(lambda: len(served) == 1)
    assert (served[0].outcome, served[0].reason) == ("denied", "logged too late")
    facts = [entry.facts for entry in log.entries()]
    assert [(fact["kind"], fact.get("of")) for fact in facts] == [("decision", None), ("withheld", grant.event_id)]
    sink.close(60)


def test_a_grant_that_a_failing_disk_held_up_opens_nothing_even_where_no_log_is_required(log: AuditLog) -> None:
    now = [0.0]
    served: list[Event] = []

    def slow(event: Event) -> Entry:
        now[0] += 2.5
        raise AuditError("held by another program")

    log.append = slow  # type: ignore[method-assign]
    sink = chained(log, served.append, required=False, clock=lambda: now[0])
    sink(told())
    sink.close(60)
    assert [event.outcome for event in served] == ["denied"]
    assert (sink.failed, sink.failing, sink.withheld) == (1, True, 1)


def test_a_grant_that_waited_behind_others_is_logged_as_denied(log: AuditLog) -> None:
    now, gate = [0.0], Gate()
    sink = chained(log, gate, clock=lambda: now[0])
    sink(told())
    assert gate.entered.wait(30)
    sink(told())
    now[0] = 2.1
    gate.opened.set()
    until(lambda: len(gate.seen) == 2)
    assert [event.outcome for event in gate.seen] == ["granted", "denied"]
    assert [entry.facts["outcome"] for entry in log.entries()] == ["granted", "denied"]
    sink.close(60)


def test_a_disk_that_hangs_delays_nobody(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "WAITING", 20)
    gate = threading.Event()
    entered = threading.Event()
    append = log.append

    def stuck(event: Event) -> Entry:
        entered.set()
        gate.wait(30)
        return append(event)

    log.append = stuck  # type: ignore[method-assign]
    served: list[Event] = []
    sink = chained(log, served.append)
    sink(told())
    assert entered.wait(30)
    for _ in range(30):
        sink(told())  # would never return if it waited
    assert (sink.dropped, served) == (10, [])
    gate.set()
    sink.close(60)
    assert len(served) == 21  # what did not fit was neither logged nor told


def test_the_log_goes_on_when_nobody_reads_stdout_any_more(path: Path) -> None:
    def closed(event: Event) -> None:
        raise StreamClosed

    sink = open_sink(AuditSettings(path=path, days=0), [closed])
    sink(told())
    until(lambda: sink._reader_left)
    with pytest.raises(StreamClosed):  # which ends the loop
        sink(told())
    with pytest.raises(StreamClosed):
        sink(notice("stop", now=1, utc=NOON))
    sink.close(60)
    with closing(AuditLog(path, read_only=True)) as log:
        assert [entry.facts["kind"] for entry in log.entries()] == ["decision", "decision", "stop"]


def test_a_sink_that_fails_is_counted_and_the_next_is_told(log: AuditLog) -> None:
    served: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("not today")

    sink = chained(log, broken, served.append)
    sink(told())
    sink.close(60)
    assert (sink.undelivered, len(served)) == (1, 1)


def settled(sink: Audited) -> None:
    """Wait until all that it was given so far is done."""
    done = threading.Event()
    sink._background(done.set)
    assert done.wait(30)


def test_old_entries_go_once_a_day(path: Path) -> None:
    now = [NOON]
    with closing(AuditLog(path)) as log:
        for days in range(10):
            log.append(told(utc=NOON - (9 - days) * DAY))
    sink = Audited(AuditLog(path), [], days=5, now=lambda: now[0], clock=lambda: now[0].timestamp())
    for step in range(6):
        now[0] = NOON + step // 2 * DAY  # two a day, for three days
        sink(told(utc=now[0]))
        settled(sink)
    sink.close(60)
    with closing(AuditLog(path, read_only=True)) as log:
        log.verify()
        facts = [entry.facts for entry in log.entries()]
    assert sum(fact["kind"] == "pruned" for fact in facts) == 3
    decided = [fact["utc"] for fact in facts if fact["kind"] == "decision"]
    assert decided[0] == told(utc=NOON - 3 * DAY).utc
    assert len(decided) == 4 + 6


@pytest.mark.parametrize("jump", [400 * DAY, -10_000 * DAY])
def test_a_clock_that_jumps_deletes_nothing_for_a_day(path: Path, jump: timedelta) -> None:
    now, running = [NOON], [0.0]
    sink = Audited(AuditLog(path), [], days=5, now=lambda: now[0], clock=lambda: running[0])

    def after(seconds: float) -> int:
        """How many entries there are when the next one was written so much later."""
        running[0] += seconds
        now[0] += timedelta(seconds=seconds)
        sink(told(utc=now[0]))
        settled(sink)
        with closing(AuditLog(path, read_only=True)) as log:
            return log.verify().entries

    assert after(0) == 1
    now[0] += jump
    assert after(60) == 2
    assert after(80_000) == 3
    now[0] -= jump  # somebody has set it right
    assert after(60) == 4
    assert after(80_000) == 5
    now[0] += jump
    assert after(60) == 6
    after(100_000)  # now it is believed: the first entry is too old for it, or of a clock that ran ahead
    sink.close(60)
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().first == 2


def test_a_device_that_wakes_up_in_1970_deletes_nothing_at_once(path: Path) -> None:
    with closing(AuditLog(path)) as log:
        log.append(told(utc=NOON))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    sink = Audited(AuditLog(path), [], days=5, now=lambda: epoch, clock=lambda: 0.0)
    sink(told(utc=epoch))
    settled(sink)
    sink.close(60)
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().entries == 2


# Pictures


def view(captured: float) -> View:
    image = np.full((48, 64, 3), 90, np.uint8)
    return View(frame=Frame(image=image, captured=captured, number=1))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_keys(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def test_no_picture_is_kept_unless_asked_for(path: Path) -> None:
    sink = open_sink(AuditSettings(path=path, days=0), [])
    sink(told())
    sink.publish(view(10.3))
    sink.close(60)
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().pictures == 0


def test_the_deciding_frame_is_kept_and_only_the_private_key_opens_it(path: Path, key: Path, tmp_path: Path) -> None:
    public = key.with_name("key.pem.pub")
    sink = open_sink(AuditSettings(path=path, days=0, picture_key=public), [])
    decided, left = told(), told(outcome="denied", captured=9.0)
    for event in (decided, left, notice("camera", outcome="lost", now=10.3, utc=NOON)):
        sink(event)
    sink.publish(view(10.3))  # the frame of the first; the second was decided on an earlier one
    sink.publish(view(10.3))  # and not twice
    sink.close(60)
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().pictures == 1
        box = log.picture(decided.event_id) or b""
        (file,) = unseal(log, key.read_bytes(), tmp_path / "out")
        assert unseal(log, key.read_bytes(), tmp_path / "out", event_id=left.event_id) == []
    assert file == tmp_path / "out" / f"{decided.event_id}.jpg"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    picture = cv2.imread(str(file))
    assert picture is not None
    assert abs(int(picture.mean()) - 90) <= 1
    assert b"JFIF" not in box
    for file in path.parent.glob("audit.db*"):
        assert b"JFIF" not in file.read_bytes()
    write_keys(tmp_path / "other.pem")
    for about, private in (
        (decided.event_id, (tmp_path / "other.pem").read_bytes()),
        (left.event_id, key.read_bytes()),
        (decided.event_id, public.read_bytes()),
        (decided.event_id, b"no key"),
    ):
        with pytest.raises(UsageError):
            open_box(box, about.encode(), private)


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


@given(data=st.binary(max_size=300), at=st.integers(0, 10_000), bit=st.integers(0, 7))
@example(data=b"", at=31, bit=7)  # the bit of a public key that X25519 itself ignores
@settings(max_examples=30)
def test_a_box_opens_to_what_was_put_in_or_not_at_all(data: bytes, at: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key.pem"
        seal = Seal(write_keys(key).read_bytes())
        box = seal(data, b"about")
        assert box != seal(data, b"about")
        assert open_box(box, b"about", key.read_bytes()) == data
        changed = bytearray(box)
        changed[at % len(box)] ^= 1 << bit
        with pytest.raises(UsageError):
            open_box(bytes(changed), b"about", key.read_bytes())
        with pytest.raises(UsageError):
            open_box(box[:20], b"about", key.read_bytes())


def test_keys_are_private_and_never_overwritten(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="exists"):
        write_keys(key)
    with pytest.raises(UsageError, match="X25519 public"):
        Seal(key.read_bytes())
    with pytest.raises(UsageError, match="cannot be read"):
        open_sink(AuditSettings(path=key.with_name("a.db"), picture_key=key.with_name("none")), [])


# The command


def edge(*words: object, code: int = 0) -> tuple[str, str]:
    run = subprocess.run([sys.executable, "-m", "edge.cli.main", "audit", *map(str, words)], capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout, run.stderr


def test_the_command_shows_checks_copies_and_prunes(log: AuditLog, path: Path, tmp_path: Path) -> None:
    events = [told(label="Zo\x1b[2J", utc=NOON), told(outcome="denied", reason="unknown", label=None, utc=datetime.now(UTC))]
    for event in events:
        log.append(event)
    shown = edge("show", path, "--last", 5)[0].splitlines()
    assert len(shown) == 2
    assert "granted" in shown[0]
    assert "\x1b" not in shown[0]
    assert shown[1].split()[:1] == ["2"]
    found = json.loads(edge("verify", path)[0])
    assert found["entries"] == 2
    exported = [json.loads(line) for line in edge("export", path)[0].splitlines()]
    assert [line["entry"] for line in exported] == [json.loads(event.to_json()) for event in events]
    assert f"{exported[-1]['seq']}:{exported[-1]['hash']}" == found["head"]
    edge("export", path, "--format", "csv", "-o", tmp_path / "log.csv")
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["event_id"] for row in rows] == [event.event_id for event in events]
    assert rows[1]["label"] == ""
    assert json.loads(edge("prune", path, "--days", 30)[0])["pruned"] == 1
    assert json.loads(edge("verify", path, "--head", found["head"])[0])["first"] == 2
    alter(path, "DELETE FROM entries WHERE seq = 2")
    assert "not pruned" in edge("verify", path, code=42)[1]
    assert "no audit log at" in edge("prune", tmp_path / "none", "--days", 1, code=40)[1]
    path.write_bytes(b"text" * 1000)
    assert "damaged" in edge("verify", path, code=41)[1]


def test_the_command_makes_keys_and_opens_pictures(path: Path, tmp_path: Path) -> None:
    edge("keygen", "-o", tmp_path / "key.pem")
    sink = open_sink(AuditSettings(path=path, days=0, picture_key=tmp_path / "key.pem.pub"), [])
    sink(told())
    sink.publish(view(10.3))
    sink.close(60)
    out, _ = edge("decrypt", path, "--key", tmp_path / "key.pem", "-o", tmp_path / "out")
    assert cv2.imread(json.loads(out)["file"]) is not None
    edge("decrypt", path, "--key", tmp_path / "key.pem.pub", "-o", tmp_path / "out", code=2)


@pytest.mark.parametrize("wrong", [{"days": -1}, {"late_seconds": 0.0}, {"late_seconds": float("nan")}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        AuditSettings(path=Path("a.db"), **wrong)
