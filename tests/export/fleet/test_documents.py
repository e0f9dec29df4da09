"""The files of a group, and the names of groups, doors and people."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edge.errors import FleetError, UsageError
from edge.fleet import documents
from edge.fleet.documents import Rollout
from export.fleet.documents import Revocations, check_label, is_complete, rollout_bytes

KIT = f"north/kits/{'0' * 64}.kit"
SINCE = "2026-11-18T12:00:00Z"
UNSAFE = [
    "",
    ".",
    "..",
    "../north",
    "north/south",
    "a\\b",
    "/etc",
    "North",
    "nörd",
    "a b",
    "a*",
    "a?",
    "[a]",
    "a.b",
    "%2e",
    "-a",
]


@pytest.mark.parametrize("name", [*UNSAFE, "all", "n" * 41, "north\n"])
def test_unsafe_name_of_a_group_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name of a group"):
        documents.check_group(name)


@pytest.mark.parametrize("name", [*UNSAFE, "kits"])
def test_unsafe_name_of_a_door_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name of a door"):
        documents.check_door(name)


@pytest.mark.parametrize("name", ["north", "2", "north-2_b", "n" * 40])
def test_plain_names_are_valid(name: str) -> None:
    assert documents.check_group(name) == documents.check_door(name) == name


def rollout(**changes: Any) -> Rollout:
    return replace(Rollout(id="ab", kit=KIT, kit_version=3), **changes)


def test_rollout_is_compact_json_and_terminals_read_it() -> None:
    made = rollout(share=0.01, doors=("a", "b"))
    data = rollout_bytes(made, "north")
    assert b" " not in data
    assert json.loads(data) == {
        "schema": 1,
        "id": "ab",
        "kit": KIT,
        "kit_version": 3,
        "share": 0.01,
        "doors": ["a", "b"],
        "previous": None,
        "stopped": False,
    }
    assert Rollout.from_bytes(data, "north") == made


def test_rollout_that_terminals_would_refuse_is_not_written() -> None:
    with pytest.raises(FleetError, match="kit"):
        rollout_bytes(rollout(), "south")


@pytest.mark.parametrize(
    ("changes", "complete"), [({}, True), ({"share": 0.5}, False), ({"doors": ("a",)}, False), ({"stopped": True}, False)]
)
def test_rollout_is_complete_if_every_door_takes_the_kit(changes: dict[str, Any], complete: bool) -> None:
    assert is_complete(rollout(**changes)) is complete


def test_revocations_are_sorted_and_read_again() -> None:
    revocations = Revocations(
        people={"çelik": "2026-11-18T12:00:00Z", "anna": "2026-11-17T12:00:00Z"}, kits=frozenset({"0" * 64})
    )
    data = revocations.to_bytes()
    assert json.loads(data) == {
        "schema": 1,
        "people": [
            {"label": "anna", "since": "2026-11-17T12:00:00Z"},
            {"label": "çelik", "since": "2026-11-18T12:00:00Z"},
        ],
        "kits": ["0" * 64],
    }
    assert Revocations.from_bytes(data) == revocations


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_share_outside_of_0_to_1_is_rejected(share: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        rollout_bytes(rollout(share=share), "north")


def test_number_of_revoked_people_is_limited() -> None:
    many = Revocations(people={f"person {number}": SINCE for number in range(documents.MAX_REVOKED + 1)})
    with pytest.raises(UsageError, match="too many"):
        many.to_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"schema":1}', b'{"schema":2,"people":[],"kits":[]}', b'{"schema":1,"people":3,"kits":[]}']
)
def test_damaged_file_is_an_error(data: bytes) -> None:
    with pytest.raises(FleetError):
        Revocations.from_bytes(data)


@pytest.mark.parametrize("label", ["", "  ", "a\nb", "a\u202eb", "ä" * 200])
def test_label_that_no_kit_can_have_is_rejected(label: str) -> None:
    with pytest.raises(UsageError, match="not a name of a person"):
        check_label(label)


def test_label_gets_the_spelling_of_kits() -> None:
    assert check_label("c\u0327elik") == "çelik"
