"""`edge audit verify --against` finds what the chain alone cannot show: a log that was rebuilt or cut."""

from __future__ import annotations

import json
import sqlite3
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.audit.gate import AuditGate, AuditSettings
from edge.audit.log import FIRST_HASH, AuditLog, entry_hash
from edge.events.event import Event, message
from edge.sinks.mqtt import MqttSink
from edge.sinks.webhook import WebhookSettings, WebhookSink
from tests.fakes.mqtt_broker import PASSWORD, USER, Broker, listening
from tests.fakes.sinks import RecordingSink
from tests.fakes.webhook_server import SECRET, WebhookServer
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until

Run = Callable[..., str]
KEY = "a key of sixteen or more"
EVENT, HEAD = "lclrr-edge/north/event", "lclrr-edge/north/head"


@pytest.fixture
def head_key(tmp_path: Path) -> Path:
    file = tmp_path / "head-key"
    file.write_text(KEY + "\n")
    return file


def numbered(count: int, first: int = 1) -> list[Event]:
    """Denials, and a grant as the second event."""
    return [
        replace(make_event(outcome="granted" if number == 1 else "denied"), sequence=first + number) for number in range(count)
    ]


def record(path: Path, events: list[Event], key: Path | None = None) -> list[dict[str, Any]]:
    """Log events, and return the messages of a receiver."""
    served = RecordingSink()
    with closing(AuditGate(AuditSettings(path=path, days=0, head_key_file=key), [served])) as gate:
        for event in events:
            gate.handle(event)
    return [message(event, age_seconds=0.0, grant_seconds=5.0, names=False) for event in served]


def store(path: Path, messages: list[dict[str, Any]]) -> Path:
    file = path.with_name("received.jsonl")
    file.write_text("".join(f"{json.dumps(fields)}\n" for fields in messages))
    return file


def rebuild(path: Path, keep: Callable[[int, dict[str, Any]], bool]) -> None:
    """Write a new, consistent chain with some of the entries, as a person with the file can."""
    with closing(sqlite3.connect(path)) as db, db:
        rows = db.execute("SELECT seq, json FROM entries ORDER BY seq").fetchall()
        db.execute("DELETE FROM entries")
        before = FIRST_HASH
        for seq, text in enumerate((text for seq, text in rows if keep(seq, json.loads(text))), 1):
            before = entry_hash(before, seq, text)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, text, before))


def test_log_contains_what_the_receiver_has(edge: Run, path: Path) -> None:
    file = store(path, record(path, numbered(5)))
    found = json.loads(edge("verify", path, "--against", file))
    assert found["against"] == {"compared": 5, "pruned": 0, "ignored": 0, "gaps": []}
    assert found["head"] == json.loads(file.read_text().splitlines()[-1])["head"]
    record(path, numbered(3, first=6))  # the log grew since
    assert json.loads(edge("verify", path, "--against", file))["entries"] == 8


def test_rebuilt_log_passes_verify_but_not_the_comparison(edge: Run, path: Path) -> None:
    messages = record(path, numbered(6))
    rebuild(path, lambda seq, facts: facts["outcome"] != "granted")
    edge("verify", path)
    assert "rewritten" in edge("verify", path, "--against", store(path, messages), code=42)
    assert "rewritten" in edge("verify", path, "--against", store(path, messages[1:2]), code=42), "the deleted grant"
    assert json.loads(edge("verify", path, "--against", store(path, messages[:1])))["against"]["compared"] == 1


def test_log_whose_end_was_cut_and_rebuilt_passes_verify_but_not_the_comparison(edge: Run, path: Path) -> None:
    messages = record(path, numbered(6))
    rebuild(path, lambda seq, facts: seq <= 4)
    edge("verify", path)
    assert "cut off" in edge("verify", path, "--against", store(path, messages), code=42)
    record(path, numbered(4, first=5))  # and other events were put in its place
    edge("verify", path)
    assert "rewritten" in edge("verify", path, "--against", store(path, messages), code=42)
    assert json.loads(edge("verify", path, "--against", store(path, messages[:4])))["against"]["compared"] == 4


