"""The HTTP server of preview and metrics: addresses, hosts, methods, and limits."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import ListenError
from edge.monitor import http_server
from edge.monitor.http_server import Handler, Page, Site, parse_address
from tests.fixtures.waiting import until


class Hello(Site):
    def page(self, path: str) -> Page | None:
        return Page(b"hello") if path == "/" else None


@pytest.fixture
def server() -> Iterator[Site]:
    with Hello("test", "127.0.0.1:0") as served:
        yield served


def address_of(server: Site) -> tuple[str, int]:
    host, port = server.server_address[:2]
    return str(host), int(port)


def request(server: Site, path: str = "/", method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    with contextlib.closing(http.client.HTTPConnection(*address_of(server), timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:80", ("127.0.0.1", 80)),
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_valid_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_invalid_address_is_an_error() -> None:
    for text in (
        "", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http", "door.example:80", "::1:80",
        "1.2.3:80", "[::1]", "127.0.0.1:٣", "[127.0.0.1:80", "http://127.0.0.1:80", "127.0.0.1:000080",
    ):  # fmt: skip
        with pytest.raises(ListenError, match=r"\. .*\.$"):
            parse_address(text)


@given(st.text())
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    with contextlib.suppress(ListenError):
        host, port = parse_address(text)
        assert host
        assert 0 <= port <= 65535


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_numeric_address_is_valid(ip: Any, port: int) -> None:
    text = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    assert parse_address(text) == (str(ip), port)


def test_port_in_use_is_an_error(server: Site) -> None:
    with pytest.raises(ListenError, match=r"in use.*another"):
        Hello("test", ":".join(map(str, address_of(server))))


# Requests


def test_response_has_security_headers(server: Site) -> None:
    response, body = request(server)
    assert (response.status, body) == (200, b"hello")
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert response.headers["Access-Control-Allow-Origin"] is None
    assert request(server, "/missing")[0].status == 404


def test_only_get_and_head_are_allowed(server: Site) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "BREW"):
        response, _ = request(server, method=method)
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    response, body = request(server, method="HEAD")
    assert (response.status, body) == (200, b"")


def test_host_of_another_site_is_rejected(server: Site) -> None:
    """DNS rebinding: a site points its own name at this address."""
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:8080"):
        assert request(server, Host=host)[0].status == 200
    for host in (
        "evil.example", "127.0.0.1.evil.example", "192.168.0.7", "", "[::1].evil.example", "localhost.evil.example:80", "[",
    ):  # fmt: skip
        assert request(server, Host=host)[0].status == 403


def test_public_server_accepts_numbers_and_the_machine_name() -> None:
    with contextlib.closing(Hello("test", "0.0.0.0:0")) as server:
        allowed = ["192.168.0.7:80", "10.0.0.1", "localhost", socket.gethostname(), f"{socket.gethostname()}.local:80"]
        assert [host for host in allowed if not server.allows(host)] == []
        assert not server.allows("evil.example")


# Limits


def test_connections_are_limited_and_a_silent_client_delays_no_other(server: Site) -> None:
    """A service may have 256 threads: if clients take them all, a lost camera cannot be opened again."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_connection(address_of(server), 30))
        assert request(server)[0].status == 200
        silent = [
            stack.enter_context(socket.create_connection(address_of(server), 30)) for _ in range(http_server.CONNECTIONS)
        ]
        assert silent[-1].recv(1) == b"", "rejected at once"
        assert threading.active_count() <= before + http_server.CONNECTIONS


def test_silent_client_is_dropped(monkeypatch: pytest.MonkeyPatch, server: Site) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(address_of(server), 30) as silent:
        assert silent.recv(1) == b""


def test_close_ends_connections_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    server = Hello("test", "127.0.0.1:0").__enter__()
    with socket.create_connection(address_of(server), 30):
        assert request(server)[0].status == 200
        began = time.monotonic()
        server.close()
        server.close()
    assert time.monotonic() - began < http_server.CLIENT_SECONDS / 2, "it waited for no client"
    until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(OSError, match="refused"):
        request(server)


def test_server_that_never_started_can_be_closed() -> None:
    Hello("test", "127.0.0.1:0").close()
