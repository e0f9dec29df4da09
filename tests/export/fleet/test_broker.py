"""What doors report over MQTT: untrusted, bounded, and read as the terminals send it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.errors import ParameterError, UsageError
from edge.fleet.documents import Rollout
from export.fleet.broker import Report, by_door, parse, parse_address
from export.fleet.health import waits_for
from export.fleet.status import needing_attention, rows, table

GOOD: dict[str, Any] = {
    "schema": 1,
    "group": "north",
    "door": "d1",
    "state": "fresh",
    "kit": "ab" * 6,
    "kit_version": 7,
    "list": "0123",
    "error": "",
    "verified": "2026-11-18T12:00:00+00:00",
    "decisions_per_hour": 12,
}


def parsed(**changes: Any) -> Report | None:
    return parse("t1", json.dumps(GOOD | changes).encode(), online=True)


def test_status_of_a_terminal_is_read() -> None:
    found = parsed()
    assert found is not None
    assert (found.group, found.door, found.kit, found.kit_version, found.decisions_per_hour) == (
        "north",
        "d1",
        "ab" * 6,
        7,
        12,
    )
    assert found.problem == ""


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"null", b"{}", b"[" * 100_000, b'{"group":"north","door":"../x"}'])
def test_other_messages_are_no_status(data: bytes) -> None:
    assert parse("t1", data, online=True) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"kit": 5, "kit_version": "7", "list": None, "decisions_per_hour": [1], "error": {}},
        {"kit_version": True, "decisions_per_hour": -1, "verified": 3.5},
        {"kit_version": 1e400, "error": "\x1b[2J\u202e" + "x" * 10_000},
    ],
)
def test_values_of_other_types_are_unknown(changes: dict[str, Any]) -> None:
    found = parsed(**changes)
    assert found is not None
    assert found.kit_version is None
    assert len(found.error) <= 300
    assert found.error.isprintable()
    assert table(rows(by_door([found]), {}))


def test_state_that_is_not_known_is_a_problem() -> None:
    found = parsed(state="wonderful")
    assert found is not None
    assert "another version" in found.problem


def test_two_terminals_that_are_the_same_door_are_not_believed() -> None:
    one, other = (parse(name, json.dumps(GOOD).encode(), online=True) for name in ("t1", "t2"))
    (found,) = by_door([one, other, None]).values()
    assert (found.kit, found.online) == ("", False)
    assert "t1, t2" in found.problem


def test_rows_have_the_doors_that_a_rollout_names() -> None:
    rollout = Rollout(id="5eed", kit=f"north/kits/{'cd' * 32}.kit", kit_version=8, doors=("d1", "d2"))
    found = rows(by_door([parsed()]), {"north": rollout, "south": None})
    assert [(row["door"], row["reports"], row["problem"]) for row in found] == [
        ("d1", True, f"does not have the kit {'cd' * 6} yet"),
        ("d2", False, "has not reported"),
    ]
    assert needing_attention(found) == ["north/d1", "north/d2"]
    assert "missing" in table(found).splitlines()[2]


def test_door_that_waits_for_a_larger_share_has_no_problem() -> None:
    rollout = Rollout(id="5eed", kit=f"north/kits/{'cd' * 32}.kit", kit_version=8, share=0.0)
    assert not needing_attention(rows(by_door([parsed()]), {"north": rollout}))


def test_wrong_clock_needs_attention_and_blocks_no_rollout() -> None:
    found = parsed(clock_is_plausible=False)
    rollout = Rollout(id="5eed", kit=f"north/kits/{'ab' * 32}.kit", kit_version=7)
    assert waits_for(rollout, found) == ""
    (row,) = rows(by_door([found]), {"north": rollout})
    assert row["problem"] == "its clock is wrong"


@pytest.mark.parametrize(
    ("address", "host", "port", "tls"),
    [
        ("mqtts://broker.example.org", "broker.example.org", 8883, True),
        ("mqtts://broker:8884", "broker", 8884, True),
        ("mqtt://127.0.0.1", "127.0.0.1", 1883, False),
        ("mqtts://[::1]:99", "::1", 99, True),
    ],
)
def test_address_of_a_broker(address: str, host: str, port: int, tls: bool) -> None:
    found = parse_address(address, user=None, password_file=None, ca_file=None)
    assert (found.host, found.port, found.tls) == (host, port, tls)


@pytest.mark.parametrize(
    "address",
    ["broker", "https://broker", "mqtts://", "mqtts://a:b", "mqtts://u:p@broker", "mqtts://broker/x", "mqtts://b:0x"],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises((UsageError, ParameterError)):
        parse_address(address, user=None, password_file=None, ca_file=None)
