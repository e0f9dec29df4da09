"""Checks and headers for every request: the host that is asked for, the origin of changes, sizes, and what a page may load."""

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.monitor.http_server import is_own_host

CHUNK_SECONDS = 20.0  # for the next part of a body to arrive
START_SECONDS, LEAST_RATE = 20.0, 20_000  # after START_SECONDS, a body must have arrived at this many bytes per second
DRAINED = 256 << 20  # bytes of a refused body that are read and forgotten, so that the browser reads the answer
MAX_PATH = 2000  # characters; two names of files fit
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
}
SAFE = ("GET", "HEAD")
METHODS = (*SAFE, "POST")


class Guard:
    """Refuses requests for other hosts (DNS rebinding) and changes that another site asks for. Adds the headers."""

    def __init__(self, app: ASGIApp, *, is_local: bool, names: frozenset[str], https: bool) -> None:
        self.app, self.is_local, self.names = app, is_local, names
        self.scheme = "https" if https else "http"
        self.headers = HEADERS | ({"Strict-Transport-Security": "max-age=31536000"} if https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the console has no other connections

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                is_static = scope["path"].startswith("/static/")
                headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
            await send(message)

        problem = self._problem(scope, Headers(scope=scope))
        app = self.app if problem is None else PlainTextResponse(f"{problem}\n", HTTPStatus.FORBIDDEN)
        await app(scope, receive, with_headers)

    def _problem(self, scope: Scope, headers: Headers) -> str | None:
        method, host = scope["method"], headers.get("host", "").lower()
        if len(headers.getlist("host")) != 1 or not is_own_host(host, is_local=self.is_local, names=self.names):
            return "Wrong host."
        if method not in METHODS:
            return "Wrong method."
        if len(scope["path"]) > MAX_PATH:
            return "The address is too long."
        if method in SAFE:
            return None
        origin, fetched_by = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if fetched_by not in ("same-origin", "none") or (origin is not None and origin.lower() != f"{self.scheme}://{host}"):
            return "Changes can be made only on pages of the console."
        return None


class LimitedBody:
    """The body of a request, refused as soon as it is larger than allowed, or too slow."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], most: int) -> None:
        self._receive, self._most = receive, most
        self._length = headers.get("content-length", "0")
        self._began, self._bytes, self._refused = time.monotonic(), 0, False

    async def receive(self) -> Message:
        is_number = self._length.isascii() and self._length.isdigit()
        if not is_number or int(self._length) > self._most:
            await self._refuse()
        message = await self._next()
        if self._bytes > self._most:
            await self._refuse(is_complete=not message.get("more_body"))
        return message

    async def _next(self) -> Message:
        try:
            message = await asyncio.wait_for(self._receive(), CHUNK_SECONDS)
        except TimeoutError:
            raise _TOO_SLOW from None
        self._bytes += len(message.get("body", b""))
        spent = time.monotonic() - self._began
        if spent > START_SECONDS and self._bytes < (spent - START_SECONDS) * LEAST_RATE:
            raise _TOO_SLOW
        return message

    async def _refuse(self, *, is_complete: bool = False) -> None:
        while not is_complete and self._bytes < DRAINED:
            message = await self._next()
            is_complete = message["type"] != "http.request" or not message.get("more_body")
        most = f"{self._most >> 20} MB" if self._most >= 1 << 20 else f"{self._most >> 10} kB"
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"More than {most} at once. Send less at a time.")


_TOO_SLOW = HTTPException(HTTPStatus.REQUEST_TIMEOUT, "The data arrived too slowly. Try again.")
