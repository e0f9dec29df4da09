"""A read-only live page for setting up a terminal: video, last events, health. And at /kiosk, a page for visitors.

The recognition loop only stores a reference. Frames are drawn and encoded in the server's threads, and only while a client
watches. Slow clients miss frames.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import cv2
import numpy as np

from edge.events.event import EVENT_SCHEMA, Event
from edge.events.sink import SinkHealth
from edge.events.view import View
from edge.monitor.annotate import Image, draw
from edge.monitor.http_server import Page, Site
from edge.monitor.kiosk_page import Kiosk
from edge.text import strict_json

EVENTS = 50
STREAMS = 4
STREAM_FPS = 10
REPEAT_SECONDS = 1.0
"""An unchanged frame is sent again after this time, so that a closed connection is noticed."""
WIDTH = 1280
KIOSK_WIDTH = 960
JPEG_QUALITY = 80
MAX_AGE_SECONDS = 2.0
"""The page for visitors shows no view that is older."""

FILES = {"/": ("index.html", "html"), "/app.js": ("app.js", "javascript"), "/style.css": ("style.css", "css")}

log = logging.getLogger(__name__)


class Preview(Site):
    """Serves the page at `address`. It is a viewer and a sink."""

    def __init__(self, address: str, kiosk: Kiosk | None = None) -> None:
        """`kiosk` is the page for visitors, if there is one."""
        self._kiosk = kiosk
        self._view: View | None = None
        self._events: tuple[Event, ...] = ()
        self._frames, self._shown, self._fps = 0, 0.0, 0.0
        self._marked = NewestJpeg(lambda: self._view, lambda view: draw(view), WIDTH)
        self._plain = NewestJpeg(lambda: self._view, lambda view: view.frame.image, KIOSK_WIDTH)
        self._closing = threading.Event()
        self._streams, self._counting = 0, threading.Lock()
        folder = files("edge.monitor").joinpath("page")
        self._files = {"/favicon.ico": Page(b"", status=HTTPStatus.NO_CONTENT)}
        for path, (name, kind) in FILES.items():
            self._files[path] = Page(folder.joinpath(name).read_bytes(), f"text/{kind}; charset=utf-8")
        for path, (body, kind) in ({} if kiosk is None else kiosk.files).items():
            self._files[path] = Page(body, kind)
        super().__init__("preview", address)
        if not self.is_local:
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
        """Keep an event for the pages."""
        if self._kiosk is not None:
            self._kiosk.handle(event)
        self._events = (event, *self._events[: EVENTS - 1])  # a new tuple: readers need no lock

    def page(self, path: str) -> Page | None:
        if path == "/events.json":
            events = ",".join(event.to_json() for event in self._events)
            return Page(f'{{"schema": {EVENT_SCHEMA}, "events": [{events}]}}'.encode(), "application/json")
        if path == "/health.json":
            return Page(strict_json(self.status()).encode(), "application/json")
        if self._kiosk is not None and path in ("/kiosk/state.json", "/kiosk/frame.jpg"):
            return self._for_visitors(self._kiosk, path)
        if path not in ("/frame.jpg", "/stream.mjpg"):
            return self._files.get(path)
        view, image = self._marked.get()
        if view is None:
            return Page(b"No frame yet.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        if path == "/frame.jpg":
            return Page(image, "image/jpeg")
        stream = self._stream()
        if (start := next(stream, None)) is None:
            return Page(b"Too many clients.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Page(start, "multipart/x-mixed-replace; boundary=frame", stream=stream)

    def health(self) -> SinkHealth:
        """Return no counts: the preview loses no events."""
        return SinkHealth()

    def status(self) -> dict[str, Any]:
        """Return the body of /health.json: what the preview knows, and above it the health of the terminal."""
        known = {"camera_up": False, "fps": round(self._fps, 1), "frames": self._frames, "streams": self._streams}
        try:
            return {"schema": EVENT_SCHEMA, **known, **(self._health() if self._health else {})}
        except Exception:
            log.exception("the health of the terminal is unknown")
            return {"schema": EVENT_SCHEMA, **known, "error": "The health of the terminal is unknown."}

    def _for_visitors(self, kiosk: Kiosk, path: str) -> Page:
        """Return the state of the page for visitors, or a frame without marks. Old data are never shown."""
        view = self._view if time.monotonic() - self._shown <= MAX_AGE_SECONDS else None
        if path == "/kiosk/state.json":
            works = self.status()["camera_up"] is True
            return Page(strict_json(kiosk.state(view if works else None)).encode(), "application/json")
        if view is None:
            return Page(b"No new frame.\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Page(self._plain.get()[1], "image/jpeg")

    def _stream(self) -> Generator[bytes, None, None]:
        """Yield a multipart stream of the newest frames; nothing if there are STREAMS streams already."""
        with self._counting:
            if self._streams >= STREAMS:
                return
            self._streams += 1
        try:
            yield b"--frame\r\n"
            shown: View | None = None
            sent = 0.0
            while not self._closing.is_set():
                begun = time.monotonic()
                if self._view is not shown or begun - sent >= REPEAT_SECONDS:
                    shown, data = self._marked.get()
                    head = f"Content-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                    # With the next boundary: browsers show a part only when they see its end.
                    yield head.encode() + data + b"\r\n--frame\r\n"
                    sent = begun
                self._closing.wait(max(0.0, 1 / STREAM_FPS - (time.monotonic() - begun)))
        finally:
            with self._counting:
                self._streams -= 1


class NewestJpeg:
    """The newest view as a JPEG, encoded once for all clients."""

    def __init__(self, newest: Callable[[], View | None], picture: Callable[[View], Image], width: int) -> None:
        """`picture` makes the image of a view, which is scaled down to `width`."""
        self._newest, self._picture, self._width = newest, picture, width
        self._encoding = threading.Lock()
        self._encoded: tuple[View | None, bytes] = (None, b"")

    def get(self) -> tuple[View | None, bytes]:
        """Return the newest view and its JPEG."""
        with self._encoding:
            view = self._newest()
            if view is not None and view is not self._encoded[0]:
                image = self._picture(view)
                if image.shape[1] > self._width:
                    size = (self._width, max(1, round(image.shape[0] * self._width / image.shape[1])))
                    image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
                _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
                self._encoded = view, data.tobytes()
            return self._encoded
