"""A whole terminal in a fleet: a camera, a real server, and events."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from edge.fleet.fleet import Fleet
from edge.fleet.poller import Poller, pause_seconds
from edge.fleet.problems import PullError
from edge.kit.format import kit_id
from tests.fakes.mjpeg_server import MjpegServer
from tests.fakes.mqtt_broker import Broker, free_port, listening
from tests.fakes.scene_camera import SceneCamera
from tests.fixtures.command import started
from tests.fixtures.data import ROOT
from tests.fixtures.fleet import Fleet as Publisher
from tests.fixtures.fleet_door import FleetDoor, publish_kit
from tests.fixtures.kits import digest
from tests.fixtures.nginx import Nginx
from tests.fixtures.orl_door import (
    GUEST,
    OTHER,
    STRANGER,
    empty_room,
    frames,
    kit_version,
    kit_with_wrong_results,
    sending,
)
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow


class Running:
    """`edge recognize` in a process of its own. Its events come in order."""

    def __init__(self, settings: Path) -> None:
        self.process = started("recognize", "--settings", settings, "--json")
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def next(self, kind: str, outcome: str | None = None) -> dict[str, Any]:
        """Return the next event of a kind, and skip others."""
        while True:
            event = self._events.get(timeout=60)
            self.seen.append(event)
            if event["kind"] == kind and outcome in (None, event["outcome"]):
                return event


@contextmanager
def running(settings: Path) -> Iterator[Running]:
    terminal = Running(settings)
    try:
        yield terminal
    finally:
        terminal.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            terminal.process.wait(30)
        terminal.process.kill()


def write_settings(folder: Path, camera: str, server: Nginx, publisher: Publisher, *, more: str = "") -> Path:
    (folder / "door.kit").write_bytes(kit_version(1))
    file = folder / "settings.toml"
    file.write_text(
        f"""
[kit]
path = "door.kit"
store = "kits"
watch_seconds = 0.05
[camera]
source = "{camera}"
[visits]
again_seconds = 0.1
[fleet]
url = "{server.url}"
root = "{publisher.root}"
group = "north"
door = "d1"
seconds = 1
{more}"""
    )
    return file


# One process


def test_person_who_is_revoked_before_the_decision_is_denied(door: FleetDoor, publisher: Publisher) -> None:
    door.pull()
    looks = [0]

    def revoke_after_the_first_frame() -> None:
        looks[0] += 1
        if looks[0] == 2:
            publisher.revoke(GUEST)
            door.pull()

    camera = SceneCamera(frames(GUEST, 12), empty_room(12))
    events, terminal = run_to_end(
        camera, door_list=door.rules(), changes=revoke_after_the_first_frame, news=[door.fleet.next_change]
    )
    assert terminal.counters["failures"] == 0
    assert [(event.outcome, event.reason, event.label) for event in events if event.kind == "decision"] == [
        ("denied", "revoked", GUEST)
    ]


def test_poller_pulls_until_it_is_closed(door: FleetDoor, publisher: Publisher) -> None:
    publisher.revoke("anna")
    with Poller(door.fleet, jitter=lambda: 0.0):
        until(lambda: door.refusal("anna") == "revoked")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "the fleet"])


def test_poller_survives_every_error(door: FleetDoor) -> None:
    problems: list[Exception] = [PullError("network", "injected"), RuntimeError("injected"), PullError("device", "injected")]
    pulls: list[None] = []

    class Broken(Fleet):
        settings = door.settings

        def __init__(self) -> None:
            pass

        def save(self) -> None:
            raise PullError("device", "injected")

        def close(self) -> None:
            pass

        def pull(self) -> None:
            pulls.append(None)
            if problems:
                raise problems.pop(0)

    poller = Poller(Broken(), jitter=lambda: 0.0)
    poller._has_begun = True
    pauses = [poller._next() for _ in range(4)]
    assert (len(pulls), pauses) == (4, [2.5, 2.5, 2.5, 30.0])


@pytest.mark.parametrize(
    ("seconds", "failures", "jitter", "pause"),
    [
        (60, 0, 0.0, 30),
        (60, 0, 1.0, 60),
        (60, 1, 1.0, 5),
        (60, 3, 1.0, 20),
        (60, 50, 1.0, 60),
        (1, 50, 1.0, 5),
        (3600, 50, 1.0, 3600),
    ],
)
def test_pause_is_at_most_the_interval_also_without_a_network(
    seconds: float, failures: int, jitter: float, pause: float
) -> None:
    assert pause_seconds(seconds, failures, jitter) == pause


# A process of its own


def test_revocation_ends_the_grants_of_a_running_terminal(tmp_path: Path, server: Nginx, publisher: Publisher) -> None:
    with MjpegServer() as camera, sending(camera, frames(GUEST, 12), empty_room(20)):
        port = free_port()
        preview = f'[preview]\naddress = "127.0.0.1:{port}"\n'
        settings = write_settings(tmp_path, camera.url, server, publisher, more=preview)
        with running(settings) as terminal:
            terminal.next("fleet", "fresh")
            terminal.next("decision", "granted")
            with urlopen(f"http://127.0.0.1:{port}/health.json", timeout=30) as answer:
                health = json.load(answer)
            assert (health["fleet"]["state"], health["failing"]) == ("fresh", [])
            publisher.revoke(GUEST)
            assert terminal.next("decision", "denied")["reason"] == "revoked"
            assert terminal.next("decision", "denied")["reason"] == "revoked"
            publisher.publish_list(f'[[allow]]\npeople = ["{OTHER}"]\n'.encode())
            terminal.next("list", "installed")


def test_terminal_with_old_data_counts_the_entries_of_the_people_on_its_list(
    tmp_path: Path, server: Nginx, publisher: Publisher
) -> None:
    publisher.publish_list(f'[[allow]]\npeople = ["{GUEST}"]\nentries = 1\n[[allow]]\npeople = "everyone"\n'.encode())
    with MjpegServer() as camera, sending(camera, frames(GUEST, 12), empty_room(20)):
        settings = write_settings(
            tmp_path, camera.url, server, publisher, more='max_stale_hours = 0.0003\nwhen_stale = "list only"\n'
        )
        with running(settings) as terminal:
            terminal.next("list", "installed")
            server.stop()
            found = (terminal.next("decision")["reason"] for _ in range(50))
            assert "no entries left" in found


def test_kits_of_the_fleet_are_tried_once_and_a_bad_one_is_not_tried_again(
    tmp_path: Path, server: Nginx, publisher: Publisher
) -> None:
    with MjpegServer() as camera, sending(camera, frames(STRANGER, 8)):
        settings = write_settings(tmp_path, camera.url, server, publisher)
        with running(settings) as terminal:
            assert terminal.next("kit", "installed")["kit"] == kit_id(digest(kit_version(1)))
            publish_kit(publisher, kit_version(2))
            assert terminal.next("kit", "installed")["kit"] == kit_id(digest(kit_version(2)))
            record = tmp_path / "kits" / "record.json"
            until(lambda: json.loads(record.read_bytes())["starts"] == 0, "the kit did not pass its trial")
            bad = kit_with_wrong_results(3)
            publish_kit(publisher, bad)
            assert terminal.next("kit", "rejected")["reason"].startswith(kit_id(digest(bad)))
            asked = len(server.requests())
            until(lambda: len(server.requests()) >= asked + 6)  # three more polls
            publish_kit(publisher, kit_version(4))
            terminal.next("kit", "installed")
        assert [event["outcome"] for event in terminal.seen if event["kind"] == "kit"] == [
            *["installed"] * 2,
            *["rejected", "installed"],
        ]
    downloads = [path for path, *_ in server.requests() if path.endswith(".kit")]
    assert len(downloads) == len(set(downloads)) == 3


def test_status_is_retained_and_has_no_names(tmp_path: Path, server: Nginx, publisher: Publisher, broker: Broker) -> None:
    mqtt = f"""
