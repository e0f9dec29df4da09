"""The package libosdp, with what version 3.2 needs to be safe in a program that runs for years.

- Its Python class `osdp.PeripheralDevice` prints to stdout and keeps every command in a queue that is never emptied. So this
  uses `osdp_sys`, on which that class is built, with the constants of `osdp`.
- Its random numbers come from C's `rand()`, without a seed: after each start the same. A recorded beginning of a Secure
  Channel could be played back to a terminal that was restarted. So `rand()` gets a new seed before each step.
- It releases the second item of a callback's reply once too often. So each reply gets one more reference.
- A callback or channel that raises stops the interpreter. So they catch everything.
- Its reply to a status request has no field for the report. So the report is in a manufacturer's command, which has the same
  form in memory: a number of 4 bytes, then bytes. Tests compare what the control panel of libosdp receives.
"""

import ctypes
import logging
import os
import re
import struct
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Protocol

from edge.errors import SinkError
from edge.osdp.numbers import Card
from edge.sinks.signals import BuzzerCommand, Colour, LedCommand

VENDOR = 0
"""The project has no vendor code (OUI) of its own."""
MODEL = 1
TENTH = 0.1  # seconds: the unit of the times in commands
COLOURS = (
    *(Colour.OFF, Colour.RED, Colour.GREEN, Colour.AMBER),
    *(Colour.BLUE, Colour.MAGENTA, Colour.CYAN, Colour.WHITE),
)
"""By their number in the standard."""
CANCEL, SILENT = 1, (0, 1)
"""Control codes: of a temporary LED command that ends the one before, of buzzer commands without a tone."""
TRI_COLOUR, TIMED = 4, 2
"""Levels of the standard: an LED with all colours, a buzzer with times."""

DONE, REFUSED = (0, None), (-1, None)
"""Replies to a command."""

log = logging.getLogger(__name__)


class Channel(Protocol):
    """What libosdp needs of a line. No method may raise or wait."""

    def read(self, size: int) -> bytes: ...
    def write(self, data: bytes) -> int: ...
    def flush(self) -> None: ...


class Orders(Protocol):
    """Who carries out the commands of the controller."""

    def led(self, command: LedCommand) -> None: ...
    def buzzer(self, command: BuzzerCommand) -> None: ...
    def set_key(self, key: bytes) -> bool:
        """Store a new key. Return whether that was done."""


def require_osdp() -> Any:
    """Return the package osdp, or say how to install it."""
    try:
        import osdp
    except ImportError:
        raise SinkError("OSDP needs the package libosdp.", "Run `pip install libosdp`.") from None
    return osdp