def test_gaps_are_reported_and_are_no_error(edge: Run, path: Path) -> None:
    messages = record(path, numbered(9))
    kept = [fields for fields in messages if fields["sequence"] not in (3, 6, 7)]
    found = json.loads(edge("verify", path, "--against", store(path, kept + kept[:1])))  # one arrived twice
    assert found["against"]["gaps"] == [[3, 3], [6, 7]]
    newest = {name: messages[-1][name] for name in ("sequence", "head", "head_mac", "utc")}  # a retained head
    found = json.loads(edge("verify", path, "--against", store(path, [*messages[:5], newest])))
    assert found["against"]["gaps"] == [[6, 9]]


def test_export_and_other_lines_are_accepted(edge: Run, log: AuditLog, path: Path, tmp_path: Path) -> None:
    messages = record(path, numbered(4))
    log.append_picture("a", b"box", NOON)
    edge("export", path, "-o", tmp_path / "export.jsonl")
    assert json.loads(edge("verify", path, "--against", tmp_path / "export.jsonl"))["against"] == {
        "compared": 5,
        "pruned": 0,
        "ignored": 0,
        "gaps": [],
    }
    file = tmp_path / "mixed"
    lines = [f"{EVENT} {json.dumps(messages[0])}", "", "online", '{"head": null}', '{"head": 3}', "{", json.dumps(messages[3])]
    file.write_text("\n".join(lines))
    against = json.loads(edge("verify", path, "--against", file))["against"]
    assert (against["compared"], against["ignored"], against["gaps"]) == (2, 4, [[2, 3]])


def test_nothing_to_compare_is_an_error(edge: Run, log: AuditLog, path: Path, tmp_path: Path) -> None:
    messages = record(path, numbered(4))
    (tmp_path / "empty").write_text("online\n")
    assert "Nothing can be compared" in edge("verify", path, "--against", tmp_path / "empty", code=40)
    assert "cannot be read" in edge("verify", path, "--against", tmp_path / "none", code=2)
    log.prune(1, NOON.replace(year=2026))
    assert "4 entries were pruned" in edge("verify", path, "--against", store(path, messages), code=40)
    later = record(path, numbered(2, first=5))
    against = json.loads(edge("verify", path, "--against", store(path, [*messages, *later])))["against"]
    assert (against["compared"], against["pruned"], against["gaps"]) == (2, 4, [])


@pytest.mark.parametrize(
    "change", [{"head": "5"}, {"head": "2:xyz"}, {"event_id": "other"}, {"sequence": 7}, {"outcome": "granted"}]
)
def test_changed_line_of_the_receiver_is_detected(edge: Run, path: Path, change: dict[str, Any]) -> None:
    messages = record(path, numbered(3))
    messages[2] |= change
    assert "Line 3" in edge("verify", path, "--against", store(path, messages), code=42)


def test_head_of_an_earlier_time_is_checked_as_well(edge: Run, path: Path) -> None:
    file = store(path, record(path, numbered(3)))
    assert "end is missing" in edge("verify", path, "--head", "9:" + "0" * 64, "--against", file, code=42)


def test_macs_prove_that_the_terminal_made_the_heads(edge: Run, path: Path, head_key: Path, tmp_path: Path) -> None:
    messages = record(path, numbered(3), head_key)
    found = json.loads(edge("verify", path, "--against", store(path, messages), "--head-key", head_key))
    assert found["head_mac"] == messages[-1]["head_mac"]
    assert json.loads(edge("verify", path, "--head-key", head_key))["head_mac"] == messages[-1]["head_mac"]
    for wrong in (None, "", "ü", 3, messages[0]["head_mac"]):
        forged = [*messages[:2], messages[2] | {"head_mac": wrong}]
        assert "Line 3" in edge("verify", path, "--against", store(path, forged), "--head-key", head_key, code=42)
        edge("verify", path, "--against", store(path, forged))  # the hashes are right
    (tmp_path / "other-key").write_text("another key, also long")
    assert "Line 1" in edge("verify", path, "--against", store(path, messages), "--head-key", tmp_path / "other-key", code=42)
    (tmp_path / "other-key").write_text("short")
    assert "16 characters" in edge("verify", path, "--head-key", tmp_path / "other-key", code=38)


