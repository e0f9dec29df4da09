"""The audit gate: each event is logged before sinks receive it."""

from __future__ import annotations

import hmac
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.audit import gate as gates
from edge.audit.crypto import open_box, write_keys
from edge.audit.gate import AuditGate, AuditSettings
from edge.audit.log import AuditLog, LogEntry
from edge.audit.report import decrypt_pictures
from edge.camera.base import Frame
from edge.errors import AuditError, ParameterError, SettingsError, UsageError
from edge.events.event import Event, notice
from edge.events.health import Count
from edge.events.sink import OutputClosed, Sink
from edge.events.view import View
from tests.fakes.sinks import Barrier, CallbackSink, RecordingSink, fail
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until

DAY = timedelta(days=1)


def test_old_entries_are_deleted_without_new_events(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MAINTAIN_SECONDS", 0.01)
    now = [NOON]
    sink = AuditGate(AuditSettings(path=path, days=5), [], now=lambda: now[0], clock=lambda: now[0].timestamp())
    sink.handle(make_event(utc=NOON))
    until(lambda: sink.health().delivered == 1)
    now[0] += 6 * DAY
    with closing(AuditLog(path, read_only=True)) as log:
        until(lambda: [entry.facts["kind"] for entry in log.entries()] == ["pruned"])
    sink.close()


def counts(sink: AuditGate) -> tuple[int, int, int]:
    """Events that were logged, not logged, and withheld."""
    counters = sink.counters()
    return counters[Count.LOGGED], counters[Count.NOT_LOGGED], counters[Count.WITHHELD]


def gated(path: Path, *sinks: Sink, required: bool = True, clock: Callable[[], float] = time.monotonic) -> AuditGate:
    return AuditGate(AuditSettings(path=path, required=required, days=0), sinks, clock=clock)


def test_event_is_logged_before_sinks_get_it(path: Path) -> None:
    logged: list[int] = []

    def tell(event: Event) -> None:
        with closing(sqlite3.connect(path)) as db:
            found = db.execute("SELECT count(*) FROM entries WHERE json_extract(json, '$.event_id') = ?", (event.event_id,))
            logged.append(found.fetchone()[0])

    sink = gated(path, CallbackSink(tell))
    for _ in range(5):
        sink.handle(make_event())
    sink.close()
    assert logged == [1] * 5
    assert counts(sink) == (5, 0, 0)


@pytest.mark.parametrize("required", [True, False])
def test_grant_that_cannot_be_logged_is_denied_if_the_log_is_required(path: Path, required: bool) -> None:
    served = RecordingSink()
    sink = gated(path, served, required=required)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE entries")
    grant, denial = replace(make_event(), sequence=7), make_event(outcome="denied")
    sink.handle(grant)
    sink.handle(denial)
    sink.close()
    withheld = replace(grant, outcome="denied", reason="audit log not written")  # with its sequence number
    assert served == [withheld if required else grant, denial]
    assert counts(sink) == (0, 2, int(required))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER quiet AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE seq = new.seq; END",
        "CREATE TRIGGER quiet AFTER INSERT ON entries WHEN 0 BEGIN SELECT 1; END",
    ],
)
def test_grant_is_denied_while_the_log_has_other_tables(path: Path, statement: str) -> None:
    served = RecordingSink()
    sink = gated(path, served)
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
    sink.handle(make_event())
    sink.close()
    assert [(event.outcome, event.reason, event.head) for event in served] == [("denied", "audit log not written", None)]
    assert sink.is_failing


@pytest.mark.parametrize("name", ["audit.db", "audit.db-wal", "audit.db-shm"])
def test_grant_is_denied_while_the_log_is_missing(path: Path, name: str) -> None:
    served = RecordingSink()
    sink = gated(path, served)
    file, kept = path.with_name(name), path.with_name("kept")
    failing: list[bool] = []
    for change in (lambda: None, lambda: file.rename(kept), lambda: kept.rename(file)):
        change()
        sink.handle(make_event())
        until(lambda: len(served) == len(failing) + 1)
        failing.append(sink.is_failing)
    sink.close()
    assert [event.outcome for event in served] == ["granted", "denied", "granted"]
    assert failing == [False, True, False]
    assert counts(sink) == (2, 1, 1)


