"""The relay on gpiozero's mock pins: off at first, on after a grant, and off again in every case."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gpiozero
import pytest
from gpiozero.pins.mock import MockFactory

from edge.errors import ParameterError, SinkError
from edge.events.event import notice
from edge.sinks.gpio import GpioSettings, Relay, open_sink
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until


@pytest.fixture(autouse=True)
def pins() -> Iterator[MockFactory]:
    before = gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = MockFactory()
    yield gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = before


class Scripted:
    """A device that records its calls in `moves`. `faults` says how many calls of a name fail."""

    def __init__(self, **faults: int) -> None:
        self.moves: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        def move() -> None:
            self.moves.put(name)
            if self.faults.get(name, 0) > 0:
                self.faults[name] -= 1
                raise OSError("no such line")

        return move

    def next(self) -> str:
        return self.moves.get(timeout=30)


@pytest.mark.parametrize("active_high", [True, False])
def test_pin_is_off_then_on_for_the_grant_then_off(pins: MockFactory, active_high: bool) -> None:
    pin = pins.pin(17)
    with closing(open_sink(GpioSettings(pin=17, seconds=0.5, active_high=active_high))) as relay:
        assert pin.function == "output"
        assert all(
            bool(state.state) != active_high for state in pin.states[1:]
        )  # the first state is before the pin became an output
        assert bool(pin.state) != active_high
        relay.handle(make_event())
        until(lambda: relay.health().delivered == 1 and bool(pin.state) != active_high)
        assert [bool(state.state) for state in pin.states][-3:] == [not active_high, active_high, not active_high]
        assert pin.states[-1].timestamp > 0.1  # seconds since the state before


def test_only_grants_switch_the_relay() -> None:
    device = Scripted()
    relay = Relay(device, 60)
    for event in (
        make_event(outcome="denied"),
        notice("start", outcome="granted", now=1, utc=NOON),
        notice("input", outcome="exit requested", now=1, utc=NOON),
    ):
        relay.handle(event)
    relay.close()
    assert [device.next(), device.next()] == ["off", "close"]


def test_another_grant_extends_the_time() -> None:
    now = [0.0]
    device = Scripted()
    relay = Relay(device, 60, clock=lambda: now[0])
    relay.handle(make_event())
    assert device.next() == "on"
    now[0] = 59.0
    relay.handle(make_event())
    assert device.next() == "on"
    now[0] = 61.0  # after the end of the first grant
    relay.handle(make_event())
    assert device.next() == "on"  # not off before
    assert relay._switch_off_in_time() == 60.0
    now[0] = 122.0
    assert relay._switch_off_in_time() is None
    assert device.next() == "off"
    relay.close()


def test_grant_that_waited_too_long_opens_nothing() -> None:
    now, entered, opened = [100.0], threading.Event(), threading.Event()

    class Slow(Scripted):
        def on(self) -> None:
            self.moves.put("on")
            entered.set()
            opened.wait(30)

    device = Slow()
    relay = Relay(device, 3, clock=lambda: now[0])
    relay.handle(make_event())
    assert entered.wait(30)
    relay.handle(make_event())  # waits behind the first
    now[0] = 103.1
    opened.set()
    until(lambda: relay.health().failed == 1)
    relay.close()
    assert [device.next(), device.next()] == ["on", "off"]


def test_close_switches_off_at_once() -> None:
    device = Scripted()
    relay = Relay(device, 60)
    relay.handle(make_event())
    assert device.next() == "on"
    relay.close()
    assert [device.next(), device.next()] == ["off", "close"]


def test_failures_are_counted_and_off_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    device = Scripted(on=1, off=1)
    relay = Relay(device, 0.2)
    relay.handle(make_event())
    assert [device.next() for _ in range(3)] == ["on", "off", "off"]
    relay.handle(make_event())
    assert [device.next() for _ in range(2)] == ["on", "off"]
    relay.close()
    assert (relay.health().delivered, relay.health().failed) == (1, 2)
    assert "no such line" in caplog.text


def test_hanging_pin_never_blocks_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    hang: queue.SimpleQueue[None] = queue.SimpleQueue()

    class Stuck(Scripted):
        def on(self) -> None:
            self.moves.put("on")
            hang.get(timeout=30)

    device = Stuck()
    relay = Relay(device, 60)
    relay.handle(make_event())
    assert device.next() == "on"
    for _ in range(10):
        relay.handle(make_event())  # would block here
    assert relay.health().dropped == 3
    monkeypatch.setattr(relay, "_close_seconds", 0.01)
    relay.close()
    for _ in range(20):
        hang.put(None)


@pytest.mark.slow
def test_relay_is_off_after_sigterm() -> None:
    """As in the terminal: SIGTERM ends the loop, and the relay is closed."""
    script = (
        "import signal, sys, threading\n"
        "from contextlib import closing\n"
        "import gpiozero\n"
        "from gpiozero.pins.mock import MockFactory\n"
        "from edge.sinks.gpio import GpioSettings, open_sink\n"
        "from tests.fixtures.events import make_event\n"
        "pins = gpiozero.Device.pin_factory = MockFactory()\n"
        "stop = threading.Event()\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.set())\n"
        "with closing(open_sink(GpioSettings(pin=17, seconds=60.0))) as relay:\n"
        "    relay.handle(make_event())\n"
        "    while not pins.pin(17).state: pass\n"
        "    print('on', flush=True)\n"
        "    stop.wait()\n"
        "    states = pins.pin(17).states\n"
        "print([bool(state.state) for state in states][-2:])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "."}
    ) as run:
        assert run.stdout
        assert run.stdout.readline() == "on\n"
        run.send_signal(signal.SIGTERM)
        assert run.stdout.read() == "[True, False]\n"


def test_pin_in_use_is_an_error() -> None:
    with closing(open_sink(GpioSettings(pin=17))), pytest.raises(SinkError, match="GPIO 17"):
        open_sink(GpioSettings(pin=17))


@pytest.mark.parametrize(
    "wrong",
    [
        {"pin": -1},
        {"pin": 64},
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"seconds": 61.0},
        {"seconds_after_open": -0.1},
        {"seconds_after_open": 60.1},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        GpioSettings(**{"pin": 17} | wrong)


# The inputs


def test_open_door_switches_the_relay_off_early() -> None:
    now = [0.0]
    device = Scripted()
    relay = Relay(device, 60, seconds_after_open=1.0, clock=lambda: now[0])
    relay.handle(make_event())
    assert device.next() == "on"
    now[0] = 10.0
    relay.door_opened()
    until(lambda: relay.health().delivered == 2)
    assert relay._switch_off_in_time() == 1.0
    now[0] = 11.1
    assert relay._switch_off_in_time() is None
    assert device.next() == "off"
    relay.close()


def test_open_door_never_extends_the_time_and_switches_nothing_on() -> None:
    now = [0.0]
    device = Scripted()
    relay = Relay(device, 2, seconds_after_open=60, clock=lambda: now[0])
    relay.door_opened()
    relay.handle(make_event())
    assert device.next() == "on"
    relay.door_opened()
    until(lambda: relay.health().delivered == 3)
    assert relay._switch_off_in_time() == 2
    relay.close()
    assert [device.next(), device.next()] == ["off", "close"]


def test_grant_after_the_door_was_opened_has_its_full_time() -> None:
    now = [0.0]
    device = Scripted()
    relay = Relay(device, 60, seconds_after_open=1.0, clock=lambda: now[0])
    relay.door_opened()
    relay.handle(make_event())
    assert device.next() == "on"
    assert relay._switch_off_in_time() == 60
    relay.close()


def test_request_to_exit_switches_the_relay_on() -> None:
    device = Scripted()
    relay = Relay(device, 60)
    relay.open_for_exit()
    assert device.next() == "on"
    relay.close()
    assert [device.next(), device.next()] == ["off", "close"]
