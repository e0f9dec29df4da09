"""Events: what they say, and that no sink holds up the loop or takes it down."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.decision.door import Decision
from edge.errors import UsageError
from edge.events.event import Background, Command, Event, ForPeople, JsonLines, StreamClosed, deliver, event_from, notice

NOON = datetime(2025, 3, 1, 12, 3, 7, 250_000, tzinfo=UTC)
FIELDS = [field.name for field in fields(Event)]
ANNA: dict[str, Any] = {
    "outcome": "granted",
    "reason": "recognised",
    "label": "anna",
    "confidence": 0.934,
    "threshold": 0.71,
    "margin": 0.5,
    "frames": 5,
    "first_seen": 10.0,
    "captured": 10.3,
    "visit": 1,
}


def told(now: float = 10.4, utc: datetime = NOON, **decided: Any) -> Event:
    return event_from(Decision(**ANNA | decided), now=now, utc=utc, camera="front", kit_sha256="0123456789abcdef" * 4)


def text_stream() -> tuple[io.BytesIO, io.TextIOWrapper]:
    data = io.BytesIO()
    return data, io.TextIOWrapper(data, encoding="utf-8")


class Gate:
    """A sink that is stuck until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.seen: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.entered.set()
        assert self.opened.wait(30)
        self.seen.append(event)


# What an event says


def test_an_event_says_it_all_in_a_stable_order() -> None:
    said = json.loads(told().to_json())
    assert len(said.pop("event_id")) == 32
    wanted = {
        "schema": 1,
        "kind": "decision",
        "outcome": "granted",
        "reason": "recognised",
        "label": "anna",
        "confidence": 0.934,
        "threshold": 0.71,
        "margin": 0.5,
        "frames": 5,
        "visit": 1,
        "utc": "2025-03-01T12:03:07.250Z",
        "monotonic": 10.4,
        "seconds_from_first_sight": 0.4,
        "seconds_from_capture": 0.1,
        "camera": "front",
        "kit": "0123456789ab",
    }
    assert list(said.items()) == list(wanted.items())


def test_every_kind_has_the_same_fields() -> None:
    lost = notice("camera", outcome="lost", reason="unplugged", now=3.0, utc=NOON, camera="front")
    assert list(json.loads(lost.to_json())) == FIELDS
    assert (lost.outcome, lost.label, lost.grants) == ("lost", None, False)


def test_the_wall_clock_is_told_in_utc_and_must_know_its_zone() -> None:
    assert told(utc=NOON.astimezone(timezone(timedelta(hours=5)))).utc == "2025-03-01T12:03:07.250Z"
    with pytest.raises(ValueError, match="zone"):
        told(utc=NOON.replace(tzinfo=None))


def test_no_two_events_have_the_same_id() -> None:
    assert len({told().event_id for _ in range(1000)}) == 1000


@given(
    label=st.none() | st.text(st.characters()),
    reason=st.text(st.characters()),
    numbers=st.tuples(*[st.floats()] * 3, *[st.floats(-1e9, 1e9)] * 2),
)
def test_json_is_one_strict_line_whatever_the_event_holds(
    label: str | None, reason: str, numbers: tuple[float, float, float, float, float]
) -> None:
    confidence, threshold, margin, first_seen, now = numbers
    decided: dict[str, Any] = {
        "confidence": np.float64(confidence),
        "threshold": threshold,
        "margin": margin,
        "first_seen": first_seen,
    }
    line = told(label=label, reason=reason, now=now, **decided).to_json()
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    line.encode("utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    said = json.loads(line, parse_constant=refuse)
    wanted = None if label is None else label.encode("utf-8", "replace").decode()
    assert said["label"] == wanted


@given(st.floats(0, 1), st.floats(0, 1))
def test_rounding_never_turns_confidence_and_threshold_round(one: float, other: float) -> None:
    low, high = sorted((one, other))
    event = told(confidence=high, threshold=low)
    assert (event.confidence or 0) >= (event.threshold or 0)


# Streams


def test_json_lines_are_out_at_once() -> None:
    data, stream = text_stream()
    event = told(label="Zoë\n\x1b[2J\u2028")
    JsonLines(stream)(event)
    assert data.getvalue() == event.to_json().encode() + b"\n"
    assert data.getvalue().count(b"\n") == 1
    assert "Zoë" in data.getvalue().decode()


def test_a_reader_that_left_ends_the_run_and_nobody_else_misses_the_event() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    served: list[Event] = []
    with os.fdopen(writer, "w") as stream:
        sink = JsonLines(stream)
        with pytest.raises(StreamClosed):
            deliver([sink, served.append], told())
    assert len(served) == 1


def test_leaving_as_head_does_is_quiet() -> None:
    script = (
        "import sys\n"
        "from tests.edge.events.test_event import told\n"
        "from edge.events.event import Background, JsonLines, StreamClosed\n"
        "sink = Background(JsonLines(sys.stdout), waiting=10**9)\n"
        "try:\n"
        "    while True: sink(told())\n"
        "except StreamClosed: sys.exit(7)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": "."}
    ) as run:
        assert run.stdout
        assert run.stderr
        assert json.loads(run.stdout.readline())["label"] == "anna"
        run.stdout.close()
        said = run.stderr.read().decode()
        assert run.wait(30) == 7
    assert said == ""


