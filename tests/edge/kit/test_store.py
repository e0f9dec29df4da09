"""A kit becomes active only if it is newer, fits the terminal and works. The store always has a kit that works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import (
    EdgeError,
    KitDamagedError,
    KitError,
    KitForeignError,
    KitOlderError,
    KitSignatureError,
    KitUnsignedError,
    SelfTestError,
)
from edge.kit import format as kits
from edge.kit.format import Kit, kit_id
from edge.kit.store import MAX_STARTS, RECORD, Record, Store
from edge.kit.watch import ProbationRecognizer
from tests.fixtures import kits as doors
from tests.fixtures.data import ROOT
from tests.fixtures.kits import digest
from tests.fixtures.orl_door import kit_version as kit
from tests.fixtures.orl_door import kit_with_wrong_results, load_on_probation


def outcomes(store: Store[ProbationRecognizer]) -> list[str]:
    return [change.outcome for change in store.start()[1]]


def test_newer_kit_becomes_active_on_probation(store: Store[ProbationRecognizer]) -> None:
    store.activate(kit(4))
    assert store.record() == Record(current=digest(kit(4)), previous=digest(kit(3)), version=4, series="", starts=1)
    assert {file.name for file in store.folder.iterdir()} == {f"{digest(kit(n))}.kit" for n in (3, 4)} | {RECORD}
    assert {file.stat().st_mode & 0o777 for file in store.folder.iterdir()} == {0o600}
    assert store.status()["on_probation"]
    store.confirm(digest(kit(3)))
    assert store.record().starts == 1, "another kit was confirmed"
    store.confirm(digest(kit(4)))
    assert store.record().starts == 0


REJECTED: dict[str, tuple[Callable[[], bytes], type[EdgeError]]] = {
    "older version": (lambda: kit(2), KitOlderError),
    "same version": (lambda: kit(3, calibration={"another": 1}), KitOlderError),
    "another series": (lambda: kit(4, series="the other house"), KitForeignError),
    "failed self-test": (lambda: kit_with_wrong_results(4), SelfTestError),
    "changed byte": (lambda: kit(4)[:5000] + bytes([kit(4)[5000] ^ 1]) + kit(4)[5001:], KitDamagedError),
    "no detector": (lambda: doors.with_manifest(doors.kit(), kit_version=4), KitError),
    "text": (lambda: b"no kit", KitError),
    "empty file": (lambda: b"", KitError),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_kit_changes_nothing(store: Store[ProbationRecognizer], case: str) -> None:
    make, error = REJECTED[case]
    before = store.record()
    for attempt in (store.activate, store.drop):
        with pytest.raises(error):
            attempt(make())
    assert store.record() == before
    assert store.dropped.read_bytes() == kit(3)
    store.dropped.write_bytes(make())
    recognizer, changes = store.start()
    assert recognizer.kit.sha256 == digest(kit(3)), "the terminal starts with the active kit"
    assert [change.outcome for change in changes] == ["rejected"]
    dropped = store.status()["dropped"]
    assert (dropped["active"], bool(dropped["rejected"])) == (False, True)


def test_required_signature_and_series_are_checked(tmp_path: Path) -> None:
    store = Store(tmp_path / "kits", tmp_path / "door.kit", load_on_probation, public_key=doors.signing_keys()[1])
    store.activate(kit(1, key="ours"))
    for data, error in ((kit(2, key="theirs"), KitSignatureError), (kit(2), KitUnsignedError)):
        with pytest.raises(error):
            store.activate(data)
    assert store.activate(kit(2, key="ours")).kit.signature == "valid"
    store = Store(tmp_path / "others", tmp_path / "door.kit", load_on_probation, series="north")
    with pytest.raises(KitForeignError, match="without a name"):
        store.activate(kit(1))
    store.activate(kit(1, series="north"))
    Store(tmp_path / "others", tmp_path / "door.kit", load_on_probation, series="south").activate(kit(2, series="south"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store[ProbationRecognizer]:
    """Version 3 is active; for tests that change nothing."""
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder / "kits", folder / "door.kit", load_on_probation)
    store.activate(kit(3))
    return store


@settings(max_examples=60)
@given(at=st.integers(0, 645_000), new=st.binary(min_size=1, max_size=40), cut=st.booleans())
def test_damaged_kit_raises_only_known_errors(shared: Store[ProbationRecognizer], at: int, new: bytes, cut: bool) -> None:
    data = kit(9)[:at] + new + (b"" if cut else kit(9)[at + len(new) :])
    before = shared.record()
    try:
        shared.check(data)
    except EdgeError:
        assert shared.record() == before
    else:
        assert data == kit(9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # forged numbers overflow
@settings(max_examples=80)
@given(part=st.sampled_from([kits.RECOGNIZER, kits.DETECTOR]), where=st.floats(0, 1), new=st.binary(min_size=1, max_size=4))
def test_forged_kit_raises_only_known_errors(shared: Store[ProbationRecognizer], part: str, where: float, new: bytes) -> None:
    """The attacker also writes the matching hash. No signature is required."""
    parts = kits.unpack(kit(9))
    at = int(where * len(parts[part]))
    parts[part] = parts[part][:at] + new + parts[part][at + len(new) :]
    hashes = json.loads(parts[kits.MANIFEST])["parts"] | {part: digest(parts[part])}
    with suppress(EdgeError):
        shared.check(doors.with_manifest(kits.pack(parts), parts=hashes))


def test_rolled_back_kit_does_not_come_back(store: Store[ProbationRecognizer]) -> None:
    store.activate(kit(4))
    assert store.roll_back(digest(kit(3)), "too late").current == digest(kit(4)), "that kit is not active any more"
    store.roll_back(None, "by hand")
    assert store.record().current == digest(kit(3))
    with pytest.raises(KitOlderError, match="rolled back: by hand"):
        store.activate(kit(4))
    with pytest.raises(KitOlderError):
        store.activate(kit(4, calibration={"another": 1}))
    with pytest.raises(KitError, match="no previous kit"):
        store.roll_back(None, "by hand")
    store.activate(kit(5))
    store.activate(kit(6))
    assert store.record().previous == digest(kit(3)), "a kit on probation is not a kit to roll back to"


def test_kit_that_never_passes_its_probation_is_rolled_back(store: Store[ProbationRecognizer]) -> None:
    """For example a kit that crashes the process."""
    store.dropped.write_bytes(kit(4))
    for _ in range(MAX_STARTS):
        assert store.start()[0].kit.sha256 == digest(kit(4))
    recognizer, changes = store.start()
    assert recognizer.kit.sha256 == digest(kit(3))
    assert [change.outcome for change in changes] == ["rolled back"]
    recognizer, changes = store.start()
    assert (recognizer.kit.sha256, changes) == (digest(kit(3)), []), "reported once, though the file is still there"


def test_damaged_store_starts_with_the_previous_kit_or_an_error(store: Store[ProbationRecognizer]) -> None:
    store.activate(kit(4))
    store.dropped.unlink()
    (store.folder / f"{digest(kit(4))}.kit").write_bytes(kit(4)[:-1])
    assert "rejected" in store.status()["current"]
    recognizer, changes = store.start()
    assert recognizer.kit.sha256 == digest(kit(3))
    assert [change.outcome for change in changes] == ["rejected", "rolled back"]
    (store.folder / f"{digest(kit(3))}.kit").write_bytes(kit(2))
    with pytest.raises(KitError, match="changed"):
        store.start()
    for record in (b"", b"[]", b"{", b'{"version": "1"}', b'{"more": 1}', b'{"rolled_back": []}', b"[" * 100_000):
        (store.folder / RECORD).write_bytes(record)
        with pytest.raises(KitError, match="damaged"):
            store.start()


def test_any_error_of_a_dropped_file_leaves_the_active_kit(store: Store[ProbationRecognizer]) -> None:
    def load_or_fail(kit: Kit) -> ProbationRecognizer:
        if kit.manifest.kit_version == 4:
            raise MemoryError
        return load_on_probation(kit)

    store._load = load_or_fail
    store.dropped.write_bytes(kit(4))
    recognizer, (change,) = store.start()
    assert recognizer.kit.sha256 == digest(kit(3))
    assert change.outcome == "rejected"
    assert change.reason == f"{kit_id(digest(kit(4)))}: the kit cannot be used (MemoryError)"
    for make in (os.mkfifo, os.mkdir):  # reading a pipe must not block
        store.dropped.unlink()
        make(store.dropped)
        assert outcomes(store) == ["rejected"]
    assert store.status()["dropped"] is None


KILL_AT_EACH_CALL = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from edge.kit.store import Store

folder, number = Path(sys.argv[1]), 0
store = Store(folder / "kits", folder / "door.kit", lambda kit: SimpleNamespace(kit=kit))
new = (folder / "new.kit").read_bytes()

def kill_at(call, at):
    def wrapper(*arguments, **options):
        global number
        number += 1
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapper

at = 0
while True:
    at += 1
    if not (child := os.fork()):
        for name in ("replace", "fsync", "fchmod", "unlink", "stat", "close"):
            setattr(os, name, kill_at(getattr(os, name), at))
        store.drop(new)
        store.activate(new)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(store.record().current, (folder / "door.kit").read_bytes() == new, flush=True)
    store.load_stored(store.record().current)
    if status == 0:
        break
"""


@pytest.mark.slow
def test_kill_at_any_moment_leaves_the_old_kit_or_the_new(store: Store[ProbationRecognizer], tmp_path: Path) -> None:
    (tmp_path / "new.kit").write_bytes(kit(4))
    command = [sys.executable, "-c", KILL_AT_EACH_CALL, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    states = [line.split() for line in run.stdout.splitlines()]
    assert {state for state, _ in states} == {digest(kit(3)), digest(kit(4))}
    assert len(states) > 8
    assert store.start()[0].kit.sha256 == digest(kit(4))
    assert not list(store.folder.glob(".*.part"))


def test_concurrent_activations_leave_the_newest_kit(store: Store[ProbationRecognizer]) -> None:
    def activate(version: int) -> None:
        with suppress(KitOlderError):
            store.activate(kit(version))

    threads = [threading.Thread(target=activate, args=(version,)) for version in (4, 7, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.record().current == digest(kit(7))
    assert store.load_stored(store.record().previous).kit.manifest.kit_version == 3, "the last kit not on probation"
