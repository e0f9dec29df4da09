"""Keys: thresholds, signatures by several people, exchange of every key, and a stolen key."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp

from edge.errors import FleetError, UsageError
from export.fleet import roles
from export.fleet.keys import load
from export.fleet.repository import opened
from export.fleet.roles import Keys
from export.fleet.store import Lifetimes
from tests.fixtures.fleet import LIST, Fleet, Terminal

pytestmark = pytest.mark.slow

NewTerminal = Callable[[Path], Terminal]
ROLES = ("root", "targets", "snapshot", "timestamp", "group-north")


@pytest.fixture
def offline(tmp_path: Path) -> Fleet:
    """A repository whose root and targets need two of three keys. These keys are in the folder `safe`."""
    fleet = Fleet(tmp_path, root=Keys(number=3, threshold=2), targets=Keys(number=3, threshold=2))
    fleet.add_group()
    for role in ("root", "targets"):
        shutil.move(fleet.keys / role, tmp_path / "safe" / role)
    return fleet


def sign(fleet: Fleet, role: str, key: Path, password: bytes | None = None) -> None:
    with fleet.changing(password=password) as repository:
        roles.sign(repository, role, key)


def safe_keys(fleet: Fleet, role: str) -> list[Path]:
    return sorted((fleet.repo.parent / "safe" / role).glob("*.pem"))


def test_keys_are_private(fleet: Fleet) -> None:
    files = list(fleet.keys.rglob("*.pem"))
    assert {file.parent.name for file in files} == set(ROLES)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}


def test_root_of_two_of_three_keys(offline: Fleet, new_terminal: NewTerminal) -> None:
    offline.publish_list()
    terminal = new_terminal(offline.root)
    root = Metadata.from_file(str(offline.root)).signed
    assert (len(root.roles["root"].keyids), root.roles["root"].threshold) == (3, 2)
    assert terminal.poll("north/list.toml") == [LIST]


def test_change_waits_for_its_signatures_and_the_last_one_publishes_it(offline: Fleet, new_terminal: NewTerminal) -> None:
    terminal = new_terminal(offline.root)
    offline.add_group("south")
    offline.publish_list(group="south")
    assert {found.role: found.missing for found in offline.waiting()} == {"targets": 2, "group-south": 0}
    first, second, _ = safe_keys(offline, "targets")
    sign(offline, "targets", first)
    sign(offline, "targets", first)  # the same signature does not count twice
    assert terminal.poll("south/list.toml") == [None]
    sign(offline, "targets", second)
    assert offline.waiting() == []
    assert terminal.poll("south/list.toml") == [LIST]


def test_lists_and_kits_are_published_without_the_offline_keys(offline: Fleet, new_terminal: NewTerminal) -> None:
    data = offline.publish_kit(1)
    assert new_terminal(offline.root).kit() == data
    assert offline.waiting() == []


def test_key_of_another_role_cannot_sign(offline: Fleet) -> None:
    offline.add_group("south")
    with pytest.raises(UsageError, match="does not belong to targets"):
        sign(offline, "targets", safe_keys(offline, "root")[0])


def test_signing_nothing_is_an_error(offline: Fleet) -> None:
    with pytest.raises(UsageError, match="No change of root waits"):
        sign(offline, "root", safe_keys(offline, "root")[0])


def test_change_that_expired_while_it_waited_is_not_published(offline: Fleet) -> None:
    with offline.changing(datetime.now(UTC) - timedelta(days=100)) as repository:
        roles.add_group(repository, "south")
    for key in safe_keys(offline, "targets"):
        sign(offline, "targets", key)
    assert "targets" in {found.role for found in offline.waiting()}
    with opened(offline.repo) as repository:
        assert set(repository.targets().delegations.roles) == {"group-north"}  # type: ignore[union-attr,arg-type]


def test_discarded_change_is_forgotten(offline: Fleet) -> None:
    offline.add_group("south")
    with offline.changing() as repository:
        roles.discard(repository, "targets")
    assert offline.waiting() == []
    with pytest.raises(UsageError, match="no group south"):
        offline.publish_list(group="south")


def test_root_key_is_exchanged_by_several_people(offline: Fleet, new_terminal: NewTerminal) -> None:
    terminal = new_terminal(offline.root)
    offline.publish_list()
    assert terminal.poll("north/list.toml") == [LIST]
    lost, *others = safe_keys(offline, "root")
    offline.rotate("root", lost.stem)
    sign(offline, "root", others[0])
    assert not (offline.repo / "metadata" / "2.root.json").exists()
    sign(offline, "root", others[1])
    assert offline.waiting() == []
    assert terminal.poll("north/list.toml") == [LIST]
    root = Metadata.from_file(str(offline.repo / "metadata" / "2.root.json")).signed
    assert load(lost).public_key.keyid not in root.roles["root"].keyids  # type: ignore[union-attr]


def test_revoked_targets_key_of_three_does_not_stop_the_exchange(offline: Fleet, new_terminal: NewTerminal) -> None:
    """Two of the three keys that signed the published targets stay valid."""
    terminal = new_terminal(offline.root)
    offline.publish_list()
    offline.rotate("targets", safe_keys(offline, "targets")[0].stem)
    for key in safe_keys(offline, "root")[:2]:
        sign(offline, "root", key)
    assert (offline.repo / "metadata" / "2.root.json").exists()
    assert terminal.poll("north/list.toml") == [LIST]


def test_new_root_waits_until_targets_are_valid_under_it(tmp_path: Path, new_terminal: NewTerminal) -> None:
    fleet = Fleet(tmp_path, targets=Keys(number=2, threshold=2))
    fleet.add_group()
    fleet.publish_list()
    terminal = new_terminal(fleet.root)
    shutil.move(fleet.keys / "targets", tmp_path / "safe" / "targets")
    lost, kept = safe_keys(fleet, "targets")
    fleet.rotate("targets", lost.stem)
    assert {found.role: found.missing for found in fleet.waiting()} == {"root": 0, "targets": 2}
    assert terminal.poll("north/list.toml") == [LIST]
    sign(fleet, "targets", kept)
    assert fleet.waiting() == []
    assert (fleet.repo / "metadata" / "2.root.json").exists()
    assert terminal.poll("north/list.toml") == [LIST]


@pytest.mark.parametrize("role", ROLES)
def test_every_key_can_be_exchanged(fleet: Fleet, new_terminal: NewTerminal, role: str) -> None:
    fleet.publish_list()
    known, off = new_terminal(fleet.root), new_terminal(fleet.root)
    assert known.poll("north/list.toml") == off.poll("north/list.toml") == [LIST]
    (old,) = fleet.key_files(role)
    fleet.rotate(role)
    old.unlink()
    assert known.poll("north/list.toml") == [LIST]
    other = LIST.replace(b"anna", b"ben")
    fleet.publish_list(other)
    with fleet.changing() as repository:
        roles.refresh(repository, ROLES)
    assert fleet.waiting() == []
    for terminal in (known, off, new_terminal(fleet.root)):
        assert terminal.poll("north/list.toml") == [other]


@pytest.mark.parametrize("role", ["snapshot", "timestamp", "targets", "group-north"])
def test_lost_key_can_be_exchanged(fleet: Fleet, new_terminal: NewTerminal, role: str) -> None:
    fleet.publish_list()
    terminal = new_terminal(fleet.root)
    assert terminal.poll("north/list.toml") == [LIST]
    (lost,) = fleet.key_files(role)
    lost.unlink()
    fleet.rotate(role)
    assert fleet.waiting() == []
    other = LIST.replace(b"anna", b"ben")
    fleet.publish_list(other)
    assert terminal.poll("north/list.toml") == [other]


def test_several_exchanges_of_root_are_followed_by_a_door_that_was_off(fleet: Fleet, new_terminal: NewTerminal) -> None:
    fleet.publish_list()
    terminal = new_terminal(fleet.root)
    for role in ("root", "root", "timestamp", "targets"):
        fleet.rotate(role)
    assert terminal.poll("north/list.toml") == [LIST]


def test_one_of_several_keys_must_be_named(offline: Fleet) -> None:
    with pytest.raises(UsageError, match="has 3 keys"):
        offline.rotate("root")
    with pytest.raises(UsageError, match="no single key"):
        offline.rotate("root", safe_keys(offline, "root")[0].stem[:4])


def forge(fleet: Fleet, key: Path) -> bytes:
    """Publish another door list as a thief of the targets key who also controls the server and its online keys."""
    data = LIST.replace(b"anna", b"thief")
    target = TargetFile.from_data("north/list.toml", data, ["sha256"])
    metadata = fleet.repo / "metadata"
    expires = datetime.now(UTC) + timedelta(days=1)

    def write(name: str, signed: Targets | Snapshot | Timestamp, keys: list[Path]) -> None:
        forged: Metadata[Any] = Metadata(signed)
        for path in keys:
            signer = load(path)
            assert signer is not None
            forged.sign(signer, append=True)
        forged.to_file(str(metadata / name))

    (fleet.repo / "targets" / "north").mkdir(exist_ok=True)
    (fleet.repo / "targets" / target.get_prefixed_paths()[0]).write_bytes(data)
    with opened(fleet.repo) as repository:
        meta = dict(repository.snapshot().signed.meta)
    meta["targets.json"] = MetaFile(900)
    write("900.targets.json", Targets(version=900, expires=expires, targets={"north/list.toml": target}), [key])
    write("900.snapshot.json", Snapshot(version=900, expires=expires, meta=meta), fleet.key_files("snapshot"))
    stamp = Timestamp(version=900, expires=expires, snapshot_meta=MetaFile(900))
    write("timestamp.json", stamp, fleet.key_files("timestamp"))
    return data


def test_stolen_targets_key_is_useless_after_its_revocation(fleet: Fleet, new_terminal: NewTerminal) -> None:
    fleet.publish_list()
    (key,) = fleet.key_files("targets")
    stolen = key.rename(fleet.repo.parent / "stolen.pem")
    shutil.copy(stolen, key)
    before = fleet.repo.parent / "before"
    shutil.copytree(fleet.repo, before)
    forged = forge(fleet, stolen)
    assert new_terminal(fleet.root).poll("north/list.toml") == [forged], "without a revocation, the thief succeeds"
    shutil.rmtree(fleet.repo)
    before.rename(fleet.repo)

    fleet.rotate("targets")
    terminal = new_terminal(fleet.repo / "metadata" / "1.root.json")
    assert terminal.poll("north/list.toml") == [LIST]
    forge(fleet, stolen)
    with pytest.raises(UnsignedMetadataError):
        terminal.poll("north/list.toml")


def test_rolled_back_repository_is_refused(fleet: Fleet, new_terminal: NewTerminal) -> None:
    fleet.publish_list()
    old = fleet.repo.parent / "old"
    shutil.copytree(fleet.repo, old)
    fleet.publish_list(LIST.replace(b"anna", b"ben"))
    terminal = new_terminal(fleet.root)
    terminal.poll("north/list.toml")
    shutil.rmtree(fleet.repo)
    old.rename(fleet.repo)
    with pytest.raises(RepositoryError):
        terminal.poll("north/list.toml")
    for role in ("snapshot", "timestamp"):  # after a restore from a copy, terminals accept lower versions with new keys
        fleet.rotate(role)
    assert terminal.poll("north/list.toml") == [LIST]


def test_refresh_without_need_changes_nothing(fleet: Fleet) -> None:
    before = {path: path.read_bytes() for path in fleet.repo.rglob("*") if path.is_file()}
    with fleet.changing() as repository:
        roles.refresh(repository)
    assert {path: path.read_bytes() for path in fleet.repo.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("days", "renewed"),
    [
        (0.4, set()),
        (0.6, {"timestamp"}),
        (4, {"timestamp", "snapshot"}),
        (61, {"timestamp", "snapshot", "targets", "group-north"}),
        (300, set(ROLES)),
    ],
)
def test_refresh_renews_what_expires_soon(fleet: Fleet, days: float, renewed: set[str]) -> None:
    later = datetime.now(UTC) + timedelta(days=days)
    with fleet.changing(later) as repository:
        before = {role: signed.expires for role, signed in roles.published(repository).items()}
        roles.refresh(repository)
        after = {role: signed.expires for role, signed in roles.published(repository).items()}
        assert {role for role in before if after[role] != before[role]} >= renewed
        assert {role for role in before if after[role] != before[role]} <= renewed | {"snapshot", "timestamp"}
        assert roles.expiring(repository) == {}


def test_refresh_reports_roles_whose_keys_are_offline(offline: Fleet) -> None:
    with offline.changing(datetime.now(UTC) + timedelta(days=80)) as repository:
        assert roles.refresh(repository) == []
        assert set(roles.expiring(repository)) == {"targets"}


def test_refresh_of_an_offline_role_waits_for_signatures(offline: Fleet) -> None:
    with offline.changing() as repository:
        (waiting,) = roles.refresh(repository, ["targets"])
    assert (waiting.role, waiting.missing) == ("targets", 2)
    with offline.changing(datetime.now(UTC) + timedelta(days=80)) as repository:
        roles.refresh(repository)  # does not replace the change that waits
    for key in safe_keys(offline, "targets")[:2]:
        sign(offline, "targets", key)
    assert offline.waiting() == []


def test_lifetimes_are_used_and_kept(tmp_path: Path) -> None:
    now = datetime(2026, 11, 18, tzinfo=UTC)
    fleet = Fleet(tmp_path, now, lifetimes=Lifetimes(timestamp=0.5, root=1000))
    with opened(fleet.repo, now=now) as repository:
        expires = {role: signed.expires - now for role, signed in roles.published(repository).items()}
        assert expires == {
            "root": timedelta(days=1000),
            "targets": timedelta(days=90),
            "snapshot": timedelta(days=7),
            "timestamp": timedelta(days=0.5),
        }
        roles.set_lifetimes(repository, Lifetimes(timestamp=3))
    with opened(fleet.repo) as repository:
        assert repository.settings.lifetimes == Lifetimes(timestamp=3)


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), 4000])
def test_impossible_lifetime_is_rejected(days: float) -> None:
    with pytest.raises(UsageError, match="lifetime of timestamp"):
        Lifetimes(timestamp=days)


def test_encrypted_keys_need_their_password(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, password=b"secret words")
    (key,) = fleet.key_files("targets")
    assert b"ENCRYPTED" in key.read_bytes()
    assert b"ENCRYPTED" not in fleet.key_files("timestamp")[0].read_bytes()
    fleet.add_group()
    assert [found.role for found in fleet.waiting()] == ["group-north", "targets"]
    with pytest.raises(UsageError, match="needs a password"):
        sign(fleet, "targets", key)
    with pytest.raises(UsageError, match="does not open"):
        sign(fleet, "targets", key, b"other words")
    sign(fleet, "targets", key, b"secret words")
    assert fleet.waiting() == []


def test_missing_online_key_is_an_error_and_the_next_command_completes_the_change(
    fleet: Fleet, new_terminal: NewTerminal
) -> None:
    (key,) = fleet.key_files("timestamp")
    away = key.rename(key.with_suffix(".away"))
    with pytest.raises(FleetError, match="key of timestamp is missing"):
        fleet.publish_list()
    terminal = new_terminal(fleet.root)
    assert terminal.poll("north/list.toml") == [None]
    away.rename(key)
    with fleet.changing():
        pass
    assert terminal.poll("north/list.toml") == [LIST]


def test_keys_inside_the_repository_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must not be in the repository"):
        roles.create(tmp_path / "repo", tmp_path / "repo" / "keys", datetime.now(UTC))


def test_folders_with_files_are_refused(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="is not empty"):
        roles.create(fleet.repo, fleet.repo.parent / "other-keys", datetime.now(UTC))
    with pytest.raises(UsageError, match="keys of another repository"):
        roles.create(fleet.repo.parent / "other", fleet.keys, datetime.now(UTC))


def test_folder_without_a_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="not a complete repository"), opened(tmp_path):
        pass


def test_metadata_that_terminals_would_refuse_is_not_published(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.fleet.store.MAX_BYTES", 400)
    with pytest.raises(FleetError, match=r"group-north is larger"):
        fleet.publish_list()


def test_group_is_added_once(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="already"):
        fleet.add_group()
