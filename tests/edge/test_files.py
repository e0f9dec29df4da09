"""Files are replaced in one step, and killed writers leave nothing for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge import files
from edge.files import open_atomically, remove_abandoned, write_atomically
from tests.fixtures.data import ROOT
from tests.fixtures.service_user import SERVICE, needs_root

WRITER = """
import sys
from edge.files import open_atomically

with open_atomically(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_writer(path: Path) -> None:
    """Kill a process in the middle of a write."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL


def test_next_writer_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    killed_writer(tmp_path / "door.kit")
    killed_writer(tmp_path / "other.kit")
    assert [name.endswith(".part") for name in names(tmp_path)] == [True, True]
    write_atomically(tmp_path / "door.kit", b"whole")
    left = names(tmp_path)
    assert (left[1:], left[0].startswith(".other.kit.")) == (["door.kit"], True), "only files of the same path"
    folder = os.open(tmp_path, os.O_RDONLY)
    remove_abandoned(folder)
    os.close(folder)
    assert names(tmp_path) == ["door.kit"]


def test_file_of_a_running_writer_stays(tmp_path: Path) -> None:
    path = tmp_path / "door.kit"
    with open_atomically(path) as first:
        first.write(b"first")
        write_atomically(path, b"second")
        assert len(names(tmp_path)) == 2
    assert (names(tmp_path), path.read_bytes()) == (["door.kit"], b"first")


def test_other_files_stay(tmp_path: Path) -> None:
    others = ["door.kit.part", ".door.kit.part", ".door.kit.12345678.other", ".door.kit.1234.part"]
    for name in others:
        (tmp_path / name).write_text("")
    write_atomically(tmp_path / "door.kit", b"")
    assert names(tmp_path) == sorted(["door.kit", *others])


def test_file_that_was_removed_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = files.fcntl.flock
    removed: list[Path] = []

    def remove_first(handle: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        flock(handle, operation)

    monkeypatch.setattr(files.fcntl, "flock", remove_first)
    write_atomically(tmp_path / "door.kit", b"whole")
    assert (names(tmp_path), len(removed)) == (["door.kit"], 1)


def test_folder_that_is_replaced_meanwhile_changes_nothing(tmp_path: Path) -> None:
    """The file is written to the folder that was opened, not to the one that has its name now."""
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    with open_atomically(tmp_path / "own" / "file") as file:
        file.write(b"data")
        (tmp_path / "own").rename(tmp_path / "moved")
        (tmp_path / "own").symlink_to("other")
    assert names(tmp_path / "other") == []
    assert (tmp_path / "moved" / "file").read_bytes() == b"data"


@needs_root
def test_owner_group_and_mode_stay(tmp_path: Path) -> None:
    path = tmp_path / "door.kit"
    write_atomically(path, b"", keep_owner=True)
    found: Any = path.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o600)
    os.chown(path, 0, SERVICE)
    path.chmod(0o640)
    write_atomically(path, b"new", keep_owner=True)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, SERVICE, 0o640)