[mqtt]
host = "127.0.0.1"
port = {broker.port}
terminal = "north"
user = "terminal"
password_file = "{broker.folder}/password"
ca_file = "{broker.folder}/ca.pem"
"""
    topic = "lclrr-edge/north/status"
    with MjpegServer() as camera, sending(camera, frames(GUEST, 12)), listening(broker, topic) as subscriber:
        with running(write_settings(tmp_path, camera.url, server, publisher, more=mqtt)) as terminal:
            terminal.next("fleet", "fresh")

            def status(key: str, value: Any) -> dict[str, Any]:
                while (found := json.loads(subscriber.next(topic)))[key] != value:
                    pass
                return dict(found)

            first = status("state", "fresh")
            assert (first["door"], first["group"], first["kit"]) == ("d1", "north", kit_id(digest(kit_version(1))))
            assert (first["kit_version"], first["revocations"], first["error"]) == (1, "", "")
            assert first["bytes_received"] > 1000
            publisher.revoke(GUEST)
            publisher.publish_list(f'[[allow]]\npeople = ["{GUEST}"]\n'.encode())
            terminal.next("list", "installed")
            until(lambda: _complete(subscriber, topic))
            publish_kit(publisher, kit_version(2))
            assert status("kit_version", 2)["kit"] == kit_id(digest(kit_version(2)))
        with listening(broker, topic) as late:
            _, payload, retained = late.received.get(timeout=30)
    assert retained
    assert GUEST not in payload
    page = (ROOT / "docs" / "guide" / "fleet.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(\w+)`", page[page.index("### What a door says") :]))
    assert json.loads(payload).keys() - {"schema", "utc"} <= described, "docs/guide/fleet.md describes every field"


def _complete(subscriber: Any, topic: str) -> bool:
    found = json.loads(subscriber.next(topic))
    return bool(found["list"] and found["revocations"])
