"""rollout.json and revoked.json: exactly what is described, and what `edge-export` writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import EdgeError, FleetError, UsageError
from edge.fleet.documents import MAX_BYTES, Revocations, Rollout, check_door, check_group, fraction, kit_path
from export.fleet import documents as published

KIT, OLD = kit_path("north", "a" * 64), kit_path("north", "b" * 64)
ROLLOUT: dict[str, Any] = {
    "schema": 1,
    "id": "0123abcd",
    "kit": KIT,
    "kit_version": 3,
    "share": 0.5,
    "doors": None,
    "previous": OLD,
    "stopped": False,
}


def rollout(**changes: Any) -> Rollout:
    return Rollout.from_bytes(json.dumps(ROLLOUT | changes).encode(), "north")


def test_terminal_reads_what_the_publisher_writes() -> None:
    written = Rollout(id="ab", kit=KIT, kit_version=3, share=0.1, doors=("d1", "d2"), previous=OLD, stopped=True)
    assert Rollout.from_bytes(published.rollout_bytes(written, "north"), "north") == written
    revoked = published.Revocations(people={"çelik": "2026-11-18T12:00:00Z"}, kits=frozenset({"c" * 64}))
    assert Revocations.from_bytes(revoked.to_bytes()) == Revocations(people=frozenset({"çelik"}), kits=frozenset({"c" * 64}))


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"schema": True},
        {"id": "../x"},
        {"id": 5},
        {"kit": "south/kits/" + "a" * 64 + ".kit"},
        {"kit": "north/kits/../../" + "a" * 64 + ".kit"},
        {"kit": "north/kits/" + "A" * 64 + ".kit"},
        {"kit": None},
        {"kit_version": -1},
        {"kit_version": 1.0},
        {"kit_version": True},
        {"share": 1.1},
        {"share": -0.1},
        {"share": float("nan")},
        {"share": True},
        {"share": "1"},
        {"doors": []},
        {"doors": "d1"},
        {"doors": ["D 1"]},
        {"doors": ["d1"] * 10_001},
        {"previous": "x"},
        {"stopped": 0},
        {"more": 1},
    ],
)
def test_any_other_rollout_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FleetError):
        rollout(**changes)


@pytest.mark.parametrize("key", ROLLOUT)
def test_rollout_needs_every_key(key: str) -> None:
    with pytest.raises(FleetError):
        Rollout.from_bytes(json.dumps({name: value for name, value in ROLLOUT.items() if name != key}).encode(), "north")


@pytest.mark.parametrize(
    ("people", "kits"),
    [
        ("anna", []),
        (["anna"], []),
        ([{"label": "anna"}], []),
        ([{"label": "", "since": "2026-11-18T12:00:00Z"}], []),
        ([{"label": 1, "since": "2026-11-18T12:00:00Z"}], []),
        ([{"label": "anna", "since": "yesterday"}], []),
        ([{"label": "anna", "since": "2026-11-18T12:00:00"}], []),
        ([{"label": "a" * 256, "since": "2026-11-18T12:00:00Z"}], []),
        ([{"label": "anna", "since": "2026-11-18T12:00:00Z", "why": "x"}], []),
        ([], ["abc"]),
        ([], {"a" * 64: 1}),
        ([{"label": "anna", "since": "2026-11-18T12:00:00Z"}] * 10_001, []),
    ],
)
def test_any_other_revocations_are_refused(people: Any, kits: Any) -> None:
    with pytest.raises(FleetError):
        Revocations.from_bytes(json.dumps({"schema": 1, "people": people, "kits": kits}).encode())


@given(data=st.one_of(st.binary(max_size=200), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_no_content_gives_another_error(data: bytes | str) -> None:
    content = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
    for read in (lambda: Rollout.from_bytes(content, "north"), lambda: Revocations.from_bytes(content)):
        with pytest.raises(EdgeError):
            read()


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"schema": 1' + b" " * MAX_BYTES + b"}", b"1" * 5000])
def test_hostile_json_is_one_error(data: bytes) -> None:
    with pytest.raises(FleetError):
        Revocations.from_bytes(data)


def test_share_is_the_share_of_the_doors() -> None:
    doors = [f"d{number}" for number in range(2000)]
    taken = [door for door in doors if rollout(share=0.1).kit_for(door, has_kit=True) == KIT]
    assert 140 < len(taken) < 260
    more = {door for door in doors if rollout(share=0.5).kit_for(door, has_kit=True) == KIT}
    assert more > set(taken), "a larger share takes no kit away"
    assert all(rollout(share=1.0).kit_for(door, has_kit=True) == KIT for door in doors)
    assert not any(rollout(share=0.0).kit_for(door, has_kit=True) for door in doors)


def test_fraction_is_that_of_the_contract() -> None:
    assert fraction("0123abcd", "north-1") == 0.2893053578543432


def test_only_named_doors_take_the_kit() -> None:
    chosen = rollout(share=1.0, doors=["d1"])
    assert [chosen.kit_for(door, has_kit=True) for door in ("d1", "d2")] == [KIT, None]
    assert chosen.kit_for("d2", has_kit=False) == OLD


def test_stopped_rollout_gives_only_the_previous_kit() -> None:
    stopped = rollout(share=1.0, stopped=True)
    assert [stopped.kit_for("d1", has_kit=has_kit) for has_kit in (True, False)] == [None, OLD]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a b", "-a", "a" * 41, "a.b", "a\n", "ä"])
def test_names_that_are_not_safe_are_refused(name: str) -> None:
    for check in (check_group, check_door):
        with pytest.raises(UsageError):
            check(name)


def test_reserved_names_are_refused() -> None:
    with pytest.raises(UsageError):
        check_group("all")
    with pytest.raises(UsageError):
        check_door("kits")
