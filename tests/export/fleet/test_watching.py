"""`edge-export fleet status` and `fleet advance` with a real broker: what doors report, and rollouts that follow it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.errors import FleetError
from edge.fleet.settings import FleetSettings
from edge.kit.format import kit_id
from export import cli
from export.fleet.broker import KitAlarm, Reader
from tests.fakes.mqtt_broker import PASSWORD, USER, Broker
from tests.fixtures.command import run_main
from tests.fixtures.fleet import Fleet, versioned_kit
from tests.fixtures.kits import digest
from tests.fixtures.simulated_doors import SharedClock, SimulatedDoor, SimulatedDoors
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow

NEW = kit_id(digest(versioned_kit(2)))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    found = Broker(folder)
    found.start()
    yield found
    found.stop()


class Terminals:
    """Publishes what terminals publish."""

    def __init__(self, broker: Broker) -> None:
        from paho.mqtt import client as paho

        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.username_pw_set(USER, PASSWORD)
        self._client.tls_set_context(ssl.create_default_context(cafile=broker.folder / "ca.pem"))
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def report(self, door: str, *, online: bool = True, **facts: Any) -> None:
        self.send(f"terminal-{door}/state", "online" if online else "offline")
        known = {"schema": 1, "group": "north", "door": door, "state": "fresh", "kit": NEW, "kit_version": 2}
        self.send(f"terminal-{door}/status", json.dumps(known | facts))

    def alarm(self, door: str, outcome: str = "rejected") -> None:
        event = {"kind": "kit", "outcome": outcome, "reason": f"{NEW}: the self-test failed"}
        self.send(f"terminal-{door}/alarm", json.dumps(event), retain=False)

    def send(self, topic: str, payload: str, *, retain: bool = True) -> None:
        self._client.publish(f"lclrr-edge/{topic}", payload, qos=1, retain=retain).wait_for_publish(30)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def terminals(broker: Broker) -> Iterator[Terminals]:
    made = Terminals(broker)
    yield made
    made.close()


@pytest.fixture
def run(
    fleet: Fleet, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """run("status") returns exit code, stdout and stderr of a command with the repository and the broker."""

    def run(command: str, *more: str, address: str = f"mqtts://127.0.0.1:{broker.port}") -> tuple[int, str, str]:
        own = ["--broker", address, "--user", USER, "--ca-file", broker.folder / "ca.pem"]
        own += ["--password-file", broker.folder / "password", "--wait", "3"]
        code = run_main(monkeypatch, cli.main, "fleet", command, fleet.repo, *own, *more)
        return code, *capsys.readouterr()

    return run


@contextmanager
def two_doors(folder: Path, url: str, fleet: Fleet, broker: Broker) -> Iterator[SimulatedDoors]:
    """Doors that pull every second."""
    clock, doors = SharedClock(), []
    for name in ("d1", "d2"):
        settings = FleetSettings(url=url, root=fleet.root, group="north", door=name, seconds=1.0)
        mqtt = broker.settings(terminal=name, discovery="")
        doors.append(SimulatedDoor(folder / name, settings, mqtt, clock, set(), versioned_kit(1)))
    with SimulatedDoors(doors) as running:
        yield running


def test_status_shows_what_real_doors_report(
    tmp_path: Path, url: str, fleet: Fleet, broker: Broker, run: Callable[..., tuple[int, str, str]]
) -> None:
    fleet.publish_kit(2)
    fleet.publish_list()
    with two_doors(tmp_path / "doors", url, fleet, broker) as doors:
        with Reader(broker.settings()) as reader:
            until(lambda: sum(found.kit == NEW and found.list != "" for found in reader.reports().values()) == 2)
        code, table, _ = run("status")
        assert code == 0
        assert table.count("  yes     ") == table.count(f"  {NEW}  ") == table.count("  fresh  ") == 2
        doors.all[0].stop()
        with Reader(broker.settings()) as reader:
            until(lambda: (found := reader.reports().get(("north", "d1"))) and not found.online)
        code, table, message = run("status")
        assert code == 51
        assert "1 of 2 doors need attention: north/d1" in message
    code, facts, _ = run("status", "--json")
    assert [door["problem"] for door in json.loads(facts)["doors"]] == ["is offline"] * 2
    assert "anna" not in facts


def test_status_lists_doors_that_are_missing(fleet: Fleet, terminals: Terminals, run: Callable[..., Any]) -> None:
    fleet.publish_kit(2, doors=["d1", "cellar"])
    terminals.report("d1")
    code, table, _ = run("status")
    assert code == 51
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["north/cellar", "missing"], ["north/d1", "yes"]]


def test_status_without_doors_is_a_failure(run: Callable[..., Any]) -> None:
    code, _, message = run("status")
    assert (code, "No door has reported" in message) == (51, True)


def test_terminal_that_was_removed_from_the_broker_is_forgotten(broker: Broker, terminals: Terminals) -> None:
    terminals.report("d1")
    with Reader(broker.settings()) as reader:
        until(lambda: ("north", "d1") in reader.reports())
        terminals.send("terminal-d1/status", "")
        until(lambda: ("north", "d1") not in reader.reports())


def test_alarms_wait_for_a_reader_with_a_name(broker: Broker, terminals: Terminals) -> None:
    with Reader(broker.settings(), name="reader"):
        pass
    terminals.alarm("d1")
    terminals.send("terminal-d1/alarm", '{"kind": "camera", "outcome": "lost"}', retain=False)
    with Reader(broker.settings(), name="reader") as reader:
        until(reader.alarms)
        (found,) = reader.alarms()
    assert found == KitAlarm(terminal="terminal-d1", kit=NEW, sentence=f"rejected the kit {NEW}: the self-test failed")


def test_lost_connection_is_an_error(broker: Broker) -> None:
    with Reader(broker.settings()) as reader:
        broker.stop()
        with pytest.raises(FleetError, match="connection ended"):
            reader.wait(60)


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [("mqtts://127.0.0.1:1", 50, "cannot be read"), ("127.0.0.1", 2, "not an address")],
)
def test_each_failure_has_its_message(run: Callable[..., Any], address: str, code: int, words: str) -> None:
    found, _, message = run("status", address=address)
    assert (found, words in message, "Traceback" in message) == (code, True, False)


def test_wrong_password_is_an_error(broker: Broker, run: Callable[..., Any]) -> None:
    (broker.folder / "password").write_text("wrong\n")
    code, _, message = run("status")
    assert (code, "cannot be read" in message) == (50, True)


def test_kit_that_the_status_says_was_refused_stops_the_rollout(
    fleet: Fleet, terminals: Terminals, run: Callable[..., Any]
) -> None:
    """No reader was there when the alarm was sent."""
    fleet.publish_kit(2)
    refused = {"outcome": "rejected", "reason": f"{NEW}: the self-test failed"}
    terminals.report("d1", kit="f" * 12, refused_kit=refused)
    assert f"rejected the kit {NEW}: the self-test failed" in run("status")[1]
    code, _, message = run("advance", "--group", "north", "--after", "0")
    assert (code, f"d1 rejected the kit {NEW}: the self-test failed" in message) == (51, True)
    assert "The rollout is stopped" in message


def test_rollout_is_advanced_and_stopped_by_command(fleet: Fleet, terminals: Terminals, run: Callable[..., Any]) -> None:
    advance = ("--group", "north", "--after", "0", "--steps", "0.5,1")
    assert run("advance", *advance)[0] == 2, "there is no rollout"
    fleet.publish_kit(2, share=0.0)
    for door in ("d1", "d2", "d3"):
        terminals.report(door, kit="0" * 12)
    code, _, message = run("advance", *advance)
    assert (code, "The kit is now for" in message) == (0, True), message
    code, _, message = run("advance", *advance)
    assert (code, "does not have the kit" in message) == (0, True), message
    terminals.alarm("d2")
    code, _, message = run("advance", *advance)
    assert (code, "d2 rejected the kit" in message) == (51, True), message


def test_rollout_is_completed_by_watching(
    tmp_path: Path, url: str, fleet: Fleet, broker: Broker, run: Callable[..., tuple[int, str, str]]
) -> None:
    fleet.publish_kit(2, share=0.0)
    with two_doors(tmp_path / "doors", url, fleet, broker) as doors:
        with Reader(broker.settings()) as reader:
            until(lambda: all(found.online for found in reader.reports().values()) and len(reader.reports()) == 2)
        code, _, message = run("advance", "--group", "north", "--watch", "--every", "0.1", "--after", "0")
        assert (code, "complete at 100 %" in message) == (0, True), message
        assert {door.kit_version for door in doors} == {2}


def test_change_that_waits_for_a_signature_is_said(fleet: Fleet, terminals: Terminals, run: Callable[..., Any]) -> None:
    fleet.publish_kit(2, share=0.0)
    (fleet.keys / "group-north").rename(fleet.keys / "away")
    terminals.report("d1", kit="0" * 12)
    code, _, message = run("advance", "--group", "north")
    assert (code, "waits for 1 signature" in message) == (0, True), message


@pytest.mark.parametrize("steps", ["x", "1,0.1", "0.1,2", ""])
def test_steps_are_checked(run: Callable[..., Any], steps: str) -> None:
    assert run("advance", "--group", "north", "--steps", steps)[0] == 2
