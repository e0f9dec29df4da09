"""One settings file and all sinks with real receivers: all get the same events, and a dead receiver delays no other."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gpiozero
import pytest
from gpiozero.pins.mock import MockFactory

from edge.audit.crypto import write_keys
from edge.audit.log import AuditLog
from edge.audit.report import decrypt_pictures
from edge.events.event import notice
from edge.events.sink import Sink
from edge.files import write_atomically
from edge.inputs.monitor import InputSettings, open_monitor
from edge.settings import parse
from edge.terminal import wiring
from tests.fakes.mqtt_broker import Broker, listening
from tests.fakes.scene_camera import SceneCamera
from tests.fakes.sinks import CallbackSink, RecordingSink, fail
from tests.fakes.webhook_server import SECRET, WebhookServer
from tests.fixtures import orl_door
from tests.fixtures.command import command, environment
from tests.fixtures.events import NOON
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

EVENT = "lclrr-edge/north/event"

pytestmark = pytest.mark.slow


def settings(folder: Path, mqtt_port: int, webhook_port: int) -> Path:
    (folder / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(folder / "visits.avi", frames(GUEST, 8), empty_room(12), frames(STRANGER, 8), empty_room(12))
    (folder / "secret").write_text(SECRET)
    write_keys(folder / "key.pem")
    opener = folder / "open.sh"
    opener.write_text('#!/bin/sh\ncat >> "$(dirname "$0")/opened"\n')
    opener.chmod(0o755)
    file = folder / "settings.toml"
    file.write_text(
        f"""
