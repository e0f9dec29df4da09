"""The service: what systemd is told and when, the unit file by systemd's own judgement, and the installer's steps."""

from __future__ import annotations

import os
import re
import secrets
import shutil
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
from edge.cli import main as cli
from edge.errors import ServiceError
from edge.settings import Settings
from edge.terminal import service
from edge.terminal.service import Systemd, Unit
from tests.edge.terminal.test_loop import fail, watch
from tests.fakes.mjpeg_server import MjpegServer
from tests.fakes.stage import Stage
from tests.fixtures import orl_door
from tests.fixtures.data import ROOT
from tests.fixtures.orl_door import GUEST, STRANGER, frames, promise, sending

DEADLINE = 60.0
BUSY_SECONDS = 20.0  # systemd is promised 2, which scripts/qa/soak measures; here other things may run at the same time
INSTALLER = ROOT / "scripts" / "install_pi.sh"


def tool(name: str) -> str:
    """A program of the system, which a machine of one's own may lack and the project's tests may not."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing: .ci/run installs it")
        pytest.skip(f"{name} is not installed here")
    return found


class Listener:
    """What systemd would hear."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(DEADLINE)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().split("\n")

    def rest(self) -> list[list[str]]:
        """What was said since, without waiting."""
        self._socket.setblocking(False)
        said = []
        try:
            while True:
                said.append(self.next())
        except BlockingIOError:
            return said

    def environment(self, **more: str) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.address} | more


@pytest.fixture(params=["a path", "an abstract name"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Listener:
    return Listener(str(tmp_path / "notify") if request.param == "a path" else f"@edge-{secrets.token_hex(8)}")


# What systemd is told


def test_ready_at_the_start_signs_of_life_for_frames_and_stopping_at_the_end(listener: Listener) -> None:
    systemd = Systemd(
        listener.environment(WATCHDOG_USEC="400000", WATCHDOG_PID=str(os.getpid())), clock=iter(range(99)).__next__
    )
    watch(Stage(frames(GUEST, 3)), sinks=[systemd], on_frame=systemd.frame)
    said = listener.rest()
    assert said[0] == ["READY=1", "STATUS=watching a stage"]
    assert said[1:-1] == [["WATCHDOG=1"]] * 3
    assert said[-1] == ["STOPPING=1", "STATUS=stopped: the recording is over"]
    assert GUEST not in str(said)


def test_a_frame_with_which_something_went_wrong_is_no_sign_of_life(listener: Listener) -> None:
    systemd = Systemd(listener.environment(WATCHDOG_USEC="400000"), clock=iter(range(99)).__next__)
    _, terminal = watch(Stage(frames(GUEST, 3)), clock=fail, on_frame=systemd.frame)
    assert terminal.counters["frames"] == 3
    assert terminal.counters["failures"] >= 3
    assert listener.rest() == []


def test_a_sign_of_life_comes_a_few_times_in_the_watchdogs_time_and_not_with_every_frame(listener: Listener) -> None:
    now = [0.0]
    systemd = Systemd(listener.environment(WATCHDOG_USEC="40000000"), clock=lambda: now[0])
    for second in range(31):
        now[0] = float(second)
        systemd.frame()
    assert listener.rest() == [["WATCHDOG=1"]] * 4, "at 0, 10, 20 and 30 seconds"


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}]
)
def test_where_no_watchdog_waits_for_us_it_is_not_fed(listener: Listener, more: dict[str, str]) -> None:
    systemd = Systemd(listener.environment(**more), clock=iter(range(1, 9)).__next__)
    systemd.frame()
    assert listener.rest() in ([], [["WATCHDOG=1"]])
    systemd.frame()
    assert listener.rest() == []


def test_nobody_listens_or_nobody_reads(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "missing")}):
        watch(Stage(frames(GUEST, 1)), sinks=[Systemd(environment)])
    full = Listener(str(tmp_path / "full"))
    systemd = Systemd(full.environment(WATCHDOG_USEC="4"), clock=iter(range(10_000)).__next__)
    for _ in range(5_000):  # more than a socket holds: it must not wait
        systemd.frame()
    assert 0 < len(full.rest()) < 5_000


# The command as systemd runs it


@contextmanager
def running(listener: Listener, folder: Path, *words: object, watchdog: str = "100000") -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | listener.environment(WATCHDOG_USEC=watchdog)
    command = [sys.executable, "-m", "edge.cli.main", "recognize", *map(str, words)]
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


