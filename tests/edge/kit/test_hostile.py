"""Kits that an attacker, or a mistake, made: absurd thresholds, huge manifests, files that end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge.errors import KitDamagedError, KitError, KitOlderError, KitSizeError, KitUnsignedError
from edge.kit import format as kits
from edge.kit.manifest import (
    ABSOLUTE,
    MAX_NEW_VERSION,
    MAX_VERSION,
    MIN_ABSOLUTE,
    RELATIVE,
    Thresholds,
    canonical_json,
    min_confidence,
)
from edge.kit.store import RECORD, Record, Store
from edge.kit.watch import ProbationRecognizer
from export.pack import sign
from tests.fixtures import kits as doors
from tests.fixtures.data import ROOT
from tests.fixtures.kits import digest, signing_keys
from tests.fixtures.orl_door import kit_version as kit
from trainer.thresholds import StrangerCalibration

MEASURED: dict[str, Any] = {
    "confidence": 0.8, "residual": 0.7, "provisional": False,
    "fpir": 0.0625, "fpir_low": 0.0, "fpir_high": 0.074, "strangers": 48,
}  # fmt: skip
PROVISIONAL: dict[str, Any] = {"confidence": 0.8, "residual": 0.7, "provisional": True}


# --- Thresholds ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("confidence", 1e-300),
        ("confidence", 0.2),  # four people: equal scores have 0.5
        ("confidence", 2.1),
        ("residual", 1e-300),
        ("residual", 2.5),
        ("residual", 1e6),
        ("strangers", 0),
        ("strangers", -1),
        ("strangers", 10**12),
        ("fpir", 0.0),
        ("fpir", 1e-300),
        ("fpir", 0.06),
        ("fpir_high", 0.0),
        ("fpir_high", 0.07),
        ("fpir_low", 0.07),
    ],
)
def test_thresholds_that_no_calibration_gives_are_rejected(field: str, value: float) -> None:
    with pytest.raises(KitError, match=f"thresholds of the kit are not possible: {field} ") as error:
        kits.parse(doors.with_manifest(doors.kit(), thresholds=MEASURED | {field: value}))
    assert (error.value.exit_code, f"{field} {value:g}" in error.value.message or f"{value}" in error.value.message) == (
        20,
        True,
    )


@pytest.mark.parametrize("change", [{"fpir": 0.01}, {"fpir_low": 0.001}, {"fpir_high": 0.1}, {"strangers": 300}])
def test_provisional_thresholds_have_no_rate(change: dict[str, Any]) -> None:
    with pytest.raises(KitError, match="provisional is true, but a rate is given"):
        kits.parse(doors.with_manifest(doors.kit(), thresholds=PROVISIONAL | change))


def test_lowest_confidence_depends_on_its_kind_and_the_people() -> None:
    assert [round(min_confidence(RELATIVE, people), 3) for people in (2, 8, 100, 10_000)] == [0.354, 0.177, 0.05, 0.005]
    for kind, least in ((RELATIVE, 0.25), (ABSOLUTE, MIN_ABSOLUTE)):
        for confidence, is_valid in ((least, True), (0.999 * least, False), (2.0, True)):
            limits = Thresholds(**MEASURED | {"confidence": confidence})
            assert (limits.problem(kind, 4) == "") is is_valid


@pytest.mark.parametrize("trials", [1, 2, 3, 48, 300, 1_000_000])
@pytest.mark.parametrize("searched", [1.0, 0.8])
@pytest.mark.parametrize("target", [1e-6, 0.01, 0.5])
def test_thresholds_of_every_calibration_are_accepted(trials: int, searched: float, target: float) -> None:
    for passed in {0, int(target * searched * trials)}:
        found = StrangerCalibration(confidence=0.4, target=target, passed=passed, trials=trials, searched=searched)
        low, high = found.interval
        rate = min(found.stated_rate, 1.0)
        limits = Thresholds(
            confidence=0.4, residual=0.5, provisional=False, fpir=rate, fpir_low=low, fpir_high=high, strangers=trials
        )
        assert limits.problem(ABSOLUTE, 10) == ""
        assert "At most 0 %" not in limits.sentence
        assert " to 0 %" not in limits.sentence


# --- The order of the checks ---

PEAK = """
import resource, sys
from pathlib import Path
from edge.errors import KitError
from edge.kit import format as kits
import cryptography.hazmat.primitives.asymmetric.ed25519, edge.vision.recognize

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    kits.read(sys.argv[1], Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else None)
    print("none")
