"""A door controller: the control panel of libosdp at one end of a pair of pseudo-terminals. The terminal has the other end."""

from __future__ import annotations

import os
import pty
import threading
import tty
from pathlib import Path
from typing import Any

import osdp

from tests.fixtures.waiting import until

KEY = bytes.fromhex("00112233445566778899aabbccddeeff")


class Line:
    """A serial line. `path` is the terminal's end; read and write are the controller's. All its messages are recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.awaits_reply = False
        self._handles: list[int] = []
        self.connect()

    def connect(self) -> None:
        """Connect both ends, the first time or again."""
        master, slave = pty.openpty()
        tty.setraw(slave)  # else it echoes until the terminal opens it
        os.set_blocking(master, False)
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(os.ttyname(slave))
        self._handles = [master, slave]

    def cut(self) -> None:
        """Close both ends, as when an adapter is pulled out."""
        handles, self._handles = self._handles, []
        for handle in handles:
            os.close(handle)

    def read(self, size: int) -> bytes:
        try:
            data = os.read(self._handles[0], size) if self._handles else b""
        except OSError:  # nothing has arrived, or the terminal has closed its end
            return b""
        if data:
            self.received.append(data)
            self.awaits_reply = False
        return data

    def write(self, data: bytes) -> int:
        if self._handles:
            self.sent.append(data)
            self.awaits_reply = True
            os.write(self._handles[0], data)
        return len(data)

    def flush(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        self.cut()


class ControlPanel:
    """A controller for one reader at address 0. It polls while it is open.

    libosdp takes a reader offline that replies later than 0.2 s, which happens on a busy machine, and tries again only after
    minutes. With `returns`, this one connects anew at once.
    """

    def __init__(self, line: Line, *, key: bytes = KEY, enforce: bool = True, returns: bool = True) -> None:
        """`enforce`: use nothing else than a Secure Channel with this key."""
        flags = [osdp.LibFlag.EnableNotification, *([osdp.LibFlag.EnforceSecure] if enforce else [])]
        self.cards: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []
        self.done = self.refused = 0
        self.losses = 0
        """How often the reader was taken offline."""
        self._line, self._returns = line, returns
        self._panel = osdp.ControlPanel(
            [osdp.PDInfo(0, line, scbk=key, flags=flags)],
            log_level=osdp.LogLevel.Emergency,
            event_handler=self._take,
            command_completion_handler=self._count,
        )
        self._panel.lock = threading.Lock()
        self._stop, self._thread = threading.Event(), threading.Thread()
        self.resume()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def pause(self) -> None:
        """Stop polling, at a moment at which no reply is on its way."""
        self.close()
        while self._line.awaits_reply:
            self.resume()
            self.close()

    def resume(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control panel")
        self._thread.start()

    @property
    def is_secure(self) -> bool:
        """Whether there is a Secure Channel with the key."""
        return bool(self._panel.is_sc_active(0))

    def identity(self) -> osdp.PdId:
        return self._panel.get_pd_id(0)

    def capability(self, which: int) -> tuple[int, int]:
        """The level and the number that the reader has announced."""
        level, number = self._panel.check_capability(0, which)
        return level, number

    def command(self, kind: int, **fields: Any) -> bool:
        """Send a command, and return whether the reader did it."""
        done, refused = self.done, self.refused
        until(lambda: self._panel.submit_command(0, {"command": kind, **fields}))
        until(lambda: (self.done, self.refused) != (done, refused))
        return self.done > done

    def order(self, kind: int, **fields: Any) -> None:
        """Send a command until the reader did it."""
        until(lambda: self.is_secure and self.command(kind, **fields))

    def led(self, *, temporary: bool, control_code: int, **fields: int) -> None:
        numbers = {"on_count": 1, "off_count": 0, "on_color": 0, "off_color": 0, "timer_count": 0} | fields
        head = {"reader": 0, "led_number": 0, "temporary": temporary, "control_code": control_code}
        self.order(osdp.Command.LED, **head, **numbers)

    def buzzer(self, *, control_code: int = 2, on_count: int = 1, off_count: int = 1, rep_count: int = 1) -> None:
        times = {"on_count": on_count, "off_count": off_count, "rep_count": rep_count}
        self.order(osdp.Command.Buzzer, reader=0, control_code=control_code, **times)

    def ask_status(self) -> bytes:
        """Ask for the status, and return tamper and power."""
        self.statuses.clear()
        self.order(osdp.Command.Status, type=osdp.StatusReportType.Local)
        report: bytes = until(lambda: self.statuses)[0]["report"]
        return report

    def _run(self) -> None:
        context, returned = self._panel.ctx, self.losses
        while not self._stop.wait(0.02):
            with self._panel.lock:
                context.refresh()
                if self._returns and not context.is_pd_enabled(0):
                    context.enable_pd(0)
                    returned = self.losses
                elif self._returns and self.losses > returned:
                    context.disable_pd(0)

    def _take(self, address: int, event: dict[str, Any]) -> int:
        lists = {osdp.Event.CardRead: self.cards, osdp.Event.Status: self.statuses}
        if event["event"] in lists:
            lists[event["event"]].append(event)
        if event["event"] == osdp.Event.Notification and event["type"] == osdp.EventNotification.PeripheralDeviceStatus:
            self.losses += not event["arg0"]
        return 0

    def _count(self, address: int, command: dict[str, Any], status: int) -> None:
        if status == osdp.CompletionStatus.Ok:
            self.done += 1
        else:
            self.refused += 1