def test_missing_log_is_noticed_without_events(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MAINTAIN_SECONDS", 0.01)
    sink = gated(path)
    path.rename(path.with_name("kept"))
    until(lambda: sink.is_failing)
    path.with_name("kept").rename(path)
    until(lambda: not sink.is_failing)
    sink.close()


def test_sinks_get_the_head_of_the_entry_and_its_mac(path: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key of sixteen or more\n")
    served = RecordingSink()
    sink = AuditGate(AuditSettings(path=path, days=0, head_key_file=tmp_path / "key"), [served])
    for number in (1, 2):
        sink.handle(replace(make_event(), sequence=number))
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        entries = list(log.entries())
    assert [event.head for event in served] == [f"{entry.seq}:{entry.hash}" for entry in entries]
    assert [entry.facts["sequence"] for entry in entries] == [event.sequence for event in served] == [1, 2]
    for event in served:
        assert event.head_mac == hmac.digest(b"a key of sixteen or more", (event.head or "").encode(), "sha256").hex()
    assert not {"head", "head_mac"} & entries[0].facts.keys(), "the hash of an entry cannot be in it"


def test_sequence_continues_after_a_restart(path: Path) -> None:
    for first in (1, 4):
        sink = gated(path)
        assert sink.next_sequence == first
        for number in range(first, first + 3):
            sink.handle(replace(make_event(), sequence=number))
        sink.close()


@pytest.mark.parametrize("secret", ["", "only fifteen ch", "\n a second line of some length"])
def test_short_key_is_rejected(path: Path, tmp_path: Path, secret: str) -> None:
    (tmp_path / "key").write_text(secret)
    with pytest.raises(SettingsError):
        AuditGate(AuditSettings(path=path, head_key_file=tmp_path / "key"), [])
    assert not path.exists()


def test_grant_delayed_by_the_disk_is_denied_and_logged_as_withheld(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    served = RecordingSink()
    append = AuditLog.append

    def slow(log: AuditLog, event: Event) -> LogEntry:
        now[0] += 2.5 if event.grants else 0.0
        return append(log, event)

    monkeypatch.setattr(AuditLog, "append", slow)
    sink = gated(path, served, clock=lambda: now[0])
    grant = make_event()
    sink.handle(grant)
    until(lambda: len(served) == 1)
    assert (served[0].outcome, served[0].reason) == ("denied", "audit log too slow")
    facts = [entry.facts for entry in sink._audit.entries()]
    assert [(fact["kind"], fact.get("of")) for fact in facts] == [("decision", None), ("withheld", grant.event_id)]
    sink.close()


def test_grant_delayed_by_a_failing_disk_is_denied_without_a_required_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    served = RecordingSink()

    def slow(log: AuditLog, event: Event) -> LogEntry:
        now[0] += 2.5
        raise AuditError("held by another program")

    monkeypatch.setattr(AuditLog, "append", slow)
    sink = gated(path, served, required=False, clock=lambda: now[0])
    sink.handle(make_event())
    sink.close()
    assert [event.outcome for event in served] == ["denied"]
    assert counts(sink) == (0, 1, 1)
    assert sink.is_failing


def test_grant_that_waited_in_the_queue_is_logged_as_denied(path: Path) -> None:
    now, gate = [0.0], Barrier()
    sink = gated(path, CallbackSink(gate), clock=lambda: now[0])
    sink.handle(make_event())
    assert gate.entered.wait(30)
    sink.handle(make_event())
    now[0] = 2.1
    gate.opened.set()
    until(lambda: len(gate.seen) == 2)
    assert [event.outcome for event in gate.seen] == ["granted", "denied"]
    assert [entry.facts["outcome"] for entry in sink._audit.entries()] == ["granted", "denied"]
    sink.close()


def test_hanging_disk_never_blocks_handle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CAPACITY", 20)
    gate = threading.Event()
    entered = threading.Event()
    append = AuditLog.append

    def stuck(log: AuditLog, event: Event) -> LogEntry:
        entered.set()
        gate.wait(30)
        return append(log, event)

    monkeypatch.setattr(AuditLog, "append", stuck)
    served = RecordingSink()
    sink = gated(path, served)
    sink.handle(make_event())
    assert entered.wait(30)
    for _ in range(30):
        sink.handle(make_event())  # would block here
    assert (sink.health().dropped, served) == (11, [])
    gate.set()
    sink.close()
    assert len(served) == 20, "events that did not fit were neither logged nor delivered"


def test_logging_continues_after_the_output_is_closed(path: Path) -> None:
    def closed(event: Event) -> None:
        raise OutputClosed

    sink = AuditGate(AuditSettings(path=path, days=0), [CallbackSink(closed)])
    sink.handle(make_event())
    until(lambda: sink._output_closed)
    with pytest.raises(OutputClosed):  # which ends the loop
        sink.handle(make_event())
    with pytest.raises(OutputClosed):
        sink.handle(notice("stop", now=1, utc=NOON))
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        assert [entry.facts["kind"] for entry in log.entries()] == ["decision", "decision", "stop"]


def test_failing_sink_is_counted_and_the_next_is_served(path: Path) -> None:
    served = RecordingSink()
    sink = gated(path, CallbackSink(fail), served)
    sink.handle(make_event())
    sink.close()
    assert (sink.counters()[Count.UNDELIVERED], len(served)) == (1, 1)


class IdleCountingGate(AuditGate):
    """Counts how often it looked for old entries."""

    idle_calls = 0

    def _maintain(self) -> float:
        try:
            return super()._maintain()
        finally:
            self.idle_calls += 1


def wait_until_idle(sink: IdleCountingGate) -> None:
    """Wait until all events are handled and old entries are deleted."""
    calls: list[int] = []
    sink._worker.handle(lambda: calls.append(sink.idle_calls))
    until(lambda: calls and sink.idle_calls > calls[0])


def test_old_entries_are_deleted_once_a_day(path: Path) -> None:
    now = [NOON]
    with closing(AuditLog(path)) as log:
        for days in range(10):
            log.append(make_event(utc=NOON - (9 - days) * DAY))
    sink = IdleCountingGate(AuditSettings(path=path, days=5), [], now=lambda: now[0], clock=lambda: now[0].timestamp())
    for step in range(6):
        now[0] = NOON + step // 2 * DAY  # two a day, for three days
        sink.handle(make_event(utc=now[0]))
        wait_until_idle(sink)
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        log.verify()
        facts = [entry.facts for entry in log.entries()]
    assert sum(fact["kind"] == "pruned" for fact in facts) == 2  # not in the first hour
    decided = [fact["utc"] for fact in facts if fact["kind"] == "decision"]
    assert decided[0] == make_event(utc=NOON - 3 * DAY).utc
    assert len(decided) == 4 + 6


@pytest.mark.parametrize("hours", [0.5, 23])
def test_device_that_starts_far_ahead_deletes_nothing_at_once(path: Path, hours: float) -> None:
    with closing(AuditLog(path)) as log:
        log.append(make_event(utc=NOON))
    now, running = [NOON + 9000 * DAY], [0.0]
    for _ in range(2):  # also after a restart, when the newest entry has the wrong time, too
        settings = AuditSettings(path=path, days=5)
        sink = IdleCountingGate(settings, [], now=lambda: now[0], clock=lambda: running[0])
        for step in (0.0, hours):
            now[0] += timedelta(hours=step) / 2
            running[0] += step * 3600 / 2
            sink.handle(make_event(utc=now[0]))
            wait_until_idle(sink)
        sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().first == 1


@pytest.mark.parametrize("jump", [400 * DAY, -10_000 * DAY])
def test_clock_jump_deletes_nothing_for_a_day(path: Path, jump: timedelta) -> None:
    now, running = [NOON], [0.0]
    sink = IdleCountingGate(AuditSettings(path=path, days=5), [], now=lambda: now[0], clock=lambda: running[0])

    def after(seconds: float) -> int:
        """Write an entry so much later, and return the number of entries."""
        running[0] += seconds
        now[0] += timedelta(seconds=seconds)
        sink.handle(make_event(utc=now[0]))
        wait_until_idle(sink)
        with closing(AuditLog(path, read_only=True)) as log:
            return log.verify().entries

    assert after(0) == 1
    now[0] += jump
    assert after(60) == 2
    assert after(80_000) == 3
    now[0] -= jump  # set right again
    assert after(60) == 4
    assert after(80_000) == 5
    now[0] += jump
    assert after(60) == 6
    after(100_000)  # now the clock is trusted
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().first == 2


def test_device_that_starts_in_1970_deletes_nothing_at_once(path: Path) -> None:
    with closing(AuditLog(path)) as log:
        log.append(make_event(utc=NOON))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    sink = IdleCountingGate(AuditSettings(path=path, days=5), [], now=lambda: epoch, clock=lambda: 0.0)
    sink.handle(make_event(utc=epoch))
    wait_until_idle(sink)
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().entries == 2


# Pictures


def view(captured: float) -> View:
    image = np.full((48, 64, 3), 90, np.uint8)
    return View(frame=Frame(image=image, captured=captured, number=1))


def test_no_picture_is_stored_by_default(path: Path) -> None:
    sink = AuditGate(AuditSettings(path=path, days=0), [])
    sink.handle(make_event())
    sink.show(view(10.3))
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().pictures == 0


def test_picture_of_the_decision_is_stored_and_needs_the_private_key(path: Path, key: Path, tmp_path: Path) -> None:
    public = key.with_name("key.pem.pub")
    sink = AuditGate(AuditSettings(path=path, days=0, picture_key=public), [])
    decided, left = make_event(), make_event(outcome="denied", captured=9.0)
    for event in (decided, left, notice("camera", outcome="lost", now=10.3, utc=NOON)):
        sink.handle(event)
    sink.show(view(10.3))  # the frame of the first decision; the second is based on an earlier frame
    sink.show(view(10.3))  # and not twice
    sink.close()
    with closing(AuditLog(path, read_only=True)) as log:
        assert log.verify().pictures == 1
        box = log.picture(decided.event_id) or b""
        (file,) = decrypt_pictures(log, key.read_bytes(), tmp_path / "out")
        assert decrypt_pictures(log, key.read_bytes(), tmp_path / "out", event_id=left.event_id) == []
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


@pytest.mark.parametrize("wrong", [{"days": -1}, {"late_seconds": 0.0}, {"late_seconds": float("nan")}])
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        AuditSettings(path=Path("a.db"), **wrong)
