"""Events to a web server: POST with a signature, offered again until it is taken.

A receiver checks the signature with the shared secret, and answers 2xx once it has kept the event. See docs/guide/sinks.md.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from edge.credentials import read_secret
from edge.errors import ParameterError, SinkError
from edge.events.event import Event
from edge.sinks import message
from edge.sinks.retry import Courier, Later, Refused
from edge.text import strict_json

AGAIN = {408, 425, 429}  # of the 4xx, those that speak of now and not of the event


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Events to a web server, signed."""

    url: str
    """Where to, https://...; plain http is for the device itself."""
    secret_file: Path | None = None
    """A file that holds the shared secret in its first line, 16 characters or more."""
    secret_env: str | None = None
    """A variable of the environment that holds it."""
    allow_http: bool = False
    """Send over plain http to other machines too, for all on the way to read."""
    ca_file: Path | None = None
    """Whose certificates to believe, PEM (not set: those that the system believes)."""
    names: bool = False
    """Whether events say who it was."""
    timeout_seconds: float = 5.0
    """How long the server may take to answer."""
    grant_seconds: float = 5.0
    """How long after the decision a grant may open anything. One that could not be sent by then is told as expired."""
    keep_seconds: float = 3600.0
    """How long an event is offered to a server that is away."""
    waiting: int = 100
    """Events kept for a server that is away."""

    def __post_init__(self) -> None:
        parts = _parts(self.url)
        if parts.scheme == "http" and not self.allow_http and not _is_here(parts.hostname or ""):
            raise ParameterError("url must begin with https://, or allow_http be true")
        if (self.secret_file is None) == (self.secret_env is None):
            raise ParameterError("one of secret_file and secret_env must be set")
        if not 0 < self.timeout_seconds <= 60 or not 0 < self.grant_seconds <= 60:
            raise ParameterError("timeout_seconds and grant_seconds must be more than 0 and at most 60")
        if not 0 < self.keep_seconds <= 7 * 86400:
            raise ParameterError(f"keep_seconds must be more than 0 and at most a week, not {self.keep_seconds:g}")
        if not 1 <= self.waiting <= 100_000:
            raise ParameterError(f"waiting must be between 1 and 100000, not {self.waiting}")


def open_sink(settings: WebhookSettings) -> Webhook:
    return Webhook(settings)


class Webhook(Courier):
    """Each event is posted until the server says 2xx, or that it never will. Redirections are not followed."""

    def __init__(self, settings: WebhookSettings, *, utc: Callable[[], float] = time.time, **courier: Any) -> None:
        self._settings, self._url, self._utc = settings, _parts(settings.url), utc
        self._secret, self._tls = credentials(settings)
        super().__init__(
            f"the webhook at {self._url.hostname}",  # no more of it: a path may hold a token
            self._post,
            waiting=settings.waiting,
            keep_seconds=settings.keep_seconds,
            **courier,
        )

    def _post(self, event: Event, age_seconds: float) -> None:
        settings = self._settings
        facts = message(event, age_seconds=age_seconds, grant_seconds=settings.grant_seconds, names=settings.names)
        body = strict_json(facts).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "lclrr-edge",
            "Idempotency-Key": event.event_id,
            "X-Edge-Signature": signature(self._secret, int(self._utc()), body),
        }
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        try:
            with closing(self._connection()) as connection:
                connection.request("POST", path, body, headers)
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise Later(getattr(error, "strerror", None) or type(error).__name__) from None
        if status in AGAIN or status >= 500:
            raise Later(f"the server answered {status}")
        if not 200 <= status < 300:
            raise Refused(f"the server answered {status}")

    def _connection(self) -> http.client.HTTPConnection:
        host, port, seconds = self._url.hostname or "", self._url.port, self._settings.timeout_seconds
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)


def signature(secret: bytes, unix_seconds: int, body: bytes) -> str:
    """The header: when it was signed, and the HMAC-SHA256 of that and the body."""
    digest = hmac.new(secret, f"{unix_seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={unix_seconds},v1={digest}"


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sensible = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        sensible = sensible and url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        sensible = False
    if not sensible:
        raise ParameterError("url must be an address such as https://example.org/door")
    if parts.username is not None or parts.password is not None:
        raise ParameterError("url must not hold a user or password: the signature says who sends")
    return parts


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def credentials(settings: WebhookSettings) -> tuple[bytes, ssl.SSLContext | None]:
    """The shared secret and what certificates go by, from the files and variables that the settings name."""
    secret = read_secret("webhook's secret", settings.secret_file, settings.secret_env) or ""
    if len(secret) < 16:
        raise SinkError("The webhook's secret is shorter than 16 characters.", "Make one: openssl rand -hex 32")
    if _parts(settings.url).scheme != "https":
        return secret.encode(), None
    try:
        return secret.encode(), ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        why = error.strerror or "not in PEM form"
        raise SinkError(f"The webhook's certificates cannot be used ({why}).", "Check ca_file.") from None
