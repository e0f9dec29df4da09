"""`edge recognize` as an integrator meets it: what it writes where, how it ends, and what it says when it cannot begin."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import shlex
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import pytest

from edge import paths
from edge.camera.base import Camera
from edge.cli import common as console
from edge.events.event import Command
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.terminal import wiring as assembly
from edge.terminal.loop import Terminal, run_until_signal
from edge.vision.recognize import Recognizer
from tests.fakes.mjpeg_server import MjpegServer
from tests.fixtures import kits as doors
from tests.fixtures import orl_door, portraits
from tests.fixtures.command import command, environment, run_edge, started
from tests.fixtures.orl_door import GUEST, STRANGER, frames, nobody, promise, sending

DEADLINE = 60.0
EVERYONE = '[[allow]]\npeople = "everyone"\n'


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a kit, and a video of a guest and a stranger."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(folder / "visits.avi", frames(GUEST, 8), nobody(12), frames(STRANGER, 8), nobody(12))
    return folder


@pytest.fixture
def door(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with the same files, in which the command is run."""
    for file in stored.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.delenv("EDGE_DEBUG", raising=False)
    return tmp_path


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def decisions(text: str) -> list[tuple[str, str | None]]:
    return [(event["outcome"], event["label"]) for event in events_of(text) if event["kind"] == "decision"]


# What it writes