[kit]
path = "door.kit"
[camera]
source = "{folder}/visits.avi"
[events]
json_lines = true
on_grant = "{opener}"
[audit]
path = "audit.db"
picture_key = "key.pem.pub"
[mqtt]
host = "127.0.0.1"
port = {mqtt_port}
terminal = "north"
user = "terminal"
password_file = "broker/password"
ca_file = "broker/ca.pem"
names = true
[webhook]
url = "http://127.0.0.1:{webhook_port}/"
secret_file = "secret"
"""
    )
    return file


def recognize(file: Path) -> list[str]:
    """Run the command and return the ids of the events on stdout."""
    run = subprocess.run(
        command("recognize", "--settings", file), capture_output=True, text=True, env=environment(), timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(event["kind"], event["outcome"], event["label"]) for event in events] == [
        ("start", None, None),
        ("decision", "granted", GUEST),
        ("decision", "denied", None),
        ("stop", None, None),
    ]
    return [event["event_id"] for event in events]


def logged(folder: Path) -> list[str]:
    with closing(AuditLog(folder / "audit.db", read_only=True)) as log:
        log.verify()
        return [entry.facts["event_id"] for entry in log.entries() if "event_id" in entry.facts]


def test_all_receivers_get_the_same_events(broker: Broker, tmp_path: Path) -> None:
    with closing(WebhookServer()) as server, listening(broker, EVENT) as subscriber:
        delivered = recognize(settings(tmp_path, broker.port, server.port))
        published = [json.loads(subscriber.next(EVENT)) for _ in delivered]
        posted = [json.loads(body) for _, _, body in server.got]
    assert [facts["event_id"] for facts in published] == delivered
    assert [facts["event_id"] for facts in posted] == delivered
    assert logged(tmp_path) == delivered
    assert [facts["sequence"] for facts in published] == [facts["sequence"] for facts in posted] == [1, 2, 3, 4]
    with closing(AuditLog(tmp_path / "audit.db", read_only=True)) as log:
        heads = [entry.head for entry in log.entries() if "event_id" in entry.facts]
        assert log.last_sequence() == 4
    assert [facts["head"] for facts in published] == [facts["head"] for facts in posted] == heads
    assert [facts["label"] for facts in published][1] == GUEST
    assert [facts["label"] for facts in posted] == [None] * 4
    assert json.loads((tmp_path / "opened").read_text())["event_id"] == delivered[1]
    with closing(AuditLog(tmp_path / "audit.db", read_only=True)) as log:
        pictures = decrypt_pictures(log, (tmp_path / "key.pem").read_bytes(), tmp_path / "pictures")
    assert tmp_path / "pictures" / f"{delivered[1]}.jpg" in pictures


def test_dead_receivers_do_not_affect_the_others(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    stopped_broker = Broker(tmp_path / "broker")
    delivered = recognize(settings(tmp_path, stopped_broker.port, stopped_broker.port))
    assert logged(tmp_path) == delivered
    assert json.loads((tmp_path / "opened").read_text())["event_id"] == delivered[1]


def test_sequence_continues_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    stopped_broker = Broker(tmp_path / "broker")
    file = settings(tmp_path, stopped_broker.port, stopped_broker.port)
    recognize(file)
    recognize(file)
    with closing(AuditLog(tmp_path / "audit.db", read_only=True)) as log:
        numbers = [entry.facts["sequence"] for entry in log.entries() if "event_id" in entry.facts]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8]


def test_grant_that_cannot_be_logged_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    stopped_broker = Broker(tmp_path / "broker")
    file = settings(tmp_path, stopped_broker.port, stopped_broker.port)
    limit = 1 << 15
    with closing(AuditLog(tmp_path / "audit.db")) as held:  # keeps the write-ahead file large
        while (tmp_path / "audit.db-wal").stat().st_size <= limit:
            held.append(notice("start", now=1, utc=NOON))
        before = held.verify().entries
        run = subprocess.run(
            command("recognize", "--settings", file),
            capture_output=True,
            text=True,
            env=environment(),
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),  # file size limit
        )
        assert held.verify().entries == before
    assert run.returncode == 0
    assert "the audit log was not written" in run.stderr
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(event["outcome"], event["reason"]) for event in events if event["label"] == GUEST] == [
        ("denied", "audit log not written")
    ]
    assert not any(event["outcome"] == "granted" for event in events)
    assert not (tmp_path / "opened").exists()


# Inputs


@pytest.fixture
def pins() -> Iterator[MockFactory]:
    before = gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = MockFactory()
    yield gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = before


def test_inputs_switch_the_relay_and_become_events(pins: MockFactory) -> None:
    chosen = parse(
        b"[gpio]\npin = 17\nseconds = 60.0\nseconds_after_open = 0.0\n"
        b"[inputs]\ncontact_pin = 5\nexit_pin = 6\nexit_opens = true\n"
    )
    sinks: dict[str, Sink] = {}
    monitor = wiring.open_inputs(chosen, sinks)
    assert monitor is not None
    assert list(sinks) == ["gpio", "inputs"]
    relay, contact, button = (pins.pin(number) for number in (17, 5, 6))
    contact.drive_low()
    until(lambda: (news := monitor.next_change()) is not None and news.outcome == "closed")
    button.drive_low()
    until(lambda: relay.state)
    contact.drive_high()
    until(lambda: not relay.state)
    events, _ = run_to_end(SceneCamera(empty_room(6)), news=[monitor.next_change], sinks=sinks.values())
    assert events.of("input") == [("exit requested", None), ("opened", None)]
    assert events.decisions == []
    wiring.close_all(sinks)


def test_grant_permits_to_open_the_door(pins: MockFactory) -> None:
    sinks: dict[str, Sink] = {}
    monitor = wiring.open_inputs(parse(b"[inputs]\ncontact_pin = 5\n"), sinks)
    assert monitor is not None
    pins.pin(5).drive_low()
    until(lambda: (news := monitor.next_change()) is not None and news.outcome == "closed")
    run_to_end(SceneCamera(frames(GUEST, 8)), sinks=sinks.values())
    pins.pin(5).drive_high()
    assert until(monitor.next_change).outcome == "opened"
    pins.pin(5).drive_low()
    assert until(monitor.next_change).outcome == "closed", "it was not forced open"
    wiring.close_all(sinks)


def test_input_that_cannot_be_read_is_in_the_health(pins: MockFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    _, terminal = run_to_end(SceneCamera(empty_room(2)))
    assert wiring.whole_health(terminal, {}, None, None)["failing"] == []
    monkeypatch.setattr("edge.inputs.monitor.GpioPin.read", fail)
    with closing(open_monitor(InputSettings(contact_pin=5))) as monitor:
        until(lambda: wiring.whole_health(terminal, {}, None, monitor)["failing"] == ["the door contact"])


def test_changed_list_is_taken_up_by_the_whole_terminal(tmp_path: Path) -> None:
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(tmp_path / "visits.avi", frames(GUEST, 8), empty_room(12))
    file = tmp_path / "list.toml"
    file.write_text(f'[[allow]]\npeople = ["{GUEST}"]\n')
    said: list[str] = []
    chosen = parse(
        f'[camera]\nsource = "{tmp_path}/visits.avi"\n[events]\njson_lines = false\n'
        f'[door]\nlist = "{file}"\n[audit]\npath = "{tmp_path}/audit.db"\n'.encode()
    )
    with wiring.open_terminal(chosen, tmp_path / "door.kit", say=said.append) as terminal:
        write_atomically(file, b'[[allow]]\npeople = ["nemo"]\n')
        until(lambda: "warning: the door list names nemo, who is not in the kit." in said)
        terminal.run()
    with closing(AuditLog(tmp_path / "audit.db", read_only=True)) as log:
        facts = [entry.facts for entry in log.entries()]
    assert [(fact["kind"], fact["outcome"]) for fact in facts] == [
        ("start", None),
        ("list", "installed"),
        ("decision", "denied"),
        ("stop", None),
    ]


def test_close_all_closes_every_sink() -> None:
    class Closable(RecordingSink):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    class Broken(CallbackSink):
        def close(self) -> None:
            fail()

    good = Closable()
    wiring.close_all({"broken": Broken(fail), "good": good})
    assert good.is_closed