# Real receivers


@contextmanager
def publishing(broker: Broker, **other: Any) -> Iterator[MqttSink]:
    with closing(MqttSink(broker.settings(**other))) as sink:
        sink._pause_seconds, sink._close_seconds = 0.1, 30.0
        yield sink


def settings_file(broker: Broker, folder: Path, terminal: str = "north") -> Path:
    file = folder / "door.toml"
    file.write_text(
        f'[mqtt]\nhost = "127.0.0.1"\nport = {broker.port}\nterminal = "{terminal}"\nuser = "{USER}"\n'
        'password_file = "broker/password"\nca_file = "broker/ca.pem"\n'
    )
    return file


def publish(broker: Broker, topic: str, payload: str) -> None:
    """Publish a retained message as another client."""
    from paho.mqtt import publish as paho

    paho.single(
        topic,
        payload,
        qos=1,
        retain=True,
        hostname="127.0.0.1",
        port=broker.port,
        auth={"username": USER, "password": PASSWORD},
        tls=ssl.create_default_context(cafile=broker.folder / "ca.pem"),  # type: ignore[arg-type]
    )


@pytest.mark.slow
def test_mqtt_receiver_sees_a_gap_after_a_dropped_event(edge: Run, broker: Broker, path: Path) -> None:
    events = numbered(6)
    with listening(broker, EVENT, name="sleeper") as subscriber:
        broker.stop()
        sink = MqttSink(broker.settings(waiting=3))
        sink._pause_seconds, sink._close_seconds = 0.1, 30.0
        with closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
            for event in events[:5]:
                gate.handle(event)
            until(lambda: sink.health().dropped == 2)
            broker.start()
            until(lambda: sink.health().delivered == 3)
            gate.handle(events[5])
            received = [json.loads(subscriber.next(EVENT)) for _ in range(4)]
        sink.close()
    assert [fields["sequence"] for fields in received] == [1, 2, 3, 6]
    found = json.loads(edge("verify", path, "--against", store(path, received)))
    assert (found["against"]["compared"], found["against"]["gaps"]) == (4, [[4, 5]])


