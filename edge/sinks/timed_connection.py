"""HTTP connections with a deadline for all of a request: name, connection, TLS, request and answer."""

import http.client
import io
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult


class Deadline:
    """The time that is left for a request. On a connection that is kept, each request starts it again."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start(seconds)

    def start(self, seconds: float) -> None:
        self._end = self._clock() + seconds

    def seconds_left(self) -> float:
        """Return the seconds until the deadline. TimeoutError if it is over."""
        if (left := self._end - self._clock()) <= 0:
            raise TimeoutError("timed out")
        return left


def timed_connection(
    url: SplitResult, tls: ssl.SSLContext | None, seconds: float, clock: Callable[[], float]
) -> http.client.HTTPConnection:
    """Return an open connection to the host of an address, with TLS if `tls` is given. TimeoutError after `seconds`."""
    return open_connection(url, tls, Deadline(seconds, clock))


def open_connection(
    url: SplitResult, tls: ssl.SSLContext | None, deadline: Deadline, count: Callable[[int], object] = lambda _: None
) -> http.client.HTTPConnection:
    """Do what `timed_connection` does, with a deadline of the caller. `count` gets the number of bytes that are received."""
    host = url.hostname or ""
    connection = http.client.HTTPConnection(host, url.port)
    if tls is not None:
        connection = http.client.HTTPSConnection(host, url.port, context=tls)
    connection.sock = _TimedSocket((connection.host, connection.port), tls, deadline.seconds_left, count)
    return connection


class _TimedSocket:
    """The part of a socket that http.client uses, with a deadline for all of it: a socket's own timeout is that of one call,
    and starts anew with each byte of a slow server. Only the lookup of a name has limits of its own, those of the system."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: ssl.SSLContext | None,
        seconds_left: Callable[[], float],
        count: Callable[[int], object],
    ) -> None:
        self._seconds_left, self._count = seconds_left, count
        self._socket = _connect(address, seconds_left)
        if tls is not None:
            try:
                self._socket.settimeout(seconds_left())
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
            except BaseException:
                self._socket.close()
                raise

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(self._seconds_left())
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._socket, self._seconds_left, self._count))

    def close(self) -> None:
        """Close the socket, or let the last file of it do so: http.client closes a connection before it reads the answer."""
        self._socket.close()


class _Reader(io.RawIOBase):
    """A file of a socket, with the deadline."""

    def __init__(self, connection: socket.socket, seconds_left: Callable[[], float], count: Callable[[int], object]) -> None:
        self._socket, self._seconds_left, self._count = connection, seconds_left, count
        self._file = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._seconds_left())
        number = self._file.readinto(buffer)
        self._count(number or 0)
        return number

    def close(self) -> None:
        self._file.close()
        super().close()


def _connect(address: tuple[str, int], seconds_left: Callable[[], float]) -> socket.socket:
    """Connect to the first address of a host that accepts. socket.create_connection gives each of them the whole time."""
    error: OSError = OSError("the name has no address")
    for family, kind, protocol, _, numeric in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(seconds_left())
            connection.connect(numeric)
            return connection
        except OSError as failed:
            connection.close()
            error = failed
    raise error
