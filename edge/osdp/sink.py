"""The sink of OSDP: a grant becomes one card for the controller, which decides about the lock.

A card is sent once, within seconds of the grant, and only through a Secure Channel. What the controller did not collect in
time is withdrawn: after a lost link no old grant arrives.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from edge.clock import boottime
from edge.errors import EdgeError
from edge.events.event import Event, News
from edge.events.worker import DeliveryError, Worker
from edge.files import read_bytes
from edge.osdp import link
from edge.osdp.device import Device
from edge.osdp.link import Link
from edge.osdp.numbers import NumberFile
from edge.osdp.port import SerialPort
from edge.osdp.settings import OsdpSettings, read_key, write_key
from edge.sinks.signals import BuzzerCommand, LedCommand
from edge.text import same_spelling

REFRESH_SECONDS = 0.02
SILENT_SECONDS = 8.0  # the standard's limit: then a device is offline
POWER_SECONDS = 5.0
LINK = "the link to the door controller"
TAMPER = {"tamper": True, "tamper ended": False}

log = logging.getLogger(__name__)


class Lights(Protocol):
    """What shows the commands of the controller: edge.sinks.indicator."""

    has_light: bool
    has_sound: bool

    def obey_led(self, command: LedCommand) -> None: ...
    def obey_buzzer(self, command: BuzzerCommand) -> None: ...
    def forget_commands(self) -> None: ...


class OsdpSink(Worker[Event]):
    """Reports grants to a door controller. Its thread does all the work, so a port that hangs delays no frame."""

    def __init__(
        self,
        settings: OsdpSettings,
        *,
        lights: Lights | None = None,
        clock: Callable[[], float] = boottime,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """A missing package, port, key or list of numbers is an error now; an absent controller is not."""
        self._settings, self._lights, self._sleep = settings, lights, sleep
        self.numbers = NumberFile(settings.numbers_file)
        key = read_key(settings)
        self._may_set_key = settings.install_mode
        self._port = SerialPort(settings.device, settings.baud, clock=clock)
        try:
            self._device = Device(
                self._port,
                address=settings.address,
                serial=settings.serial,
                key=key,
                install_mode=settings.install_mode,
                has_light=lights is not None and lights.has_light,
                has_sound=lights is not None and lights.has_sound,
                orders=self,
            )
        except EdgeError:
            self._port.close()
            raise
        self._link, self._last_up, self._was_up = Link(clock()), clock(), False
        self._news: deque[News] = deque(maxlen=100)
        self._tamper, self._power_failed, self._power_read = False, False, clock() - POWER_SECONDS
        self._ends = False
        super().__init__(
            self._act,
            name="the door controller",
            accepts=lambda event: event.grants or (event.kind == "input" and event.outcome in TAMPER),
            capacity=8,
            idle=self._refresh,
            finish=self._end,
            clock=clock,
        )

    @property
    def is_up(self) -> bool:
        """Whether there is a Secure Channel to the controller. Any thread may ask."""
        return self._link.problem is None

    @property
    def failing(self) -> list[str]:
        """The parts that do not work now, for the health."""
        return [] if self.is_up else [LINK]

    def next_change(self) -> News | None:
        """Return the next news for the loop, or None."""
        return self._news.popleft() if self._news else None

    def close(self) -> None:
        """Stop, and close the port. A card that was not collected is withdrawn."""
        self._ends = True
        super().close()

    def _act(self, event: Event) -> None:
        if event.grants:
            self._report_grant(same_spelling(event.label or ""))
        else:
            self._tamper = TAMPER[event.outcome or ""]
            self._device.report(tamper=self._tamper, power_failed=self._power_failed)

    def _report_grant(self, label: str) -> None:
        """Offer a card until the controller has collected it, the link is lost, or the time is over."""
        if problem := self.numbers.refresh():
            log.warning("%s", problem)
        if (card := self.numbers.cards.get(label)) is None:
            raise DeliveryError("a grant of a person without a credential number was not sent")
        self._refresh()
        if not self.is_up:
            raise DeliveryError(f"a grant was not sent: {self._link.problem}")
        before = self._device.cards_sent
        if self.waited_seconds() < self._settings.grant_seconds:
            self._device.offer_card(card)
        while self._device.cards_sent == before:
            if self.waited_seconds() >= self._settings.grant_seconds or not self.is_up or self._ends:
                self._device.withdraw()
                raise DeliveryError("a grant was not sent: the controller did not collect it in time")
            self._sleep(REFRESH_SECONDS)
            self._refresh()

    def _refresh(self) -> float:
        """Do what is due: read and answer one command, and look at link and power."""
        self._port.restore()
        self._device.refresh()
        now = self._clock()
        if news := self._link.step(self._problem(now), now):
            log.warning("%s: %s", LINK, news.reason or news.outcome)
            self._news.append(news)
        if self.is_up != self._was_up:
            self._link_changed()
        if now - self._power_read >= POWER_SECONDS:
            self._power_read = now
            if (failed := self._read_power()) != self._power_failed:
                self._power_failed = failed
                self._device.report(tamper=self._tamper, power_failed=failed)
        return REFRESH_SECONDS

    def _problem(self, now: float) -> str | None:
        """Return why the controller cannot be reached, or None. libosdp uses the time of day, which may be set."""
        if not self._port.is_open:
            return link.PORT
        if self._device.is_secure and now - self._port.heard <= SILENT_SECONDS:
            self._last_up = now
            return None
        return link.NO_CHANNEL if self._port.heard > self._last_up else link.SILENT

    def _link_changed(self) -> None:
        """The link came up or went down. A new connection starts without old cards and commands."""
        self._was_up = self.is_up
        self._device.withdraw()
        if self._was_up:
            self._device.report(tamper=self._tamper, power_failed=self._power_failed)
        elif self._lights is not None:
            self._lights.forget_commands()

    def _read_power(self) -> bool:
        """Return whether the power supply has failed. A file that cannot be read counts as a failure."""
        if self._settings.power_file is None:
            return False
        try:
            return read_bytes(self._settings.power_file, 16).strip() != b"1"
        except EdgeError:
            return True

    def led(self, command: LedCommand) -> None:
        """Pass a command of the controller on. Without an LED there is none."""
        if self._lights is not None:
            self._lights.obey_led(command)

    def buzzer(self, command: BuzzerCommand) -> None:
        """Pass a command of the controller on. Without a buzzer there is none."""
        if self._lights is not None:
            self._lights.obey_buzzer(command)

    def set_key(self, key: bytes) -> bool:
        """Store a key of the controller: once, and only in install mode."""
        if not self._may_set_key:
            log.warning("the controller wanted to set a key, which is refused: [osdp] install_mode is off")
            return False
        try:
            write_key(self._settings.key_file, key)
        except EdgeError as error:
            log.warning("the key of the controller is refused: %s", error.message)
            return False
        self._may_set_key = False
        log.warning(
            "the controller has set a key, which is now in %s: switch [osdp] install_mode off", self._settings.key_file
        )
        return True

    def _end(self) -> None:
        self._device.withdraw()
        self._port.close()