def test_the_real_command_from_ready_to_sigterm_with_the_log_closed(listener: Listener, folder: Path) -> None:
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
    assert said[-1] == ["STOPPING=1", "STATUS=stopped: asked to"]
    assert not (folder / "audit.db-wal").exists(), "closed, not left behind"
    with sqlite3.connect(folder / "audit.db") as log:
        kinds = [kind for (kind,) in log.execute("SELECT json_extract(json, '$.kind') FROM entries ORDER BY seq")]
    assert (kinds[0], kinds[-1]) == ("start", "stop")


def test_receivers_that_never_answer_do_not_hold_up_the_end(tmp_path: Path, folder: Path) -> None:
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
            each.accept()  # they are waited for by now
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=DEADLINE)[1]
        took = time.monotonic() - asked
    assert process.returncode == 0
    assert took < BUSY_SECONDS
    assert "the MQTT broker was not told of the last" in err
    assert "the webhook at 127.0.0.1 was not told of the last" in err
    assert not (folder / "audit.db-wal").exists()
    for each in silent:
        each.close()


def test_a_camera_that_is_not_there_is_ready_but_no_sign_of_life(listener: Listener, folder: Path) -> None:
    with MjpegServer() as server:
        server.go_down()
        with running(listener, folder, "--wait", "--no-json", "--camera", server.url) as process:
            assert listener.next()[0] == "READY=1"
            assert listener.next()[0].startswith("STATUS=camera lost: ")
            server.come_up()
            with sending(server, frames(STRANGER, 8)):
                said = [listener.next(), listener.next()]
                assert ["STATUS=camera back"] in said, "and nothing in between fed the watchdog"
                assert ["WATCHDOG=1"] in said
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0


def test_options_go_before_the_settings_file(listener: Listener, folder: Path) -> None:
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


def unit(**more: Any) -> Unit:
    return Unit(command=(sys.executable, "recognize"), groups=(), **more)


def verify(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "lclrr-edge.service"
    file.write_text(text)
    return subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", file], capture_output=True, text=True, timeout=DEADLINE
    )


@pytest.mark.parametrize("more", [{}, {"is_alone": True}, {"watchdog_seconds": 10.5}])
def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path, more: dict[str, Any]) -> None:
    run = verify(unit(**more).text(), tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new"), [("Type=notify", "Type=notfy"), ("ProtectSystem", "ProtctSystem"), ("ExecStart=/", "ExecStart=/nowhere/")]
)
def test_systemd_would_have_said_something(tmp_path: Path, old: str, new: str) -> None:
    run = verify(unit().text().replace(old, new), tmp_path)
    assert run.returncode != 0 or run.stderr


def test_the_service_can_do_little_by_systemds_own_count(tmp_path: Path) -> None:
    file = tmp_path / "lclrr-edge.service"
    file.write_text(unit().text())
    command = [tool("systemd-analyze"), "security", "--offline=true", "--threshold=25", "--no-pager", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stdout.splitlines()[-1]


def test_what_the_issue_asks_for_is_in_the_unit() -> None:
    lines = unit().text().splitlines()
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
    assert {"2", "21", "33", "38"} <= set(codes)
    assert not {"0", "31", "32"} & set(codes), "a camera may come back"


def test_the_network_is_shut_where_nothing_needs_it() -> None:
    assert "IPAddressDeny=any" in unit(is_alone=True).text()
    assert "IPAddressDeny" not in unit().text()
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


def test_the_unit_lets_the_terminal_do_what_its_settings_ask_for(tmp_path: Path) -> None:
    """Else it starts, fails and is started anew, for ever."""
    file = tmp_path / "settings.toml"
    usual = service.unit(user="daemon", watchdog_seconds=30).text()
    assert "ReadWritePaths" not in usual
    assert {"ProtectHome=yes", "TimeoutStopSec=10"} <= set(usual.splitlines())
    file.write_text(
        f'[kit]\npath = "{paths.HOME_FOLDERS[0]}/anna/door.kit"\nstore = "{paths.STATE_FOLDER}/kits"\n'
        '[audit]\npath = "/data/a $b%/audit.db"\n'
        '[events]\non_grant = "sleep"\non_grant_seconds = 30\n'
    )
    text = service.unit(settings=file, user="daemon", watchdog_seconds=30).text()
    assert "ProtectHome=read-only\n" in text, "the kit lies in one"
    assert re.findall("ReadWritePaths=(.*)", text) == ['"-/data/a $b%%"']
    assert "TimeoutStopSec=40\n" in text, "lest a command is killed that closes the door"
    run = verify(text.replace(str(service.program()[0]), sys.executable), tmp_path)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("word", ["/opt/a b/edge", 'say "hi"', "50%", "$HOME", "back\\slash", "ä", "", "a'b", "a;b", "#x"])
def test_a_word_reaches_the_command_as_it_is(tmp_path: Path, word: str) -> None:
    run = verify(Unit(command=(sys.executable, word), groups=()).text(), tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert unquoted(service.quoted(word)) == word


def unquoted(text: str) -> str:
    """As systemd.syntax(7) and systemd.service(5) read one word."""
    if text.startswith('"'):
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    return text.replace("%%", "%").replace("$$", "$")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"watchdog_seconds": 1}, "watchdog"),
        ({"user": "root"}, "root"),
        ({"user": "nobody"}, "nobody"),
        ({"user": "a b"}, "a b"),
        ({"user": "x\nUser=root"}, "user"),
    ],
)
def test_a_unit_that_makes_no_sense(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ServiceError, match=says):
        unit(**more)


