"""Serves the console: the address, TLS, who may come in, and limits for slow and many connections."""

import asyncio
import ipaddress
import shutil
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from cryptography import x509
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge.credentials import MAX_BYTES
from edge.errors import ListenError, UsageError
from edge.files import read_bytes
from edge.monitor.http_server import parse_address
from trainer.console import people, visits
from trainer.console.app import make_app
from trainer.console.sessions import SessionStore
from trainer.site import jobs, users
from trainer.site.folder import Site

REQUEST_SECONDS = 15.0
"""For a client to send the head of its request, from the connection or from the first byte on."""
CONNECTIONS, PER_ADDRESS = 400, 60
HEAD_BYTES = 32 << 10
IDLE_SECONDS, STOP_SECONDS = 30, 2


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Where the console listens, and with which certificate."""

    socket: socket.socket
    is_local: bool
    cert: Path | None = None
    key: Path | None = None
    names: frozenset[str] = frozenset()
    """Host names of the certificate."""

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, f"[{host}]" if ":" in host else host)
        return f"{'http' if self.cert is None else 'https'}://{shown}:{port}"


def listen(site: Site, address: str, *, cert: Path | None = None, key: Path | None = None) -> Listener:
    """Open the address. Other addresses than loopback need a certificate and an administrator."""
    host, port = parse_address(address)
    is_local = ipaddress.ip_address(host).is_loopback
    if (cert is None) != (key is None):
        raise UsageError("--cert and --key belong together.", "Give both, in PEM form.")
    if not is_local and cert is None:
        raise UsageError(
            f"{address} can be reached from other computers, and needs TLS.",
            "Add --cert FILE --key FILE, or use --address 127.0.0.1:8765.",
        )
    with site.database() as database:
        if not is_local and not users.has_administrator(database):
            raise UsageError(
                f"{address} can be reached from other computers, and this site has no administrator.",
                f"Run: trainer site add-user {site.path} NAME --role administrator",
            )
    names = frozenset[str]() if cert is None or key is None else _names(cert, key)
    return Listener(socket=_bind(host, port), is_local=is_local, cert=cert, key=key, names=names)


def _names(cert: Path, key: Path) -> frozenset[str]:
    """Check certificate and key, and return the host names of the certificate."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
        found = x509.load_pem_x509_certificate(read_bytes(cert, MAX_BYTES))
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    except (ssl.SSLError, ValueError):
        raise UsageError(
            f"{cert} and {key} cannot be used.", "They must belong together, in PEM form, without a password."
        ) from None
    except OSError as error:
        raise UsageError(f"{cert} and {key} cannot be read ({error.strerror}).", "Check --cert and --key.") from None
    return frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName))


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off the delay of small packets only if it sees this protocol: else most answers take 40 ms more.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise ListenError(
            f"The console cannot be served at {host}, port {port} ({error.strerror}).",
            "Choose another port with --address, or 0 for any free one.",
        ) from None
    return found


def serve(
    site: Site, listener: Listener, *, picture_key: bytes | None = None, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until SIGINT or SIGTERM. `ready` gets the URL that opens the console. Jobs of the site go on after the end."""
    https = listener.cert is not None
    _remove_left_uploads(site)
    sessions = SessionStore(site, open_to_owner=listener.is_local, https=https)
    app = make_app(site, sessions, hosts=listener.names, is_local=listener.is_local, picture_key=picture_key, https=https)
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a client cannot claim another address
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=HEAD_BYTES,
        ssl_certfile=listener.cert,
        ssl_keyfile=listener.key,
    )
    with listener.socket as opened:
        ready(listener.url + ("/" if sessions.needs_login() else f"/token?token={sessions.new_token()}"))
        uvicorn.Server(config).run(sockets=[opened])


def _remove_left_uploads(site: Site) -> None:
    """Delete uploads of a console or an import that was ended from outside: nobody would delete these faces."""
    with site.database() as database:
        if jobs.running(database) is not None:
            return  # it may be importing one of them
    for left in (*site.path.glob(f"{people.UPLOAD}*"), *site.path.glob(f"{visits.UPLOAD}*")):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


class PatientProtocol(H11Protocol):
    """HTTP of uvicorn, with a time limit for the head of a request and a limit of connections for each address."""

    open_by_address: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = str(self.client[0]) if self.client else ""
        self.open_by_address[self._address] += 1
        self._head_timer: asyncio.TimerHandle | None = None
        if self.open_by_address[self._address] > PER_ADDRESS:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        self.open_by_address[self._address] -= 1
        if not self.open_by_address[self._address]:
            del self.open_by_address[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_timer()
        elif self._head_timer is None:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
