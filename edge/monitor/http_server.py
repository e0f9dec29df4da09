"""The HTTP server of preview and metrics: read-only, with a limited number of clients, and quick to close.

A slow client cannot shut out another. Each must send its whole request in time, and take the whole response in time. If all
places are taken, a new client replaces the oldest one. Clients from this machine have places of their own.
"""

import ipaddress
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from edge.errors import ListenError

PLACES = 16
"""Clients from this machine; as many again from other machines."""
CLIENT_SECONDS = 5.0
"""Total time of a client to send its request, to take the response, or to take one part of a stream. Then it is dropped."""
DROP_SECONDS = 1.0
"""Time for the thread of a dropped client to end; usually less than a millisecond."""
SEND_BUFFER = 1 << 17
"""Bytes. Small, because video frames that wait in the buffer get old."""
HEADERS = {
    "Allow": "GET, HEAD",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, [IPv6]:PORT, or a port alone for 127.0.0.1. Host names are rejected: lookups use the network."""
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ListenError(f"{text!r} is not a valid address.", "Put an IPv6 address in brackets: [::1]:8080.")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ListenError(f"{text!r} has no port between 0 and 65535.", "Use an address such as 127.0.0.1:8080.")
    if host in ("", "localhost"):
        host = "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host)), int(port)
    except ValueError:
        raise ListenError(f"{text!r} is not a valid address.", "Use an address such as 127.0.0.1:8080.") from None


def is_own_host(host_header: str, *, is_local: bool, names: Collection[str] = ()) -> bool:
    """Return whether the Host header is ours. This stops DNS rebinding: another site can point its own name at this
    address and read everything, but it cannot use a numeric address or the names of this machine.

    `is_local`: the server listens on a loopback address. `names` are allowed, too; *.example.com stands for one more word.
    """
    found = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?", host_header.strip().lower())
    host = (found[1] or found[2] or "") if found else ""
    try:
        return ipaddress.ip_address(host).is_loopback or not is_local
    except ValueError:
        machine = socket.gethostname().lower()
        own = {"localhost", *names} | (set() if is_local else {machine, f"{machine}.local"})
        return host in own or ("." in host and f"*.{host.partition('.')[2]}" in own)


@dataclass(frozen=True)
class Page:
    """A response."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    stream: Generator[bytes, None, None] | None = None
    """Follows the body, until one side closes."""


@dataclass(kw_only=True, eq=False)
class Client:
    """A connection, from its arrival to the end of its thread."""

    connection: socket.socket
    is_local: bool
    deadline: float
    is_stream: bool = False
    is_dropped: bool = False

    def drop(self) -> None:
        self.is_dropped = True
        with suppress(OSError):  # it has disconnected
            self.connection.shutdown(socket.SHUT_RDWR)  # ends the wait of its thread


class Site(ThreadingHTTPServer):
    """Serves pages about one terminal inside a `with` block, with one thread per client."""

    request_queue_size = 2 * PLACES
    daemon_threads = True  # a client that hangs does not delay the end of the terminal

    def __init__(self, name: str, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        host, port = parse_address(address)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.is_local = ipaddress.ip_address(host).is_loopback
        self._name, self._clock = name, clock
        self._health: Callable[[], Mapping[str, Any]] | None = None
        self._clients: dict[socket.socket, Client] = {}  # oldest first
        self._changed = threading.Condition()  # of the clients; held while one is dropped, so that it is not closed meanwhile
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name=name, daemon=True)
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ListenError(
                f"The {name} cannot be served at {host}, port {port} ({error.strerror}).", "Choose another address or port."
            ) from None

    def page(self, path: str) -> Page | None:
        """Return the response to a GET request, or None if there is no such page."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def watch(self, health: Callable[[], Mapping[str, Any]]) -> None:
        """Serve the health that this function returns."""
        self._health = health

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close at once, even while clients are served."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        with self._changed:
            for client in self._clients.values():
                client.drop()
        self.server_close()

    def allows(self, host_header: str) -> bool:
        return is_own_host(host_header, is_local=self.is_local)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind would look up the host name in the network

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._admit(request, is_local=self.is_this_machine(client_address[0])):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def is_this_machine(self, host: str) -> bool:
        """Return whether a client's address is a loopback address."""
        address = ipaddress.ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback

    def _admit(self, connection: socket.socket, *, is_local: bool) -> bool:
        """Give a client a place. If all are taken, drop the oldest client that does not watch a stream."""

        def group() -> list[Client]:
            return [client for client in self._clients.values() if client.is_local == is_local]

        with self._changed:
            if len(group()) >= PLACES:
                oldest = next((client for client in group() if not (client.is_stream or client.is_dropped)), None)
                if oldest is not None:
                    oldest.drop()
                if not self._changed.wait_for(lambda: len(group()) < PLACES, DROP_SECONDS):
                    return False
            deadline = self._clock() + CLIENT_SECONDS
            self._clients[connection] = Client(connection=connection, is_local=is_local, deadline=deadline)
        return True

    def renew(self, connection: socket.socket, *, is_stream: bool = False) -> None:
        """Begin the time for the next step of a client: the response, or one part of a stream."""
        with self._changed:
            client = self._clients[connection]
            client.deadline, client.is_stream = self._clock() + CLIENT_SECONDS, is_stream

    def service_actions(self) -> None:
        """Drop the clients whose time is over. The thread of the server calls this after each poll."""
        with self._changed:
            now = self._clock()
            for client in self._clients.values():
                if now > client.deadline and not client.is_dropped:
                    client.drop()

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._clients.pop(request, None)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the %s disconnected", self._name, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    server: Site
    server_version = "lclrr-edge"
    sys_version = ""

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        super().setup()

    def parse_request(self) -> bool:
        """Reject all methods except GET and HEAD, and requests for another host."""
        if not super().parse_request():
            return False
        self.server.renew(self.connection)
        if self.command not in ("GET", "HEAD"):
            self._answer(Page(b"Read-only.\n", status=HTTPStatus.METHOD_NOT_ALLOWED))
        elif not self.server.allows(self.headers.get("Host", "")):
            self._answer(Page(b"Wrong host.\n", status=HTTPStatus.FORBIDDEN))
        else:
            return True
        return False

    def do_GET(self) -> None:
        page = self.server.page(self.path.partition("?")[0]) or Page(b"Not found.\n", status=HTTPStatus.NOT_FOUND)
        with nullcontext() if page.stream is None else closing(page.stream):
            self._answer(page)

    do_HEAD = do_GET  # noqa: N815 (the name that the base class calls)

    def _answer(self, page: Page) -> None:
        length = {"Content-Length": str(len(page.body))} if page.stream is None else {}
        self.send_response(page.status)
        for name, value in (HEADERS | {"Content-Type": page.kind} | length).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
            for chunk in page.stream or ():
                self.server.renew(self.connection, is_stream=True)
                self.wfile.write(chunk)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
