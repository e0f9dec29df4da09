"""The service: messages to systemd, and the unit file as systemd itself checks it."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge import paths
from edge import settings as configuration
from edge.errors import ServiceError
from edge.settings import Settings
from edge.terminal import service
from edge.terminal.service import SystemdNotifier
from tests.fakes.mjpeg_server import MjpegServer
from tests.fakes.scene_camera import SceneCamera
from tests.fakes.sinks import fail
from tests.fixtures import orl_door
from tests.fixtures.command import run_edge
from tests.fixtures.data import ROOT
from tests.fixtures.orl_door import GUEST, STRANGER, frames, promise, sending
from tests.fixtures.programs import find_program
from tests.fixtures.terminals import run_to_end

DEADLINE = 60.0
BUSY_SECONDS = 20.0  # systemd is promised 2, which scripts/qa/soak measures; here other things may run at the same time


pytestmark = pytest.mark.slow


class Listener:
    """Receives the messages to systemd."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(DEADLINE)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().split("\n")

    def rest(self) -> list[list[str]]:
        """Return the messages since the last call, without waiting."""
        self._socket.setblocking(False)
        said = []
        try:
            while True:
                said.append(self.next())
        except BlockingIOError:
            return said

    def environment(self, **more: str) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.address} | more


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(str(tmp_path / "notify"))


# Messages to systemd


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_watchdog_and_stopping_are_sent(tmp_path: Path, abstract: bool) -> None:
    listener = Listener(f"@edge-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify"))
    systemd = SystemdNotifier(
        listener.environment(WATCHDOG_USEC="400000", WATCHDOG_PID=str(os.getpid())), clock=iter(range(99)).__next__
    )
    run_to_end(SceneCamera(frames(GUEST, 3)), sinks=[systemd], on_frame=systemd.frame_processed)
    said = listener.rest()
    assert said[0] == ["READY=1", "STATUS=watching simulated"]
    assert said[1:-1] == [["WATCHDOG=1"]] * 3
    assert said[-1] == ["STOPPING=1", "STATUS=stopped: recording ended"]
    assert GUEST not in str(said)


def test_failing_frame_does_not_reset_the_watchdog(listener: Listener) -> None:
    systemd = SystemdNotifier(listener.environment(WATCHDOG_USEC="400000"), clock=iter(range(99)).__next__)
    _, terminal = run_to_end(SceneCamera(frames(GUEST, 3)), clock=fail, on_frame=systemd.frame_processed)
    assert terminal.counters["frames"] == 3
    assert terminal.counters["failures"] >= 3
    assert listener.rest() == []


def test_watchdog_is_reset_four_times_per_timeout(listener: Listener) -> None:
    now = [0.0]
    systemd = SystemdNotifier(listener.environment(WATCHDOG_USEC="40000000"), clock=lambda: now[0])
    for second in range(31):
        now[0] = float(second)
        systemd.frame_processed()
    assert listener.rest() == [["WATCHDOG=1"]] * 4, "at 0, 10, 20 and 30 seconds"


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}]
)
def test_watchdog_is_not_reset_without_a_timeout(listener: Listener, more: dict[str, str]) -> None:
    systemd = SystemdNotifier(listener.environment(**more), clock=iter(range(1, 9)).__next__)
    systemd.frame_processed()
    assert listener.rest() in ([], [["WATCHDOG=1"]])
    systemd.frame_processed()
    assert listener.rest() == []


def test_missing_or_full_socket_never_blocks(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "missing")}):
        run_to_end(SceneCamera(frames(GUEST, 1)), sinks=[SystemdNotifier(environment)])
    full = Listener(str(tmp_path / "full"))
    systemd = SystemdNotifier(full.environment(WATCHDOG_USEC="4"), clock=iter(range(10_000)).__next__)
    for _ in range(5_000):  # more than a socket holds
        systemd.frame_processed()
    assert 0 < len(full.rest()) < 5_000


# The command as systemd runs it


@contextmanager
def running(listener: Listener, folder: Path, *words: object, watchdog: str = "100000") -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | listener.environment(WATCHDOG_USEC=watchdog)
    command = [sys.executable, "-m", "edge", "recognize", *map(str, words)]
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    (tmp_path / "settings.toml").write_text('[events]\njson_lines = false\n[audit]\npath = "audit.db"\n')
    return tmp_path


def test_command_runs_from_ready_to_sigterm_and_closes_the_log(listener: Listener, folder: Path) -> None:
    with (
        MjpegServer() as server,
        sending(server, frames(STRANGER, 8)),
        running(listener, folder, "--settings", "settings.toml", "--camera", server.url) as process,
    ):
        assert listener.next()[0] == "READY=1"
        for _ in range(3):
            assert listener.next() == ["WATCHDOG=1"]
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
        took = time.monotonic() - asked
    assert (process.returncode, out, err) == (0, "", promise())
    assert took < BUSY_SECONDS
    said = listener.rest()
    assert said[-1] == ["STOPPING=1", "STATUS=stopped: stop requested"]
    assert not (folder / "audit.db-wal").exists(), "the log is closed"
    with sqlite3.connect(folder / "audit.db") as log:
        kinds = [kind for (kind,) in log.execute("SELECT json_extract(json, '$.kind') FROM entries ORDER BY seq")]
    assert (kinds[0], kinds[-1]) == ("start", "stop")


