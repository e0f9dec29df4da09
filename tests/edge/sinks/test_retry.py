"""The retry sink: in order, bounded, never blocking. And packages that may be missing."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.events.event import Event
from edge.events.worker import DeliveryError
from edge.sinks.retry import RetrySink, TemporaryError, message
from tests.fakes.sinks import Barrier
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until


class ScriptedReceiver:
    """Raises the `problems` in turn (None: takes the event), then takes everything."""

    def __init__(self, *problems: Exception | None) -> None:
        self.problems, self.taken, self.disconnected = list(problems), list[Event](), False

    def send(self, event: Event, age_seconds: float) -> None:
        problem = self.problems.pop(0) if self.problems else None
        if problem is not None:
            raise problem
        self.taken.append(event)

    def disconnect(self) -> None:
        self.disconnected = True


def retrying(receiver: ScriptedReceiver, **options: Any) -> RetrySink:
    usual: dict[str, Any] = {"capacity": 100, "pause_seconds": 0.001, "close_seconds": 30.0, "finish": receiver.disconnect}
    return RetrySink(receiver.send, name="the receiver", **usual | options)


def test_events_arrive_once_and_in_order_despite_failures() -> None:
    receiver = ScriptedReceiver(TemporaryError("away"), None, TemporaryError("away"), TemporaryError("still"))
    events = [make_event() for _ in range(5)]
    sink = retrying(receiver)
    for event in events:
        sink.handle(event)
    until(lambda: sink.health().delivered == 5)
    sink.close()
    assert receiver.taken == events
    assert receiver.disconnected
    assert (sink.health().retried, sink.health().failed, sink.health().dropped) == (3, 0, 0)


@pytest.mark.parametrize("problem", [DeliveryError("never"), RuntimeError("a bug")])
def test_rejected_event_does_not_stop_the_next(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    receiver = ScriptedReceiver(problem)
    events = [make_event(label="a-secret-name"), make_event()]
    sink = retrying(receiver)
    for event in events:
        sink.handle(event)
    until(lambda: sink.health().delivered == 1)
    sink.close()
    assert (receiver.taken, sink.health().failed) == (events[1:], 1)
    assert str(problem) in caplog.text
    assert "a-secret-name" not in caplog.text


def test_event_is_not_repeated_for_ever() -> None:
    now = [0.0]
    sink = retrying(ScriptedReceiver(*[TemporaryError("away")] * 100_000), clock=lambda: now[0], keep_seconds=60.0)
    sink.handle(make_event())
    until(lambda: sink.health().retried >= 1)
    now[0] = 61.0
    until(lambda: sink.health().failed == 1)
    sink.close()
    assert (sink.health().delivered, sink.health().waiting) == (0, 0)


def test_pauses_double_to_a_limit_and_start_again_after_a_success() -> None:
    receiver = ScriptedReceiver()
    sink = retrying(receiver, pause_seconds=3.0, jitter=lambda: 0.5)
    sink.close()
    receiver.problems = [TemporaryError("away")] * 4
    pauses = [sink._send(make_event()) for _ in range(5)]
    assert pauses == [0.375, 0.75, 1.5, 2.25, None]  # three quarters of 0.5, 1, 2, 3
    receiver.problems = [TemporaryError("away")]
    assert sink._send(make_event()) == 0.375


@pytest.mark.parametrize("offline", [True, False])
def test_close_delivers_once_and_drops_the_rest(offline: bool, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    class Gated(ScriptedReceiver):
        def send(self, event: Event, age_seconds: float) -> None:
            gate.wait(30)
            if offline:
                raise TemporaryError("away")

    sink = retrying(Gated(), pause_seconds=3600.0)
    for _ in range(3):
        sink.handle(make_event())
    gate.set()
    sink.close()
    assert (sink.health().delivered, sink.health().dropped) == ((0, 3) if offline else (3, 0))
    assert ("the last 3 items were not delivered" in caplog.text) == offline


def test_hanging_receiver_does_not_delay_the_end() -> None:
    barrier = Barrier()

    class Hanging(ScriptedReceiver):
        def send(self, event: Event, age_seconds: float) -> None:
            barrier(event)

    sink = retrying(Hanging(), close_seconds=0.01)
    sink.handle(make_event())
    assert barrier.entered.wait(30)
    sink.close()  # would block here
    assert sink.health().dropped == 1
    barrier.opened.set()


@given(age=st.floats(0, 100), seconds=st.floats(0.1, 60), names=st.booleans(), granted=st.booleans())
def test_only_a_grant_in_time_has_a_nonce(age: float, seconds: float, names: bool, granted: bool) -> None:
    event = make_event(outcome="granted" if granted else "denied")
    fields = message(event, age_seconds=age, grant_seconds=seconds, names=names)
    is_valid = granted and age < seconds
    assert (fields["outcome"] == "granted") == is_valid
    assert fields["nonce"] == (event.event_id if is_valid else None)
    assert fields["label"] == ("anna" if names else None)
    assert (fields["expires"] is None) == (not granted)
    if granted:
        lifetime = datetime.fromisoformat(fields["expires"]) - datetime.fromisoformat(event.utc)
        assert abs(lifetime.total_seconds() - seconds) < 0.002


@pytest.mark.slow
def test_no_sink_imports_a_package_that_may_be_missing() -> None:
    script = (
        "import sys, edge.audit.gate, edge.audit.report, edge.audit.crypto\n"
        "import edge.sinks.gpio, edge.sinks.mqtt, edge.sinks.webhook\n"
        "sys.exit(' '.join({'paho', 'gpiozero', 'cryptography', 'typer'} & set(sys.modules)) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_missing_package_is_named_with_the_extra_to_install() -> None:
    script = (
        "import sys\n"
        "from edge.audit.crypto import *; from edge.errors import SinkError\n"
        "from edge.sinks import gpio, mqtt\n"
        "calls = {'paho': lambda: mqtt.open_sink(mqtt.MqttSettings(host='h')),\n"
        "         'gpiozero': lambda: gpio.open_sink(gpio.GpioSettings(pin=17)),\n"
        "         'cryptography': lambda: Seal(b'')}\n"
        "for package, call in calls.items():\n"
        "    sys.modules[package] = None\n"
        "    try: call()\n"
        "    except SinkError as error: print(error.exit_code, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("39 ") and "Install lclrr-edge[" in line for line in lines)
