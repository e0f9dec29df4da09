"""A live page for whoever sets the terminal up: video, last events, health. Read-only, on this machine unless told otherwise.

The recognition loop only swaps a reference: pictures are drawn and encoded in the server's threads, and only while somebody
watches. Whoever is slow misses frames; whoever is gone is dropped.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from typing import Any

import cv2
import numpy as np

from edge.annotate import View
from edge.errors import ListenError
from edge.events import SCHEMA, Event, strict_json

EVENTS = 50
STREAMS = 4
CONNECTIONS = 32
STREAM_FPS = 10
REPEAT_SECONDS = 1.0
"""A still picture is sent again after this time, so that a client that is gone is noticed."""
CLIENT_SECONDS = 10.0
"""A client that takes longer to ask, or to take what it asked for, is dropped."""
STALE_SECONDS = 3.0
"""Without a frame for so long the camera is called lost, unless `health` knows better."""
WIDTH = 1280
JPEG_QUALITY = 80

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPv6]:PORT, or a port alone, which means 127.0.0.1. Names are not looked up: that would use the network."""
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ListenError(f"{text!r} is not an address to serve at.", "Put an IPv6 address in brackets: [::1]:8080.")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ListenError(f"{text!r} has no port between 0 and 65535.", "Write it like 127.0.0.1:8080.")
    if host in ("", "localhost"):
        host = "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host)), int(port)
    except ValueError:
        raise ListenError(f"{text!r} is not an address to serve at.", "Write it like 127.0.0.1:8080.") from None


