"""scripts/install_pi.sh: its steps, its settings, and its errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge import settings as configuration
from tests.fixtures.data import ROOT

DEADLINE = 60.0
INSTALLER = ROOT / "scripts" / "install_pi.sh"

pytestmark = pytest.mark.slow


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    file = tmp_path / "door.kit"
    file.write_bytes(b"a kit")
    return file


def programs(folder: Path, scripts: dict[str, str]) -> str:
    """Write programs to a folder and return a PATH that begins with it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def install(*words: object, script: Path = INSTALLER, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", script, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE, env=os.environ | {"PATH": path}
    )


def test_dry_run_prints_the_steps_in_order_and_changes_nothing(kit: Path, tmp_path: Path) -> None:
    changing = ("apt-get", "useradd", "usermod", "install", "systemctl", "pip", "chown", "rm")
    path = programs(tmp_path / "bin", dict.fromkeys(changing, "exit 99"))
    run = install("--dry-run", kit, path=path)
    assert run.returncode == 0, run.stderr
    assert not Path("/opt/lclrr-edge").exists()
    steps = [
        "apt-get install",
        "useradd --system",
        "python3 -m venv --system-site-packages /opt/lclrr-edge",
        f"rm -rf {ROOT}/build",
        rf"/opt/lclrr-edge/bin/pip install .* {ROOT}\\\[metrics\\,mqtt\\,gpio\\\] \n",
        f"install .*-m 0640 {kit} /etc/lclrr-edge/door.kit",
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


@pytest.mark.parametrize(
    ("signed", "package", "wanted"),
    [
        (False, "lclrr-edge==0.2", r"lclrr-edge\[metrics\,mqtt\,gpio\]==0.2"),
        (True, "dist/a.whl", r"dist/a.whl\[metrics\,mqtt\,gpio\,signed\]"),
    ],
)
def test_written_settings_are_valid_and_the_package_is_the_named_one(
    kit: Path, signed: bool, package: str, wanted: str
) -> None:
    key = ["--public-key", INSTALLER] if signed else []
    run = install("--dry-run", "--camera", "/dev/video0", "--package", package, *key, kit)
    assert f" {wanted} \n" in run.stdout
    assert "rm -rf" not in run.stdout
    (text,) = re.findall(r"^write /etc/lclrr-edge/settings.toml:\n((?:    .*\n)+)", run.stdout, re.MULTILINE)
    settings = configuration.parse(text.encode(), folder=Path("/etc/lclrr-edge"))
    assert settings.kit.path == Path("/etc/lclrr-edge/door.kit")
    assert settings.kit.public_key == (Path("/etc/lclrr-edge/door.pem") if signed else None)
    assert settings.camera.address == "/dev/video0"
    assert settings.audit is not None
    assert settings.audit.path.is_relative_to("/var/lib/lclrr-edge"), "the only folder that the service may write to"


def test_installation_can_be_repeated_and_keeps_the_settings(kit: Path, tmp_path: Path) -> None:
    """On a Pi that is a folder: programs that would change this machine are stubs."""
    pi = tmp_path / "pi"
    copy = 'for last; do :; done; case $1 in -d) mkdir -p "$last" ;; *) cat "${@: -2:1}" >"$last" ;; esac'
    edge = f'case $1 in config) PYTHONPATH={ROOT} exec {sys.executable} -m edge "$@" ;; esac'
    stubs = dict.fromkeys(("apt-get", "useradd", "usermod", "systemctl", "id"), "exit 0")
    path = programs(tmp_path / "programs", stubs | {"uname": "echo aarch64", "install": copy})
    programs(pi / "opt" / "bin", {"python": "exit 0", "pip": "exit 0", "edge": edge})
    text = INSTALLER.read_text().replace("/opt/lclrr-edge", f"{pi}/opt").replace("/etc/lclrr-edge", f"{pi}/etc")
    script = tmp_path / "install_pi.sh"
    script.write_text(text.replace("((EUID == 0))", "true"))
    settings, key = pi / "etc" / "settings.toml", tmp_path / "key.pem"
    key.write_text("a key")

    def repeat(*words: object) -> subprocess.CompletedProcess[str]:
        return install("--camera", "/dev/video0", "--package", "a.whl", *words, kit, script=script, path=path)

    run = repeat()
    assert run.returncode == 0, run.stderr
    assert configuration.load(settings).camera.source == "/dev/video0"
    run = repeat("--public-key", key)
    assert run.returncode == 1, "the kept settings accept any kit"
    assert "requires no signature" in run.stderr
    settings.write_text(settings.read_text().replace("[kit]", '[kit]\npublic_key = "door.pem"'))
    run = repeat("--public-key", key)
    assert run.returncode == 0, run.stderr
    assert f"{settings} exists and is not changed." in run.stderr


def test_wrong_arguments_and_machines_are_reported(kit: Path, tmp_path: Path) -> None:
    copied = tmp_path / "bin" / "install_pi.sh"
    path = programs(tmp_path / "bin", {"uname": "echo armv7l"})
    copied.write_text(INSTALLER.read_text())
    cases: list[tuple[list[object], str]] = [
        ([], "usage"),
        (["missing.kit"], "missing.kit"),
        (["--nonsense"], "--nonsense"),
        (["--camera", 'a"b', INSTALLER], 'a"b'),
        (["a.kit", "b.kit"], "usage"),
    ]
    for words, message in cases:
        run = install("--dry-run", *words)
        assert (run.returncode, message in run.stderr) == (2, True), run.stderr
    run = install("--dry-run", kit, script=copied)
    assert (run.returncode, "--package" in run.stderr) == (2, True), "it is in no checkout"
    run = install(kit, path=path)
    assert (run.returncode, "64-bit" in run.stderr) == (1, True), run.stderr
