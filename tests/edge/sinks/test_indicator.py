"""LED and buzzer on gpiozero's mock pins."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gpiozero
import numpy as np
import pytest
from gpiozero.pins.mock import MockFactory, MockPWMPin

from edge.camera.base import Frame
from edge.errors import ParameterError, SettingsError, SinkError
from edge.events.event import notice
from edge.events.view import Guidance, Mark, View
from edge.settings import parse
from edge.sinks.indicator import Indicator, IndicatorSettings, open_sink
from edge.sinks.signals import Colour, LedCommand
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until

PINS: dict[str, Any] = {"red_pin": 16, "green_pin": 20, "blue_pin": 21}


@pytest.fixture(autouse=True)
def pins() -> Iterator[MockFactory]:
    before = gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = MockFactory()
    yield gpiozero.Device.pin_factory
    gpiozero.Device.pin_factory = before


def view(*guidance: Guidance) -> View:
    frame = Frame(image=np.zeros((2, 2, 3), np.uint8), captured=1.0, number=1)
    return View(frame=frame, marks=[Mark(box_xyxy=(0, 0, 1, 1), guidance=one) for one in guidance])


@pytest.mark.parametrize("active_high", [True, False])
def test_grant_is_shown_and_heard(pins: MockFactory, active_high: bool) -> None:
    red, green, blue, buzzer = (pins.pin(number) for number in (16, 20, 21, 12))
    chosen = IndicatorSettings(**PINS, led_active_high=active_high, buzzer_pin=12, buzzer_active_high=active_high)
    with closing(open_sink(chosen)) as indicator:
        assert [bool(pin.state) for pin in (red, green, blue, buzzer)] == [not active_high] * 4
        indicator.handle(make_event())
        until(lambda: bool(green.state) == bool(buzzer.state) == active_high)
        assert [bool(pin.state) for pin in (red, blue)] == [not active_high] * 2
        until(lambda: bool(buzzer.state) != active_high)
        assert bool(green.state) == active_high
    assert all(bool(state.state) != active_high for pin in (red, blue) for state in pin.states[1:])


def test_brightness_and_frequency_are_pulses() -> None:
    gpiozero.Device.pin_factory = MockFactory(pin_class=MockPWMPin)
    green, buzzer = (gpiozero.Device.pin_factory.pin(number) for number in (20, 12))
    with closing(open_sink(IndicatorSettings(**PINS, brightness=0.25, buzzer_pin=12, buzzer_hz=2000))) as indicator:
        indicator.handle(make_event())
        until(lambda: (green.state, buzzer.state) == (0.25, 0.5))
        assert buzzer.frequency == 2000


def test_face_is_shown_while_it_is_seen() -> None:
    colours: queue.SimpleQueue[Colour] = queue.SimpleQueue()
    with closing(Indicator(light=colours.put)) as indicator:
        assert colours.get(timeout=30) is Colour.OFF
        indicator.show(view(Guidance.CLOSER))
        assert colours.get(timeout=30) is Colour.WHITE
        indicator.show(view(Guidance.WAIT))
        assert colours.get(timeout=30) is Colour.AMBER
        indicator.show(view())
        assert colours.get(timeout=30) is Colour.OFF


def test_commands_hold_until_they_are_forgotten() -> None:
    colours: queue.SimpleQueue[Colour] = queue.SimpleQueue()
    with closing(Indicator(light=colours.put)) as indicator:
        assert colours.get(timeout=30) is Colour.OFF
        indicator.obey_led(LedCommand(is_temporary=False, on_seconds=1.0, on_colour=Colour.CYAN))
        assert colours.get(timeout=30) is Colour.CYAN
        indicator.handle(make_event())
        indicator.forget_commands()
        assert colours.get(timeout=30) is Colour.GREEN


def test_pin_that_fails_is_counted_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tones: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def light(colour: Colour) -> None:
        raise OSError("no such line")

    with closing(Indicator(light=light, sound=tones.put)) as indicator:
        assert tones.get(timeout=30) is False
        indicator.handle(make_event())
        assert tones.get(timeout=30) is True
        assert indicator.health().failed >= 2
    assert caplog.text.count("the LED does not work") == 1


def test_pin_that_hangs_delays_no_frame() -> None:
    entered, left = queue.SimpleQueue[None](), queue.SimpleQueue[None]()

    def light(colour: Colour) -> None:
        entered.put(None)
        left.get(timeout=30)

    indicator = Indicator(light=light)
    entered.get(timeout=30)
    for number in range(1000):
        indicator.handle(make_event())  # would wait here
        indicator.show(view(Guidance.WAIT if number % 2 else Guidance.STILL))
    assert indicator.health().dropped == 2000 - 256
    for _ in range(300):
        left.put(None)
    indicator.close()


def test_stop_and_close_switch_off(pins: MockFactory) -> None:
    red = pins.pin(16)
    indicator = open_sink(IndicatorSettings(**PINS))
    indicator.handle(make_event(outcome="denied"))
    until(lambda: red.state)
    indicator.handle(notice("stop", now=1, utc=NOON))
    until(lambda: not red.state)
    indicator.handle(make_event(outcome="denied"))
    until(lambda: red.state)
    indicator.close()
    assert not red.state
    open_sink(IndicatorSettings(**PINS)).close()  # the pins are free again


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"red_pin": 16, "green_pin": 20},
        {**PINS, "blue_pin": 16},
        {**PINS, "buzzer_pin": 16},
        {**PINS, "brightness": 0.0},
        {**PINS, "buzzer_hz": 2000},
        {"buzzer_pin": 12, "buzzer_hz": 3},
        {"buzzer_pin": 64},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        IndicatorSettings(**wrong)


@pytest.mark.parametrize("table", ["[gpio]\npin = 12", "[inputs]\ncontact_pin = 12"])
def test_pin_of_another_table_is_refused(table: str) -> None:
    with pytest.raises(SettingsError, match="cannot use the same pin"):
        parse(f"{table}\n[indicator]\nbuzzer_pin = 12\n".encode())


def test_pin_that_cannot_be_opened_is_an_error_and_frees_the_others(pins: MockFactory) -> None:
    taken = gpiozero.DigitalOutputDevice(12)
    with pytest.raises(SinkError, match="GPIO 12 cannot be used"):
        open_sink(IndicatorSettings(**PINS, buzzer_pin=12))
    taken.close()
    open_sink(IndicatorSettings(**PINS, buzzer_pin=12)).close()