class Preview:
    """Serves the page at `address` between start() and close(). It is a sink for events, too.

    `health` is asked by the server's threads. What it returns is added to, or replaces, what the preview knows itself:
    camera_up, camera, error, kit, strangers, fps, frame_age_seconds, frames, counters (a mapping of names to numbers).
    """

    def __init__(self, address: str, health: Callable[[], Mapping[str, Any]] = dict) -> None:
        host, port = parse_address(address)
        self._health = health
        self._view: View | None = None
        self._events: tuple[Event, ...] = ()
        self._frames, self._published, self._fps = 0, 0.0, 0.0
        self._encoding = threading.Lock()
        self._encoded: tuple[View | None, bytes] = (None, b"")
        self._closing = threading.Event()
        self._streams, self._counting = 0, threading.Lock()
        self._page = {path: (files("edge").joinpath("page", name).read_bytes(), kind) for path, (name, kind) in PAGE.items()}
        self._server = _Server(host, port, self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="preview", daemon=True
        )
        if not ipaddress.ip_address(host).is_loopback:
            log.warning("the preview at %s can be watched by everybody who reaches this machine", self.url)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def start(self) -> Preview:
        self._thread.start()
        return self

    def close(self) -> None:
        """End at once, also with clients in the middle of a stream."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.hang_up()

    def __enter__(self) -> Preview:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    def publish(self, view: View) -> None:
        """Show `view`. Called for each frame: costs microseconds, whoever watches."""
        now = time.monotonic()
        if self._frames:
            seconds = max(now - self._published, 1e-3)
            self._fps += (1 / seconds - self._fps) * min(1.0, seconds)  # a mean over about a second
        self._view, self._published = view, now
        self._frames += 1

    def __call__(self, event: Event) -> None:
        self._events = (event, *self._events[: EVENTS - 1])  # swapped, not changed: readers need no lock

    def page(self, path: str) -> tuple[bytes, str] | None:
        """The body and type at a path, where it is not a picture."""
        if path == "/events.json":
            events = ",".join(event.to_json() for event in self._events)
            return f'{{"schema": {SCHEMA}, "events": [{events}]}}'.encode(), "application/json"
        if path == "/health.json":
            return strict_json(self.health()).encode(), "application/json"
        return self._page.get(path)

    def health(self) -> dict[str, Any]:
        age = time.monotonic() - self._published if self._frames else None
        known = {
            "schema": SCHEMA,
            "camera_up": age is not None and age < STALE_SECONDS,
            "camera": "",
            "error": "",
            "kit": "",
            "strangers": "",
            "fps": round(self._fps, 1),
            "frame_age_seconds": None if age is None else round(age, 3),
            "frames": self._frames,
            "streams": self._streams,
            "counters": {},
        }
        try:
            return known | dict(self._health())
        except Exception:
            log.exception("the terminal's health is not known")
            return known | {"camera_up": False, "error": "The terminal's health is not known."}

    def jpeg(self) -> tuple[View | None, bytes]:
        """The newest view and its picture, encoded once for all who watch."""
        with self._encoding:
            view = self._view
            if view is not None and view is not self._encoded[0]:
                image = view.drawn()
                if image.shape[1] > WIDTH:
                    size = (WIDTH, max(1, round(image.shape[0] * WIDTH / image.shape[1])))
                    image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
                _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
                self._encoded = view, data.tobytes()
            return self._encoded

    def allows(self, host_header: str) -> bool:
        """Whether a request was really meant for us. A page elsewhere can point a name of its own at this address (DNS
        rebinding) and then read everything; it cannot do so with a number, nor with a name of this machine."""
        found = re.fullmatch(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?", host_header.strip().lower())
        host = (found[1] or found[2] or "") if found else ""
        bound = ipaddress.ip_address(str(self._server.server_address[0]))
        machine = socket.gethostname().lower()
        try:
            return ipaddress.ip_address(host).is_loopback or not bound.is_loopback
        except ValueError:
            return host == "localhost" or (not bound.is_loopback and host in (machine, f"{machine}.local"))

    def stream(self, write: Callable[[bytes], object]) -> None:
        """Parts of a multipart stream, newest picture only, until the client or the preview ends."""
        shown: View | None = None
        sent = 0.0
        write(b"--frame\r\n")
        while not self._closing.is_set():
            begun = time.monotonic()
            if self._view is not shown or begun - sent >= REPEAT_SECONDS:
                shown, data = self.jpeg()
                head = f"Content-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                # The next boundary is sent along: browsers show a part when they see its end.
                write(head.encode() + data + b"\r\n--frame\r\n")
                sent = begun
            self._closing.wait(max(0.0, 1 / STREAM_FPS - (time.monotonic() - begun)))

    def may_stream(self) -> bool:
        with self._counting:
            allowed = self._streams < STREAMS
            self._streams += allowed
            return allowed

    def stream_ended(self) -> None:
        with self._counting:
            self._streams -= 1


class _Server(HTTPServer):
    """A thread per connection, a bounded number of them, and a way to end them all."""

    request_queue_size = CONNECTIONS

    def __init__(self, host: str, port: int, preview: Preview) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.preview = preview
        self._talks: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ListenError(
                f"The preview cannot be served at {host}, port {port} ({error.strerror}).", "Choose another address or port."
            ) from None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own would look up the machine's name in the network

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self._talk, args=(request, client_address), name="preview client", daemon=True)
        with self._lock:
            # Only here are those that ended forgotten: whoever closes must wait for each to its very end.
            self._talks = {talk: socket for talk, socket in self._talks.items() if talk.is_alive()}
            full = len(self._talks) >= CONNECTIONS
            if not full:
                thread.start()
                self._talks[thread] = request
        if full:
            self.shutdown_request(request)

    def _talk(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the preview went away", exc_info=True)

    def hang_up(self) -> None:
        with self._lock:
            talks = dict(self._talks)
        for request in talks.values():
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a client
        for thread in talks:
            thread.join(1.0)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS
    server_version = "lclrr-edge"
    sys_version = ""

    def setup(self) -> None:
        # A small buffer: what waits in it is already old.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
        super().setup()

    def parse_request(self) -> bool:
        """Every method but GET and HEAD, and every request meant for somebody else, is refused in one place."""
        if not super().parse_request():
            return False
        if self.command not in ("GET", "HEAD"):
            self._answer(b"This page is read-only.\n", status=HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        elif not self.server.preview.allows(self.headers.get("Host", "")):
            self._answer(b"This is not the host that you asked for.\n", status=HTTPStatus.FORBIDDEN)
        else:
            return True
        return False

    def do_GET(self) -> None:
        preview = self.server.preview
        path = self.path.partition("?")[0]
        if path == "/stream.mjpg":
            self._stream(preview)
        elif path == "/frame.jpg":
            view, data = preview.jpeg()
            if view is None:
                self._answer(b"There is no frame yet.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
            else:
                self._answer(data, "image/jpeg")
        elif path == "/favicon.ico":
            self._answer(b"", status=HTTPStatus.NO_CONTENT)
        elif (page := preview.page(path)) is not None:
            self._answer(*page)
        else:
            self._answer(b"There is nothing here.\n", status=HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _stream(self, preview: Preview) -> None:
        if preview.jpeg()[0] is None:
            self._answer(b"There is no frame yet.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        elif not preview.may_stream():
            self._answer(b"Too many are watching.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            try:
                self._head(HTTPStatus.OK, "multipart/x-mixed-replace; boundary=frame", {})
                if self.command == "GET":
                    preview.stream(self.wfile.write)
            finally:
                preview.stream_ended()

    def _answer(
        self, body: bytes, kind: str = "text/plain; charset=utf-8", status: HTTPStatus = HTTPStatus.OK, **headers: str
    ) -> None:
        self._head(status, kind, headers | {"Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, more: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | HEADERS | dict(more)).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