@pytest.mark.slow
def test_webhook_receiver_sees_a_gap_after_an_event_that_it_rejected(edge: Run, path: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with closing(WebhookServer(204, 400, 204)) as server:
        settings = WebhookSettings(url=f"http://127.0.0.1:{server.port}/", secret_file=tmp_path / "secret")
        with closing(WebhookSink(settings)) as sink:
            with closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
                for event in numbered(3):
                    gate.handle(event)
            until(lambda: sink.health().delivered == 2)
    posted = [json.loads(body) for _, _, body in server.got]
    accepted = [posted[0], posted[2]]
    found = json.loads(edge("verify", path, "--against", store(path, accepted)))
    assert (found["against"]["compared"], found["against"]["gaps"]) == (2, [[2, 2]])


@pytest.mark.slow
def test_broker_keeps_the_newest_head_and_no_outcome(edge: Run, broker: Broker, path: Path, tmp_path: Path) -> None:
    with publishing(broker, names=True) as sink:
        with closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
            for event in numbered(2):  # the second is a grant
                gate.handle(event)
        until(lambda: sink.health().delivered == 2)
    with listening(broker, "lclrr-edge/#") as late:
        retained = {topic: payload for topic, payload, _ in (late.received.get(timeout=30) for _ in range(3))}
    assert EVENT not in retained
    head = json.loads(retained[HEAD])
    assert list(head) == ["sequence", "head", "head_mac", "utc"]
    found = json.loads(edge("verify", path, "--against", "mqtt", "--settings", settings_file(broker, tmp_path)))
    assert (head["sequence"], head["head"]) == (2, found["head"])
    assert found["against"] == {"compared": 1, "pruned": 0, "ignored": 0, "gaps": []}


@pytest.mark.slow
def test_head_is_published_again_after_a_restart_of_the_broker(broker: Broker, path: Path) -> None:
    with publishing(broker) as sink, closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
        with listening(broker, HEAD) as subscriber:
            gate.handle(numbered(1)[0])
            first = subscriber.next(HEAD)
        broker.stop()
        for file in broker.folder.glob("*.db"):
            file.unlink()  # it forgot all retained messages
        broker.start()
        with listening(broker, HEAD) as subscriber:
            assert subscriber.next(HEAD) == first


@pytest.mark.slow
def test_event_counts_as_delivered_if_only_its_head_is_rejected(broker: Broker, path: Path) -> None:
    broker.stop()
    (broker.folder / "rights").write_text(f"user {USER}\ntopic readwrite {EVENT}\n")
    broker.start()
    with publishing(broker) as sink:
        with closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
            for event in numbered(2):
                gate.handle(event)
        until(lambda: sink.health().delivered == 2)
    assert (sink.health().failed, sink.health().retried) == (0, 0)


@pytest.mark.slow
def test_rebuilt_log_does_not_match_the_head_of_the_broker(edge: Run, broker: Broker, path: Path, tmp_path: Path) -> None:
    with publishing(broker) as sink:
        with closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
            for event in numbered(4):
                gate.handle(event)
        until(lambda: sink.health().delivered == 4)
    rebuild(path, lambda seq, facts: facts["outcome"] != "granted")
    edge("verify", path)
    assert "cut off" in edge("verify", path, "--against", "mqtt", "--settings", settings_file(broker, tmp_path), code=42)


@pytest.mark.slow
def test_forged_head_of_the_broker_is_found_with_the_key(
    edge: Run, broker: Broker, path: Path, tmp_path: Path, head_key: Path
) -> None:
    with publishing(broker) as sink:
        with closing(AuditGate(AuditSettings(path=path, days=0, head_key_file=head_key), [sink])) as gate:
            for event in numbered(4):
                gate.handle(event)
        until(lambda: sink.health().delivered == 4)
    arguments = ("verify", path, "--against", "mqtt", "--settings", settings_file(broker, tmp_path))
    edge(*arguments, "--head-key", head_key)
    rebuild(path, lambda seq, facts: facts["outcome"] != "granted")
    with closing(AuditLog(path, read_only=True)) as log:
        forged = {"sequence": 4, "head": log.verify().head, "head_mac": "0" * 64, "utc": "2025-03-01T12:00:00.000Z"}
    publish(broker, HEAD, json.dumps(forged))
    edge(*arguments)  # a person who can write both is not found without the key
    assert "MAC" in edge(*arguments, "--head-key", head_key, code=42)


@pytest.mark.slow
def test_broker_without_a_head_is_an_error_of_its_own(
    edge: Run, broker: Broker, log: AuditLog, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.sinks.mqtt.REPLY_SECONDS", 0.5)
    log.append(make_event())
    arguments = ("verify", path, "--against", "mqtt", "--settings", settings_file(broker, tmp_path))
    assert "has no head" in edge(*arguments, code=49)
    publish(broker, HEAD, "{")
    assert "Nothing can be compared" in edge(*arguments, code=40)
    broker.stop()
    assert "no connection" in edge(*arguments, code=49)
    (tmp_path / "door.toml").write_text("")
    assert "no table [mqtt]" in edge(*arguments, code=2)


@pytest.mark.slow
def test_reading_the_head_does_not_disturb_the_terminal(edge: Run, broker: Broker, path: Path, tmp_path: Path) -> None:
    with publishing(broker) as sink, closing(AuditGate(AuditSettings(path=path, days=0), [sink])) as gate:
        gate.handle(numbered(1)[0])
        until(lambda: sink.health().delivered == 1)
        client = sink._client
        edge("verify", path, "--against", "mqtt", "--settings", settings_file(broker, tmp_path))
        gate.handle(make_event(outcome="denied"))
        until(lambda: sink.health().delivered == 2)
        assert sink._client is client