def test_a_word_that_would_add_a_line_is_refused() -> None:
    with pytest.raises(ServiceError, match="unit file"):
        Unit(command=("/bin/true", "x\nUser=root")).text()


# edge install-service


def edge(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["edge", *map(str, words)])
    monkeypatch.delenv("EDGE_SETTINGS", raising=False)
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_it_writes_a_unit_that_systemd_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    file = folder / "lclrr-edge.service"
    words = ["door.kit", "--settings", "settings.toml", "--camera", "/dev/video0", "--user", "daemon"]
    assert edge(monkeypatch, "install-service", *words, "--output", file) == 0
    assert "systemctl enable --now lclrr-edge" in capsys.readouterr().err
    text = file.read_text()
    words = ["recognize", f"{folder}/door.kit", "--settings", f"{folder}/settings.toml", "--camera", "/dev/video0"]
    assert f"edge {' '.join(words)} --wait --no-json\n" in text.replace("edge.cli.main", "edge"), "whole paths"
    assert file.stat().st_mode & 0o777 == 0o644
    assert verify(text, folder).stderr == ""
    assert edge(monkeypatch, "install-service", "--print", "--user", "no-such-user") == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Written by")
    assert err == ""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--user", "no-such-user"], 43, "useradd"),
        (["--user", "daemon", "--output", "nowhere/x.service"], 43, "nowhere"),
        (["--camera", "rtsp://admin:hunter2@camera/"], 43, "source_file"),
        (["--settings", "missing.toml"], 38, "missing.toml"),
        (["--watchdog-seconds", "1"], 43, "watchdog"),
    ],
)
def test_what_cannot_be_installed_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(paths, "SERVICE_UNIT", folder / "x.service")
    before = sorted(folder.iterdir())
    assert edge(monkeypatch, "install-service", *words, *([] if "--output" in words else ["--output", "x.service"])) == code
    err = capsys.readouterr().err
    assert re.fullmatch(rf"error: .*{says}.*\n", err)
    assert "hunter2" not in err
    assert sorted(folder.iterdir()) == before


# scripts/install_pi.sh


def installer(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", INSTALLER, *words], capture_output=True, text=True, timeout=DEADLINE, env=os.environ | environment
    )


def test_the_installers_steps_in_order(folder: Path) -> None:
    run = installer("--dry-run", "--camera", "picamera2:0", str(folder / "door.kit"))
    assert run.returncode == 0, run.stderr
    steps = [
        "apt-get install",
        "useradd --system",
        "python3 -m venv --system-site-packages /opt/lclrr-edge",
        "/opt/lclrr-edge/bin/pip install",
        f"install .*-m 0640 {folder / 'door.kit'} /etc/lclrr-edge/door.kit",
        "/etc/lclrr-edge/settings.toml",
        "edge config check",
        "edge doctor",
        "edge install-service",
        "systemctl daemon-reload",
        "systemctl enable lclrr-edge",
        "systemctl restart lclrr-edge",
    ]
    places = [re.search(step, run.stdout) for step in steps]
    assert None not in places, run.stdout
    assert [place.start() for place in places if place] == sorted(place.start() for place in places if place)


@pytest.mark.parametrize("signed", [False, True])
def test_the_installers_settings_are_good(folder: Path, signed: bool) -> None:
    run = installer(
        "--dry-run", "--camera", "/dev/video0", *(["--public-key", str(INSTALLER)] * signed), str(folder / "door.kit")
    )
    (text,) = re.findall(r"^write /etc/lclrr-edge/settings.toml:\n((?:    .*\n)+)", run.stdout, re.MULTILINE)
    settings = configuration.parse(text.encode(), folder=Path("/etc/lclrr-edge"))
    assert settings.kit.path == Path("/etc/lclrr-edge/door.kit")
    assert settings.kit.public_key == (Path("/etc/lclrr-edge/door.pem") if signed else None)
    assert settings.camera.address == "/dev/video0"
    assert settings.audit is not None
    assert settings.audit.path.is_relative_to("/var/lib/lclrr-edge"), "the one place that the service may write to"


