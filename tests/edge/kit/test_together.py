"""Commands of root and of the service's user work on one store, also at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.errors import EdgeError, KitError, KitOlderError
from edge.files import write_atomically
from edge.kit import store as stores
from edge.kit.store import RECORD, Record, Store
from edge.kit.watch import ProbationRecognizer
from tests.fixtures import kits as doors
from tests.fixtures.data import ROOT
from tests.fixtures.kits import digest
from tests.fixtures.orl_door import kit_version
from tests.fixtures.service_user import SERVICE, Place, needs_root, service_place

ROUNDS = 40


def small_kit(version: int) -> bytes:
    return doors.with_manifest(doors.kit(), kit_version=version)


# --- Two installations at the same time ---

INSTALL = """
import sys
from pathlib import Path
from types import SimpleNamespace
from edge.errors import EdgeError
from edge.kit.store import Store

folder, new = map(Path, sys.argv[1:])
slow = len(sys.argv) > 2 and new.name == "slow.kit"

def load(kit):
    if slow:
        print("checking", flush=True)
        sys.stdin.readline()
    return SimpleNamespace(kit=kit)

print("started", flush=True)
try:
    Store(folder / "kits", folder / "door.kit", load).drop(new.read_bytes())
    print("installed", flush=True)
except EdgeError as error:
    print(type(error).__name__, flush=True)
"""


def install(folder: Path, name: str, data: bytes) -> subprocess.Popen[str]:
    (folder / name).write_bytes(data)
    command = [sys.executable, "-c", INSTALL, str(folder), str(folder / name)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


@pytest.mark.slow
def test_second_installation_is_judged_against_the_first(tmp_path: Path) -> None:
    with install(tmp_path, "slow.kit", small_kit(5)) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "checking\n"
        terminal: Store[Any] = Store(tmp_path / "kits", tmp_path / "door.kit", lambda kit: SimpleNamespace(kit=kit))
        terminal.activate(small_kit(1))  # a terminal does not wait for an installation
        with install(tmp_path, "fast.kit", small_kit(4)) as second:
            first.stdin.write("go on\n")
            first.stdin.flush()
            assert first.stdout.readline() == "installed\n"
            assert second.communicate(timeout=60)[0] == "KitOlderError\n"
    assert (tmp_path / "door.kit").read_bytes() == small_kit(5)


def test_kit_must_be_newer_than_one_that_waits(store: Store[ProbationRecognizer]) -> None:
    store.drop(kit_version(5))
    for version in (4, 5):
        with pytest.raises(KitOlderError, match="version 5 is already in place"):
            store.drop(kit_version(version, calibration={"another": 1}))
    store.drop(kit_version(5))
    store.drop(kit_version(6))
    store.dropped.write_bytes(kit_version(9, series="the other house"))
    store.drop(kit_version(7))
    assert store.dropped.read_bytes() == kit_version(7), "a file that the terminal rejects does not wait"


# --- Root in the folder of the service's user ---


@pytest.fixture
def place() -> Iterator[Place]:
    with service_place() as found:
        yield found


def store_of(place: Place) -> Store[Any]:
    return Store(place.own / "kits", place.own / "door.kit", lambda kit: SimpleNamespace(kit=kit))


def filled_store(place: Place) -> Store[Any]:
    """Return a store of the service's user: version 2 is active, version 1 is the previous kit."""
    store = store_of(place)
    store.folder.mkdir(mode=0o700)
    for version in (1, 2):
        (store.folder / f"{digest(small_kit(version))}.kit").write_bytes(small_kit(version))
    record = Record(current=digest(small_kit(2)), previous=digest(small_kit(1)), version=2, series="")
    (store.folder / RECORD).write_bytes(record.to_bytes())
    place.give()
    return store


@needs_root
def test_files_of_root_belong_to_the_service_user(place: Place) -> None:
    store = filled_store(place)
    store.roll_back(None, "by hand")
    store.drop(small_kit(3))
    assert store.status()["current"]["version"] == 1
    assert {path.stat().st_uid for path in (store.dropped, *store.folder.iterdir())} == {SERVICE}
    assert os.geteuid() == 0


@needs_root
def test_new_store_belongs_to_the_service_user(place: Place) -> None:
    store = store_of(place)
    store.drop(small_kit(1))
    assert (store.folder.stat().st_uid, store.dropped.stat().st_uid) == (SERVICE, SERVICE)
    assert store.folder.stat().st_mode & 0o777 == 0o700


@needs_root
def test_kit_in_a_folder_of_root_keeps_owner_and_mode(place: Place) -> None:
    store = filled_store(place)
    store.dropped = place.root / "door.kit"
    store.dropped.write_bytes(small_kit(2))
    os.chown(store.dropped, 0, SERVICE)
    store.dropped.chmod(0o640)
    store.drop(small_kit(3))
    found = store.dropped.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, SERVICE, 0o640)
    assert {path.stat().st_uid for path in store.folder.iterdir()} == {SERVICE}


@needs_root
def test_link_that_is_swapped_in_gives_no_file_of_root(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's user replaces each file by a link just after root wrote it."""
    store = filled_store(place)

    def write_and_swap(path: Path, data: bytes, **options: Any) -> None:
        write_atomically(path, data, **options)
        Path(path).unlink()
        Path(path).symlink_to(place.secret)

    monkeypatch.setattr(stores, "write_atomically", write_and_swap)
    with suppress(EdgeError):
        store.roll_back(None, "by hand")
    assert place.root_is_unchanged()
    with suppress(EdgeError):
        store.drop(small_kit(3))
    assert place.root_is_unchanged()


@needs_root
@pytest.mark.parametrize("linked", ["kits", "door.kit"])
def test_links_that_are_there_already_lead_nowhere(place: Place, linked: str) -> None:
    store = filled_store(place)
    target = place.root / linked
    if linked == "kits":
        store.folder.rename(target)
        for path in (target, *target.iterdir()):
            os.chown(path, 0, 0)
    else:
        target.write_bytes(small_kit(1))
        target.chmod(0o600)
    (place.own / linked).symlink_to(target)
    place.give()

    def files() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_uid, path.read_bytes()) for path in place.root.rglob("*") if path.is_file()}

    before = files()
    for command in (lambda: store.drop(small_kit(3)), lambda: store.roll_back(None, "by hand")):
        with suppress(KitError):
            command()
    assert files() == before


@needs_root
def test_race_for_a_file_of_root_is_lost(place: Place) -> None:
    """Another thread swaps record.json for a link again and again while root rolls back."""
    store = filled_store(place)
    good = (store.folder / RECORD).read_bytes()
    finished = threading.Event()

    def swap() -> None:
        number = 0
        while not finished.is_set():
            number += 1
            with suppress(OSError):
                other = store.folder / f"swap-{number % 2}"
                other.unlink(missing_ok=True)
                other.symlink_to(place.secret)
                other.rename(store.folder / RECORD)

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for _ in range(ROUNDS):
            with suppress(OSError):
                (store.folder / "good").write_bytes(good)
                (store.folder / "good").rename(store.folder / RECORD)
            with suppress(EdgeError):
                store.roll_back(None, "by hand")
            assert place.root_is_unchanged()
    finally:
        finished.set()
        attacker.join()
    assert os.geteuid() == 0


@needs_root
def test_terminal_of_root_does_not_use_the_store_of_another_user(place: Place) -> None:
    store = filled_store(place)
    with pytest.raises(KitError, match="belongs to another user"):
        store.start()
