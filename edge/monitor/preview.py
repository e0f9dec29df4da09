"""A read-only live page for setting up a terminal: video, last events, health.

The recognition loop only stores a reference. Frames are drawn and encoded in the server's threads, and only while a client
watches. Slow clients miss frames.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import cv2
import numpy as np

from edge.events.event import EVENT_SCHEMA, Event
from edge.events.sink import SinkHealth
from edge.events.view import View
from edge.monitor.annotate import draw
from edge.monitor.http_server import Handler, Site
from edge.text import strict_json

EVENTS = 50
STREAMS = 4
STREAM_FPS = 10
REPEAT_SECONDS = 1.0
"""An unchanged frame is sent again after this time, so that a closed connection is noticed."""
STALE_SECONDS = 3.0
"""Without a frame for so long the camera counts as lost, unless the terminal's health says otherwise."""
WIDTH = 1280
JPEG_QUALITY = 80

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}

log = logging.getLogger(__name__)


class Preview(Site):
    """Serves the page at `address`. It is a viewer and a sink."""

    def __init__(self, address: str) -> None:
        self._view: View | None = None
        self._events: tuple[Event, ...] = ()
        self._frames, self._shown, self._fps = 0, 0.0, 0.0
        self._encoding = threading.Lock()
        self._encoded: tuple[View | None, bytes] = (None, b"")
        self._closing = threading.Event()
        self._streams, self._counting = 0, threading.Lock()
        folder = files("edge.monitor").joinpath("page")
        self._page = {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in PAGE.items()}
        super().__init__("preview", address, _Handler)
        if not self._server.is_local:
            log.warning("the preview at %s is open to everyone who can reach this machine", self.url)

    def close(self) -> None:
        self._closing.set()
        super().close()

    def show(self, view: View) -> None:
        """Show a view. Takes microseconds, however many clients watch."""
        now = time.monotonic()
        if self._frames:
            seconds = max(now - self._shown, 1e-3)
            self._fps += (1 / seconds - self._fps) * min(1.0, seconds)  # mean over about a second
        self._view, self._shown = view, now
        self._frames += 1

    def handle(self, event: Event) -> None:
        """Keep an event for the page."""
        self._events = (event, *self._events[: EVENTS - 1])  # a new tuple: readers need no lock

    def page(self, path: str) -> tuple[bytes, str] | None:
        """Return body and content type of a path that is not an image."""
        if path == "/events.json":
            events = ",".join(event.to_json() for event in self._events)
            return f'{{"schema": {EVENT_SCHEMA}, "events": [{events}]}}'.encode(), "application/json"
        if path == "/health.json":
            return strict_json(self.status()).encode(), "application/json"
        return self._page.get(path)

    def health(self) -> SinkHealth:
        """Return no counts: the preview loses no events."""
        return SinkHealth()

    def status(self) -> dict[str, Any]:
        """Return the body of /health.json: what the preview knows, and above it the health of the terminal."""
        age = time.monotonic() - self._shown if self._frames else None
        known = {
            "schema": EVENT_SCHEMA,
            "camera_up": age is not None and age < STALE_SECONDS,
            "fps": round(self._fps, 1),
            "frame_age_seconds": None if age is None else round(age, 3),
            "frames": self._frames,
            "streams": self._streams,
        }
        try:
            return known | dict(self._health() if self._health else {})
        except Exception:
            log.exception("the health of the terminal is unknown")
            return known | {"camera_up": False, "error": "The health of the terminal is unknown."}

    def jpeg(self) -> tuple[View | None, bytes]:
        """Return the newest view and its JPEG, encoded once for all clients."""
        with self._encoding:
            view = self._view
            if view is not None and view is not self._encoded[0]:
                image = draw(view)
                if image.shape[1] > WIDTH:
                    size = (WIDTH, max(1, round(image.shape[0] * WIDTH / image.shape[1])))
                    image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
                _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
                self._encoded = view, data.tobytes()
            return self._encoded

    def stream(self, write: Callable[[bytes], object]) -> None:
        """Write a multipart stream of the newest frames until the client or the preview closes."""
        shown: View | None = None
        sent = 0.0
        write(b"--frame\r\n")
        while not self._closing.is_set():
            begun = time.monotonic()
            if self._view is not shown or begun - sent >= REPEAT_SECONDS:
                shown, data = self.jpeg()
                head = f"Content-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                # With the next boundary: browsers show a part only when they see its end.
                write(head.encode() + data + b"\r\n--frame\r\n")
                sent = begun
            self._closing.wait(max(0.0, 1 / STREAM_FPS - (time.monotonic() - begun)))

    def may_stream(self) -> bool:
        """Reserve one of STREAMS streams. Returns False if all are taken."""
        with self._counting:
            allowed = self._streams < STREAMS
            self._streams += allowed
            return allowed

    def stream_ended(self) -> None:
        with self._counting:
            self._streams -= 1


class _Handler(Handler):
    def setup(self) -> None:
        # A small buffer: frames that wait in it get old.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
        super().setup()

    def get(self, path: str) -> None:
        preview: Preview = self.server.site
        if path == "/stream.mjpg":
            self._stream(preview)
        elif path == "/frame.jpg":
            view, data = preview.jpeg()
            if view is None:
                self.answer(b"No frame yet.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
            else:
                self.answer(data, "image/jpeg")
        elif path == "/favicon.ico":
            self.answer(b"", status=HTTPStatus.NO_CONTENT)
        elif (page := preview.page(path)) is not None:
            self.answer(*page)
        else:
            self.not_found()

    def _stream(self, preview: Preview) -> None:
        if preview.jpeg()[0] is None:
            self.answer(b"No frame yet.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        elif not preview.may_stream():
            self.answer(b"Too many clients.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            try:
                self.head(HTTPStatus.OK, "multipart/x-mixed-replace; boundary=frame", {})
                if self.command == "GET":
                    preview.stream(self.wfile.write)
            finally:
                preview.stream_ended()
