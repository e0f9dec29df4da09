"""Servers that lie: frozen, rolled back, signed with stolen keys; and doors that were away."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tuf.ngclient import Updater
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet

from edge.decision import reasons
from edge.fleet.problems import PullError
from export.fleet import roles
from export.fleet.store import Lifetimes
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet import versioned_kit
from tests.fixtures.fleet_door import DAY, HOUR, Clock, FleetDoor
from tests.fixtures.nginx import Nginx

pytestmark = pytest.mark.slow


@pytest.fixture
def again(tmp_path: Path, publisher: Publisher, server: Nginx, clock: Clock) -> Callable[..., FleetDoor]:
    """again() returns the door after a restart of its program; the settings may be others."""
    return lambda **settings: FleetDoor(tmp_path / "door", server.url, publisher.root, clock, **settings)


def refresh(publisher: Publisher, clock: Clock) -> None:
    """Do what the publisher does every few hours: as of the time of the door."""
    with publisher.changing(datetime.fromtimestamp(clock.utc, UTC)) as repository:
        roles.refresh(repository, ["timestamp", "snapshot"])


def copy_of(publisher: Publisher, folder: Path) -> Path:
    """Keep the published files, as a mirror that is never updated."""
    shutil.copytree(publisher.repo, folder)
    return folder


def restore(publisher: Publisher, mirror: Path) -> None:
    for name in ("metadata", "targets"):
        shutil.rmtree(publisher.repo / name)
        shutil.copytree(mirror / name, publisher.repo / name)


def failure(door: FleetDoor) -> PullError:
    with pytest.raises(PullError) as found:
        door.pull()
    return found.value


def test_parts_of_tuf_that_the_client_replaces_exist() -> None:
    """Without them, metadata would be written without care for power failures, or judged by another clock."""
    assert {"_persist_file", "_update_root_symlink"} <= vars(Updater).keys()
    assert "self.reference_time" in inspect.getsource(TrustedMetadataSet.__init__)
    assert isinstance(TrustedMetadataSet.targets, property)


# Frozen servers


def test_frozen_mirror_is_an_alarm_when_its_data_expire(door: FleetDoor, clock: Clock) -> None:
    door.pull()
    clock.wait(DAY - HOUR)
    door.pull()
    assert door.outcomes() == ["fresh"]
    clock.wait(2 * HOUR)
    assert failure(door).cause == "expired"
    (news,) = door.news()
    assert (news.kind, news.outcome) == ("fleet", "stale")
    assert "expired" in (news.reason or "")
    assert door.refusal("anna") is None, "the door still has its hours"


def test_frozen_mirror_denies_everyone_after_max_stale_hours_and_a_refresh_ends_it(
    door: FleetDoor, publisher: Publisher, clock: Clock
) -> None:
    door.pull()
    clock.wait(DAY + 1)
    failure(door)
    assert door.refusal("anna") == reasons.FLEET_TOO_OLD
    refresh(publisher, clock)
    door.pull()
    assert door.refusal("anna") is None
    assert door.outcomes() == ["fresh", "stale", "fresh"]


@pytest.mark.parametrize(
    ("policy", "listed", "other"),
    [
        ("deny all", reasons.FLEET_TOO_OLD, reasons.FLEET_TOO_OLD),
        ("list only", None, reasons.FLEET_TOO_OLD),
        ("go on", None, None),
    ],
)
def test_policy_decides_about_stale_data(
    again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock, policy: str, listed: str | None, other: str | None
) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["anna"]\n[[allow]]\npeople = "everyone"\n')
    publisher.revoke("carl")
    door = again(when_stale=policy)
    door.pull()
    clock.wait(25 * HOUR)
    assert (door.refusal("anna"), door.refusal("ben")) == (listed, other)
    assert door.refusal("carl") == reasons.REVOKED


def test_list_only_denies_everyone_without_a_list(again: Callable[..., FleetDoor], clock: Clock) -> None:
    door = again(when_stale="list only")
    door.pull()
    clock.wait(25 * HOUR)
    assert door.refusal("anna") == reasons.FLEET_TOO_OLD


def test_list_only_means_the_hours_of_the_entries_that_name_a_person(
    again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock
) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["anna"]\nvalid_until = 2025-01-02\n[[allow]]\npeople = "everyone"\n')
    door = again(when_stale="list only")
    door.pull()
    assert door.refusal("anna") is None, "the entry for everyone counts while the data are fresh"
    clock.wait(25 * HOUR)
    assert (door.refusal("anna"), door.refusal("ben")) == (reasons.EXPIRED, reasons.FLEET_TOO_OLD)


def test_list_only_counts_the_entries_of_a_visitor_whom_everyone_hides(
    again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock
) -> None:
    publisher.publish_list(b'[[allow]]\npeople = ["anna"]\nentries = 2\n[[allow]]\npeople = "everyone"\n')
    door = again(when_stale="list only")
    door.pull()
    assert [door.admit("anna") for _ in range(3)] == [None] * 3, "the entry for everyone has no limit"
    clock.wait(25 * HOUR)
    assert [door.admit("anna") for _ in range(3)] == [None, None, reasons.NO_ENTRIES_LEFT]
    assert door.admit("ben") == reasons.FLEET_TOO_OLD


def test_server_that_is_gone_is_an_alarm_after_a_while(door: FleetDoor, server: Nginx, clock: Clock) -> None:
    door.pull()
    server.stop()
    assert failure(door).cause == "network"
    assert (door.outcomes(), door.fleet.status()["state"]) == (["fresh"], "offline")
    clock.wait(1000)
    failure(door)
    failure(door)
    assert door.outcomes() == ["failed"], "once"


def test_restart_does_not_make_old_data_fresh(
    door: FleetDoor, again: Callable[..., FleetDoor], server: Nginx, clock: Clock
) -> None:
    door.pull()
    server.stop()
    clock.wait(25 * HOUR)
    assert again().refusal("anna") == reasons.FLEET_TOO_OLD
    clock.restart(off=HOUR)
    assert again().refusal("anna") == reasons.FLEET_TOO_OLD


# Clocks


def test_clock_of_1970_does_not_accept_a_frozen_mirror(door: FleetDoor, again: Callable[..., FleetDoor], clock: Clock) -> None:
    door.pull()
    clock.restart(utc=0.0)
    later = again(max_stale_hours=3.0)
    clock.wait(2 * HOUR)
    later.pull()  # what the server repeats is not newer
    assert (later.refusal("anna"), later.fleet.status()["clock_is_plausible"]) == (None, False)
    clock.wait(HOUR)
    later.pull()
    assert later.refusal("anna") == reasons.FLEET_TOO_OLD
    assert "clock of this device is wrong" in (later.news()[-1].reason or "")


def test_clock_of_1970_does_not_lock_the_door_for_ever(
    door: FleetDoor, again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock
) -> None:
    door.pull()
    real = clock.utc
    clock.restart(utc=0.0)
    later = again()
    for hours in range(0, 72, 12):
        clock.wait(12 * HOUR)
        refresh(publisher, Clock(real + hours * HOUR))
        later.pull()
        assert later.refusal("anna") is None
    clock.utc = real + 72 * HOUR  # a time server was reached
    refresh(publisher, clock)
    later.pull()
    assert (later.refusal("anna"), later.fleet.status()["clock_is_plausible"]) == (None, True)


def test_new_door_with_a_wrong_clock_needs_two_different_timestamps(
    tmp_path: Path, publisher: Publisher, server: Nginx
) -> None:
    door = FleetDoor(tmp_path / "door", server.url, publisher.root, Clock(0.0))
    door.pull()
    door.pull()
    assert door.refusal("anna") == reasons.FLEET_TOO_OLD
    refresh(publisher, Clock())
    door.pull()
    assert door.refusal("anna") is None


def test_hours_are_not_judged_by_a_clock_that_is_known_to_be_wrong(
    door: FleetDoor, again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock
) -> None:
    today = datetime.fromtimestamp(clock.utc, UTC).date()
    entries = ('people = ["anna"]', f'people = ["ben"]\nvalid_until = {today - 2 * timedelta(days=1)}')
    publisher.publish_list("".join(f"[[allow]]\n{entry}\n" for entry in entries).encode())
    door.pull()
    assert (door.refusal("anna"), door.refusal("ben")) == (None, reasons.EXPIRED)
    right = clock.utc
    clock.restart(utc=right - 7 * DAY)
    later = again()
    assert (later.refusal("anna"), later.refusal("ben")) == (None, reasons.CLOCK_NOT_SET)
    clock.utc = right  # a time server was reached
    assert (later.refusal("anna"), later.refusal("ben")) == (None, reasons.EXPIRED)


def test_entries_are_counted_while_the_clock_is_wrong(
    door: FleetDoor, again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock
) -> None:
    """An entry with a day allows nothing then, so it must not hide the one that is counted."""
    publisher.publish_list(
        b'[[allow]]\npeople = ["anna"]\nentries = 1\n[[allow]]\npeople = ["anna"]\nvalid_from = 2025-01-01\n'
    )
    door.pull()
    assert [door.admit("anna") for _ in range(3)] == [None] * 3
    clock.restart(utc=clock.utc - 7 * DAY)
    later = again()
    assert [later.admit("anna") for _ in range(2)] == [None, reasons.NO_ENTRIES_LEFT]


def test_clock_that_was_ahead_is_trusted_again_without_its_state(
    door: FleetDoor, again: Callable[..., FleetDoor], clock: Clock
) -> None:
    """The way of docs/guide/fleet.md."""
    clock.utc += 20 * HOUR
    door.pull()
    clock.utc -= 20 * HOUR
    door.pull()
    assert not door.fleet.status()["clock_is_plausible"]
    (door.folder / "state.json").unlink()
    later = again()
    assert later.refusal("anna") == reasons.FLEET_TOO_OLD
    later.pull()
    assert (later.refusal("anna"), later.fleet.status()["clock_is_plausible"]) == (None, True)


def test_switching_the_device_off_again_and_again_does_not_stop_its_age(
    door: FleetDoor, again: Callable[..., FleetDoor], server: Nginx, clock: Clock
) -> None:
    door.pull()
    server.stop()
    for _ in range(100):
        clock.restart(utc=0.0)
        later = again()
        later.fleet.save()
    assert later.refusal("anna") == reasons.FLEET_TOO_OLD


# Old and false data


def test_rolled_back_repository_is_refused(door: FleetDoor, publisher: Publisher, tmp_path: Path, clock: Clock) -> None:
    door.pull()
    mirror = copy_of(publisher, tmp_path / "mirror")
    publisher.revoke("anna")
    door.pull()
    restore(publisher, mirror)
    assert failure(door).cause == "untrusted"
    assert door.refusal("anna") == reasons.REVOKED
    assert door.outcomes() == ["fresh", "failed"]
    clock.wait(25 * HOUR)
    failure(door)
    assert door.refusal("ben") == reasons.FLEET_TOO_OLD


def test_rolled_back_repository_is_refused_after_a_restart(
    door: FleetDoor, again: Callable[..., FleetDoor], publisher: Publisher, tmp_path: Path
) -> None:
    door.pull()
    mirror = copy_of(publisher, tmp_path / "mirror")
    publisher.revoke("anna")
    door.pull()
    restore(publisher, mirror)
    later = again()
    assert failure(later).cause == "untrusted"
    assert later.refusal("anna") == reasons.REVOKED


def test_repository_of_another_publisher_is_refused(door: FleetDoor, publisher: Publisher, tmp_path: Path) -> None:
    door.pull()
    other = Publisher(tmp_path / "other")
    other.add_group()
    other.publish_kit(9)
    restore(publisher, other.repo)
    assert failure(door).cause == "untrusted"
    assert door.store.dropped.read_bytes() == versioned_kit(1)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "group-north"])
def test_stolen_key_is_worthless_after_its_rotation(door: FleetDoor, publisher: Publisher, tmp_path: Path, role: str) -> None:
    door.pull()
    stolen = tmp_path / "stolen"
    shutil.copytree(publisher.repo, stolen / "repo")
    shutil.copytree(publisher.keys, stolen / "keys")
    publisher.rotate(role, revoke=publisher.key_files(role)[0].stem)
    door.pull()
    thief = Publisher.of(stolen)
    for _ in range(5):  # to be newer than what the door has
        refresh(thief, Clock())
    thief.publish_kit(9)
    restore(publisher, thief.repo)
    for root in (thief.repo / "metadata").glob("*.root.json"):
        assert root.name == "1.root.json"
    assert failure(door).cause == "untrusted"
    assert door.store.dropped.read_bytes() == versioned_kit(1)


def test_door_that_was_off_for_a_week_follows_two_rotations_of_root(
    door: FleetDoor, again: Callable[..., FleetDoor], publisher: Publisher, clock: Clock
) -> None:
    door.pull()
    clock.restart(off=7 * DAY)
    publisher.rotate("root", revoke=publisher.key_files("root")[0].stem)
    publisher.rotate("root")
    publisher.rotate("timestamp")
    publisher.revoke("anna")
    refresh(publisher, clock)
    later = again()
    assert later.refusal("ben") == reasons.FLEET_TOO_OLD
    later.pull()
    assert (later.refusal("anna"), later.refusal("ben")) == (reasons.REVOKED, None)


def test_door_that_was_off_until_the_roots_in_between_expired_follows_them(
    tmp_path: Path, clock: Clock, server: Nginx, publisher: Publisher
) -> None:
    short = Publisher(tmp_path / "short", lifetimes=Lifetimes(root=5, targets=5, snapshot=5, timestamp=5))
    short.add_group()
    restore(publisher, short.repo)
    door = FleetDoor(tmp_path / "door", server.url, short.root, clock)
    door.pull()
    short.rotate("root")
    clock.restart(off=7 * DAY)
    now = datetime.fromtimestamp(clock.utc, UTC)
    with short.changing(now) as repository:
        roles.rotate(repository, "root")
    with short.changing(now) as repository:
        roles.refresh(repository, ["targets", "group-north", "snapshot", "timestamp"])
    restore(publisher, short.repo)
    assert door.fleet.is_stale()
    door.pull()
    assert not door.fleet.is_stale()


def test_missing_metadata_are_the_network_and_not_an_attack(door: FleetDoor, publisher: Publisher) -> None:
    door.pull()
    publisher.revoke("anna")
    (newest,) = (publisher.repo / "metadata").glob(f"{_newest(publisher, 'snapshot')}.snapshot.json")
    newest.unlink()
    assert failure(door).cause == "network"


def test_thief_of_the_online_keys_cannot_fill_the_disk(
    door: FleetDoor, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot and the timestamp say how long metadata may be."""
    door.pull()
    publisher.publish_list()
    monkeypatch.setattr("edge.fleet.client.MAX_BYTES", 500)  # less than a snapshot, and more than a timestamp
    error = failure(door)
    assert (error.cause, "sent too much" in error.message) == ("untrusted", True)


def test_tampered_target_is_refused(door: FleetDoor, publisher: Publisher) -> None:
    publisher.revoke("anna")
    (file,) = (publisher.repo / "targets" / "north").glob("*.revoked.json")
    file.write_bytes(file.read_bytes().replace(b"anna", b"bert"))
    assert failure(door).cause == "untrusted"
    assert door.refusal("ben") == reasons.FLEET_TOO_OLD


def _newest(publisher: Publisher, role: str) -> int:
    return max(int(file.name.partition(".")[0]) for file in (publisher.repo / "metadata").glob(f"*.{role}.json"))
