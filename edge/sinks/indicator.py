"""An RGB LED and a buzzer on pins of the device, for the visitor. Needs gpiozero.

What they show is in edge.sinks.signals. A door controller (edge.osdp) may command both; its commands come first while it is
connected.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge.clock import boottime
from edge.errors import require
from edge.events.event import Event
from edge.events.sink import Sink, SinkHealth
from edge.events.view import Guidance, View, Viewer
from edge.events.worker import Worker
from edge.pins import check_pin, open_pin
from edge.sinks.signals import BuzzerCommand, Colour, Commanded, Display, LedCommand, Signal

STEP_SECONDS = 0.05
"""Time between two looks at the patterns."""

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class IndicatorSettings:
    """An RGB LED and a buzzer on pins of the device, for the visitor."""

    red_pin: int | None = None
    """BCM number of the red part of the LED. All three are needed, or none."""
    green_pin: int | None = None
    """BCM number of the green part."""
    blue_pin: int | None = None
    """BCM number of the blue part."""
    led_active_high: bool = True
    """Whether a part is on when its pin is high. An LED with a common anode needs false."""
    brightness: float = 1.0
    """Brightness of the LED, above 0. Less than 1 needs pulses (PWM) on these pins."""
    buzzer_pin: int | None = None
    """BCM number of the buzzer."""
    buzzer_active_high: bool = True
    """Whether the buzzer is on when its pin is high."""
    buzzer_hz: int | None = None
    """Frequency for a buzzer that makes no tone by itself (not set: it makes one)."""

    def __post_init__(self) -> None:
        for name, pin in (("red_pin", self.red_pin), ("green_pin", self.green_pin), ("blue_pin", self.blue_pin)):
            check_pin(name, pin)
        check_pin("buzzer_pin", self.buzzer_pin)
        require(len(self.led_pins) in (0, 3), "red_pin, green_pin and blue_pin must be set together")
        require(bool(self.pins), "the pins of the LED or buzzer_pin must be set")
        require(len(set(self.pins)) == len(self.pins), "LED and buzzer cannot use the same pin twice")
        require(0 < self.brightness <= 1, f"brightness must be more than 0 and at most 1, not {self.brightness:g}")
        hz = self.buzzer_hz
        require(hz is None or 50 <= hz <= 10_000, f"buzzer_hz must be between 50 and 10000, not {hz}")
        require(hz is None or self.buzzer_pin is not None, "buzzer_hz needs buzzer_pin")

    @property
    def led_pins(self) -> list[int]:
        return [pin for pin in (self.red_pin, self.green_pin, self.blue_pin) if pin is not None]

    @property
    def pins(self) -> list[int]:
        """All pins that are used."""
        return [*self.led_pins, *([] if self.buzzer_pin is None else [self.buzzer_pin])]


class Output(Generic[T]):
    """Writes a value to a device when it changes. A device that fails is logged once, and tried again at the next change."""

    def __init__(self, name: str, write: Callable[[T], None]) -> None:
        self._name, self._write = name, write
        self._written: T | None = None
        self.failures = 0

    def show(self, value: T) -> None:
        if value == self._written:
            return
        self._written = value
        try:
            self._write(value)
        except Exception:
            self.failures += 1
            if self.failures == 1:
                log.exception("%s does not work", self._name)


class Indicator(Sink, Viewer):
    """Shows the visitor the state of the terminal. A pin that hangs or fails delays no frame and stops nothing.

    It is a sink for decisions, prompts and alarms, and a viewer, because a face that is only seen is not an event.
    """

    def __init__(
        self,
        *,
        light: Callable[[Colour], None] | None = None,
        sound: Callable[[bool], None] | None = None,
        close: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`light` and `sound` switch the devices that exist; `close` releases their pins."""
        self.has_light, self.has_sound = light is not None, sound is not None
        self._light: Output[Colour] = Output("the LED", light or (lambda colour: None))
        self._sound: Output[bool] = Output("the buzzer", sound or (lambda tone: None))
        self._display, self._commanded = Display(), Commanded()
        self._guidance: list[Guidance] = []
        self._release_pins, self._clock = close, clock
        self._worker = Worker[Callable[[float], None]](
            self._change, name="the indicator", idle=self._refresh, finish=self._end, clock=clock
        )

    def handle(self, event: Event) -> None:
        """Show what an event means, if it means something to a visitor."""
        self._worker.handle(lambda now: self._set(display=self._display.after(event, now)))

    def show(self, view: View) -> None:
        """Show that a face is seen. Only a change costs more than a comparison."""
        guidance = [mark.guidance for mark in view.marks]
        if guidance != self._guidance:
            self._guidance = guidance
            self._worker.handle(lambda now: self._set(display=self._display.after_faces(guidance, now)))

    def obey_led(self, command: LedCommand) -> None:
        """Take a command of the door controller."""
        self._worker.handle(lambda now: self._set(commanded=self._commanded.after_led(command, now)))

    def obey_buzzer(self, command: BuzzerCommand) -> None:
        """Take a command of the door controller."""
        self._worker.handle(lambda now: self._set(commanded=self._commanded.after_buzzer(command, now)))

    def forget_commands(self) -> None:
        """Show the own patterns again: the door controller is not connected any more."""
        self._worker.handle(lambda now: self._set(commanded=Commanded()))

    def close(self) -> None:
        """Switch off, and release the pins."""
        self._worker.close()

    def health(self) -> SinkHealth:
        return SinkHealth(failed=self._light.failures + self._sound.failures, dropped=self._worker.health().dropped)

    def _set(self, *, display: Display | None = None, commanded: Commanded | None = None) -> None:
        self._display, self._commanded = display or self._display, commanded or self._commanded

    def _change(self, change: Callable[[float], None]) -> None:
        change(self._clock() - self._worker.waited_seconds())
        self._refresh()

    def _refresh(self) -> float:
        now = self._clock()
        self._write(self._commanded.over(self._display.at(now), now))
        return STEP_SECONDS

    def _write(self, signal: Signal) -> None:
        self._light.show(signal.colour)
        self._sound.show(signal.tone)

    def _end(self) -> None:
        self._write(Signal())
        self._release_pins()


