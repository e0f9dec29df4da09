"""A relay on a pin of the device: on for some seconds after each grant, off at all other times. Needs gpiozero."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from edge.clock import boottime
from edge.errors import SinkError, require
from edge.events.event import Event
from edge.events.worker import DeliveryError, Worker


@dataclass(frozen=True, kw_only=True)
class GpioSettings:
    """A relay on a pin of the device."""

    pin: int
    """Its BCM number: 17 is GPIO17."""
    seconds: float = 3.0
    """How long the relay is on after a grant. Another grant extends the time."""
    active_high: bool = True
    """Whether the relay is on when the pin is high. Many relay boards need false."""

    def __post_init__(self) -> None:
        require(0 <= self.pin <= 63, f"pin must be a BCM number from 0 to 63, not {self.pin}")
        require(0.05 <= self.seconds <= 60, f"seconds must be between 0.05 and 60, not {self.seconds:g}")


class OutputDevice(Protocol):
    """The part of gpiozero.OutputDevice that a relay needs."""

    def on(self) -> None: ...
    def off(self) -> None: ...
    def close(self) -> None: ...


def open_sink(settings: GpioSettings) -> "Relay":
    """Return the relay, switched off."""
    try:
        import gpiozero
    except ImportError:
        raise SinkError("A relay needs the package gpiozero.", "Run `pip install gpiozero lgpio`.") from None
    try:
        device = gpiozero.OutputDevice(settings.pin, active_high=settings.active_high, initial_value=False)
    except (gpiozero.GPIOZeroError, OSError, RuntimeError) as error:
        raise SinkError(
            f"GPIO {settings.pin} cannot be used ({type(error).__name__}).",
            "Check that this is a Raspberry Pi, that the user is in the group gpio, and that no other program uses the pin.",
        ) from None
    return Relay(device, settings.seconds)


class Relay(Worker[Event]):
    """A sink that switches a relay on for `seconds` after each grant. A pin that hangs delays no frame."""

    def __init__(self, device: OutputDevice, seconds: float, *, clock: Callable[[], float] = boottime) -> None:
        self._device, self._seconds = device, seconds
        self._is_on, self._until = False, -math.inf
        super().__init__(
            self._switch_on,
            name="the relay",
            accepts=lambda event: event.grants,
            capacity=8,
            idle=self._switch_off_in_time,
            finish=self._end,
            clock=clock,
        )

    def _switch_on(self, _: Event) -> None:
        left = self._seconds - self.waited_seconds()
        if left <= 0:
            raise DeliveryError("a grant waited too long: another person may stand at the door")
        self._until = self._clock() + left
        self._is_on = True  # before the call: a relay that failed halfway is switched off too
        self._device.on()

    def _switch_off_in_time(self) -> float | None:
        left = self._until - self._clock()
        if self._is_on and left <= 0:
            self._device.off()  # after an error the worker calls again
            self._is_on = False
        return left if self._is_on else None

    def _end(self) -> None:
        with closing(self._device):
            self._device.off()
