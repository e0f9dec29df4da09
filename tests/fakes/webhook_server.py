"""Web servers on loopback that receive webhooks: one that answers, and one that never ends its answer."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fixtures.waiting import until

SECRET = "a shared secret of some length"


class WebhookServer:
    """Answers each POST with the next of `answers`, then with 204, and keeps the requests."""

    def __init__(self, *answers: int, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.open = threading.Event()
        self.open.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, dict(self.headers), body))
                outer.open.wait(30)
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.open.set()
        self.http.shutdown()
        self.http.server_close()


class DrippingServer:
    """Answers each client with `first`, then with one byte after the other, until the client closes the connection."""

    PAUSE_SECONDS = 0.02

    def __init__(self, first: bytes = b"", tls: ssl.SSLContext | None = None, *, limit: int = 1000) -> None:
        """`limit` is the number of bytes to one client, far more than any timeout allows."""
        self._first, self._tls, self.limit = first, tls, limit
        self._drips: list[int] = []  # of the clients that are gone
        self._server = socket.create_server(("127.0.0.1", 0))
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self._server.getsockname()[1]}/"

    def drips(self, client: int) -> int:
        """Wait until a client is gone, and return the number of bytes that dripped to it. Clients count from 1."""
        return int(until(lambda: self._drips[client - 1 : client])[0])

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._drip, args=[client], daemon=True).start()

    def _drip(self, client: socket.socket) -> None:
        number = 0
        with suppress(OSError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            client.sendall(self._first)
            while number < self.limit and not self._closed.wait(self.PAUSE_SECONDS):
                client.sendall(b"1")
                number += 1
        client.close()
        self._drips.append(number)