def open_sink(settings: IndicatorSettings) -> Indicator:
    """Open the pins of the settings. Everything is off until the terminal starts."""
    with ExitStack() as stack:
        light = _open_led(settings, stack) if settings.led_pins else None
        sound = None if settings.buzzer_pin is None else _open_buzzer(settings, settings.buzzer_pin, stack)
        return Indicator(light=light, sound=sound, close=stack.pop_all().close)


def _open_led(settings: IndicatorSettings, stack: ExitStack) -> Callable[[Colour], None]:
    device = open_pin(
        "An LED",
        settings.led_pins[0],
        lambda gpiozero: gpiozero.RGBLED(
            *settings.led_pins, active_high=settings.led_active_high, pwm=settings.brightness < 1
        ),
    )
    stack.callback(device.close)

    def light(colour: Colour) -> None:
        device.value = tuple(part * settings.brightness for part in colour.value)

    return light


def _open_buzzer(settings: IndicatorSettings, pin: int, stack: ExitStack) -> Callable[[bool], None]:
    hz, active_high = settings.buzzer_hz, settings.buzzer_active_high
    if hz is None:
        device = open_pin("A buzzer", pin, lambda gpiozero: gpiozero.DigitalOutputDevice(pin, active_high=active_high))
    else:
        device = open_pin(
            "A buzzer", pin, lambda gpiozero: gpiozero.PWMOutputDevice(pin, active_high=active_high, frequency=hz)
        )
    stack.callback(device.close)
    loud = 1 if hz is None else 0.5  # half of the time high: the loudest tone

    def sound(is_on: bool) -> None:
        device.value = loud if is_on else 0

    return sound
