"""A fake network camera: real HTTP and JPEG on the loopback interface, with the faults of real cameras."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import cv2
import numpy as np
from numpy.typing import NDArray

BOUNDARY = "frame"


def jpeg(image: NDArray[Any]) -> bytes:
    return cv2.imencode(".jpg", image)[1].tobytes()


def grey_jpeg(level: int) -> bytes:
    """An image of one grey level, by which a test identifies it."""
    return jpeg(np.full((48, 64, 3), level, np.uint8))


def part(body: bytes, *, length: int | None = None) -> bytes:
    """A frame as a camera sends it. `length` replaces the true length in its header."""
    header = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return header.encode() + body + b"\r\n"


class MjpegServer:
    """Sends frames to all clients, but only when the test calls push() or send()."""

    def __init__(
        self,
        *,
        user: str = "",
        password: str = "",
        reply: tuple[str, bytes] | None = None,
        redirect: Callable[[str], str | None] = lambda path: None,
    ) -> None:
        """`redirect` returns the address that a path is redirected to, or None."""
        self._log_in = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else None
        self._reply, self._redirect = reply, redirect
        self.requests: list[tuple[str, str | None]] = []  # path, and login
        self._changed = threading.Condition()
        self._clients: list[socket.socket] = []
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.connections = 0

    def __enter__(self) -> Self:
        self.come_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/stream"

    def come_up(self) -> None:
        """Listen. After go_down(), the port stays the same."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="mjpeg", daemon=True).start()

    def go_down(self) -> None:
        """Close all connections and the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        with self._changed:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            self._clients.clear()
            self._changed.notify_all()

    def wait_for_client(self, seconds: float = 20.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._clients, seconds), "no client connected"

    def push(self, *bodies: bytes) -> None:
        """Send frames at once."""
        self.send(b"".join(part(body) for body in bodies))

    def send(self, data: bytes) -> None:
        """Send raw bytes, as soon as a client is connected."""
        self.wait_for_client()
        with self._changed:
            for client in list(self._clients):
                try:
                    client.sendall(data)
                except OSError:
                    self._clients.remove(client)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        camera = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                camera.requests.append((self.path, self.headers.get("Authorization")))
                if (location := camera._redirect(self.path)) is not None:
                    self.send_response(302)
                    self.send_header("Location", location)
                    self.end_headers()
                    return
                if camera._log_in is not None and self.headers.get("Authorization") != camera._log_in:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="camera"')
                    self.end_headers()
                    return
                kind, body = camera._reply or (f"multipart/x-mixed-replace; boundary={BOUNDARY}", None)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                if body is not None:
                    with contextlib.suppress(OSError):
                        self.wfile.write(body)
                    return
                with camera._changed:
                    camera.connections += 1
                    camera._clients.append(self.connection)
                    camera._changed.notify_all()
                    camera._changed.wait_for(lambda: self.connection not in camera._clients)

            def log_message(self, *_: Any) -> None:
                """Write nothing to the terminal of the test."""

        return Handler
