"""What the inputs mean: debounced values, and whether the door was forced open or is held open. No clock and no hardware."""

import math
from dataclasses import dataclass

from edge.events.event import News

OPENED, CLOSED = "opened", "closed"
FORCED, HELD = "forced open", "held open"  # " ended" follows when the door is closed
EXIT = "exit requested"
TAMPER, TAMPER_ENDED = "tamper", "tamper ended"
FAILED, RESTORED = "failed", "restored"
AT_START = "at the start"


def input_news(outcome: str, reason: str | None = None) -> News:
    return News(kind="input", outcome=outcome, reason=reason)


class Debounce:
    """One input without the bouncing of its contact: a new value counts when it did not change for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._newest: bool | None = None
        self._since = -math.inf
        self.value: bool | None = None
        """The value that counts; None before the first."""

    def sample(self, value: bool, now: float) -> bool:
        """Add what the pin shows now. Return whether the value that counts has changed; the first one is a change too."""
        if value != self._newest:
            self._newest, self._since = value, now
        if value == self.value or now - self._since < self._seconds:
            return False
        self.value = value
        return True


@dataclass(frozen=True, kw_only=True)
class DoorTimes:
    """Limits of the door contact."""

    open_within: float
    """Seconds after a grant or a request to exit in which the door may be opened."""
    held_after: float
    """Seconds after which an open door is held open."""


class DoorContact:
    """The door as its contact shows it. Each method returns the news of one moment; times never decrease.

    - Forced open: opened without a permission (a grant or a request to exit) in the last `open_within` seconds. Permissions
      from before the door was opened end when it is closed again.
    - Held open: open for more than `held_after` seconds since it was opened, and since the last grant or request. A door that
      was forced open is not also held open.
    """

    def __init__(self, times: DoorTimes) -> None:
        self._times = times
        self._is_open: bool | None = None
        self._alarm: str | None = None  # FORCED or HELD, until the door is closed
        self._permitted = self._opened = self._renewed = -math.inf

    def permit(self, now: float, *, renew: bool = True) -> None:
        """A person may open the door from now on. With `renew`, an open door may stay open for the full time again."""
        self._permitted = now
        self._renewed = now if renew else self._renewed

    def change(self, is_open: bool, now: float) -> list[News]:
        """The door was opened or closed. The first call gives its state at the start, which is never an alarm."""
        is_start, self._is_open = self._is_open is None, is_open
        note = AT_START if is_start else None
        if not is_open:
            return [input_news(CLOSED, note), *self._end_alarm()]
        self._opened = now
        if is_start or now - self._permitted <= self._times.open_within:
            return [input_news(OPENED, note)]
        self._alarm = FORCED
        reason = f"no grant and no request to exit in the {self._times.open_within:g} seconds before"
        return [input_news(OPENED), input_news(FORCED, reason)]

    def tick(self, now: float) -> list[News]:
        """Time has passed."""
        since = max(self._opened, self._renewed)
        if not self._is_open or self._alarm is not None or now - since <= self._times.held_after:
            return []
        self._alarm = HELD
        return [input_news(HELD, f"open for more than {self._times.held_after:g} seconds")]

    def _end_alarm(self) -> list[News]:
        if self._permitted <= self._opened:
            self._permitted = -math.inf
        alarm, self._alarm = self._alarm, None
        return [] if alarm is None else [input_news(f"{alarm} ended")]
