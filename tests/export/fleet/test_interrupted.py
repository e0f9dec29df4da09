"""A publisher that is killed at any write leaves a valid repository, and commands at the same time do not mix."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from export.fleet import roles
from tests.fixtures.command import environment
from tests.fixtures.fleet import LIST, Fleet, Terminal, served

pytestmark = pytest.mark.slow

NewTerminal = Callable[[Path], Terminal]
OTHER = LIST.replace(b"anna", b"ben")
MOST_WRITES = 40

KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from export.fleet import contents, roles
from export.fleet.repository import opened
from edge.kit import format as kits
from tests.fixtures.fleet import versioned_kit

base, change, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
data = versioned_kit(2)

def work(folder):
    with opened(folder / "repo", keys=folder / "keys") as repository:
        if change == "publish":
            north = contents.Contents(repository, "north")
            contents.set_kit(north, data, kits.parse(data))
            contents.set_list(north, b'[[allow]]\\npeople = ["ben"]\\n')
            north.submit()
        elif change == "add-group":
            roles.add_group(repository, "south")
        elif change == "remove-group":
            roles.remove_group(repository, "south")
        else:
            roles.rotate(repository, change)
        repository.publish()

def killed_at(number):
    count = 0
    def hook(event, arguments):
        nonlocal count
        if event in ("os.rename", "os.remove", "os.mkdir"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
    return hook

for number in range(1, most):
    folder = base / f"killed-{number}"
    folder.mkdir()
    for name in ("repo", "keys"):
        shutil.copytree(base / name, folder / name)
    child = os.fork()
    if child == 0:
        sys.addaudithook(killed_at(number))
        work(folder)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
sys.exit(3)
"""


@pytest.mark.parametrize(
    "change", ["publish", "add-group", "remove-group", "root", "targets", "snapshot", "timestamp", "group-north"]
)
def test_publisher_that_is_killed_at_any_write_leaves_a_valid_repository(fleet: Fleet, tmp_path: Path, change: str) -> None:
    if change == "remove-group":
        fleet.add_group("south")
    old_kit = fleet.publish_kit(1)
    fleet.publish_list()
    base = tmp_path
    with served(base) as address:
        known = Terminal(base / "known", f"{address}/repo", fleet.root)
        assert known.kit() == old_kit
        run = subprocess.run(
            [sys.executable, "-c", KILLER, str(base), change, str(MOST_WRITES)],
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        folders = sorted(base.glob("killed-*"), key=lambda folder: int(folder.name.partition("-")[2]))
        assert len(folders) > 4, "it was killed at several writes"
        kits = set()
        for folder in folders:
            shutil.copytree(base / "known", folder / "known", symlinks=True)
            url = f"{address}/{folder.name}/repo"
            terminal = Terminal(folder / "new", url, fleet.root)
            known.folder, known.url = folder / "known", url
            for reader in (known, terminal):
                kit = reader.kit()
                assert kit is not None
                kits.add(kit)
                assert reader.poll("north/list.toml") == [OTHER if kit != old_kit else LIST], "kit and list belong together"
            complete = Fleet.of(folder)
            with complete.changing() as repository:
                roles.refresh(repository)
            assert known.kit() == terminal.kit()
            complete.publish_list(OTHER)
            assert known.poll("north/list.toml") == terminal.poll("north/list.toml") == [OTHER]
    assert len(kits) == (2 if change == "publish" else 1)


def test_publishers_at_the_same_time_wait_for_each_other(fleet: Fleet, terminal: Terminal, tmp_path: Path) -> None:
    doors = [f"door-{number}" for number in range(3)]
    (tmp_path / "list.toml").write_bytes(LIST)
    command = [
        sys.executable,
        "-m",
        "export",
        "fleet",
        "lists",
        str(fleet.repo),
        "--group",
        "north",
        str(tmp_path / "list.toml"),
    ]
    publishers = [
        subprocess.Popen([*command, "--door", door], env=environment(), stderr=subprocess.PIPE, text=True) for door in doors
    ]
    for publisher in publishers:
        _, shown = publisher.communicate()
        assert publisher.returncode == 0, shown
    assert terminal.poll(*(f"north/{door}/list.toml" for door in doors)) == [LIST] * len(doors)
