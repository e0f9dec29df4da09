"""The relay, on gpiozero's mock pins: off first, on after a grant, and off again whatever happens."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gpiozero
import pytest
from gpiozero.pins.mock import MockFactory

from edge.errors import ParameterError, SinkError
from edge.events.event import notice
from edge.sinks.gpio import GpioSettings, Relay, open_sink
from tests.edge.events.test_event import NOON, told
from tests.fakes.mqtt_broker import until


@pytest.fixture(autouse=True)
def pins() -> Iterator[MockFactory]:
    before = gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = MockFactory()
    yield gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = before


class Scripted:
    """A device whose every move is told to `moves`; some may fail."""

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
def test_the_pin_is_off_then_on_for_the_grant_then_off(pins: MockFactory, active_high: bool) -> None:
    pin = pins.pin(17)
    with closing(open_sink(GpioSettings(pin=17, seconds=1.0, active_high=active_high))) as relay:
        assert pin.function == "output"
        assert all(bool(state.state) != active_high for state in pin.states[1:])  # the first is of a pin that drives nothing
        assert bool(pin.state) != active_high
        relay(told())
        until(lambda: relay.delivered == 1 and bool(pin.state) != active_high)
        assert [bool(state.state) for state in pin.states][-3:] == [not active_high, active_high, not active_high]
        assert pin.states[-1].timestamp > 0.1  # since the state before; counted from the grant it is a second


def test_only_grants_move_it() -> None:
    device = Scripted()
    relay = Relay(device, 60)
    for event in (told(outcome="denied"), notice("start", outcome="granted", now=1, utc=NOON)):
        relay(event)
    relay.close()
    assert [device.next(), device.next()] == ["off", "close"]


def test_another_grant_extends_and_never_shortens() -> None:
    now = [0.0]
    device = Scripted()
    relay = Relay(device, 60, clock=lambda: now[0])
    relay(told())
    assert device.next() == "on"
    now[0] = 59.0
    relay(told())
    assert device.next() == "on"
    now[0] = 61.0  # past the end of the first
    relay(told())
    assert device.next() == "on"  # and not off before
    now[0] = 122.0
    relay._asked.put(-1e9)  # wakes it up, asks for nothing
    assert device.next() == "off"
    relay.close()


def test_a_grant_that_waited_for_too_long_opens_nothing() -> None:
    now = [100.0]
    device = Scripted()
    relay = Relay(device, 3, clock=lambda: now[0])
    relay._asked.put(96.9)
    until(lambda: relay.failed == 1)
    relay.close()
    assert device.next() == "off"


def test_the_end_switches_off_at_once() -> None:
    device = Scripted()
    relay = Relay(device, 60)
    relay(told())
    assert device.next() == "on"
    relay.close()
    assert [device.next(), device.next()] == ["off", "close"]


def test_what_fails_is_counted_and_off_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    device = Scripted(on=1, off=1)
    relay = Relay(device, 1.0)
    relay(told())
    assert [device.next() for _ in range(3)] == ["on", "off", "off"]
    relay(told())
    assert [device.next() for _ in range(2)] == ["on", "off"]
    relay.close()
    assert (relay.delivered, relay.failed) == (1, 2)
    assert "does not obey" in caplog.text


def test_a_pin_that_hangs_delays_nobody() -> None:
    hang: queue.SimpleQueue[None] = queue.SimpleQueue()

    class Stuck(Scripted):
        def on(self) -> None:
            self.moves.put("on")
            hang.get(timeout=30)

    device = Stuck()
    relay = Relay(device, 60)
    relay(told())
    assert device.next() == "on"
    for _ in range(10):
        relay(told())  # would never return if it waited
    assert relay.dropped == 2
    relay.close(0.01)
    for _ in range(20):
        hang.put(None)


def test_a_signal_leaves_it_off() -> None:
    """The terminal's own way to end: SIGTERM ends the loop, and what was opened is closed."""
    script = (
        "import signal, sys, threading\n"
        "from contextlib import closing\n"
        "import gpiozero\n"
        "from gpiozero.pins.mock import MockFactory\n"
        "from edge.sinks.gpio import GpioSettings, open_sink\n"
        "from tests.edge.events.test_event import told\n"
        "pins = gpiozero.Device.pin_factory = MockFactory()\n"
        "stop = threading.Event()\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.set())\n"
        "with closing(open_sink(GpioSettings(pin=17, seconds=60.0))) as relay:\n"
        "    relay(told())\n"
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


def test_a_pin_that_cannot_be_used_is_refused() -> None:
    with closing(open_sink(GpioSettings(pin=17))), pytest.raises(SinkError, match="GPIO 17"):
        open_sink(GpioSettings(pin=17))


@pytest.mark.parametrize("wrong", [{"pin": -1}, {"pin": 64}, {"seconds": 0.0}, {"seconds": float("nan")}, {"seconds": 61.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        GpioSettings(**{"pin": 17} | wrong)