class Device:
    """One peripheral device. `refresh` does all its work; call it every 20 ms, and everything else on the same thread."""

    def __init__(
        self,
        channel: Channel,
        *,
        address: int,
        serial: int,
        key: bytes,
        install_mode: bool,
        has_light: bool,
        has_sound: bool,
        orders: Orders,
    ) -> None:
        self._osdp = osdp = require_osdp()
        import osdp_sys

        osdp_sys.set_loglevel(osdp.LogLevel.Emergency)  # first: until then messages go to stdout
        flags = [osdp.LibFlag.EnforceSecure, *([osdp.LibFlag.InstallMode] if install_mode else [])]
        major, minor, patch = (int(part) for part in re.findall(r"\d+", version("lclrr-edge"))[:3])
        identity = osdp.PdId(MODEL, 1, VENDOR, serial, major << 16 | minor << 8 | patch)
        info = osdp.PDInfo(address, channel, scbk=key, flags=flags, id=identity)
        capability = osdp.Capability
        abilities = [
            (capability.CardDataFormat, 1, 0),  # an array of bits
            (capability.Readers, 1, 1),
            *([(capability.LEDControl, TRI_COLOUR, 1)] if has_light else []),
            *([(capability.AudibleControl, TIMED, 1)] if has_sound else []),
        ]
        self._orders, self._tamper, self._power_failed = orders, False, False
        self._cards_sent = 0
        self._replies: dict[tuple[int, bytes], tuple[int, object]] = {}  # the same objects each time: libosdp keeps them
        self._random = ctypes.CDLL(None)
        try:
            self._device = osdp_sys.PeripheralDevice(info.get(), capabilities=osdp.PDCapabilities(abilities).get())
        except Exception as error:  # libosdp has no class of its own
            raise SinkError(f"libosdp cannot be used ({error}).") from None
        self._device.set_command_callback(self._command)
        self._device.set_event_completion_callback(self._completed)

    @property
    def is_secure(self) -> bool:
        """Whether there is a Secure Channel with the key of this terminal. With SCBK-D there is not."""
        return bool(self._device.is_sc_active())

    @property
    def cards_sent(self) -> int:
        """How many cards the controller has collected."""
        return self._cards_sent

    def refresh(self) -> None:
        """Read one command, and reply to it."""
        self._random.srand(ctypes.c_uint(int.from_bytes(os.urandom(4))))
        self._device.refresh()

    def offer_card(self, card: Card) -> None:
        """Let the controller collect a card at its next poll."""
        card_format = self._osdp.CardFormat
        self._offer(
            self._osdp.Event.CardRead,
            reader_no=0,
            format=card_format.Wiegand if card.is_wiegand else card_format.Unspecified,
            direction=0,
            length=len(card.bits),
            data=card.data,
        )

    def report(self, *, tamper: bool, power_failed: bool) -> None:
        """Report a changed status at the next poll, and from now on when the controller asks."""
        self._tamper, self._power_failed = tamper, power_failed
        if self.is_secure:
            local = self._osdp.StatusReportType.Local
            self._offer(self._osdp.Event.Status, type=local, report=bytes([tamper, power_failed]))

    def withdraw(self) -> None:
        """Forget what the controller has not collected."""
        self._device.flush_events()

    def _offer(self, kind: int, **fields: Any) -> None:
        if not self._device.submit_event({"event": kind, **fields}):
            raise RuntimeError("libosdp did not take an event")

    def _completed(self, event: Mapping[str, Any], status: int) -> None:
        is_card = event["event"] == self._osdp.Event.CardRead
        self._cards_sent += is_card and status == self._osdp.CompletionStatus.Ok

    def _command(self, command: Mapping[str, Any]) -> tuple[int, object]:
        reply: tuple[int, object] = REFUSED
        try:
            if command["command"] == self._osdp.Command.Status:
                reply = self._status(command["type"])
            elif self._obey(command):
                reply = DONE
        except Exception:
            log.exception("a command of the controller was refused")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(reply[1]))
        return reply

    def _obey(self, command: Mapping[str, Any]) -> bool:
        """Pass a command on. Return whether this device can do it."""
        commands, kind = self._osdp.Command, command["command"]
        if kind == commands.Keyset:
            return self._orders.set_key(command["data"])
        if kind not in (commands.LED, commands.Buzzer) or command["reader"] != 0:
            return False
        if kind == commands.LED:
            self._orders.led(led_command(command))
        else:
            self._orders.buzzer(buzzer_command(command))
        return True

    def _status(self, kind: int) -> tuple[int, object]:
        reports = self._osdp.StatusReportType
        report = {reports.Local: bytes([self._tamper, self._power_failed]), reports.Remote: bytes(1)}.get(kind)
        if report is None:  # inputs and outputs, which this device does not offer
            return REFUSED
        data = struct.pack("=i", len(report)) + report
        form = {"command": self._osdp.Command.Manufacturer, "vendor_code": kind, "data": data}
        return self._replies.setdefault((kind, report), (0, form))


def led_command(fields: Mapping[str, Any]) -> LedCommand:
    """Return an LED command of libosdp. It has the temporary or the permanent part, not both."""
    is_temporary = bool(fields["temporary"])
    return LedCommand(
        is_temporary=is_temporary,
        cancels=is_temporary and fields["control_code"] == CANCEL,
        on_seconds=fields["on_count"] * TENTH,
        off_seconds=fields["off_count"] * TENTH,
        on_colour=_colour(fields["on_color"]),
        off_colour=_colour(fields["off_color"]),
        seconds=fields.get("timer_count", 0) * TENTH,
    )


def buzzer_command(fields: Mapping[str, Any]) -> BuzzerCommand:
    """Return a buzzer command of libosdp."""
    if fields["control_code"] in SILENT:
        return BuzzerCommand()
    on, off = fields["on_count"] * TENTH, fields["off_count"] * TENTH
    return BuzzerCommand(on_seconds=on, off_seconds=off, times=fields["rep_count"])


def _colour(number: int) -> Colour:
    return COLOURS[number] if number < len(COLOURS) else Colour.OFF
