"""One HTTP connection to the server of a fleet, which is kept between requests: TLS costs more bytes than most answers."""

import http.client
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import SplitResult

from edge.clock import boottime
from edge.sinks.timed_connection import Deadline, open_connection


class Connection:
    """Sends GET requests to one server. Redirections are not followed. Only for one thread."""

    def __init__(self, address: SplitResult, tls: ssl.SSLContext | None, *, clock: Callable[[], float] = boottime) -> None:
        self._address, self._tls = address, tls
        self._deadline = Deadline(0.0, clock)
        self._open: http.client.HTTPConnection | None = None
        self.received = 0
        """Bytes received so far, without those of TLS and TCP."""

    @contextmanager
    def get(self, path: str, headers: Mapping[str, str], seconds: float) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request. TimeoutError if it is not complete after `seconds`."""
        self._deadline.start(seconds)
        is_kept = self._open is not None and self._open.sock is not None
        try:
            response = self._send(path, headers)
        except (OSError, http.client.HTTPException):
            self.close()
            if not is_kept:
                raise
            response = self._send(path, headers)  # the server has ended an unused connection
        try:
            yield response
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        finally:
            if not response.isclosed():  # the rest of the answer would be taken for the next one
                self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _send(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        if self._open is None or self._open.sock is None:
            self._open = open_connection(self._address, self._tls, self._deadline, self._count)
        self._open.request("GET", path, headers={"User-Agent": "lclrr-edge", **headers})
        return self._open.getresponse()

    def _count(self, number: int) -> None:
        self.received += number