def test_a_reader_that_never_reads_neither_delays_nor_crashes_the_end() -> None:
    script = (
        "import sys\n"
        "from tests.edge.events.test_event import told\n"
        "from edge.events.event import Background, JsonLines\n"
        "sink = Background(JsonLines(sys.stdout))\n"
        "event = told(label='a' * 100_000)\n"  # more than a pipe holds
        "for _ in range(300): sink(event)\n"
        "sink.close(0.1)\n"
        "sys.exit(0 if sink.dropped >= 300 - 256 - 1 else 1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": "."}
    ) as run:
        assert run.wait(30) == 0


# For people


def line(event: Event) -> str:
    return ForPeople(text_stream()[1], zone=timezone(timedelta(hours=2))).line(event)


def test_people_get_a_calm_line() -> None:
    assert line(told()) == "14:03:07  anna          granted   0.93 (needs 0.71), 5 frames, 0.4 s after first sight"
    denied = told(outcome="denied", reason="unsure", label=None, confidence=0.4, frames=1)
    assert line(denied) == "14:03:07  someone       denied    unsure, 0.40 (needs 0.71), 1 frame, 0.4 s after first sight"
    lost = notice("camera", outcome="lost", reason="no frame for 2 s", now=1, utc=NOON)
    assert line(lost) == "14:03:07  camera lost: no frame for 2 s"
    assert line(notice("start", now=1, utc=NOON, camera="front", kit_sha256="ab" * 32)) == (
        "14:03:07  watching front with kit abababababab"
    )
    assert line(notice("stop", now=1, utc=NOON)) == "14:03:07  stopped"


def test_two_numbers_that_differ_look_different() -> None:
    assert "0.7090 (needs 0.7100)" in line(told(outcome="denied", reason="unsure", confidence=0.709))


@given(st.text(st.characters()))
def test_a_name_never_commands_the_terminal(name: str) -> None:
    said = line(told(label=name, reason=name, outcome="denied"))
    assert said.isprintable()


