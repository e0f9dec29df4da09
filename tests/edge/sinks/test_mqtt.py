"""MQTT with a real Mosquitto: login, TLS, restarts, and grants that must not act late."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest

from edge.errors import ParameterError, SettingsError, SinkError
from edge.events.event import Event, notice
from edge.sinks.mqtt import MqttSettings, MqttSink, discovery
from tests.fakes.mqtt_broker import Broker, Wire, free_port, listening
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until

EVENT, STATE, CAMERA, ALARM, CONTACT, TAMPER = (
    f"lclrr-edge/north/{name}" for name in ("event", "state", "camera", "alarm", "contact", "tamper")
)

pytestmark = pytest.mark.slow


@contextmanager
def publishing(
    broker: Broker, *, clock: Callable[[], float] = time.monotonic, switches: Collection[str] = (), **settings: Any
) -> Iterator[MqttSink]:
    with closing(MqttSink(broker.settings(**settings), switches=switches, clock=clock)) as sink:
        sink._pause_seconds, sink._close_seconds = 0.1, 30.0
        yield sink


def ids(events: list[Event]) -> list[str]:
    return [event.event_id for event in events]


def test_grant_arrives_with_nonce_and_expiry_and_is_not_retained(broker: Broker) -> None:
    with listening(broker) as subscriber, publishing(broker, clock=lambda: 100.0) as sink:  # does not expire on a slow machine
        event = make_event(label="anna")
        sink.handle(event)
        said = json.loads(subscriber.next(EVENT))
        until(lambda: sink.health().delivered == 1)
    assert (said["outcome"], said["nonce"], said["event_id"]) == ("granted", event.event_id, event.event_id)
    waits = datetime.fromisoformat(said["expires"]) - datetime.fromisoformat(said["utc"])
    assert waits.total_seconds() == 5
    assert said["label"] is None
    assert {field.name for field in fields(Event)} | {"nonce", "expires"} == set(said)
    with listening(broker, "lclrr-edge/#") as late:
        first = [late.received.get(timeout=30) for _ in range(2)]
        assert sorted(topic for topic, _, _ in first) == [CAMERA, STATE]  # but no event
        assert late.received.empty()


def test_only_grants_have_a_nonce_and_names_adds_the_label(broker: Broker) -> None:
    with listening(broker, EVENT) as subscriber, publishing(broker, names=True) as sink:
        for event in (make_event(outcome="denied", label="Zoë"), notice("start", now=1, utc=NOON, outcome="granted")):
            sink.handle(event)
            said = json.loads(subscriber.next(EVENT))
            assert (said["nonce"], said["expires"], said["label"]) == (None, None, event.label)


def test_state_and_camera_are_retained_and_close_publishes_offline(broker: Broker) -> None:
    with listening(broker, STATE, CAMERA) as subscriber:
        sink = MqttSink(broker.settings())
        assert subscriber.next(STATE) == "online"
        sink.handle(notice("camera", outcome="lost", now=1, utc=NOON))
        assert subscriber.next(CAMERA) == "OFF"
        sink.handle(notice("camera", outcome="back", now=2, utc=NOON))
        assert subscriber.next(CAMERA) == "ON"
        sink.handle(notice("camera", outcome="frozen", now=3, utc=NOON))
        assert subscriber.next(CAMERA) == "OFF"
        sink.close()
        assert subscriber.next(STATE) == "offline"
    with listening(broker, STATE) as late:
        assert late.received.get(timeout=30) == (STATE, "offline", True)


def test_lost_connection_is_published_by_the_broker_and_restored(broker: Broker) -> None:
    with listening(broker, STATE) as subscriber:
        sink = MqttSink(broker.settings())
        assert subscriber.next(STATE) == "online"
        connection = sink._client.socket()  # type: ignore[union-attr]
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)  # as in a power failure
        assert subscriber.next(STATE) == "offline"
        assert subscriber.next(STATE) == "online"  # restored without an event
        sink.close()


def test_killed_terminal_is_offline_for_later_subscribers(broker: Broker) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from edge.sinks.mqtt import MqttSettings, MqttSink\n"
        "port, folder = int(sys.argv[1]), Path(sys.argv[2])\n"
        "MqttSink(MqttSettings(host='127.0.0.1', port=port, terminal='north', user='terminal',\n"
        "                       password_file=folder / 'password', ca_file=folder / 'ca.pem'))\n"
        "time.sleep(60)\n"
    )
    with listening(broker, STATE) as subscriber:
        terminal = subprocess.Popen([sys.executable, "-c", script, str(broker.port), str(broker.folder)])
        try:
            assert subscriber.next(STATE) == "online"
        finally:
            terminal.kill()
            terminal.wait(30)
        assert subscriber.next(STATE) == "offline"
    with listening(broker, STATE) as late:
        assert late.received.get(timeout=30) == (STATE, "offline", True)


@pytest.mark.parametrize("kill", [False, True])
def test_queued_events_arrive_after_a_broker_restart(broker: Broker, kill: bool) -> None:
    events = [make_event(outcome="denied", visit=number) for number in range(50)]
    with listening(broker, EVENT, name="sleeper") as subscriber, publishing(broker, waiting=50) as sink:
        for event in events[:10]:
            sink.handle(event)
        until(lambda: sink.health().delivered >= 5)  # one may be in flight, some wait
        broker.stop(kill=kill)
        for event in events[10:]:
            sink.handle(event)
        acknowledged = sink.health().delivered
        broker.start()
        until(lambda: sink.health().delivered == 50)
        heard: list[str] = []
        while events[-1].event_id not in heard:
            heard.append(json.loads(subscriber.next(EVENT))["event_id"])
    first_of_each = list(dict.fromkeys(heard))  # at least once: the event in flight may come twice
    # A killed broker may lose events that it has acknowledged.
    lost = acknowledged + 1 if kill else 0
    assert first_of_each[-(50 - lost) :] == ids(events)[lost:]
    assert sink.health().dropped == sink.health().failed == 0


def test_silent_connection_is_replaced(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.sinks.mqtt.REPLY_SECONDS", 0.3)
    wire = Wire(broker.port)
    with listening(broker, EVENT, STATE) as subscriber, publishing(broker, port=wire.port) as sink:
        assert subscriber.next(STATE) == "online"
        wire.cut = True
        events = [make_event(outcome="denied"), make_event(outcome="denied")]
        for event in events:
            sink.handle(event)
        until(lambda: sink.health().retried > 0)
        wire.cut = False
        assert [json.loads(subscriber.next(EVENT))["event_id"] for _ in events] == ids(events)
    wire.close()


def test_closed_connection_leaves_no_file_open(broker: Broker) -> None:
    gc.collect()
    gc.disable()  # it would hide a leak
    try:
        with listening(broker, STATE) as subscriber:
            files = []
            for _ in range(3):
                with publishing(broker):
                    assert subscriber.next(STATE) == "online"
                assert subscriber.next(STATE) == "offline"
                files.append(len(os.listdir("/proc/self/fd")))
        assert len(set(files)) == 1
    finally:
        gc.enable()


def test_full_queue_keeps_the_oldest_events(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    events = [make_event(outcome="denied") for _ in range(7)]
    sink = MqttSink(broker.settings(waiting=5))  # the broker is not started yet
    for event in events:
        sink.handle(event)
    assert (sink.health().dropped, sink.health().waiting) == (2, 5)
    broker.start()
    try:
        with listening(broker, EVENT, name="sleeper") as subscriber:
            until(lambda: sink.health().delivered == 5)
            assert [json.loads(subscriber.next(EVENT))["event_id"] for _ in range(5)] == ids(events[:5])
        sink.close()
    finally:
        broker.stop(kill=True)


def test_late_grant_is_sent_as_expired(broker: Broker) -> None:
    now = [100.0]
    with listening(broker, EVENT, name="sleeper") as subscriber:
        broker.stop()
        with publishing(broker, clock=lambda: now[0]) as sink:
            sink.handle(make_event())
            until(lambda: sink.health().retried > 0)
            now[0] += 5.0
            broker.start()
            late_message = json.loads(subscriber.next(EVENT))
            assert (late_message["outcome"], late_message["nonce"]) == ("expired", None)
            assert subscriber.expiries == [None]
            sink.handle(make_event())
            assert json.loads(subscriber.next(EVENT))["outcome"] == "granted"


def test_grant_expires_at_the_broker(broker: Broker) -> None:
    with listening(broker, EVENT) as subscriber, publishing(broker, grant_seconds=59.5) as sink:
        for event in (make_event(), make_event(outcome="denied")):
            sink.handle(event)
            subscriber.next(EVENT)
    grant, denial = subscriber.expiries
    assert grant is not None
    assert 30 <= grant <= 60  # whole seconds; some may have passed
    assert denial is None


def test_home_assistant_discovers_camera_and_decisions(broker: Broker) -> None:
    with listening(broker, STATE) as state, publishing(broker):
        assert state.next(STATE) == "online"
        with listening(broker, "homeassistant/#") as subscriber:
            found = {}
            for _ in range(2):
                topic, payload, retained = subscriber.received.get(timeout=30)
                assert retained
                found[topic] = json.loads(payload)
    camera = found["homeassistant/binary_sensor/lclrr-edge-north/camera/config"]
    decision = found["homeassistant/event/lclrr-edge-north/decision/config"]
    assert (camera["state_topic"], camera["availability_topic"]) == (CAMERA, STATE)
    assert (decision["state_topic"], decision["event_types"]) == (EVENT, ["granted", "denied", "expired"])
    assert camera["device"] == decision["device"]
    assert camera["unique_id"] != decision["unique_id"]
    assert "label" not in decision["value_template"]
    assert discovery(broker.settings(discovery="")) == {}


def test_home_assistant_template_returns_the_decision() -> None:
    (decision,) = (config for topic, config in discovery(MqttSettings(host="h", names=True)).items() if "/event/" in topic)
    template = jinja2.Template(decision["value_template"])
    granted = json.loads(make_event(label='Zoë "Z"').to_json()) | {"nonce": "n", "expires": "e"}
    said = json.loads(template.render(value_json=granted))
    assert (said["event_type"], said["label"], said["nonce"]) == ("granted", 'Zoë "Z"', "n")
    assert template.render(value_json=json.loads(notice("start", now=1, utc=NOON).to_json())) == ""


# Alarms and inputs


def say(kind: str, outcome: str) -> Event:
    return notice(kind, outcome=outcome, reason="a reason", now=1, utc=NOON)


def test_alarms_have_a_topic_and_are_not_retained(broker: Broker) -> None:
    with listening(broker, ALARM, EVENT) as subscriber, publishing(broker) as sink:
        for event in (say("input", "opened"), say("input", "forced open"), say("list", "rejected"), make_event()):
            sink.handle(event)
        until(lambda: sink.health().delivered == 4)
        received = [subscriber.received.get(timeout=30) for _ in range(6)]
    alarms = [json.loads(payload) for topic, payload, _ in received if topic == ALARM]
    assert [alarm["outcome"] for alarm in alarms] == ["forced open", "rejected"]
    assert {alarm["event_id"] for alarm in alarms} < {
        json.loads(said)["event_id"] for topic, said, _ in received if topic == EVENT
    }
    with listening(broker, "lclrr-edge/#") as late:
        topics = {late.received.get(timeout=30)[0] for _ in range(3)}
    assert topics == {CAMERA, STATE, "lclrr-edge/north/contact"}


def test_event_of_an_alarm_arrives_without_the_right_to_write_alarms(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    allowed = (
        "topic readwrite lclrr-edge/north/event",
        "topic write lclrr-edge/north/state",
        "topic write lclrr-edge/north/camera",
    )
    (tmp_path / "rights").write_text("\n".join(("user terminal", *allowed, "topic write homeassistant/#", "")))
    broker.start()
    try:
        with listening(broker, EVENT) as subscriber, publishing(broker) as sink:
            sink.handle(say("list", "rejected"))
            assert json.loads(subscriber.next(EVENT))["outcome"] == "rejected"
            until(lambda: sink.health().delivered == 1)
    finally:
        broker.stop(kill=True)


def test_contact_and_tamper_switch_are_retained_and_published_again(broker: Broker) -> None:
    with listening(broker, STATE) as subscriber, publishing(broker, switches=("contact", "tamper")) as sink:
        for outcome in ("closed", "tamper ended", "opened", "forced open", "tamper"):
            sink.handle(say("input", outcome))
        until(lambda: sink.health().delivered == 5)
        assert subscriber.next(STATE) == "online"
        with listening(broker, CONTACT, TAMPER) as late:
            found = {late.received.get(timeout=30) for _ in range(2)}
        assert found == {(CONTACT, "ON", True), (TAMPER, "ON", True)}
        with listening(broker, CONTACT, TAMPER) as again:
            for _ in range(2):
                again.received.get(timeout=30)
            connection = sink._client.socket()  # type: ignore[union-attr]
            assert isinstance(connection, socket.socket)
            connection.shutdown(socket.SHUT_RDWR)
            assert {again.received.get(timeout=30)[:2] for _ in range(2)} == {(CONTACT, "ON"), (TAMPER, "ON")}


def test_home_assistant_discovers_the_inputs_that_exist() -> None:
    settings = MqttSettings(host="h", terminal="north")
    names = {topic.split("/")[3]: fields for topic, fields in discovery(settings, ("contact", "tamper")).items()}
    assert set(names) == {"camera", "contact", "tamper", "decision"}
    assert (names["contact"]["state_topic"], names["contact"]["device_class"]) == (CONTACT, "door")
    assert (names["tamper"]["state_topic"], names["tamper"]["device_class"]) == (TAMPER, "tamper")
    assert len({fields["unique_id"] for fields in names.values()}) == 4
    assert {topic.split("/")[3] for topic in discovery(settings, ("tamper",))} == {"camera", "tamper", "decision"}
    assert {topic.split("/")[3] for topic in discovery(settings)} == {"camera", "decision"}


def test_client_certificate_is_used(tmp_path: Path) -> None:
    broker = Broker(tmp_path, client_certificates=True)
    broker.start()
    try:
        own: dict[str, Any] = {"cert_file": tmp_path / "client.pem", "key_file": tmp_path / "client.key"}
        with listening(broker, EVENT) as subscriber, publishing(broker, **own) as sink:
            sink.handle(make_event())
            assert subscriber.next(EVENT)
        with publishing(broker) as sink:
            sink.handle(make_event())
            until(lambda: sink.health().retried > 0)
            assert sink.health().delivered == 0
    finally:
        broker.stop(kill=True)


@pytest.mark.parametrize("fault", ["password", "ca", "name"])
def test_wrong_credentials_deliver_nothing(broker: Broker, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    other = broker.folder / "other"
    other.mkdir()
    Broker(other)  # creates other certificates
    (other / "password").write_text("guessed\n")
    wrong: dict[str, dict[str, Any]] = {
        "password": {"password_file": other / "password"},
        "ca": {"ca_file": other / "ca.pem"},
        "name": {"host": "localhost"},  # the certificate is for 127.0.0.1
    }
    with publishing(broker, **wrong[fault]) as sink:
        sink.handle(make_event(label="a-secret-name"))
        until(lambda: sink.health().retried > 0)
        assert (sink.health().delivered, sink.health().waiting) == (0, 1)
    assert sink.health().dropped == 1
    assert "correct horse" not in caplog.text
    assert "guessed" not in caplog.text
    assert "a-secret-name" not in caplog.text


def test_message_that_the_broker_rejects_is_not_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "rights").write_text("user terminal\ntopic write lclrr-edge/north/state\n")
    broker.start()
    try:
        with publishing(broker) as sink:
            sink.handle(make_event())
            until(lambda: sink.health().failed == 1 and sink.health().waiting == 0)
    finally:
        broker.stop(kill=True)
    assert "Not authorized" in caplog.text


def test_silent_broker_never_blocks_handle() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sink = MqttSink(MqttSettings(host="127.0.0.1", port=mute.getsockname()[1], tls=False))
        for _ in range(150):
            sink.handle(make_event())  # would block here
        assert sink.health().dropped == 50
        sink.close()
    assert sink.health().dropped == 150


def test_password_without_tls_is_logged_as_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_PASSWORD", "correct horse")
    caplog.set_level(logging.WARNING)
    settings = MqttSettings(host="127.0.0.1", port=free_port(), tls=False, user="terminal", password_env="DOOR_PASSWORD")
    MqttSink(settings).close()
    assert "tls is off" in caplog.text
    assert "correct horse" not in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"port": 0},
        {"port": 65536},
        {"terminal": "a/b"},
        {"terminal": "#"},
        {"terminal": ""},
        {"discovery": "a/#"},
        {"user": "u", "password_file": Path("a"), "password_env": "B"},
        {"password_env": "B"},
        {"cert_file": Path("a")},
        {"tls": False, "ca_file": Path("a")},
        {"grant_seconds": 0.0},
        {"grant_seconds": float("nan")},
        {"grant_seconds": 61.0},
        {"waiting": 0},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        MqttSettings(**{"host": "broker"} | wrong)


def test_missing_files_are_errors_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="certificates"):
        MqttSink(MqttSettings(host="h", ca_file=tmp_path / "none.pem"))
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(SinkError, match="certificates"):
        MqttSink(MqttSettings(host="h", ca_file=tmp_path / "no.pem"))
    with pytest.raises(SettingsError):
        MqttSink(MqttSettings(host="h", user="u", password_file=tmp_path / "none"))
