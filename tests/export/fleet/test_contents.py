"""Kits, door lists and revocations arrive at a terminal that reads with the client of `tuf`."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tuf.api.exceptions import ExpiredMetadataError

from edge.errors import DoorListError, FleetError, KitOlderError, UsageError
from edge.fleet.documents import kit_path
from export.fleet import contents, roles
from tests.fixtures.fleet import LIST, Fleet, Terminal
from tests.fixtures.kits import digest

pytestmark = pytest.mark.slow

NewTerminal = Callable[[Path], Terminal]


def test_kit_arrives_unchanged(fleet: Fleet, terminal: Terminal) -> None:
    data = fleet.publish_kit(1)
    assert terminal.kit() == data
    found = terminal.rollout()
    path = kit_path("north", digest(data))
    assert (found["kit"], found["kit_version"], found["share"], found["doors"]) == (path, 1, 1.0, None)
    assert (found["previous"], found["stopped"]) == (None, False)


def test_second_version_arrives_and_names_the_previous_kit(fleet: Fleet, terminal: Terminal) -> None:
    first = fleet.publish_kit(1)
    assert terminal.kit() == first
    second = fleet.publish_kit(2)
    assert terminal.kit() == second
    previous = terminal.rollout()["previous"]
    assert previous == kit_path("north", digest(first))
    assert terminal.poll(previous) == [first]


def test_same_kit_twice_changes_nothing(fleet: Fleet) -> None:
    fleet.publish_kit(1)
    before = {path: path.read_bytes() for path in fleet.repo.rglob("*") if path.is_file()}
    fleet.publish_kit(1)
    assert {path: path.read_bytes() for path in fleet.repo.rglob("*") if path.is_file()} == before


def test_kit_of_the_same_or_an_older_version_is_rejected(fleet: Fleet, terminal: Terminal) -> None:
    newest = fleet.publish_kit(3)
    with pytest.raises(KitOlderError, match="version 2"):
        fleet.publish_kit(2)
    assert terminal.kit() == newest


def test_share_grows_without_choosing_other_doors(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_kit(1, share=0.01)
    first = terminal.rollout()
    fleet.publish_kit(1, share=0.1)
    second = terminal.rollout()
    assert (first["share"], second["share"]) == (0.01, 0.1)
    assert first["id"] == second["id"]


def test_kit_that_only_some_doors_got_does_not_become_the_previous_one(fleet: Fleet, terminal: Terminal) -> None:
    good = fleet.publish_kit(1)
    fleet.publish_kit(2, share=0.01)
    fleet.publish_kit(3)
    assert terminal.rollout()["previous"] == kit_path("north", digest(good))


def test_kit_for_named_doors(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_kit(1, doors=["south", "north"])
    assert terminal.rollout()["doors"] == ["north", "south"]
    fleet.publish_kit(1)
    assert terminal.rollout()["doors"] is None


def test_rollout_is_stopped_and_resumed(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_kit(1, share=0.01)
    for stopped in (True, False):
        with fleet.changing() as repository:
            north = contents.Contents(repository, "north")
            contents.change_rollout(north, stopped=stopped)
            north.submit()
        assert terminal.rollout()["stopped"] is stopped
        assert terminal.rollout()["share"] == 0.01


def test_door_list_arrives_without_a_kit(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_list()
    other = LIST.replace(b"anna", b"ben")
    fleet.publish_list(other, door="main")
    assert terminal.poll("north/list.toml", "north/main/list.toml", "north/rollout.json") == [LIST, other, None]


def test_removed_door_list_is_not_named_any_more(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_list(door="main")
    assert terminal.poll("north/main/list.toml") == [LIST]
    fleet.publish_list(None, door="main")
    assert terminal.poll("north/main/list.toml") == [None]


def test_invalid_door_list_is_not_published(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_list()
    with pytest.raises(DoorListError):
        fleet.publish_list(b"[[allow]]\npeople = 3\n")
    assert terminal.poll("north/list.toml") == [LIST]


def test_revocation_arrives_without_a_kit(fleet: Fleet, terminal: Terminal) -> None:
    fleet.revoke("anna")
    (data,) = terminal.poll("north/revoked.json")
    assert json.loads(data or b"") == {
        "schema": 1,
        "people": [{"label": "anna", "since": "2026-11-18T12:00:00Z"}],
        "kits": [],
    }


def test_person_is_accepted_again(fleet: Fleet, terminal: Terminal) -> None:
    fleet.revoke("anna", "ben")
    with fleet.changing() as repository:
        north = contents.Contents(repository, "north")
        contents.unrevoke_people(north, ["anna"])
        north.submit()
    (data,) = terminal.poll("north/revoked.json")
    assert [person["label"] for person in json.loads(data or b"")["people"]] == ["ben"]


def test_revoking_a_person_that_no_kit_knows_is_reported(fleet: Fleet) -> None:
    fleet.publish_kit(1)
    with fleet.changing() as repository:
        north = contents.Contents(repository, "north")
        assert contents.revoke_people(north, ["anna", "ana", "c\u0327elik"], "2026-11-18T12:00:00Z") == ["ana"]


def test_revoked_kit_is_named_and_its_rollout_stops(fleet: Fleet, terminal: Terminal) -> None:
    bad = digest(fleet.publish_kit(1, share=0.01))
    with fleet.changing() as repository:
        north = contents.Contents(repository, "north")
        contents.revoke_kit(north, contents.find_kit([north], bad[:12]))
        north.submit()
    (data,) = terminal.poll("north/revoked.json")
    assert json.loads(data or b"")["kits"] == [bad]
    assert terminal.rollout()["stopped"] is True
    with pytest.raises(UsageError, match="revoked"):
        fleet.publish_kit(1)


def test_revoked_previous_kit_is_not_offered(fleet: Fleet, terminal: Terminal) -> None:
    bad = digest(fleet.publish_kit(1))
    good = fleet.publish_kit(2)
    with fleet.changing() as repository:
        north = contents.Contents(repository, "north")
        contents.revoke_kit(north, bad)
        north.submit()
    assert (terminal.rollout()["previous"], terminal.rollout()["stopped"]) == (None, False)
    assert terminal.kit() == good


def test_groups_are_separate(fleet: Fleet, terminal: Terminal) -> None:
    fleet.add_group("south")
    north, south = fleet.publish_kit(1), fleet.publish_kit(2, group="south")
    assert (terminal.kit("north"), terminal.kit("south")) == (north, south)


def test_group_cannot_name_files_of_another_group(fleet: Fleet, terminal: Terminal) -> None:
    fleet.add_group("south")
    fleet.publish_kit(1)
    with fleet.changing() as repository:
        south = contents.Contents(repository, "south")
        south.write("north/list.toml", LIST)
        south.submit()
    assert terminal.poll("north/list.toml") == [None]


def test_removed_group_gets_nothing_and_can_be_added_again(fleet: Fleet, terminal: Terminal) -> None:
    fleet.publish_kit(1)
    assert terminal.kit() is not None
    with fleet.changing() as repository:
        roles.remove_group(repository, "north")
    assert terminal.poll("north/rollout.json") == [None]
    fleet.add_group("north")
    again = fleet.publish_kit(1)
    assert terminal.kit() == again


@pytest.mark.parametrize("group", ["south", "../north", "north/kits"])
def test_unknown_group_is_an_error(fleet: Fleet, group: str) -> None:
    with pytest.raises(UsageError):
        fleet.publish_kit(1, group=group)
    assert not list(fleet.repo.rglob("*.kit"))


def test_door_name_cannot_leave_the_group(fleet: Fleet) -> None:
    for door in ("../south", "..", "a/b", "kits"):
        with pytest.raises(UsageError):
            fleet.publish_list(door=door)
    assert not list(fleet.repo.parent.rglob("*list.toml"))


def test_damaged_published_kit_is_noticed(fleet: Fleet) -> None:
    fleet.publish_kit(1)
    (file,) = fleet.repo.rglob("*.kit")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FleetError, match="damaged"):
        fleet.revoke("anna")


def test_terminal_refuses_expired_metadata(fleet: Fleet, new_terminal: NewTerminal) -> None:
    old = datetime.now(UTC) - timedelta(days=2)
    fleet.publish_kit(1, now=old)
    terminal = new_terminal(fleet.root)
    with pytest.raises(ExpiredMetadataError):
        terminal.rollout()
    with fleet.changing() as repository:
        roles.refresh(repository)
    assert terminal.rollout()["kit_version"] == 1


def test_new_terminal_finds_everything_from_the_first_root(fleet: Fleet, new_terminal: NewTerminal) -> None:
    for version in (1, 2, 3):
        data = fleet.publish_kit(version)
    assert new_terminal(fleet.root).kit() == data


def test_files_are_not_for_other_users(fleet: Fleet) -> None:
    fleet.publish_kit(1)
    files = [path for path in fleet.repo.rglob("*") if path.is_file()]
    assert files
    for path in files:
        expected = 0o600 if path.is_relative_to(fleet.repo / "publisher") else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert stat.S_IMODE((fleet.repo / "publisher").stat().st_mode) == 0o700


def test_unsigned_metadata_on_the_disk_of_the_publisher_is_noticed(fleet: Fleet) -> None:
    fleet.publish_kit(1)
    file = max((fleet.repo / "metadata").glob("*.group-north.json"))
    file.write_bytes(file.read_bytes().replace(b'"length":', b'"length":1'))
    with pytest.raises(FleetError, match="group-north is not signed"):
        fleet.publish_kit(2)
