"""A relay on a pin of the device: on for a while after each grant, off at all other times. Needs the package gpiozero."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge.errors import ParameterError, SinkError
from edge.events.event import Event

WAITING = 8
AGAIN_SECONDS = 0.5  # until a relay that could not be switched off is told again

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GpioSettings:
    """A relay on a pin of the device."""

    pin: int
    """Its BCM number: 17 is GPIO17."""
    seconds: float = 3.0
    """How long the relay is on after a grant. Another grant meanwhile extends it."""
    active_high: bool = True
    """Whether the relay is on when the pin is high. Many relay boards are the other way round."""

    def __post_init__(self) -> None:
        if not 0 <= self.pin <= 63:
            raise ParameterError(f"pin must be a BCM number from 0 to 63, not {self.pin}")
        if not 0.05 <= self.seconds <= 60:
            raise ParameterError(f"seconds must be between 0.05 and 60, not {self.seconds:g}")


def open_sink(settings: GpioSettings) -> Relay:
    """The relay, off."""
    try:
        import gpiozero
    except ImportError:
        raise SinkError("A relay needs the package gpiozero.", "Install lclrr-edge[gpio].") from None
    try:
        device = gpiozero.OutputDevice(settings.pin, active_high=settings.active_high, initial_value=False)
    except (gpiozero.GPIOZeroError, OSError, RuntimeError) as error:
        raise SinkError(
            f"GPIO {settings.pin} cannot be used ({type(error).__name__}).",
            "Check that this is a Raspberry Pi, that the user is in the group gpio, and that nobody else has the pin.",
        ) from None
    return Relay(device, settings.seconds)


class Relay:
    """On for `seconds` after each grant. A thread of its own moves it: a pin that hangs delays nobody."""

    def __init__(self, device: Any, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.delivered = self.failed = self.dropped = 0
        self._device, self._seconds, self._clock = device, seconds, clock
        self._asked: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="relay", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        if not event.grants:
            return
        if self._asked.qsize() < WAITING:
            self._asked.put(self._clock())
        else:
            self.dropped += 1
            log.warning("the relay does not follow: a grant was dropped, %d so far", self.dropped)

    def close(self, seconds: float = 2.0) -> None:
        """Off, at once, and the pin is let go."""
        self._asked.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("the relay does not answer: it may still be on")

    def _work(self) -> None:
        until = -math.inf
        on = False
        while True:
            left = until - self._clock()
            if on and left <= 0:
                on = not self._switch(self._device.off)
            try:
                asked = self._asked.get(timeout=left if left > 0 else AGAIN_SECONDS if on else None)
            except queue.Empty:
                continue
            if asked is None:
                break
            until = asked + self._seconds  # later than what was asked before
            if until <= self._clock():  # it hung for so long that somebody else may stand there
                self.failed += 1
                continue
            on = True  # before it is: what failed half-way is switched off too
            self.delivered += self._switch(self._device.on)
        self._switch(self._device.off)
        self._switch(self._device.close)

    def _switch(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception:
            self.failed += 1
            log.exception("the relay does not obey")
            return False
        return True
