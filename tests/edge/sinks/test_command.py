"""The command for each grant: real scripts."""

from __future__ import annotations

import json
import logging
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from edge.errors import UsageError
from edge.events.event import notice
from edge.sinks.command import CommandSink
from tests.fixtures.events import NOON, make_event

REPORT = """
import json, os, sys
files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
json.dump({"variables": dict(os.environ), "files": files}, open(sys.argv[1], "w"))
"""


def script(folder: Path, body: str) -> str:
    file = folder / "on grant.sh"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return f"'{file}' 'one two'"


def counts(sink: CommandSink) -> tuple[int, int, int]:
    health = sink.health()
    return health.delivered, health.failed, health.dropped


def test_command_gets_the_event_and_its_arguments(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = f'cat > "{tmp_path}/got"; echo "$#:$1" > "{tmp_path}/arguments"; echo hello'
    sink = CommandSink(script(tmp_path, body))
    event = make_event(label="Zoë; rm -rf $HOME\n")
    sink.handle(event)
    sink.close()
    assert (tmp_path / "got").read_bytes() == event.to_json().encode() + b"\n"
    assert (tmp_path / "arguments").read_text() == "1:one two\n"
    assert counts(sink) == (1, 0, 0)
    assert capfd.readouterr() == ("", "hello\n"), "its output stays out of stdout"


def test_command_gets_no_secret_and_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEBHOOK_SECRET", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "PATHS", "LC"):
        monkeypatch.setenv(name, "secret")
    usual = {"PATH": os.environ["PATH"], "HOME": "/home", "LANG": "C.UTF-8", "LC_TIME": "C", "TZ": "UTC", "TMPDIR": "/tmp"}
    for name, value in usual.items():
        monkeypatch.setenv(name, value)
    with open(tmp_path / "log", "w") as log:
        os.set_inheritable(log.fileno(), True)
        sink = CommandSink(f"env FLOOR=2 python3 -c {shlex.quote(REPORT)} '{tmp_path}/got'")
        sink.handle(make_event())
        sink.close()
    got = json.loads((tmp_path / "got").read_text())
    assert counts(sink) == (1, 0, 0)
    assert got["variables"].items() >= (usual | {"FLOOR": "2"}).items(), "a variable can be given on purpose"
    assert not [name for name, value in got["variables"].items() if value == "secret"]
    assert str(tmp_path / "log") not in got["files"]


def test_only_grants_run_the_command(tmp_path: Path) -> None:
    sink = CommandSink(script(tmp_path, f'touch "{tmp_path}/opened"'))
    for event in (
        make_event(outcome="denied"),
        notice("camera", outcome="lost", now=1, utc=NOON),
        notice("start", outcome="granted", now=1, utc=NOON),
        replace(make_event(), outcome="GRANTED"),
    ):
        sink.handle(event)
    sink.close()
    assert not (tmp_path / "opened").exists()


@pytest.mark.slow
def test_hanging_command_is_killed_with_its_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The reader of a fifo sees its end when no process holds it open for writing: neither the script nor its child is left.
    os.mkfifo(tmp_path / "alive")
    body = f'exec 9> "{tmp_path}/alive"; trap "" TERM; sleep 1000 & sleep 1000'
    sink = CommandSink(script(tmp_path, body), seconds=1)
    sink.handle(make_event())
    with open(tmp_path / "alive", "rb") as alive:
        assert alive.read() == b""
    sink.close()
    assert counts(sink) == (0, 1, 0)
    assert "stopped after 1.0 s" in caplog.text


@pytest.mark.slow
def test_command_can_clean_up_on_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandSink, "GRACE_SECONDS", 20.0)
    body = f'trap \'touch "{tmp_path}/relay-off"; exit 0\' TERM; touch "{tmp_path}/started"; sleep 1000 & wait'
    sink = CommandSink(script(tmp_path, body), seconds=2)
    sink.handle(make_event())
    sink.close()
    assert (tmp_path / "started").exists()
    assert (tmp_path / "relay-off").exists()
    assert counts(sink) == (0, 1, 0)


@pytest.mark.parametrize(("body", "message"), [("exit 3", "code 3"), ("kill -9 $$", "code -9"), (None, "cannot be started")])
def test_failing_command_is_counted_and_logged_without_names(
    tmp_path: Path, body: str | None, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = CommandSink(script(tmp_path, body or ""))
    if body is None:
        (tmp_path / "on grant.sh").unlink()
    sink.handle(make_event(label="a-secret-name"))
    sink.close()
    assert counts(sink) == (0, 1, 0)
    assert message in caplog.text
    assert "a-secret-name" not in caplog.text


def test_slow_command_never_blocks_and_drops_grants(tmp_path: Path) -> None:
    go = tmp_path / "go"
    sink = CommandSink(script(tmp_path, f'while [ ! -e "{go}" ]; do sleep 0.01; done'), seconds=30)
    for _ in range(15):
        sink.handle(make_event())  # would block here: the command may not end yet
    assert sink.health().dropped == 7
    go.touch()
    sink.close()
    assert counts(sink) == (8, 0, 7)


def test_grant_that_waited_too_long_opens_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "go")
    now = [100.0]
    body = f'echo x >> "{tmp_path}/opened"; read l < "{tmp_path}/go"'
    sink = CommandSink(script(tmp_path, body), clock=lambda: now[0])
    sink.handle(make_event())
    sink.handle(make_event())
    with open(tmp_path / "go", "w") as go:  # opens when the first command reads
        now[0] += 5.1
        go.write("go\n")
    sink.close()
    assert (tmp_path / "opened").read_text() == "x\n"
    assert counts(sink) == (1, 1, 0)
    assert "waited too long" in caplog.text


@pytest.mark.parametrize(
    ("command", "seconds", "message"),
    [
        ("   ", 5, "empty"),
        ("no-such-program-here --now", 5, "no-such-program-here"),
        ("cat 'unfinished", 5, "quotation"),
        ("cat", 0, "seconds"),
        ("cat", float("nan"), "seconds"),
        ("cat", 1e10, "at most 600"),
    ],
)
def test_invalid_command_is_an_error_at_the_start(command: str, seconds: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CommandSink(command, seconds)
