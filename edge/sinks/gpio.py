"""A relay on a pin of the device: on for some seconds after each grant, off at all other times. Needs gpiozero.

The inputs (edge.inputs) may switch it on for a person who leaves, and switch it off early when the door was opened.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from edge.clock import boottime
from edge.errors import require
from edge.events.event import Event
from edge.events.worker import DeliveryError, Worker
from edge.pins import check_pin, open_pin


@dataclass(frozen=True, kw_only=True)
class GpioSettings:
    """A relay on a pin of the device."""

    pin: int
    """Its BCM number: 17 is GPIO17."""
    seconds: float = 3.0
    """How long the relay is on after a grant. Another grant extends the time."""
    active_high: bool = True
    """Whether the relay is on when the pin is high. Many relay boards need false."""
    seconds_after_open: float = 1.0
    """With a door contact in [inputs]: the relay is off so long after the door was opened. 60: never early."""

    def __post_init__(self) -> None:
        check_pin("pin", self.pin)
        require(0.05 <= self.seconds <= 60, f"seconds must be between 0.05 and 60, not {self.seconds:g}")
        early = self.seconds_after_open
        require(0 <= early <= 60, f"seconds_after_open must be between 0 and 60, not {early:g}")


class OutputDevice(Protocol):
    """The part of gpiozero.OutputDevice that a relay needs."""

    def on(self) -> None: ...
    def off(self) -> None: ...
    def close(self) -> None: ...


class Signal(Enum):
    """What the inputs tell the relay."""

    EXIT = "a person wants to leave"
    OPENED = "the door was opened"


def open_sink(settings: GpioSettings) -> "Relay":
    """Return the relay, switched off."""
    device: OutputDevice = open_pin(
        "A relay",
        settings.pin,
        lambda gpiozero: gpiozero.OutputDevice(settings.pin, active_high=settings.active_high, initial_value=False),
    )
    return Relay(device, settings.seconds, seconds_after_open=settings.seconds_after_open)


class Relay(Worker[Event | Signal]):
    """A sink that switches a relay on for `seconds` after each grant. A pin that hangs delays no frame."""

    def __init__(
        self,
        device: OutputDevice,
        seconds: float,
        *,
        seconds_after_open: float = math.inf,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._device, self._seconds, self._seconds_after_open = device, seconds, seconds_after_open
        self._is_on, self._until = False, -math.inf
        super().__init__(
            self._act,
            name="the relay",
            accepts=lambda item: isinstance(item, Signal) or item.grants,
            capacity=8,
            idle=self._switch_off_in_time,
            finish=self._end,
            clock=clock,
        )

    def open_for_exit(self) -> None:
        """Switch on as after a grant, for a person who leaves."""
        self.handle(Signal.EXIT)

    def door_opened(self) -> None:
        """Switch off early, `seconds_after_open` from now, so that another person cannot open the door again."""
        self.handle(Signal.OPENED)

    def _act(self, item: Event | Signal) -> None:
        if item is Signal.OPENED:
            self._until = min(self._until, self._clock() - self.waited_seconds() + self._seconds_after_open)
        else:
            self._switch_on()

    def _switch_on(self) -> None:
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
