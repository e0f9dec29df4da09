"""scripts/install_pi.sh: its steps, its settings, and its errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge import settings as configuration
from tests.fixtures import orl_door
from tests.fixtures.data import ROOT

DEADLINE = 60.0
INSTALLER = ROOT / "scripts" / "install_pi.sh"

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    return tmp_path


def installer(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", INSTALLER, *words], capture_output=True, text=True, timeout=DEADLINE, env=os.environ | environment
    )


def test_steps_are_in_order(folder: Path) -> None:
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
    matches = [re.search(step, run.stdout) for step in steps]
    assert None not in matches, run.stdout
    assert [match.start() for match in matches if match] == sorted(match.start() for match in matches if match)


@pytest.mark.parametrize("signed", [False, True])
def test_written_settings_are_valid(folder: Path, signed: bool) -> None:
    run = installer(
        "--dry-run", "--camera", "/dev/video0", *(["--public-key", str(INSTALLER)] * signed), str(folder / "door.kit")
    )
    (text,) = re.findall(r"^write /etc/lclrr-edge/settings.toml:\n((?:    .*\n)+)", run.stdout, re.MULTILINE)
    settings = configuration.parse(text.encode(), folder=Path("/etc/lclrr-edge"))
    assert settings.kit.path == Path("/etc/lclrr-edge/door.kit")
    assert settings.kit.public_key == (Path("/etc/lclrr-edge/door.pem") if signed else None)
    assert settings.camera.address == "/dev/video0"
    assert settings.audit is not None
    assert settings.audit.path.is_relative_to("/var/lib/lclrr-edge"), "the only folder that the service may write to"


def test_dry_run_changes_nothing_and_needs_no_root(folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.iterdir())
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("apt-get", "useradd", "usermod", "install", "systemctl", "pip", "chown"):
        (stubs / name).write_text("#!/bin/sh\nexit 99\n")
        (stubs / name).chmod(0o755)
    run = installer("--dry-run", str(folder / "door.kit"), PATH=f"{stubs}:{os.environ['PATH']}")
    assert run.returncode == 0, run.stderr
    assert sorted(path for path in folder.iterdir() if path != stubs) == before
    assert not Path("/opt/lclrr-edge").exists()


@pytest.fixture
def bare_pi(folder: Path, tmp_path: Path) -> Path:
    """The installer for a Pi that is a folder: programs that would change this machine are stubs."""
    pi, programs, here = tmp_path / "pi", tmp_path / "programs", tmp_path / "pi" / "opt" / "bin"
    programs.mkdir()
    here.mkdir(parents=True)
    succeed, copy = "exit 0", 'for last; do :; done; case $1 in -d) mkdir -p "$last" ;; *) cat "${@: -2:1}" >"$last" ;; esac'
    edge = (
        f'case $1 in doctor | install-service) exit 0 ;; esac; PYTHONPATH={ROOT} exec {sys.executable} -m edge.cli.main "$@"'
    )
    scripts = {programs / name: succeed for name in ("apt-get", "useradd", "usermod", "systemctl", "id")}
    scripts |= {programs / "uname": "echo aarch64", programs / "install": copy}
    scripts |= {here / "python": succeed, here / "pip": succeed, here / "edge": edge}
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


def test_installation_can_be_repeated(bare_pi: Path) -> None:
    settings = bare_pi / "pi" / "etc" / "settings.toml"
    for _ in range(2):
        run = on_the_pi(bare_pi, "--camera", "/dev/video0")
        assert run.returncode == 0, run.stderr
        assert configuration.load(settings).camera.source == "/dev/video0"
    assert f"{settings} exists and is not changed." in run.stderr


def test_public_key_with_kept_settings_that_require_none_is_an_error(bare_pi: Path) -> None:
    assert on_the_pi(bare_pi).returncode == 0
    key = bare_pi / "key.pem"
    key.write_text("a key")
    run = on_the_pi(bare_pi, "--public-key", str(key))
    assert run.returncode == 1, "the kept settings accept any kit"
    assert "requires no signature" in run.stderr
    settings = bare_pi / "pi" / "etc" / "settings.toml"
    settings.write_text(settings.read_text().replace("[kit]", '[kit]\npublic_key = "door.pem"'))
    assert on_the_pi(bare_pi, "--public-key", str(key)).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage"),
        (["missing.kit"], "missing.kit"),
        (["--nonsense"], "--nonsense"),
        (["--camera", 'a"b', str(INSTALLER)], 'a"b'),
        (["a.kit", "b.kit"], "usage"),
    ],
)
def test_wrong_arguments_are_reported(words: list[str], message: str) -> None:
    run = installer("--dry-run", *words)
    assert run.returncode == 2
    assert message in run.stderr


def test_other_machines_are_rejected(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "uname").write_text("#!/bin/sh\necho armv7l\n")
    (tmp_path / "uname").chmod(0o755)
    run = installer(str(folder / "door.kit"), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert run.returncode == 1
    assert "64-bit" in run.stderr
