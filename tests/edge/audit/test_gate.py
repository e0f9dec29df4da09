"""The audit gate: each event is logged before sinks receive it."""

from __future__ import annotations

import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.audit import gate as audited
from edge.audit.crypto import open_box, write_keys
from edge.audit.gate import Audited, AuditSettings, open_sink
from edge.audit.log import AuditLog, Entry
from edge.audit.report import unseal
from edge.camera.base import Frame
from edge.errors import AuditError, ParameterError, UsageError
from edge.events import event as events
from edge.events.event import Event, StreamClosed, notice
from edge.monitor.annotate import View
from tests.edge.events.test_event import NOON, Gate, told
from tests.fakes.mqtt_broker import until

DAY = timedelta(days=1)


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


@pytest.mark.parametrize("wrong", [{"days": -1}, {"late_seconds": 0.0}, {"late_seconds": float("nan")}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        AuditSettings(path=Path("a.db"), **wrong)