def test_a_recording_to_json_lines_a_command_and_a_video(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (door / "list.toml").write_text(EVERYONE)
    relay = door / "relay"
    relay.write_text("#!/bin/sh\ncat >> granted.jsonl\necho click\n")
    relay.chmod(0o755)
    words = ["--door", "list.toml", "--on-grant", "./relay", "--annotate", "seen.mp4"]
    assert run_edge(monkeypatch, "recognize", "--camera", "visits.avi", *words) == 0
    out, err = capfd.readouterr()
    assert [event["kind"] for event in events_of(out)] == ["start", "decision", "decision", "stop"]
    assert decisions(out) == [("granted", GUEST), ("denied", None)]
    assert {event["schema"] for event in events_of(out)} == {1}
    assert err == f"{promise()}click\n", "stdout is the events' alone, and nobody watches who wants words"
    (granted,) = events_of((door / "granted.jsonl").read_text())
    assert granted == events_of(out)[1], "once, and nothing about the stranger"
    assert frames_of(door / "seen.mp4") == 40
    assert stat.S_IMODE((door / "seen.mp4").stat().st_mode) == 0o600, "it shows faces"


def frames_of(video: Path) -> int:
    capture = cv2.VideoCapture(str(video))
    number = 0
    while capture.read()[0]:
        number += 1
    return number


def test_on_a_terminal_people_get_calm_lines_and_no_json(door: Path) -> None:
    leader, follower = pty.openpty()
    process = started("recognize", "--camera", "visits.avi", stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:  # what a pty says when the other side is closed
        pass
    os.close(leader)
    assert process.wait(DEADLINE) == 0
    said, *lines = re.sub(r"\x1b\[\d+m", "", shown.decode()).splitlines()
    assert f"{said}\n" == promise()
    assert len(lines) == 4, lines
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    assert "watching visits.avi" in lines[0]
    assert re.search(rf"{GUEST} +granted", lines[1])
    assert re.search(r"someone +denied +unknown", lines[2])
    assert lines[3].endswith("stopped: the recording is over")


def test_a_reader_that_has_seen_enough_ends_it_quietly(door: Path) -> None:
    orl_door.video(door / "long.avi", *[frames(STRANGER, 8), nobody(12)] * 4)
    words = shlex.join(command("recognize", "--camera", "long.avi"))
    script = f"{words} | head -1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment(), timeout=DEADLINE)
    assert [event["kind"] for event in events_of(run.stdout)] == ["start"]
    assert (run.returncode, run.stderr) == (0, promise())


def test_without_a_stdout_at_all_it_still_works(door: Path) -> None:
    script = f"{shlex.join(command('recognize', '--camera', 'visits.avi', '--on-grant', 'tee granted'))} >&-"
    run = subprocess.run(["bash", "-c", script], stderr=subprocess.PIPE, text=True, env=environment(), timeout=DEADLINE)
    assert run.returncode == 0, run.stderr
    assert decisions((door / "granted").read_text()) == [("granted", GUEST)]


# Where it looks


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the cameras that the command opens: there may be none here, or one that must not be touched."""
    names: list[str] = []

    def open_video(source: str, **_: Any) -> Camera:
        names.append(source)
        return really_open("visits.avi")

    really_open = assembly.open_camera
    monkeypatch.setattr(assembly, "open_camera", open_video)
    return names


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["--camera"], "0"),
        (["door.kit", "--camera"], "0"),
        (["--camera", "door.kit"], "0"),
        (["--camera", "--no-json"], "0"),
        (["--camera", "3", "door.kit"], "3"),
        (["--camera=rtsp://camera/1"], "rtsp://camera/1"),
        ([], "0"),
    ],
)
def test_the_camera_may_be_named_or_not(door: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], source: str) -> None:
    names = opened(monkeypatch)
    monkeypatch.setattr(Terminal, "run", lambda self, stop: None)
    assert run_edge(monkeypatch, "recognize", *words) == 0
    assert names == [source]


def test_the_kit_is_the_one_named_or_the_environments_or_where_kits_lie(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Path] = []
    read = kits.read

    def noted(path: Path, public_key: bytes | None = None) -> Kit:
        used.append(path)
        return read(path, public_key)

    monkeypatch.setattr(kits, "read", noted)
    monkeypatch.setattr(Terminal, "run", lambda self, stop: None)
    for name in ("named.kit", "environment.kit", "system.kit"):
        (door / name).symlink_to(door / "door.kit")
    monkeypatch.setattr(paths, "KIT_SEARCH", (*paths.KIT_SEARCH[:-1], door / "system.kit"))
    monkeypatch.setenv("EDGE_KIT", "environment.kit")
    assert run_edge(monkeypatch, "recognize", "named.kit", "--camera", "visits.avi") == 0
    assert run_edge(monkeypatch, "recognize", "--camera", "visits.avi") == 0
    monkeypatch.delenv("EDGE_KIT")
    assert run_edge(monkeypatch, "recognize", "--camera", "visits.avi") == 0
    monkeypatch.chdir(door.parent)
    assert run_edge(monkeypatch, "recognize", "--camera", str(door / "visits.avi")) == 0
    assert [path.name for path in used] == ["named.kit", "environment.kit", "door.kit", "system.kit"]


def test_nothing_asked_is_answered_with_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_edge(monkeypatch)
    said = "".join(capsys.readouterr())
    assert "recognize" in said
    assert "Traceback" not in said


# How it ends


@contextmanager
def at_the_door(*words: object) -> Iterator[tuple[subprocess.Popen[str], list[str], MjpegServer]]:
    """The command at work on a live camera before which a stranger stands, when it has seen a face; the lines of stderr."""
    with MjpegServer() as server, sending(server, frames(STRANGER, 8)):
        process = started("recognize", "--camera", server.url, "--preview", "127.0.0.1:0", *words)
        assert process.stderr is not None
        lines: list[str] = []
        try:
            while not (lines and lines[-1] == promise()):
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            page = page_of(lines)
            end = time.monotonic() + DEADLINE
            while health(page)["counters"]["faces"] < 3:
                assert time.monotonic() < end
                time.sleep(0.02)
            yield process, lines, server
        finally:
            process.kill()
            process.communicate()


def health(page: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{page}health.json", timeout=DEADLINE) as answer:
        return dict(json.load(answer))


def page_of(lines: list[str]) -> str:
    return lines[-2].removeprefix("Preview at ").strip()


def test_sigterm_in_mid_visit_ends_it_well_and_at_once(door: Path) -> None:
    with at_the_door("--annotate", "seen.mp4") as (process, lines, _):
        page = page_of(lines)
        with urllib.request.urlopen(f"{page}events.json", timeout=DEADLINE) as answer:
            assert [event["kind"] for event in json.load(answer)["events"]][-1] == "start"
        with urllib.request.urlopen(f"{page}frame.jpg", timeout=DEADLINE) as answer:
            assert answer.read(2) == b"\xff\xd8"
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
        took = time.monotonic() - asked
    assert (process.returncode, err) == (0, "")
    assert took < 20, "2 seconds are promised, and measured by scripts/qa/soak: this machine may be busy"
    last = events_of(out)[-1]
    assert (last["kind"], last["reason"]) == ("stop", "asked to")
    assert not any(event["outcome"] == "granted" for event in events_of(out))
    assert frames_of(door / "seen.mp4") >= 3
    assert sorted(file.name for file in door.iterdir()) == ["door.kit", "seen.mp4", "visits.avi"], (
        "nothing half-written is left"
    )


def test_ctrl_c_in_mid_visit(door: Path) -> None:
    with at_the_door() as (process, _, _):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (130, "interrupted\n")
    assert events_of(out)[-1]["kind"] == "stop"


def test_a_terminal_window_that_is_closed_ends_it_as_sigterm_does(door: Path) -> None:
    with at_the_door() as (process, _, _):
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")
    assert events_of(out)[-1]["kind"] == "stop", "all was closed, the relay too"


def test_a_signal_that_is_ignored_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nohup: it is to outlive its window."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raised = []

    def run(self: object, stop: threading.Event) -> None:
        signal.raise_signal(signal.SIGHUP)
        raised.append(stop.is_set())

    try:
        assert run_until_signal(SimpleNamespace(run=partial(run, None))) is None  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert raised == [False]


def test_at_the_end_each_has_a_second_and_a_running_command_its_time() -> None:
    given: dict[str, tuple[float, ...]] = {}

    class Slow:
        def close(self, *seconds: float) -> None:
            given[type(self).__name__] = seconds

    class Running(Slow, Command):
        def __init__(self) -> None: ...

    def fail() -> None:
        raise OSError

    assembly.close_all({"mqtt": Slow(), "command": Running(), "broken": SimpleNamespace(close=fail)})
    assert given == {"Slow": (1.0,), "Running": ()}


def test_a_camera_that_is_lost_is_one_event_and_one_calm_line(door: Path) -> None:
    with at_the_door() as (process, lines, server):
        assert process.stderr is not None
        server.go_down()
        warning = process.stderr.readline()
        told = f"{page_of(lines)}events.json"
        end = time.monotonic() + DEADLINE
        while b'"kind": "camera"' not in urllib.request.urlopen(told, timeout=DEADLINE).read():
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
    assert re.fullmatch(r"warning: no frames from the camera http://127.0.0.1:\d+/stream: .*\n", warning)
    assert err == ""
    assert [event["outcome"] for event in events_of(out) if event["kind"] == "camera"] == ["lost"]


# What it says when it cannot begin


def taken_port() -> tuple[socket.socket, int]:
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, taken.getsockname()[1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["rubbish.kit"], 20, "kit"),
        (["damaged.kit"], 21, "differs|damaged|changed"),
        (["short.kit"], 22, "end|short"),
        (["missing.kit"], 20, "missing.kit"),
        (["cropped.kit"], 20, "cropped photos"),
        (["--camera", "missing.mp4"], 31, "missing.mp4"),
        (["--camera", "rubbish.mp4"], 31, "no readable image"),
        (["--camera", "ftp://somewhere"], 31, "address"),
        (["--camera", "http://127.0.0.1:9/"], 31, "cannot be reached"),
        (["--door", "missing.toml"], 33, "missing.toml"),
        (["--door", "rubbish.mp4"], 33, "TOML"),
        (["--annotate", "nowhere/seen.mp4"], 2, "nowhere/seen.mp4"),
        (["--annotate", "seen.gif"], 2, "seen.gif"),
        (["--preview", "127.0.0.1:{port}"], 34, "127.0.0.1"),
        (["--preview", "127.0.0.1:{port}", "--annotate", "seen.mp4"], 34, "127.0.0.1"),
        (["--preview", "nonsense"], 34, "port"),
        (["--on-grant", "no-such-program"], 2, "no-such-program"),
        (["--on-grant", "true", "--on-grant-seconds", "0"], 2, "seconds"),
        (["--needed", "5", "--window", "3"], 2, "window"),
        (["--public-key", "missing.pem"], 2, "missing.pem"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence_and_a_code(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    data = orl_door.kit()
    (door / "rubbish.kit").write_bytes(b"rubbish" * 100)
    (door / "damaged.kit").write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    (door / "short.kit").write_bytes(data[:-1000])
    (door / "cropped.kit").write_bytes(doors.kit())
    (door / "rubbish.mp4").write_bytes(b"\0rubbish" * 100)
    before = sorted(door.iterdir())
    taken, port = taken_port()
    with taken:
        full = [word.format(port=port) for word in words]
        camera = [] if "--camera" in full else ["--camera", "visits.avi"]
        assert run_edge(monkeypatch, "recognize", *full, *camera) == code
    out, err = capfd.readouterr()
    err = re.sub(r"^\[mov.*\n", "", err)  # FFMPEG's own, which is silenced only before its first use in a process
    assert out == ""
    assert re.fullmatch(rf"error: .*({says}).*\n", err), "one line"
    assert sorted(door.iterdir()) == before, "nothing is left behind"


def test_no_kit_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", paths.KIT_SEARCH[:1])
    assert run_edge(monkeypatch, "recognize", "--camera") == 20
    assert capsys.readouterr().err == "error: No kit was found. Name one, set EDGE_KIT, or put door.kit into this folder.\n"


def test_what_makes_a_door_doubtful_is_said_at_the_start(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (door / "list.toml").write_text(f'[[allow]]\npeople = ["{GUEST}", "nob\\u001body"]\n')
    (door / "guess.kit").write_bytes(portraits.kit())
    monkeypatch.setattr(Terminal, "run", lambda self, stop: None)
    assert run_edge(monkeypatch, "recognize", "guess.kit", "--camera", "visits.avi", "--door", "list.toml") == 0
    strangers, misspelt = capfd.readouterr().err.splitlines()
    assert "without photos of strangers" in strangers
    assert "nob?ody, whom the kit does not know" in misspelt


# What the libraries log


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("edge.somewhere")


def test_warnings_and_errors_are_one_calm_line_each(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDGE_DEBUG", raising=False)
    with console.log_to_stderr():
        log.info("not worth a line")
        log.warning("the camera %s\x1b[2J is slow", "door")
        try:
            raise ValueError("rtsp://user:secret@camera")
        except ValueError:
            log.exception("a frame was passed over")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("a library's own", UserWarning, stacklevel=1)
    slow, passed_over, own = capfd.readouterr().err.splitlines()
    assert slow == "warning: the camera door?[2J is slow"
    assert passed_over == "error: a frame was passed over (ValueError)", "the text of an error may hold a password"
    assert own.startswith("warning: ")
    assert own.endswith("UserWarning: a library's own")


def test_tracebacks_are_for_those_who_ask(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGE_DEBUG", "1")
    with console.log_to_stderr():
        try:
            raise ValueError("in full")
        except ValueError:
            log.exception("a frame was passed over")
    assert "Traceback" in (err := capfd.readouterr().err)
    assert err.endswith("ValueError: in full\n")


def test_what_is_repeated_is_told_once_in_ten_seconds(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.log_to_stderr():
        for i in range(300):  # thirty seconds of a fault that comes with each frame
            now[0] = 100 + i / 10
            log.warning("an event was dropped, %d so far", i)
            if i == 5:
                log.warning("something else")
    lines = capfd.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines if "dropped" in line] == ["0 so far", "100 so far", "200 so far"]
    assert "warning: something else" in lines


def test_a_blocked_stderr_delays_neither_a_frame_nor_the_end(log: logging.Logger) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while fills(write):
        pass
    os.set_blocking(write, True)
    stream = os.fdopen(write, "w")
    handler = console.StderrHandler(stream)
    log.addHandler(handler)
    letters = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(500)]
    try:
        began = time.monotonic()
        for name in letters:
            log.warning("sentence %s", name)
        logged = time.monotonic() - began
        handler.close()
        closed = time.monotonic() - began - logged
    finally:
        log.removeHandler(handler)
    assert logged < DEADLINE, "500 lines, of which none can be written"
    assert closed < DEADLINE
    drained = b""
    while b"sentence aa\n" not in drained:
        drained += os.read(read, 65536)
    os.close(read)
    stream.close()


def fills(pipe: int) -> bool:
    try:
        return os.write(pipe, b"x" * 4096) > 0
    except BlockingIOError:
        return False


def test_a_part_that_fails_at_every_frame_is_told_once(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> Callable[..., Any]:
        raise RuntimeError("injected")

    monkeypatch.setattr(Recognizer, "recognize", broken)
    assert run_edge(monkeypatch, "recognize", "--camera", "visits.avi") == 0
    out, err = capfd.readouterr()
    assert [event["kind"] for event in events_of(out)] == ["start", "stop"]
    assert err == f"{promise()}error: a frame was passed over (RuntimeError)\n"