except KitError as error:
    print(type(error).__name__)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def peak_memory(path: Path, *key: Path) -> tuple[str, int]:
    """Read a kit in another process. Return the error and the megabytes that it took."""
    command = [sys.executable, "-c", PEAK, str(path), *map(str, key)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    error, megabytes = run.stdout.split()
    return error, int(megabytes)


def hostile_manifest(length: int) -> bytes:
    """Return JSON of about this length that takes many times the memory as objects of Python."""
    parts = kits.unpack(doors.kit())
    contents = json.loads(parts[kits.MANIFEST]) | {"calibration": {"more": [[]] * (length // 7)}}
    return canonical_json(contents)


@pytest.mark.slow
def test_signature_is_checked_before_the_manifest_is_read(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_bytes(signing_keys()[1])
    parts = kits.unpack(doors.kit()) | {kits.MANIFEST: hostile_manifest(16 << 20)}
    assert 14 << 20 < len(parts[kits.MANIFEST]) < 18 << 20
    huge = tmp_path / "huge.kit"
    huge.write_bytes(kits.pack(parts))
    error, megabytes = peak_memory(huge, tmp_path / "key.pub")
    assert error == "KitSizeError"
    assert megabytes < 100
    parts[kits.MANIFEST] = hostile_manifest(kits.MAX_MANIFEST - 8000)
    for signature, expected in ((None, "KitUnsignedError"), (sign(b"other", signing_keys()[0]), "KitSignatureError")):
        huge.write_bytes(kits.pack(parts | ({} if signature is None else {kits.SIGNATURE: signature})))
        error, megabytes = peak_memory(huge, tmp_path / "key.pub")
        assert error == expected
        assert megabytes < 60
    error, megabytes = peak_memory(huge)
    assert error == "none", "without a key, the largest manifest is read"
    assert megabytes < 300


def test_nothing_of_an_unsigned_kit_is_read_if_a_key_is_set() -> None:
    parts = kits.unpack(doors.kit())
    for manifest in (b"", b"not JSON", b"{" * 100_000, b"\xff"):
        with pytest.raises(KitUnsignedError):
            kits.parse(kits.pack(parts | {kits.MANIFEST: manifest}), signing_keys()[1])
    damaged = bytearray(doors.kit())
    damaged[-1] ^= 1
    with pytest.raises(KitUnsignedError):
        kits.parse(bytes(damaged), signing_keys()[1])


def test_large_manifest_and_unknown_parts_are_rejected() -> None:
    parts = kits.unpack(doors.kit())
    with pytest.raises(KitSizeError, match="manifest of the kit is larger than 4 MB"):
        kits.parse(kits.pack(parts | {kits.MANIFEST: parts[kits.MANIFEST] + b" " * kits.MAX_MANIFEST}))
    renamed = doors.kit().rpartition(kits.unpack(doors.kit())[kits.LICENSE])[0].removesuffix(b"LICENSE.txt") + b"LICENSE.exe"
    with pytest.raises(KitDamagedError, match="a part that this version does not know"):
        kits.parse(renamed + parts[kits.LICENSE])


# --- Versions ---


@pytest.mark.parametrize("version", [1, 20261118, 202611181200, 1_794_998_400, 1_794_998_400_000, 20261118120000])
def test_dates_and_times_are_versions(version: int, tmp_path: Path) -> None:
    store: Store[Any] = Store(tmp_path / "kits", tmp_path / "door.kit", lambda opened: opened)
    assert store.check(doors.with_manifest(doors.kit(), kit_version=version)).manifest.kit_version == version


def test_version_far_above_the_active_one_is_rejected(store: Store[ProbationRecognizer]) -> None:
    for version in (MAX_VERSION, 3 + MAX_NEW_VERSION + 1):
        for attempt in (store.drop, store.activate):
            with pytest.raises(KitOlderError, match="too far above version 3") as error:
                attempt(kit(version))
            assert "--kit-version 4" in error.value.hint
    store.activate(kit(3 + MAX_NEW_VERSION))
    assert store.record().version == 3 + MAX_NEW_VERSION
    store.dropped.unlink()
    assert store.start()[0].kit.manifest.kit_version == 3 + MAX_NEW_VERSION, "the active kit starts, whatever its version"


# --- Files that end the process ---

DIE = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from edge.kit.store import Store

def load(kit):
    if kit.manifest.kit_version == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return SimpleNamespace(kit=kit)

folder = Path(sys.argv[1])
Store(folder / "kits", folder / "door.kit", load).start()
"""


def die_while_judging(folder: Path) -> None:
    run = subprocess.run([sys.executable, "-c", DIE, str(folder)], cwd=ROOT, capture_output=True, timeout=60)
    assert run.returncode == -9, run.stderr


@pytest.mark.slow
def test_file_that_ended_the_process_is_not_judged_again(store: Store[ProbationRecognizer], tmp_path: Path) -> None:
    store.dropped.write_bytes(kit(4))
    die_while_judging(tmp_path)
    assert store.record().judged == digest(kit(4))
    loaded = []
    load = store._load
    store._load = lambda opened: loaded.append(opened.manifest.kit_version) or load(opened)  # type: ignore[func-returns-value]
    for _ in range(2):
        recognizer, (change,) = store.start()
        assert (change.outcome, "ended while it checked" in change.reason) == ("rejected", True)
        assert recognizer.kit.sha256 == digest(kit(3))
    assert loaded == [3, 3]
    store.dropped.write_bytes(kit(5))
    assert store.start()[0].kit.sha256 == digest(kit(5)), "another file is judged"
    assert store.record().judged == ""


@pytest.mark.slow
def test_install_by_hand_lets_the_file_be_judged_again(store: Store[ProbationRecognizer], tmp_path: Path) -> None:
    """The process may have died for another reason, such as a power failure."""
    store.dropped.write_bytes(kit(4))
    die_while_judging(tmp_path)
    store.drop(kit(4))
    assert store.record().judged == ""
    assert store.start()[0].kit.sha256 == digest(kit(4))


@pytest.mark.slow
def test_first_kit_is_judged_again(tmp_path: Path) -> None:
    (tmp_path / "door.kit").write_bytes(kit(4))
    for _ in range(2):
        die_while_judging(tmp_path)
    store: Store[Any] = Store(tmp_path / "kits", tmp_path / "door.kit", lambda opened: ProbationRecognizer(opened))
    assert store.start()[0].kit.sha256 == digest(kit(4))


def test_rejected_file_leaves_no_note(store: Store[ProbationRecognizer]) -> None:
    seen = []

    def fail(opened: kits.Kit) -> ProbationRecognizer:
        seen.append(store.record().judged)
        raise MemoryError

    store._load = fail
    with pytest.raises(MemoryError):
        store.activate(kit(4))
    assert seen == [digest(kit(4))]
    assert store.record().judged == ""


def test_records_of_other_versions_are_read(store: Store[ProbationRecognizer]) -> None:
    path = store.folder / RECORD
    contents = json.loads(path.read_text())
    assert "judged" not in contents, "versions that do not know the field can read the record"
    path.write_text(json.dumps(contents | {"later": [1]}))
    assert store.record() == Record(current=digest(kit(3)), version=3, series="")
    assert Record.from_bytes(Record(judged="1").to_bytes()) == Record(judged="1")
