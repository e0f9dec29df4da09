"""Pins of the device, through gpiozero, which is loaded when the first one is opened."""

from collections.abc import Callable
from typing import Any, TypeVar

from edge.errors import SinkError, require

MAX_PIN = 63

T = TypeVar("T")


def open_pin(what: str, pin: int, make: Callable[[Any], T]) -> T:
    """Return the device that `make` makes of the package gpiozero. `what` begins the sentence if that is missing: A relay."""
    try:
        import gpiozero
    except ImportError:
        raise SinkError(f"{what} needs the package gpiozero.", "Run `pip install gpiozero lgpio`.") from None
    try:
        return make(gpiozero)
    except (gpiozero.GPIOZeroError, OSError, RuntimeError) as error:
        raise SinkError(
            f"GPIO {pin} cannot be used ({type(error).__name__}).",
            "Check that this is a Raspberry Pi, that the user is in the group gpio, and that no other program uses the pin.",
        ) from None


def check_pin(name: str, pin: int | None) -> None:
    """Raise ParameterError unless this is a BCM number."""
    require(pin is None or 0 <= pin <= MAX_PIN, f"{name} must be a BCM number from 0 to {MAX_PIN}, not {pin}")
