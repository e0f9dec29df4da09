"""Events to a web server: a signed POST, repeated until the server accepts it.

A receiver checks the signature with the shared secret, and answers 2xx when it has stored the event. See docs/guide/sinks.md.
"""

import hashlib
import hmac
import http.client
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edge.addresses import require_private, web_address
from edge.clock import boottime
from edge.credentials import read_secret, tls_context
from edge.errors import SinkError, require
from edge.events.event import Event, message
from edge.events.worker import DeliveryError, TemporaryError, Worker
from edge.sinks.timed_connection import timed_connection
from edge.text import strict_json

TEMPORARY_4XX = {408, 425, 429}
MIN_SECRET = 16  # characters


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Events to a web server, signed."""

    url: str
    """Address, https://...; plain http only for the device itself."""
    secret_file: Path | None = None
    """File with the shared secret in its first line, 16 characters or more."""
    secret_env: str | None = None
    """Environment variable with the shared secret."""
    allow_http: bool = False
    """Allow plain http to other machines: others on the network can read the events."""
    ca_file: Path | None = None
    """Certificates to trust, PEM (not set: those of the system)."""
    names: bool = False
    """Include the person's label in events."""
    timeout_seconds: float = 5.0
    """Time limit for one attempt, from the connection to the server's answer."""
    grant_seconds: float = 5.0
    """How long a grant is valid after the decision. If it is sent later, its outcome is `expired`."""
    keep_seconds: float = 3600.0
    """How long an event is repeated while the server is offline."""
    waiting: int = 100
    """Events kept while the server is offline."""

    def __post_init__(self) -> None:
        require_private(self.url, allow_http=self.allow_http)
        require((self.secret_file is None) != (self.secret_env is None), "one of secret_file and secret_env must be set")
        in_range = 0 < self.timeout_seconds <= 60 and 0 < self.grant_seconds <= 60
        require(in_range, "timeout_seconds and grant_seconds must be more than 0 and at most 60")
        require(0 < self.keep_seconds <= 7 * 86400, "keep_seconds must be more than 0 and at most a week")
        require(1 <= self.waiting <= 100_000, f"waiting must be between 1 and 100000, not {self.waiting}")


class WebhookSink(Worker[Event]):
    """A sink that posts each event to a web server, on a new connection. Redirections are not followed."""

    def __init__(
        self, settings: WebhookSettings, *, clock: Callable[[], float] = boottime, utc: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._url, self._utc = settings, web_address(settings.url), utc
        self._secret, self._tls = credentials(settings)
        name = f"the webhook at {self._url.hostname}"  # not the whole address: a path may contain a token
        super().__init__(self._post, name=name, capacity=settings.waiting, keep_seconds=settings.keep_seconds, clock=clock)

    def _post(self, event: Event) -> None:
        """Post an event, signed with the HMAC-SHA256 of time and body, and return when the server has accepted it."""
        url, settings, unix_seconds = self._url, self._settings, int(self._utc())
        age_seconds = self.waited_seconds()
        fields = message(event, age_seconds=age_seconds, grant_seconds=settings.grant_seconds, names=settings.names)
        body = strict_json(fields).encode()
        digest = hmac.new(self._secret, f"{unix_seconds}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "lclrr-edge",
            "Idempotency-Key": event.event_id,
            "X-Edge-Signature": f"t={unix_seconds},v1={digest}",
        }
        try:
            with closing(timed_connection(url, self._tls, settings.timeout_seconds, self._clock)) as connection:
                connection.request("POST", (url.path or "/") + (f"?{url.query}" if url.query else ""), body, headers)
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise TemporaryError(getattr(error, "strerror", None) or type(error).__name__) from None
        if status in TEMPORARY_4XX or status >= 500:
            raise TemporaryError(f"the server answered {status}")
        if not 200 <= status < 300:
            raise DeliveryError(f"the server answered {status}")


def credentials(settings: WebhookSettings) -> tuple[bytes, ssl.SSLContext | None]:
    """Read the shared secret and the certificates that the settings name."""
    secret = read_secret("webhook's secret", settings.secret_file, settings.secret_env) or ""
    if len(secret) < MIN_SECRET:
        raise SinkError(f"The webhook's secret is shorter than {MIN_SECRET} characters.", "Create one: openssl rand -hex 32")
    is_https = web_address(settings.url).scheme == "https"
    return secret.encode(), tls_context("the webhook", settings.ca_file) if is_https else None