class Tty(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_only_where_they_are_wanted(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    data = io.BytesIO()
    stream = Tty(data)
    ForPeople(stream)(told())
    assert (b"\x1b[32m" in data.getvalue()) == coloured


def test_no_colours_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    data, stream = text_stream()
    ForPeople(stream)(told())
    assert data.getvalue().endswith(b"first sight\n")
    assert b"\x1b" not in data.getvalue()


def test_a_closed_terminal_window_does_not_stop_the_door() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        ForPeople(stream)(told())


# Delivery


def test_a_broken_sink_is_counted_and_the_next_is_served(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise OSError("disk full")

    served: list[Event] = []
    assert deliver([broken, served.append, broken], told()) == 2
    assert len(served) == 1
    assert "disk full" in caplog.text


def test_a_stuck_sink_drops_what_does_not_fit_and_never_waits() -> None:
    gate = Gate()
    sink = Background(gate, waiting=3)
    events = [told() for _ in range(6)]
    sink(events[0])
    assert gate.entered.wait(30)  # the first is out of the queue
    for event in events[1:]:
        sink(event)  # would never return if it waited: the gate is shut
    assert sink.dropped == 2
    gate.opened.set()
    sink.close(60)
    assert gate.seen == events[:4]


def test_a_sink_that_raises_behind_is_counted_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    served: list[Event] = []

    def moody(event: Event) -> None:
        served.append(event)
        if len(served) == 1:
            raise RuntimeError("not today")

    sink = Background(moody)
    sink(told())
    sink(told())
    sink.close(60)
    assert (sink.failed, len(served)) == (1, 2)
    assert "not today" in caplog.text


def test_close_does_not_wait_for_ever() -> None:
    gate = Gate()
    sink = Background(gate)
    sink(told())
    sink.close(0.01)  # would hang here
    gate.opened.set()


# Commands


def script(folder: Path, body: str) -> str:
    file = folder / "on grant.sh"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return f"'{file}' 'one two'"


def test_the_command_gets_exactly_the_event_and_its_arguments(tmp_path: Path) -> None:
    command = Command(script(tmp_path, f'cat > "{tmp_path}/got"; echo "$#:$1" > "{tmp_path}/arguments"'))
    event = told(label="Zoë; rm -rf $HOME\n")
    command(event)
    command.close()
    assert (tmp_path / "got").read_bytes() == event.to_json().encode() + b"\n"
    assert (tmp_path / "arguments").read_text() == "1:one two\n"
    assert (command.succeeded, command.failed, command.stale, command.dropped) == (1, 0, 0, 0)


def test_only_grants_run_the_command(tmp_path: Path) -> None:
    command = Command(script(tmp_path, f'touch "{tmp_path}/opened"'))
    for event in (
        told(outcome="denied"),
        notice("camera", outcome="lost", now=1, utc=NOON),
        notice("start", outcome="granted", now=1, utc=NOON),
        replace(told(), outcome="GRANTED"),
    ):
        command(event)
    command.close()
    assert not (tmp_path / "opened").exists()


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A fifo is at its end for the reader when nobody holds it open for writing any more: neither script nor child is left.
    os.mkfifo(tmp_path / "alive")
    command = Command(script(tmp_path, f'exec 9> "{tmp_path}/alive"; trap "" TERM; sleep 1000 & sleep 1000'), seconds=3)
    command(told())
    with open(tmp_path / "alive", "rb") as alive:
        assert alive.read() == b""
    command.close()
    assert (command.succeeded, command.failed) == (0, 1)
    assert "stopped after 3.0 s" in caplog.text


def test_a_command_that_is_asked_to_end_may_tidy_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Command, "GRACE_SECONDS", 20.0)
    body = f'trap \'touch "{tmp_path}/relay-off"; exit 0\' TERM; touch "{tmp_path}/ready"; sleep 1000 & wait'
    command = Command(script(tmp_path, body), seconds=3)
    command(told())
    command.close()
    assert (tmp_path / "ready").exists()
    assert (tmp_path / "relay-off").exists()
    assert command.failed == 1


@pytest.mark.parametrize(
    ("body", "says"), [("exit 3", "code 3"), ("kill -9 $$", "code -9"), ("exec /nonexistent", "code 127")]
)
def test_a_command_that_fails_is_counted(tmp_path: Path, body: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    command = Command(script(tmp_path, body))
    command(told())
    command.close()
    assert (command.succeeded, command.failed) == (0, 1)
    assert says in caplog.text


def test_a_command_that_vanished_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = Command(script(tmp_path, "exit 0"))
    (tmp_path / "on grant.sh").unlink()
    command(told())
    command.close()
    assert (command.succeeded, command.failed) == (0, 1)
    assert "cannot be started" in caplog.text


def test_what_a_command_says_stays_out_of_the_events(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = Command(script(tmp_path, "echo hello"))
    command(told())
    command.close()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n")


def test_a_slow_command_never_delays_and_drops_what_does_not_fit(tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = Command(script(tmp_path, f'while [ ! -e "{go}" ]; do sleep 0.01; done'), seconds=30, waiting=2)
    for _ in range(10):
        command(told())  # would never return if it waited: the command may not go yet
    assert command.dropped in (7, 8)  # two wait, and one may already run
    go.touch()
    command.close()
    assert command.succeeded == 10 - command.dropped


def test_a_grant_that_waited_too_long_opens_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "go")
    now = [100.0]
    command = Command(script(tmp_path, f'echo x >> "{tmp_path}/opened"; read l < "{tmp_path}/go"'), clock=lambda: now[0])
    command(told())
    command(told())
    with open(tmp_path / "go", "w") as go:  # opens when the first command reads
        now[0] += 5.1
        go.write("go\n")
    command.close()
    assert (tmp_path / "opened").read_text() == "x\n"
    assert (command.succeeded, command.stale) == (1, 1)
    assert "waited too long" in caplog.text


@pytest.mark.parametrize(
    ("command", "seconds", "says"),
    [
        ("", 5, "empty"),
        ("   ", 5, "empty"),
        ("no-such-program-here --now", 5, "no-such-program-here"),
        ("/nonexistent/open", 5, "/nonexistent/open"),
        ("cat 'unfinished", 5, "quotation"),
        ("cat", 0, "seconds"),
        ("cat", float("nan"), "seconds"),
        ("cat", 1e10, "at most 600"),
    ],
)
def test_a_command_that_cannot_work_is_refused_at_the_start(command: str, seconds: float, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Command(command, seconds)
    assert says in str(refused.value)


def test_names_stay_out_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    command = Command(script(tmp_path, "exit 1"))
    command(told(label="a-secret-name"))
    command.close()
    assert "code 1" in caplog.text
    assert "a-secret-name" not in caplog.text
