"""Couriers: in order, bounded, never waiting; and what a message says at which age."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.events.event import Event
from edge.sinks import message
from edge.sinks.retry import Courier, Later, Refused
from tests.edge.events.test_event import Gate, told
from tests.fakes.mqtt_broker import until


class Receiver:
    """Raises what `answers` holds, takes where it holds None, and takes everything after."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers, self.taken = list(answers), []  # type: ignore[var-annotated]

    def __call__(self, event: Event, age_seconds: float) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.taken.append(event)


def courier(send: Receiver, waiting: int = 100, **other: object) -> Courier:
    return Courier("them", send, waiting=waiting, pause_seconds=0.001, **other)  # type: ignore[arg-type]


def test_events_arrive_once_and_in_order_whatever_fails() -> None:
    them = Receiver(Later("away"), None, Later("away"), Later("still"))
    events = [told() for _ in range(5)]
    sink = courier(them)
    for event in events:
        sink(event)
    until(lambda: sink.delivered == 5)
    sink.close()
    assert them.taken == events
    assert (sink.retried, sink.failed, sink.dropped) == (3, 0, 0)


@pytest.mark.parametrize("problem", [Refused("never"), RuntimeError("a bug")])
def test_what_is_refused_does_not_hold_up_the_next(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    them = Receiver(problem)
    events = [told(label="a-secret-name"), told()]
    sink = courier(them)
    for event in events:
        sink(event)
    until(lambda: sink.delivered == 1)
    sink.close()
    assert (them.taken, sink.failed) == (events[1:], 1)
    assert str(problem) in caplog.text
    assert "a-secret-name" not in caplog.text


def test_a_full_queue_keeps_what_it_took_and_never_waits() -> None:
    gate = Gate()
    sink = Courier("them", lambda event, age: gate(event), waiting=3)
    events = [told() for _ in range(5)]
    for event in events:
        sink(event)  # would never return if it waited: the gate is shut
    assert (sink.dropped, sink.waiting) == (2, 3)
    gate.opened.set()
    sink.close(30)
    assert gate.seen == events[:3]


def test_an_event_is_not_offered_for_ever() -> None:
    now = [0.0]
    them = Receiver(*[Later("away")] * 100_000)
    sink = courier(them, clock=lambda: now[0], keep_seconds=60.0)
    sink(told())
    until(lambda: sink.retried >= 1)
    now[0] = 61.0
    until(lambda: sink.failed == 1)
    sink.close()
    assert (sink.delivered, sink.waiting) == (0, 0)


def test_a_new_event_ends_a_pause_and_success_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.sinks.retry.FIRST_PAUSE_SECONDS", 3600.0)
    them = Receiver(Later("away"))
    sink = Courier("them", them, waiting=10, pause_seconds=3600.0)
    sink(told())
    until(lambda: sink.retried == 1)
    sink(told())
    until(lambda: sink.delivered == 2)
    sink.close()


def test_pauses_grow_to_a_bound_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sink = Courier("them", Receiver(), waiting=1, pause_seconds=3.0, jitter=lambda: 0.5)
    monkeypatch.setattr(sink._changed, "wait_for", lambda holds, seconds: waits.append(seconds))
    for pauses in (1, 2, 3, 4, 1000):
        sink._wait(pauses)
    monkeypatch.undo()
    sink.close()
    assert waits == [0.375, 0.75, 1.5, 2.25, 2.25]  # three quarters of 0.5, 1, 2, 3, 3


@pytest.mark.parametrize("away", [True, False])
def test_the_end_delivers_what_it_can_and_does_not_wait_for_the_rest(away: bool, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    def send(event: Event, age: float) -> None:
        gate.wait(30)
        if away:
            raise Later("away")

    sink = Courier("them", send, waiting=10, pause_seconds=3600.0)
    for _ in range(3):
        sink(told())
    gate.set()
    sink.close(30)
    assert (sink.delivered, sink.dropped) == ((0, 3) if away else (3, 0))
    assert ("last 3 events" in caplog.text) == away
    sink(told())
    assert sink.dropped == (4 if away else 1)  # after the end


def test_one_that_hangs_does_not_hold_up_the_end() -> None:
    gate = Gate()
    sink = Courier("them", lambda event, age: gate(event), waiting=3)
    sink(told())
    assert gate.entered.wait(30)
    sink.close(0.01)  # would hang here
    assert sink.dropped == 1
    gate.opened.set()


@given(age=st.floats(0, 100), seconds=st.floats(0.1, 60), names=st.booleans(), granted=st.booleans())
def test_a_message_has_power_only_if_it_is_a_grant_in_time(age: float, seconds: float, names: bool, granted: bool) -> None:
    event = told(outcome="granted" if granted else "denied")
    said = message(event, age_seconds=age, grant_seconds=seconds, names=names)
    powerful = granted and age < seconds
    assert (said["outcome"] == "granted") == powerful
    assert said["nonce"] == (event.event_id if powerful else None)
    assert said["label"] == ("anna" if names else None)
    assert (said["expires"] is None) == (not granted)
    if granted:
        life = datetime.fromisoformat(said["expires"]) - datetime.fromisoformat(event.utc)
        assert abs(life.total_seconds() - seconds) < 0.002


def test_no_sink_loads_a_package_that_may_be_missing() -> None:
    script = (
        "import sys, edge.audit.gate, edge.audit.report, edge.audit.crypto, edge.sinks.gpio, edge.sinks.mqtt, edge.sinks.webhook\n"
        "sys.exit(' '.join({'paho', 'gpiozero', 'cryptography', 'typer'} & set(sys.modules)) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("paho", "from edge.sinks.mqtt import *; open_sink(MqttSettings(host='h'))"),
        ("gpiozero", "from edge.sinks.gpio import *; open_sink(GpioSettings(pin=17))"),
        ("cryptography", "from edge.audit.crypto import *; Seal(b'')"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(package: str, call: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from edge.errors import SinkError\n"
        f"try:\n    {call}\nexcept SinkError as error:\n    sys.exit(f'{{error.exit_code}} {{error}}')\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stderr.startswith("39 ")
    assert "Install lclrr-edge[" in run.stderr
