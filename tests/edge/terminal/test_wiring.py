"""One settings file and all sinks with real receivers: all get the same events, and a dead receiver delays no other."""

from __future__ import annotations

import json
import resource
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from edge.audit.crypto import write_keys
from edge.audit.log import AuditLog
from edge.audit.report import decrypt_pictures
from edge.events.event import notice
from edge.terminal import wiring
from tests.fakes.mqtt_broker import Broker, listening
from tests.fakes.sinks import CallbackSink, RecordingSink, fail
from tests.fakes.webhook_server import SECRET, WebhookServer
from tests.fixtures import orl_door
from tests.fixtures.command import command, environment
from tests.fixtures.events import NOON
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames

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
