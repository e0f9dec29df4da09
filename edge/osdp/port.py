"""A serial port that never waits: the channel of libosdp."""

import fcntl
import math
import os
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge.errors import SinkError

REOPEN_SECONDS = 1.0


class SerialPort:
    """A serial port, 8 data bits, no parity. libosdp calls read, write and flush, which must raise nothing.

    A port that is lost (an adapter that is pulled out) is opened again.
    """

    def __init__(self, path: Path, baud: int, *, clock: Callable[[], float]) -> None:
        """A port that cannot be opened now is an error."""
        self._path, self._speed, self._clock = path, getattr(termios, f"B{baud}"), clock
        self._handle: int | None = None
        self._tried = clock()
        self.heard = -math.inf
        """When a byte was received last."""
        try:
            self._open()
        except (OSError, termios.error) as error:
            why = error.strerror if isinstance(error, OSError) else "not a serial port"
            hint = "Check the path, that the user is in the group dialout, and that no other program uses the port."
            raise SinkError(f"The serial port {path} cannot be opened ({why}).", hint) from None

    @property
    def is_open(self) -> bool:
        return self._handle is not None

    def restore(self) -> None:
        """Try to open a lost port again, once per second."""
        if self._handle is None and self._clock() - self._tried >= REOPEN_SECONDS:
            self._tried = self._clock()
            with suppress(OSError, termios.error):
                self._open()

    def read(self, size: int) -> bytes:
        """Return the bytes that have arrived, at most `size`."""
        data = b""
        if self._handle is not None:
            try:
                data = os.read(self._handle, size)
            except BlockingIOError:
                return b""
            except OSError:
                pass  # no bytes: the port is lost, as at the end of the file
            if not data:
                self.close()
        if data:
            self.heard = self._clock()
        return data

    def write(self, data: bytes) -> int:
        """Return how many bytes were taken."""
        if self._handle is not None:
            try:
                return os.write(self._handle, data)
            except BlockingIOError:
                return 0
            except OSError:
                self.close()
        return 0

    def flush(self) -> None:
        """Discard what was received and not read."""
        self._discard(termios.TCIFLUSH)

    def close(self) -> None:
        """Close the port, without waiting for bytes that were not sent."""
        self._discard(termios.TCIOFLUSH)
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(OSError):
                os.close(handle)

    def _discard(self, which: int) -> None:
        if self._handle is not None:
            with suppress(termios.error):
                termios.tcflush(self._handle, which)

    def _open(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            tty.setraw(handle, termios.TCSANOW)
            settings = termios.tcgetattr(handle)
            settings[2] = termios.CS8 | termios.CREAD | termios.CLOCAL  # no parity, one stop bit, no modem lines
            settings[4] = settings[5] = self._speed
            termios.tcsetattr(handle, termios.TCSANOW, settings)
            fcntl.ioctl(handle, termios.TIOCEXCL)  # another program would take bytes away
            termios.tcflush(handle, termios.TCIOFLUSH)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
