"""Old files are removed, and terminals find all that they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge.errors import UsageError
from export.fleet import roles
from export.fleet.pruning import prune
from export.fleet.repository import opened
from tests.fixtures.fleet import LIST, Fleet, Terminal

pytestmark = pytest.mark.slow

NewTerminal = Callable[[Path], Terminal]


def pruned(fleet: Fleet, keep: int = 2) -> set[str]:
    with opened(fleet.repo) as repository:
        return {path.name for path in prune(repository, keep)}


def test_old_kits_go_and_the_newest_and_the_previous_stay(fleet: Fleet, terminal: Terminal) -> None:
    for version in range(1, 7):
        data = fleet.publish_kit(version)
    removed = pruned(fleet)
    assert sum(name.endswith(".kit") for name in removed) == 3, "the last two versions of the group name three kits"
    assert len(list(fleet.repo.rglob("*.kit"))) == 3
    assert terminal.kit() == data
    assert terminal.poll(terminal.rollout()["previous"]) != [None]


def test_terminal_that_was_off_or_is_new_finds_its_way_after_prune(fleet: Fleet, new_terminal: NewTerminal) -> None:
    off = new_terminal(fleet.root)
    fleet.publish_kit(1)
    assert off.kit() is not None
    for role in ("root", "timestamp", "root", "group-north"):
        fleet.rotate(role)
    for version in range(2, 6):
        data = fleet.publish_kit(version)
    assert pruned(fleet)
    assert off.kit() == new_terminal(fleet.root).kit() == data


def test_terminal_with_the_timestamp_before_finds_its_files(fleet: Fleet, new_terminal: NewTerminal) -> None:
    """A cache may still have the old timestamp."""
    fleet.publish_list()
    stamp = fleet.repo / "metadata" / "timestamp.json"
    old = stamp.read_bytes()
    fleet.publish_list(LIST.replace(b"anna", b"ben"))
    pruned(fleet)
    stamp.write_bytes(old)
    assert new_terminal(fleet.root).poll("north/list.toml") == [LIST]


def test_files_of_a_removed_group_go(fleet: Fleet, terminal: Terminal) -> None:
    fleet.add_group("south")
    fleet.publish_list(group="south")
    data = fleet.publish_kit(1)
    with fleet.changing() as repository:
        roles.remove_group(repository, "south")
    pruned(fleet)
    assert not [path for path in fleet.repo.rglob("*") if path.is_file() and "south" in str(path.relative_to(fleet.repo))]
    assert terminal.kit() == data
    fleet.add_group("south")
    fleet.publish_list(group="south")
    assert terminal.poll("south/list.toml") == [LIST]


def test_files_of_a_change_that_waits_stay(fleet: Fleet, terminal: Terminal) -> None:
    (key,) = fleet.key_files("group-north")
    away = key.rename(key.with_suffix(".away"))
    data = fleet.publish_kit(1)
    assert fleet.waiting()[0].role == "group-north"
    pruned(fleet)
    with fleet.changing() as repository:
        roles.sign(repository, "group-north", away)
    assert terminal.kit() == data


def test_unfinished_files_of_a_killed_publisher_go(fleet: Fleet) -> None:
    fleet.publish_kit(1)
    for folder in ("metadata", "targets/north"):
        (fleet.repo / folder / ".north.kit.00000000.part").write_bytes(b"half")
    pruned(fleet)
    assert not list(fleet.repo.rglob("*.part"))


def test_one_version_is_not_enough(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="at least 2"):
        pruned(fleet, 1)
