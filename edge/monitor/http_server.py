"""The HTTP server of preview and metrics: read-only, with a limited number of clients, and quick to close."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

from edge.errors import ListenError

CONNECTIONS = 32
CLIENT_SECONDS = 10.0
"""A client that needs longer to send a request or to read the response is dropped."""
HEADERS = {
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


class Site:
    """Base class of preview and metrics: a server, open inside a `with` block, about the health of one terminal."""

    def __init__(self, name: str, address: str, handler: type[Handler]) -> None:
        self._health: Callable[[], Mapping[str, Any]] | None = None
        self._server = Server(name, address, handler, self)

    @property
    def url(self) -> str:
        return self._server.url

    def watch(self, health: Callable[[], Mapping[str, Any]]) -> None:
        """Serve the health that this function returns."""
        self._health = health

    def close(self) -> None:
        """Close at once, even while clients are served."""
        self._server.close()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(HTTPServer):
    """Serves a `site` between start() and close(), with one thread for each of at most CONNECTIONS clients."""

    request_queue_size = CONNECTIONS

    def __init__(self, name: str, address: str, handler: type[Handler], site: Any) -> None:
        host, port = parse_address(address)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.site = site
        self.is_local = ipaddress.ip_address(host).is_loopback
        self._name = name
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name=name, daemon=True)
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise ListenError(
                f"The {name} cannot be served at {host}, port {port} ({error.strerror}).", "Choose another address or port."
            ) from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close at once, even while clients are served."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()
        with self._lock:
            connections = dict(self._connections)
        for request in connections.values():
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # ends the wait of a thread for its client
        for thread in connections:
            thread.join(1.0)

    def allows(self, host_header: str) -> bool:
        """Return whether the Host header is ours. This stops DNS rebinding: another site can point its own name at this
        address and read everything, but it cannot use a numeric address or the name of this machine."""
        found = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?", host_header.strip().lower())
        host = (found[1] or found[2] or "") if found else ""
        machine = socket.gethostname().lower()
        try:
            return ipaddress.ip_address(host).is_loopback or not self.is_local
        except ValueError:
            return host == "localhost" or (not self.is_local and host in (machine, f"{machine}.local"))

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind would look up the host name in the network

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self._serve, args=(request, client_address), name=f"{self._name} client", daemon=True)
        with self._lock:
            # Finished threads are removed only here: close() must join every thread.
            self._connections = {thread: socket for thread, socket in self._connections.items() if thread.is_alive()}
            full = len(self._connections) >= CONNECTIONS
            if not full:
                thread.start()
                self._connections[thread] = request
        if full:
            self.shutdown_request(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the %s disconnected", self._name, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers one client. Subclasses implement `get`."""

    server: Server
    timeout = CLIENT_SECONDS
    server_version = "lclrr-edge"
    sys_version = ""

    def parse_request(self) -> bool:
        """Reject all methods except GET and HEAD, and requests for another host."""
        if not super().parse_request():
            return False
        if self.command not in ("GET", "HEAD"):
            self.answer(b"Read-only.\n", status=HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        elif not self.server.allows(self.headers.get("Host", "")):
            self.answer(b"Wrong host.\n", status=HTTPStatus.FORBIDDEN)
        else:
            return True
        return False

    def get(self, path: str) -> None:
        """Answer a GET or HEAD request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.get(self.path.partition("?")[0])

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(
        self, body: bytes, kind: str = "text/plain; charset=utf-8", status: HTTPStatus = HTTPStatus.OK, **headers: str
    ) -> None:
        self.head(status, kind, headers | {"Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def not_found(self) -> None:
        self.answer(b"Not found.\n", status=HTTPStatus.NOT_FOUND)

    def head(self, status: HTTPStatus, kind: str, more: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | HEADERS | dict(more)).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
