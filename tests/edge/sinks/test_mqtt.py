"""MQTT against a real Mosquitto: user, password, TLS, restarts, and grants that must not open late."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest

from edge.errors import ParameterError, SettingsError, SinkError
from edge.events.event import Event, notice
from edge.sinks.mqtt import Mqtt, MqttSettings, _Line, credentials, discovery, open_sink
from tests.edge.events.test_event import NOON, told
from tests.fakes.mqtt_broker import Broker, Wire, free_port, listening, until

EVENT, STATE, CAMERA = (f"lclrr-edge/north/{name}" for name in ("event", "state", "camera"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.stop(kill=True)


def ids(events: list[Event]) -> list[str]:
    return [event.event_id for event in events]


def test_a_grant_arrives_with_nonce_and_expiry_and_is_not_retained(broker: Broker) -> None:
    with listening(broker) as ear, closing(Mqtt(broker.settings(), clock=lambda: 100.0)) as sink:  # however slow it is here
        event = told(label="anna")
        sink(event)
        said = json.loads(ear.next(EVENT))
        until(lambda: sink.delivered == 1)
    assert (said["outcome"], said["nonce"], said["event_id"]) == ("granted", event.event_id, event.event_id)
    waits = datetime.fromisoformat(said["expires"]) - datetime.fromisoformat(said["utc"])
    assert waits.total_seconds() == 5
    assert said["label"] is None  # names only where asked for
    assert {field.name for field in fields(Event)} | {"nonce", "expires"} == set(said)
    with listening(broker, "lclrr-edge/#") as late:
        first = [late.heard.get(timeout=30) for _ in range(2)]
        assert sorted(topic for topic, _, _ in first) == [CAMERA, STATE]  # and no event
        assert late.heard.empty()


def test_names_are_told_where_asked_for(broker: Broker) -> None:
    with listening(broker) as ear, closing(open_sink(broker.settings(names=True))) as sink:
        sink(told(label="Zoë"))
        assert json.loads(ear.next(EVENT))["label"] == "Zoë"


def test_only_grants_have_power(broker: Broker) -> None:
    with listening(broker, EVENT) as ear, closing(open_sink(broker.settings())) as sink:
        for event in (told(outcome="denied"), notice("start", now=1, utc=NOON, outcome="granted")):
            sink(event)
            said = json.loads(ear.next(EVENT))
            assert (said["nonce"], said["expires"]) == (None, None)


def test_state_and_camera_are_retained_and_the_end_is_told(broker: Broker) -> None:
    with listening(broker, STATE, CAMERA) as ear:
        sink = open_sink(broker.settings())
        assert ear.next(STATE) == "online"
        sink(notice("camera", outcome="lost", now=1, utc=NOON))
        assert ear.next(CAMERA) == "OFF"
        sink(notice("camera", outcome="back", now=2, utc=NOON))
        assert ear.next(CAMERA) == "ON"
        sink.close()
        assert ear.next(STATE) == "offline"
    with listening(broker, STATE) as late:
        assert late.heard.get(timeout=30) == (STATE, "offline", True)


def test_the_broker_tells_when_the_terminal_vanishes(broker: Broker) -> None:
    with listening(broker, STATE) as ear:
        sink = open_sink(broker.settings())
        assert ear.next(STATE) == "online"
        until(lambda: sink.connected)
        assert sink._line is not None
        connection = sink._line._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)  # as when the power fails: no farewell
        assert ear.next(STATE) == "offline"
        assert ear.next(STATE) == "online"  # and back by itself, without any event
        sink.close()


def test_a_terminal_that_was_killed_is_offline_for_whoever_comes_later(broker: Broker) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from edge.sinks.mqtt import MqttSettings, open_sink\n"
        "port, folder = int(sys.argv[1]), Path(sys.argv[2])\n"
        "open_sink(MqttSettings(host='127.0.0.1', port=port, terminal='north', user='terminal',\n"
        "                       password_file=folder / 'password', ca_file=folder / 'ca.pem'))\n"
        "time.sleep(60)\n"
    )
    with listening(broker, STATE) as ear:
        terminal = subprocess.Popen([sys.executable, "-c", script, str(broker.port), str(broker.folder)])
        try:
            assert ear.next(STATE) == "online"
        finally:
            terminal.kill()
            terminal.wait(30)
        assert ear.next(STATE) == "offline"
    with listening(broker, STATE) as late:
        assert late.heard.get(timeout=30) == (STATE, "offline", True)


@pytest.mark.parametrize("kill", [False, True])
def test_what_was_taken_in_arrives_past_a_restart_of_the_broker(broker: Broker, kill: bool) -> None:
    events = [told(outcome="denied", visit=number) for number in range(50)]
    with listening(broker, EVENT, name="ear") as ear, closing(open_sink(broker.settings(waiting=50))) as sink:
        for event in events[:10]:
            sink(event)
        until(lambda: sink.delivered >= 5)  # some are acknowledged, one may be under way, some wait
        broker.stop(kill=kill)
        for event in events[10:]:
            sink(event)
        acknowledged = sink.delivered
        broker.start()
        until(lambda: sink.delivered == 50)
        heard: list[str] = []
        while events[-1].event_id not in heard:
            heard.append(json.loads(ear.next(EVENT))["event_id"])
    first_of_each = list(dict.fromkeys(heard))  # at least once: the one under way may come twice
    # What a broker acknowledged and then was killed with is not ours to send again.
    lost = acknowledged + 1 if kill else 0
    assert first_of_each[-(50 - lost) :] == ids(events)[lost:]
    assert sink.dropped == sink.failed == 0


def test_a_line_that_goes_dead_without_a_word_is_replaced(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.sinks.mqtt.ANSWER_SECONDS", 0.3)
    wire = Wire(broker.port)
    with listening(broker, EVENT) as ear, closing(Mqtt(broker.settings(port=wire.port), pause_seconds=0.1)) as sink:
        until(lambda: sink.connected)
        wire.cut = True
        events = [told(outcome="denied"), told(outcome="denied")]
        for event in events:
            sink(event)
        until(lambda: sink.retried > 0)
        wire.cut = False
        assert [json.loads(ear.next(EVENT))["event_id"] for _ in events] == ids(events)
    wire.close()


def test_a_line_that_was_closed_leaves_nothing_open(broker: Broker) -> None:
    settings = broker.settings()
    gc.collect()
    gc.disable()  # which would hide it, sooner or later
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            _Line(settings, *credentials(settings)).close()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_the_queue_is_bounded_and_keeps_what_it_took(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    events = [told(outcome="denied") for _ in range(7)]
    sink = open_sink(broker.settings(waiting=5))  # nobody is there yet
    for event in events:
        sink(event)
    assert (sink.dropped, sink.waiting) == (2, 5)
    broker.start()
    try:
        with listening(broker, EVENT, name="sleeper") as ear:
            until(lambda: sink.delivered == 5)
            assert [json.loads(ear.next(EVENT))["event_id"] for _ in range(5)] == ids(events[:5])
        sink.close()
    finally:
        broker.stop(kill=True)


def test_a_grant_that_could_not_be_sent_in_time_opens_nothing(broker: Broker) -> None:
    now = [100.0]
    with listening(broker, EVENT, name="ear") as ear:
        broker.stop()
        with closing(Mqtt(broker.settings(), clock=lambda: now[0], pause_seconds=0.1)) as sink:
            sink(told())
            until(lambda: sink.retried > 0)
            now[0] += 5.0
            broker.start()
            late = json.loads(ear.next(EVENT))
            assert (late["outcome"], late["nonce"]) == ("expired", None)
            assert ear.expiries == [None]
            sink(told())
            assert json.loads(ear.next(EVENT))["outcome"] == "granted"


def test_the_broker_is_told_when_to_forget_a_grant_that_nobody_fetched(broker: Broker) -> None:
    with listening(broker, EVENT) as ear, closing(open_sink(broker.settings(grant_seconds=59.5))) as sink:
        for event in (told(), told(outcome="denied")):
            sink(event)
            ear.next(EVENT)
    grant, denial = ear.expiries
    assert grant is not None
    assert 30 <= grant <= 60  # whole seconds, of which some may have passed
    assert denial is None


def test_home_assistant_finds_camera_and_decisions(broker: Broker) -> None:
    with closing(open_sink(broker.settings())) as sink:
        until(lambda: sink.connected)
        with listening(broker, "homeassistant/#") as ear:
            found = {}
            for _ in range(2):
                topic, payload, retained = ear.heard.get(timeout=30)
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


def test_the_template_gives_home_assistant_what_it_wants() -> None:
    (decision,) = (config for topic, config in discovery(MqttSettings(host="h", names=True)).items() if "/event/" in topic)
    template = jinja2.Template(decision["value_template"])
    granted = json.loads(told(label='Zoë "Z"').to_json()) | {"nonce": "n", "expires": "e"}
    said = json.loads(template.render(value_json=granted))
    assert (said["event_type"], said["label"], said["nonce"]) == ("granted", 'Zoë "Z"', "n")
    assert template.render(value_json=json.loads(notice("start", now=1, utc=NOON).to_json())) == ""


def test_a_client_certificate_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    broker = Broker(tmp_path, client_certificates=True)
    broker.start()
    try:
        own = {"cert_file": tmp_path / "client.pem", "key_file": tmp_path / "client.key"}
        with listening(broker, EVENT) as ear, closing(open_sink(broker.settings(**own))) as sink:
            sink(told())
            assert ear.next(EVENT)
        with closing(open_sink(broker.settings())) as sink:
            sink(told())
            until(lambda: sink.retried > 0)
            assert sink.delivered == 0
    finally:
        broker.stop(kill=True)


@pytest.mark.parametrize("fault", ["password", "ca", "name"])
def test_nothing_is_told_to_or_by_the_wrong_one(broker: Broker, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    other = broker.folder / "other"
    other.mkdir()
    Broker(other)  # for its certificates
    (other / "password").write_text("guessed\n")
    wrong: dict[str, dict[str, Any]] = {
        "password": {"password_file": other / "password"},
        "ca": {"ca_file": other / "ca.pem"},
        "name": {"host": "localhost"},  # the certificate is for 127.0.0.1
    }
    with closing(open_sink(broker.settings(**wrong[fault]))) as sink:
        sink(told(label="a-secret-name"))
        until(lambda: sink.retried > 0)
        assert (sink.delivered, sink.connected, sink.waiting) == (0, False, 1)
    assert sink.dropped == 1
    assert "correct horse" not in caplog.text
    assert "guessed" not in caplog.text
    assert "a-secret-name" not in caplog.text


def test_what_the_broker_refuses_is_not_offered_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "rights").write_text("user terminal\ntopic write lclrr-edge/north/state\n")
    broker.start()
    try:
        with closing(open_sink(broker.settings())) as sink:
            sink(told())
            until(lambda: sink.failed == 1)
            assert sink.waiting == 0
    finally:
        broker.stop(kill=True)
    assert "Not authorized" in caplog.text


def test_a_broker_that_accepts_and_says_nothing_delays_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sink = open_sink(MqttSettings(host="127.0.0.1", port=mute.getsockname()[1], tls=False))
        for _ in range(150):
            sink(told())  # would never return if it waited
        assert sink.dropped == 50
        sink.close(0.1)
    assert sink.dropped == 150


def test_the_password_on_an_open_line_is_warned_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOOR_PASSWORD", "correct horse")
    caplog.set_level(logging.WARNING)
    settings = MqttSettings(host="127.0.0.1", port=free_port(), tls=False, user="terminal", password_env="DOOR_PASSWORD")
    open_sink(settings).close(0.1)
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
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        MqttSettings(**{"host": "broker"} | wrong)


def test_files_that_are_not_there_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="certificates"):
        open_sink(MqttSettings(host="h", ca_file=tmp_path / "none.pem"))
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(SinkError, match="certificates"):
        open_sink(MqttSettings(host="h", ca_file=tmp_path / "no.pem"))
    with pytest.raises(SettingsError):
        open_sink(MqttSettings(host="h", user="u", password_file=tmp_path / "none"))
