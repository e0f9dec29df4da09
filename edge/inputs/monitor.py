"""Door contact, exit button and tamper switch on pins of the device. Needs gpiozero.

A thread reads the pins many times per second: a lost edge cannot lead to a wrong state, and a pin that fails is noticed. The
monitor is also a sink: from the events it learns who may open the door.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any, Protocol

from edge.clock import boottime
from edge.errors import require
from edge.events.event import Event, News
from edge.events.sink import Sink, SinkHealth
from edge.inputs import states
from edge.inputs.states import Debounce, DoorContact, DoorTimes, input_news
from edge.pins import check_pin, open_pin

POLL_SECONDS = 0.02
STUCK_SECONDS = 5.0
"""The inputs have failed if they were not read for so long: a pin that hangs stops the thread."""
CLOSE_SECONDS = 1.0
CAPACITY = 1000
PULLS = {"up": True, "down": False, "none": None}
CONTACT, EXIT_BUTTON, TAMPER_SWITCH = "the door contact", "the exit button", "the tamper switch"
READING = "the reading of the inputs"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """Door contact, exit button and tamper switch on pins of the device."""

    contact_pin: int | None = None
    """BCM number of the door contact (not set: there is none)."""
    contact_high: bool = True
    """Whether the pin is high while the door is open: a contact to ground that is closed while the door is closed."""
    exit_pin: int | None = None
    """BCM number of the exit button or sensor."""
    exit_high: bool = False
    """Whether the pin is high while the button is pressed. A button to ground needs false."""
    exit_opens: bool = False
    """Switch the relay of [gpio] on when the button is pressed."""
    tamper_pin: int | None = None
    """BCM number of the tamper switch."""
    tamper_high: bool = True
    """Whether the pin is high while the housing is open: a switch to ground that is closed while the housing is closed."""
    pull: str = "up"
    """Resistors of these pins inside the device: up, down or none."""
    debounce_seconds: float = 0.05
    """An input has changed when it has its new value for so long."""
    open_within_seconds: float = 10.0
    """Time after a grant or a request to exit in which the door may be opened. Else it was forced open."""
    held_seconds: float = 30.0
    """A door that is open for longer is held open."""

    def __post_init__(self) -> None:
        pins = [pin for pin in (self.contact_pin, self.exit_pin, self.tamper_pin) if pin is not None]
        for item in fields(self):
            if item.name.endswith("_pin"):
                check_pin(item.name, getattr(self, item.name))
        require(bool(pins), "contact_pin, exit_pin or tamper_pin must be set")
        require(len(set(pins)) == len(pins), "two inputs cannot use the same pin")
        require(self.exit_pin is not None or not self.exit_opens, "exit_opens needs exit_pin")
        require(self.pull in PULLS, f"pull must be one of {', '.join(PULLS)}, not {self.pull!r}")
        for name, low, high in (
            ("debounce_seconds", 0, 1),
            ("open_within_seconds", 1, 300),
            ("held_seconds", 1, 3600),
        ):
            value = getattr(self, name)
            require(low <= value <= high, f"{name} must be between {low} and {high}, not {value:g}")

    @property
    def pins(self) -> dict[str, tuple[int, bool]]:
        """The pin of each input that is used, and whether it is high when the input is active."""
        every = {
            CONTACT: (self.contact_pin, self.contact_high),
            EXIT_BUTTON: (self.exit_pin, self.exit_high),
            TAMPER_SWITCH: (self.tamper_pin, self.tamper_high),
        }
        return {name: (pin, high) for name, (pin, high) in every.items() if pin is not None}

    @property
    def switches(self) -> list[str]:
        """The inputs that have a state: contact, tamper."""
        return [name for name, pin in (("contact", self.contact_pin), ("tamper", self.tamper_pin)) if pin is not None]


class InputPin(Protocol):
    """A pin that can be read."""

    def read(self) -> bool:
        """Return whether the input is active: door open, button pressed, housing open."""

    def close(self) -> None: ...


class GpioPin:
    """A pin, read with gpiozero."""

    def __init__(self, gpiozero: Any, pin: int, *, is_active_high: bool, pull: bool | None) -> None:
        self._device = gpiozero.InputDevice(pin, pull_up=pull, active_state=True if pull is None else None)
        self._is_active_high = is_active_high

    def read(self) -> bool:
        # Not the device's value: gpiozero derives its meaning from the resistor.
        return bool(self._device.pin.state) == self._is_active_high

    def close(self) -> None:
        self._device.close()


class InputMonitor(Sink):
    """Reads the inputs while it is started, and reports what they mean.

    `on_exit` is called when the exit button is pressed, if the settings say that it opens the door, and `on_open` when the
    door was opened: at once, on the thread of the inputs, so that the relay does not wait for a frame. They must not wait.
    """

    def __init__(
        self,
        settings: InputSettings,
        pins: Mapping[str, InputPin],
        *,
        on_exit: Callable[[], None] = lambda: None,
        on_open: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`pins` has the inputs by name: CONTACT, EXIT_BUTTON, TAMPER_SWITCH."""
        self._pins, self._on_open, self._clock = dict(pins), on_open, clock
        self._on_exit = on_exit if settings.exit_opens else lambda: None
        self._inputs = {name: Debounce(settings.debounce_seconds) for name in pins}
        times = DoorTimes(open_within=settings.open_within_seconds, held_after=settings.held_seconds)
        self._contact = DoorContact(times)
        self._lock = threading.Lock()  # for the contact: grants come from another thread
        self._news: deque[News] = deque()
        self._dropped = 0
        self._unreadable: tuple[str, ...] = ()
        self._read_at, self._was_stuck = clock(), False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inputs", daemon=True)

    def start(self) -> None:
        """Begin to read the inputs."""
        self._thread.start()

    def handle(self, event: Event) -> None:
        """Learn that a person may open the door."""
        if event.grants:
            with self._lock:
                self._contact.permit(self._clock())

    def close(self) -> None:
        """Stop, and release the pins."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():  # closing a pin that hangs could hang too
            log.warning("the inputs did not stop in time")
            return
        for pin in self._pins.values():
            pin.close()

    def health(self) -> SinkHealth:
        return SinkHealth(dropped=self._dropped)

    @property
    def failing(self) -> list[str]:
        """The inputs that cannot be read now. Any thread may ask."""
        return [*self._unreadable, *([READING] if self._is_stuck else [])]

    def next_change(self) -> News | None:
        """Return the next news for the loop, or None."""
        if self._news:
            return self._news.popleft()
        if (is_stuck := self._is_stuck) == self._was_stuck:
            return None
        self._was_stuck = is_stuck
        return input_news(states.FAILED if is_stuck else states.RESTORED, READING)

    def poll(self) -> None:
        """Read all inputs once."""
        now = self._clock()
        for name, pin in self._pins.items():
            if (value := self._read(name, pin)) is not None:
                self._sample(name, value, now)
        with self._lock:
            self._report(self._contact.tick(now))
        self._read_at = now

    @property
    def _is_stuck(self) -> bool:
        return self._clock() - self._read_at > STUCK_SECONDS

    def _run(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            try:
                self.poll()
            except Exception:  # the inputs then count as stuck
                log.exception("the inputs cannot be read")

    def _read(self, name: str, pin: InputPin) -> bool | None:
        """Return whether the input is active, or None if it cannot be read."""
        try:
            value = pin.read()
        except Exception as error:
            if name not in self._unreadable:
                log.exception("%s cannot be read", name)
                self._unreadable = (*self._unreadable, name)
                self._report([input_news(states.FAILED, f"{name} ({type(error).__name__})")])
            return None
        if name in self._unreadable:
            self._unreadable = tuple(other for other in self._unreadable if other != name)
            self._report([input_news(states.RESTORED, name)])
        return value

    def _sample(self, name: str, value: bool, now: float) -> None:
        is_start = self._inputs[name].value is None
        has_changed = self._inputs[name].sample(value, now)
        if name == EXIT_BUTTON:
            self._exit(now, is_pressed=bool(self._inputs[name].value), is_new=has_changed and not is_start)
        elif has_changed and name == CONTACT:
            with self._lock:
                self._report(self._contact.change(value, now))
            if value:
                self._on_open()
        elif has_changed:
            outcome = states.TAMPER if value else states.TAMPER_ENDED
            self._report([input_news(outcome, states.AT_START if is_start else None)])

    def _exit(self, now: float, *, is_pressed: bool, is_new: bool) -> None:
        """While a sensor sees a person, the door may be opened. Only a new request switches the relay on."""
        if not is_pressed:
            return
        with self._lock:
            self._contact.permit(now, renew=is_new)
        if is_new:
            self._report([input_news(states.EXIT)])
            self._on_exit()

    def _report(self, found: Iterable[News]) -> None:
        for news in found:
            if len(self._news) < CAPACITY:
                self._news.append(news)
            else:
                self._dropped += 1


def open_monitor(
    settings: InputSettings, *, on_exit: Callable[[], None] = lambda: None, on_open: Callable[[], None] = lambda: None
) -> InputMonitor:
    """Open the pins of the settings, and begin to read them."""
    with ExitStack() as stack:
        pins: dict[str, InputPin] = {}
        for name, (number, is_active_high) in settings.pins.items():
            pins[name] = _open(number, is_active_high=is_active_high, pull=PULLS[settings.pull])
            stack.callback(pins[name].close)
        monitor = InputMonitor(settings, pins, on_exit=on_exit, on_open=on_open)
        monitor.start()
        stack.pop_all()
    return monitor


def _open(number: int, *, is_active_high: bool, pull: bool | None) -> GpioPin:
    return open_pin("An input", number, lambda gpiozero: GpioPin(gpiozero, number, is_active_high=is_active_high, pull=pull))