def test_the_installer_changes_nothing_in_a_dry_run_and_needs_no_root(folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.iterdir())
    refusing = tmp_path / "bin"
    refusing.mkdir()
    for name in ("apt-get", "useradd", "usermod", "install", "systemctl", "pip", "chown"):
        (refusing / name).write_text("#!/bin/sh\nexit 99\n")
        (refusing / name).chmod(0o755)
    run = installer("--dry-run", str(folder / "door.kit"), PATH=f"{refusing}:{os.environ['PATH']}")
    assert run.returncode == 0, run.stderr
    assert sorted(path for path in folder.iterdir() if path != refusing) == before
    assert not Path("/opt/lclrr-edge").exists()


@pytest.fixture
def bare_pi(folder: Path, tmp_path: Path) -> Path:
    """The installer, for a Pi that is a folder here: what would change this machine is a script that says yes."""
    pi, programs, here = tmp_path / "pi", tmp_path / "programs", tmp_path / "pi" / "opt" / "bin"
    programs.mkdir()
    here.mkdir(parents=True)
    nothing, copy = "exit 0", 'for last; do :; done; case $1 in -d) mkdir -p "$last" ;; *) cat "${@: -2:1}" >"$last" ;; esac'
    edge = (
        f'case $1 in doctor | install-service) exit 0 ;; esac; PYTHONPATH={ROOT} exec {sys.executable} -m edge.cli.main "$@"'
    )
    scripts = {programs / name: nothing for name in ("apt-get", "useradd", "usermod", "systemctl", "id")}
    scripts |= {programs / "uname": "echo aarch64", programs / "install": copy}
    scripts |= {here / "python": nothing, here / "pip": nothing, here / "edge": edge}
    for file, body in scripts.items():
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(0o755)
    text = INSTALLER.read_text().replace("/opt/lclrr-edge", f"{pi}/opt").replace("/etc/lclrr-edge", f"{pi}/etc")
    (tmp_path / "install_pi.sh").write_text(text.replace("((EUID == 0))", "true"))
    return tmp_path


def on_the_pi(bare_pi: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", bare_pi / "install_pi.sh", *words, bare_pi / "door.kit"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=os.environ | {"PATH": f"{bare_pi}/programs:{os.environ['PATH']}"},
    )


def test_the_installer_from_a_bare_pi_and_once_more(bare_pi: Path) -> None:
    settings = bare_pi / "pi" / "etc" / "settings.toml"
    for _ in range(2):
        run = on_the_pi(bare_pi, "--camera", "/dev/video0")
        assert run.returncode == 0, run.stderr
        assert configuration.load(settings).camera.source == "/dev/video0"
    assert f"{settings} is kept as it is." in run.stderr


def test_the_installer_does_not_pretend_to_require_a_signature(bare_pi: Path) -> None:
    assert on_the_pi(bare_pi).returncode == 0
    key = bare_pi / "key.pem"
    key.write_text("a key")
    run = on_the_pi(bare_pi, "--public-key", str(key))
    assert run.returncode == 1, "settings that are kept are those of a terminal that takes any kit"
    assert "requires no signature" in run.stderr
    settings = bare_pi / "pi" / "etc" / "settings.toml"
    settings.write_text(settings.read_text().replace("[kit]", '[kit]\npublic_key = "door.pem"'))
    assert on_the_pi(bare_pi, "--public-key", str(key)).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "usage"),
        (["missing.kit"], "missing.kit"),
        (["--nonsense"], "--nonsense"),
        (["--camera", 'a"b', str(INSTALLER)], 'a"b'),
        (["a.kit", "b.kit"], "usage"),
    ],
)
def test_what_the_installer_cannot_do_is_said(words: list[str], says: str) -> None:
    run = installer("--dry-run", *words)
    assert run.returncode == 2
    assert says in run.stderr


def test_the_installer_refuses_other_machines(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "uname").write_text("#!/bin/sh\necho armv7l\n")
    (tmp_path / "uname").chmod(0o755)
    run = installer(str(folder / "door.kit"), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert run.returncode == 1
    assert "64-bit" in run.stderr


def test_shellcheck_has_nothing_to_say() -> None:
    run = subprocess.run([tool("shellcheck"), INSTALLER], capture_output=True, text=True, timeout=DEADLINE)
    assert (run.returncode, run.stdout) == (0, "")
