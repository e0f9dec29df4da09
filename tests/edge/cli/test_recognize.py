"""`edge recognize`: its output, its options, its end, and its errors."""

from __future__ import annotations

import json
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import pytest

from edge import paths
from edge.camera.base import Camera
from edge.camera.sources import open_camera
from edge.events.event import EVENT_SCHEMA
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.terminal import wiring as assembly
from edge.terminal.loop import Terminal, run_until_signal
from edge.vision.recognize import Recognizer
from tests.fakes.mjpeg_server import MjpegServer
from tests.fixtures import kits as doors
from tests.fixtures import orl_door, portraits
from tests.fixtures.command import command, environment, run_edge, started
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames, promise, sending

DEADLINE = 60.0
pytestmark = pytest.mark.slow
EVERYONE = '[[allow]]\npeople = "everyone"\n'


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a kit, and a video of an enrolled person and a stranger."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(folder / "visits.avi", frames(GUEST, 8), empty_room(12), frames(STRANGER, 8), empty_room(12))
    return folder


@pytest.fixture
def door(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with links to the same files."""
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


# Output


def test_recording_gives_json_lines_a_command_and_a_video(
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
    assert {event["schema"] for event in events_of(out)} == {EVENT_SCHEMA}
    assert err == f"{promise()}click\n", "stdout holds events only"
    (granted,) = events_of((door / "granted.jsonl").read_text())
    assert granted == events_of(out)[1], "once, and only for the grant"
    assert frames_of(door / "seen.mp4") == 40
    assert stat.S_IMODE((door / "seen.mp4").stat().st_mode) == 0o600, "it shows faces"


def frames_of(video: Path) -> int:
    capture = cv2.VideoCapture(str(video))
    number = 0
    while capture.read()[0]:
        number += 1
    return number


def test_terminal_shows_readable_lines_instead_of_json(door: Path) -> None:
    leader, follower = pty.openpty()
    process = started("recognize", "--camera", "visits.avi", stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:  # the other side of the pty is closed
        pass
    os.close(leader)
    assert process.wait(DEADLINE) == 0
    text = re.sub(r"\x1b\[\d+m", "", shown.decode()).replace("\r\n", "\n")
    assert text.startswith(promise())
    lines = text.removeprefix(promise()).splitlines()
    assert len(lines) == 4, lines
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    assert "watching visits.avi" in lines[0]
    assert re.search(rf"{GUEST} +granted", lines[1])
    assert re.search(r"unknown +denied +unknown", lines[2])
    assert lines[3].endswith("stopped: recording ended")


def test_closed_stdout_ends_the_run_quietly(door: Path) -> None:
    orl_door.video(door / "long.avi", *[frames(STRANGER, 8), empty_room(12)] * 4)
    words = shlex.join(command("recognize", "--camera", "long.avi"))
    script = f"{words} | head -1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment(), timeout=DEADLINE)
    assert [event["kind"] for event in events_of(run.stdout)] == ["start"]
    assert (run.returncode, run.stderr) == (0, promise())


def test_runs_without_stdout(door: Path) -> None:
    script = f"{shlex.join(command('recognize', '--camera', 'visits.avi', '--on-grant', 'tee granted'))} >&-"
    run = subprocess.run(["bash", "-c", script], stderr=subprocess.PIPE, text=True, env=environment(), timeout=DEADLINE)
    assert run.returncode == 0, run.stderr
    assert decisions((door / "granted").read_text()) == [("granted", GUEST)]


# Options


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the camera sources that the command opens, and open the video instead."""
    names: list[str] = []

    def open_video(source: str, **_: Any) -> Camera:
        names.append(source)
        return really_open("visits.avi")

    really_open = open_camera
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
def test_camera_option_without_a_value_means_camera_0(
    door: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], source: str
) -> None:
    names = opened(monkeypatch)
    monkeypatch.setattr(Terminal, "run", lambda self, stop: None)
    assert run_edge(monkeypatch, "recognize", *words) == 0
    assert names == [source]