def test_silent_receivers_do_not_delay_the_end(tmp_path: Path, folder: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    broker, server = (each.getsockname()[1] for each in silent)
    (folder / "secret").write_text("0123456789abcdef\n")
    (folder / "settings.toml").write_text(
        f'[mqtt]\nhost = "127.0.0.1"\nport = {broker}\ntls = false\n'
        f'[webhook]\nurl = "http://127.0.0.1:{server}/"\nsecret_file = "secret"\n[audit]\npath = "audit.db"\n'
    )
    with (
        MjpegServer() as camera,
        sending(camera, frames(STRANGER, 8)),
        running(listener, folder, "--settings", "settings.toml", "--no-json", "--camera", camera.url) as process,
    ):
        assert listener.next()[0] == "READY=1"
        assert listener.next() == ["WATCHDOG=1"]
        for each in silent:
            each.accept()  # the sinks wait for them now
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=DEADLINE)[1]
        took = time.monotonic() - asked
    assert process.returncode == 0
    assert took < BUSY_SECONDS
    assert "the MQTT broker: the last" in err
    assert "the webhook at 127.0.0.1: the last" in err
    assert not (folder / "audit.db-wal").exists()
    for each in silent:
        each.close()


def test_missing_camera_is_ready_but_does_not_reset_the_watchdog(listener: Listener, folder: Path) -> None:
    with MjpegServer() as server:
        server.go_down()
        with running(listener, folder, "--wait", "--no-json", "--camera", server.url) as process:
            assert listener.next()[0] == "READY=1"
            assert listener.next()[0].startswith("STATUS=camera lost: ")
            server.come_up()
            with sending(server, frames(STRANGER, 8)):
                said = [listener.next(), listener.next()]
                assert ["STATUS=camera back"] in said, "no message reset the watchdog before"
                assert ["WATCHDOG=1"] in said
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0


def test_options_override_the_settings_file(listener: Listener, folder: Path) -> None:
    orl_door.video(folder / "visits.avi", frames(STRANGER, 8))
    (folder / "settings.toml").write_text('[camera]\nsource = "visits.avi"\n[events]\njson_lines = false\n')
    with running(listener, folder, "--settings", "settings.toml", "--json") as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, promise())
    assert '"outcome": "denied"' in out
    with running(listener, folder, "--settings", "settings.toml", "--camera", "missing.avi") as process:
        assert "missing.avi" in process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 31


# The unit file


def unit(**changes: Any) -> str:
    usual: dict[str, Any] = {"kit": None, "settings": None, "camera": None, "user": "daemon", "watchdog_seconds": 30.0}
    return service.unit_text(**usual | changes)


