"""Events as text on stdout and stderr."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.events.event import Event, notice
from edge.events.sink import OutputClosed
from edge.sinks.stdout import LineWriter, json_sink, text_line, text_sink
from tests.fixtures.events import NOON, make_event


class Memory(io.TextIOWrapper):
    """A text stream in memory."""

    def __init__(self, *, is_tty: bool = False) -> None:
        self.data, self._is_tty = io.BytesIO(), is_tty
        super().__init__(self.data, encoding="utf-8")

    def isatty(self) -> bool:
        return self._is_tty


def broken_pipe() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def line(event: Event) -> str:
    return text_line(event, zone=timezone(timedelta(hours=2)))


def test_json_sink_writes_one_line_per_event() -> None:
    stream, event = Memory(), make_event(label="Zoë\n\x1b[2J\u2028")
    sink = json_sink(stream)
    sink.handle(event)
    sink.close()
    assert stream.data.getvalue() == event.to_json().encode() + b"\n"
    assert stream.data.getvalue().count(b"\n") == 1
    assert "Zoë" in stream.data.getvalue().decode()


def test_closed_reader_ends_json_but_not_text() -> None:
    with broken_pipe() as stream, pytest.raises(OutputClosed):
        LineWriter(stream).write("x")
    with broken_pipe() as stream:
        sink = text_sink(stream)
        sink.handle(make_event())
        sink.close()
        assert (sink.health().delivered, sink.health().failed) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [True, False])
def test_reader_that_leaves_or_never_reads_does_not_delay_or_crash_the_end(reads: bool, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from edge.events.sink import OutputClosed\n"
        "from edge.sinks.stdout import json_sink\n"
        "from tests.fixtures.events import make_event\n"
        "sink = json_sink(sys.stdout)\n"
        "event = make_event(label='a' * 100_000)\n"  # more than a pipe holds
        "try:\n"
        "    for _ in range(300 if sys.argv[1] == 'stuck' else 10**9): sink.handle(event)\n"
        "except OutputClosed: sys.exit(7)\n"
        "sink.close()\n"
        "sys.exit(0 if sink.health().dropped >= 300 - 256 else 1)\n"
    )
    command = [sys.executable, "-c", script, "reads" if reads else "stuck"]
    environment = os.environ | {"PYTHONPATH": "."}
    errors = tmp_path / "stderr"  # not a pipe: nothing reads it while warnings of dropped events fill it
    with (
        open(errors, "wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment) as run,
    ):
        assert run.stdout
        if reads:
            assert json.loads(run.stdout.readline())["event_id"]
            run.stdout.close()
        assert run.wait(30) == (7 if reads else 0)
    assert "Traceback" not in errors.read_text()


def test_text_lines_for_people() -> None:
    assert line(make_event()) == "14:03:07  anna          granted   0.93 (needs 0.71), 5 frames, 0.4 s after first sight"
    denied = make_event(outcome="denied", reason="unsure", label=None, confidence=0.4, frames=1)
    assert line(denied) == "14:03:07  unknown       denied    unsure, 0.40 (needs 0.71), 1 frame, 0.4 s after first sight"
    lost = notice("camera", outcome="lost", reason="no frame for 2 s", now=1, utc=NOON)
    assert line(lost) == "14:03:07  camera lost: no frame for 2 s"
    assert line(replace(lost, outcome="frozen", reason="no change")) == "14:03:07  camera frozen: no change"
    assert line(replace(lost, kind="list", outcome="installed", reason="0123")) == "14:03:07  list installed: 0123"
    assert line(replace(lost, kind="input", outcome="opened", reason=None)) == "14:03:07  input opened"
    start = replace(notice("start", now=1, utc=NOON), camera="front", kit="abababababab")
    assert line(start) == "14:03:07  watching front with kit abababababab"
    assert line(notice("stop", now=1, utc=NOON)) == "14:03:07  stopped"
    close = make_event(outcome="denied", reason="unsure", confidence=0.709)
    assert "0.7090 (needs 0.7100)" in line(close), "different numbers look different"


@given(st.text(st.characters()))
def test_text_line_is_printable_for_any_name(name: str) -> None:
    assert line(make_event(label=name, reason=name, outcome="denied")).isprintable()


@pytest.mark.parametrize(
    ("is_tty", "variables", "coloured"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_text_is_coloured_only_on_a_terminal_that_wants_it(
    is_tty: bool, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Memory(is_tty=is_tty)
    sink = text_sink(stream)
    sink.handle(make_event())
    sink.close()
    assert (b"\x1b[32m" in stream.data.getvalue()) == coloured
