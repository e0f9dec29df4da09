"""The HTTP connection: kept between requests, with a deadline for each, and bounded in what it reads."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.addresses import web_address
from edge.credentials import tls_context
from edge.fleet.connection import Connection
from edge.fleet.settings import FleetSettings, credentials
from tests.fakes.mqtt_broker import write_certificates
from tests.fakes.webhook_server import DrippingServer
from tests.fixtures.nginx import nginx

pytestmark = pytest.mark.slow


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], object], *, keeps: bool = True) -> Iterator[str]:
    """Serve each GET by `answer`, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keeps else "HTTP/1.0"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def fetch(connection: Connection, path: str = "/", seconds: float = 30.0) -> tuple[int, bytes]:
    with connection.get(path, {}, seconds) as response:
        return response.status, response.read()


def plain(handler: BaseHTTPRequestHandler) -> None:
    body = f"{handler.path} {handler.client_address[1]}".encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def test_requests_share_a_connection() -> None:
    with serving(plain) as url:
        connection = Connection(web_address(url), None)
        first, second = fetch(connection), fetch(connection)
        connection.close()
    assert first == second
    assert connection.received > 0


@pytest.mark.parametrize("keeps", [True, False])
def test_connection_that_the_server_ended_is_opened_again(keeps: bool) -> None:
    def once(handler: BaseHTTPRequestHandler) -> None:
        plain(handler)
        handler.close_connection = True  # without a word to the client

    with serving(once, keeps=keeps) as url:
        connection = Connection(web_address(url), None)
        ports = {fetch(connection)[1].split()[1] for _ in range(3)}
        connection.close()
    assert len(ports) == 3


def test_answer_that_was_not_read_is_not_taken_for_the_next_one() -> None:
    def long(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(handler.path.encode() * 10)
        handler.wfile.write(b"x" * (1_000_000 - 10 * len(handler.path)))

    with serving(long) as url:
        connection = Connection(web_address(url), None)
        for path in ("/a", "/b"):
            with connection.get(path, {}, 30.0) as response:
                assert response.read(2) == path.encode()
        connection.close()


def test_slow_server_is_left_at_the_deadline() -> None:
    """Time passes only with each byte that the server sends."""
    server, now = DrippingServer(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"), [0.0]

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    connection = Connection(web_address(server.url("http")), None, clock=clock)
    with pytest.raises(TimeoutError):
        fetch(connection, seconds=20.0)
    connection.close()
    assert server.drips(1) < 100
    server.close()


def test_redirection_is_not_followed() -> None:
    asked = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        handler.send_response(302)
        handler.send_header("Location", "/other")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with serving(elsewhere) as url:
        connection = Connection(web_address(url), None)
        assert fetch(connection)[0] == 302
        connection.close()
    assert asked == ["/"]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200, b"garbage\r\n\r\n"])
def test_nonsense_is_an_error_of_the_connection(answer: bytes) -> None:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    with serving(send) as url, pytest.raises((OSError, http.client.HTTPException)):
        fetch(Connection(web_address(url), None))


def test_tls_needs_the_right_authority(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a").write_text("hello")
    with nginx(tmp_path / "nginx", tmp_path / "site", certificate=tmp_path / "server.pem") as server:
        right = Connection(web_address(server.url), tls_context("the fleet", tmp_path / "ca.pem"))
        assert fetch(right, "/a") == (200, b"hello")
        assert fetch(right, "/a") == (200, b"hello")
        right.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(Connection(web_address(server.url), tls_context("the fleet", None)), "/a")
        assert len({connection for *_, connection, _ in server.requests()}) == 1


def test_server_may_require_a_certificate(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a").write_text("hello")
    with nginx(
        tmp_path / "nginx", tmp_path / "site", certificate=tmp_path / "server.pem", client_ca=tmp_path / "ca.pem"
    ) as server:
        settings = FleetSettings(url=server.url, root=tmp_path, group="north", door="d1", ca_file=tmp_path / "ca.pem")
        own = replace(settings, cert_file=tmp_path / "client.pem", key_file=tmp_path / "client.key")
        assert fetch(Connection(web_address(server.url), credentials(own)), "/a") == (200, b"hello")
        assert fetch(Connection(web_address(server.url), credentials(settings)), "/a")[0] == 400