def verify(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "lclrr-edge.service"
    file.write_text(text)
    return subprocess.run(
        [find_program("systemd-analyze", package="systemd"), "verify", "--man=no", file],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    run = verify(unit(watchdog_seconds=10.5), tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new"), [("Type=notify", "Type=notfy"), ("ProtectSystem", "ProtctSystem"), ("ExecStart=/", "ExecStart=/nowhere/")]
)
def test_systemd_reports_wrong_units(tmp_path: Path, old: str, new: str) -> None:
    run = verify(unit().replace(old, new), tmp_path)
    assert run.returncode != 0 or run.stderr


def test_security_score_of_the_unit_is_good(tmp_path: Path) -> None:
    file = tmp_path / "lclrr-edge.service"
    file.write_text(unit())
    command = [
        find_program("systemd-analyze", package="systemd"),
        "security",
        "--offline=true",
        "--threshold=25",
        "--no-pager",
        str(file),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stdout.splitlines()[-1]


def test_unit_has_the_required_lines() -> None:
    lines = unit(user="edge").splitlines()
    for line in (
        "Type=notify",
        "WatchdogSec=30",
        "Restart=always",
        "RestartSec=2",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "DevicePolicy=closed",
        "DeviceAllow=char-video4linux rw",
        "StateDirectory=lclrr-edge",
        "User=edge",
    ):
        assert line in lines
    (codes,) = (line.partition("=")[2].split() for line in lines if line.startswith("RestartPreventExitStatus="))
    assert {"2", "21", "33", "38", "42"} <= set(codes)
    assert not {"0", "31", "32", "40"} & set(codes), "a camera may come back, a disk may have space again"


def test_unit_for_a_door_controller_allows_the_kind_of_its_serial_port(tmp_path: Path) -> None:
    settings = tmp_path / "door.toml"
    table = '[osdp]\ndevice = "/dev/ttyUSB7"\nkey_file = "key"\nnumbers_file = "numbers.toml"\n'
    settings.write_text(table)
    text = unit(settings=settings)
    assert "DeviceAllow=char-ttyUSB rw" in text.splitlines()
    assert "DeviceAllow=char-ttyUSB rw" not in unit()
    assert f"-{tmp_path}" not in text
    settings.write_text(table.replace("/dev/ttyUSB7", "/dev/serial/by-id/missing"))
    with pytest.raises(ServiceError, match="is not a serial port"):
        unit(settings=settings)
    settings.write_text(f"{table}install_mode = true\n")
    assert f"ReadWritePaths=-{tmp_path}" in unit(settings=settings)


def test_network_is_denied_if_not_needed() -> None:
    assert "IPAddressDeny=any" in unit()
    assert "IPAddressDeny" not in unit(camera="rtsp://camera/1")
    assert not Settings().needs_network
    for text in (
        '[camera]\nsource = "rtsp://camera/1"',
        '[camera]\nsource_env = "CAMERA"',
        '[mqtt]\nhost = "b"',
        '[webhook]\nurl = "https://b/"\nsecret_env = "S"',
        '[events]\non_grant = "curl"',
        '[preview]\naddress = "0.0.0.0:80"',
    ):
        assert configuration.parse(text.encode()).needs_network, text
    assert not configuration.parse(b'[preview]\naddress = "127.0.0.1:80"').needs_network


def test_unit_allows_what_the_settings_need(tmp_path: Path) -> None:
    """Otherwise it would fail and restart for ever."""
    file = tmp_path / "settings.toml"
    usual = unit()
    assert "ReadWritePaths" not in usual
    assert {"ProtectHome=yes", "TimeoutStopSec=10"} <= set(usual.splitlines())
    file.write_text(
        f'[kit]\npath = "{paths.HOME_FOLDERS[0]}/anna/door.kit"\nstore = "{paths.STATE_FOLDER}/kits"\n'
        '[audit]\npath = "/data/a $b%/audit.db"\n'
        '[events]\non_grant = "sleep"\non_grant_seconds = 30\n'
    )
    text = unit(settings=file)
    assert "ProtectHome=read-only\n" in text, "the kit is in a home folder"
    assert re.findall("ReadWritePaths=(.*)", text) == ['"-/data/a $b%%"']
    assert "TimeoutStopSec=40\n" in text, "a command that closes the door is not killed"
    run = verify(text, tmp_path)
    assert (run.returncode, run.stderr) == (0, "")


def test_words_reach_the_command_unchanged(tmp_path: Path) -> None:
    words = ("/opt/a b/edge", 'say "hi"', "50%", "$HOME", "back\\slash", "ä", "", "a'b", "a;b", "#x")
    command = " ".join(map(service.quoted, (sys.executable, *words)))
    run = verify(re.sub("ExecStart=.*", lambda _: f"ExecStart={command}", unit()), tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert tuple(unquoted(service.quoted(word)) for word in words) == words


def unquoted(text: str) -> str:
    """Read one word as systemd.syntax(7) and systemd.service(5) do."""
    if text.startswith('"'):
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    return text.replace("%%", "%").replace("$$", "$")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"watchdog_seconds": 1}, "watchdog"),
        ({"user": "root"}, "root"),
        ({"user": "nobody"}, "nobody"),
        ({"user": "a b"}, "a b"),
        ({"user": "x\nUser=root"}, "user"),
        ({"camera": "x\nUser=root"}, "unit file"),
    ],
)
def test_invalid_unit_is_rejected(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        unit(**more)


# edge install-service


def edge(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.delenv("EDGE_SETTINGS", raising=False)
    return run_edge(monkeypatch, *words)


def test_install_service_writes_a_valid_unit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    file = folder / "lclrr-edge.service"
    words = ["door.kit", "--settings", "settings.toml", "--camera", "/dev/video0", "--user", "daemon"]
    assert edge(monkeypatch, "install-service", *words, "--output", file) == 0
    assert "systemctl enable --now lclrr-edge" in capsys.readouterr().err
    text = file.read_text()
    words = ["recognize", f"{folder}/door.kit", "--settings", f"{folder}/settings.toml", "--camera", "/dev/video0"]
    assert f"edge {' '.join(words)} --wait --no-json\n" in text, "full paths"
    assert file.stat().st_mode & 0o777 == 0o644
    assert verify(text, folder).stderr == ""
    assert edge(monkeypatch, "install-service", "--print", "--user", "no-such-user") == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Written by")
    assert err == ""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--user", "no-such-user"], 43, "useradd"),
        (["--user", "daemon", "--output", "nowhere/x.service"], 43, "nowhere"),
        (["--camera", "rtsp://admin:hunter2@camera/"], 43, "source_file"),
        (["--settings", "missing.toml"], 38, "missing.toml"),
        (["--watchdog-seconds", "1"], 43, "watchdog"),
    ],
)
def test_install_service_reports_errors_in_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(paths, "SERVICE_UNIT", folder / "x.service")
    before = sorted(folder.iterdir())
    assert edge(monkeypatch, "install-service", *words, *([] if "--output" in words else ["--output", "x.service"])) == code
    err = capsys.readouterr().err
    assert re.fullmatch(rf"error: .*{message}.*\n", err)
    assert "hunter2" not in err
    assert sorted(folder.iterdir()) == before