def test_kit_comes_from_argument_environment_or_search_path(door: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_arguments_show_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_edge(monkeypatch)
    said = "".join(capsys.readouterr())
    assert "recognize" in said
    assert "Traceback" not in said


# The end


@contextmanager
def at_the_door(*words: object) -> Iterator[tuple[subprocess.Popen[str], list[str], MjpegServer]]:
    """Run the command on a live camera that shows a stranger. Yields process, stderr lines and server after three faces."""
    with MjpegServer() as server, sending(server, frames(STRANGER, 8)):
        process = started("recognize", "--camera", server.url, "--preview", "127.0.0.1:0", *words)
        assert process.stderr is not None
        lines: list[str] = []
        try:
            while not "".join(lines).endswith(promise()):
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
    start = "Preview at "
    return next(line for line in lines if line.startswith(start)).removeprefix(start).strip()


def test_sigterm_during_a_visit_stops_cleanly(door: Path) -> None:
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
    assert took < 20, "scripts/qa/soak measures the promised 2 seconds; this machine may be busy"
    last = events_of(out)[-1]
    assert (last["kind"], last["reason"]) == ("stop", "stop requested")
    assert not any(event["outcome"] == "granted" for event in events_of(out))
    assert frames_of(door / "seen.mp4") >= 3
    assert sorted(file.name for file in door.iterdir()) == ["door.kit", "seen.mp4", "visits.avi"]


def test_ctrl_c_during_a_visit_exits_with_130(door: Path) -> None:
    with at_the_door() as (process, _, _):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (130, "interrupted\n")
    assert events_of(out)[-1]["kind"] == "stop"


def run_with_signal(number: signal.Signals) -> tuple[int | None, bool]:
    """Raise a signal while a fake terminal runs. Returns the result of run_until_signal, and whether it asked for a stop."""
    stopped = []

    def run(stop: threading.Event) -> None:
        signal.raise_signal(number)
        stopped.append(stop.is_set())

    result = run_until_signal(SimpleNamespace(run=run))  # type: ignore[arg-type]
    return result, stopped[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_the_terminal(number: signal.Signals) -> None:
    usual = signal.signal(number, signal.SIG_DFL)
    try:
        assert run_with_signal(number) == (number, True)
        assert signal.getsignal(number) == signal.SIG_DFL, "restored"
    finally:
        signal.signal(number, usual)


def test_ignored_signal_stays_ignored() -> None:
    """As with nohup."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_with_signal(signal.SIGHUP) == (None, False)
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_lost_camera_is_one_event_and_one_warning(door: Path) -> None:
    with at_the_door() as (process, lines, server):
        assert process.stderr is not None
        server.go_down()
        warning = process.stderr.readline()
        url = f"{page_of(lines)}events.json"
        end = time.monotonic() + DEADLINE
        while b'"kind": "camera"' not in urllib.request.urlopen(url, timeout=DEADLINE).read():
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
    assert re.fullmatch(r"warning: no frames from the camera http://127.0.0.1:\d+/stream: .*\n", warning)
    assert err == ""
    assert [event["outcome"] for event in events_of(out) if event["kind"] == "camera"] == ["lost"]


# Errors


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
def test_mistake_is_one_sentence_and_an_exit_code(
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
    err = re.sub(r"^\[mov.*\n", "", err)  # from FFMPEG, which is silenced only before its first use
    assert out == ""
    assert re.fullmatch(rf"error: .*({says}).*\n", err)
    assert sorted(door.iterdir()) == before


def test_missing_kit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "KIT_SEARCH", paths.KIT_SEARCH[:1])
    assert run_edge(monkeypatch, "recognize", "--camera") == 20
    assert capsys.readouterr().err == "error: No kit was found. Name one, set EDGE_KIT, or put door.kit into this folder.\n"


def test_missing_public_key_is_said_at_every_start(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (door / "signed.kit").write_bytes(orl_door.kit_version(1, key="ours"))
    (door / "key.pub").write_bytes(doors.signing_keys()[1])
    monkeypatch.setattr(Terminal, "run", lambda self, stop: None)
    for kit in ("door.kit", "signed.kit", "signed.kit"):
        assert run_edge(monkeypatch, "recognize", kit, "--camera", "visits.avi") == 0
        assert capfd.readouterr().err.count(assembly.NO_PUBLIC_KEY) == 1
    assert run_edge(monkeypatch, "recognize", "signed.kit", "--camera", "visits.avi", "--public-key", "key.pub") == 0
    assert "public_key" not in capfd.readouterr().err


def test_warnings_are_shown_at_the_start(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (door / "list.toml").write_text(f'[[allow]]\npeople = ["{GUEST}", "nob\\u001body"]\n')
    (door / "guess.kit").write_bytes(portraits.kit())
    monkeypatch.setattr(Terminal, "run", lambda self, stop: None)
    assert run_edge(monkeypatch, "recognize", "guess.kit", "--camera", "visits.avi", "--door", "list.toml") == 0
    liveness, strangers, misspelt, unchecked = capfd.readouterr().err.splitlines()
    assert "no liveness model" in liveness
    assert unchecked == assembly.NO_PUBLIC_KEY
    assert "without photos of strangers" in strangers
    assert "nob?ody, who is not in the kit" in misspelt


def test_error_in_every_frame_is_logged_once(
    door: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> Callable[..., Any]:
        raise RuntimeError("injected")

    monkeypatch.setattr(Recognizer, "find", broken)
    assert run_edge(monkeypatch, "recognize", "--camera", "visits.avi") == 0
    out, err = capfd.readouterr()
    assert [event["kind"] for event in events_of(out)] == ["start", "stop"]
    assert err == f"{promise()}error: a frame was ignored (RuntimeError)\n"
