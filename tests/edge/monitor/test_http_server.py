"""The HTTP server of preview and metrics: addresses, hosts, methods, and limits."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import ListenError
from edge.monitor import http_server
from edge.monitor.http_server import Page, Site, parse_address
from tests.fakes.cameras import ManualClock
from tests.fixtures.waiting import until

LARGE = bytes(64 << 20)  # more than all buffers between server and client
NEIGHBOUR = "127.0.0.2"  # stands for another machine: tests use no other network than loopback


class Hello(Site):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.more = threading.Semaphore(0)
        super().__init__(*arguments, **options)

    def page(self, path: str) -> Page | None:
        return {"/": Page(b"hello"), "/large": Page(LARGE), "/stream": Page(b"", stream=self.numbers())}.get(path)

    def numbers(self) -> Generator[bytes, None, None]:
        """Yield the next number each time that `more` is released."""
        for number in range(1, 100):
            assert self.more.acquire(timeout=30)
            yield b"%d" % number

    def is_this_machine(self, host: str) -> bool:
        return super().is_this_machine(host) and host != NEIGHBOUR


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


def slow_clients(server: Site, stack: contextlib.ExitStack, number: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Clients that begin a request and do not end it. The server accepts them before any later client."""
    clients = []
    for _ in range(number):
        client = socket.create_connection(address_of(server), 30, source_address=(source, 0))
        clients.append(stack.enter_context(client))
        client.sendall(b"GET / HTTP/1.1\r\n")
    return clients


@pytest.mark.parametrize("number", [1, 32, 200])
def test_slow_clients_do_not_shut_out_another(server: Site, number: int) -> None:
    with contextlib.ExitStack() as stack:
        slow = slow_clients(server, stack, number)
        assert [request(server)[0].status for _ in range(3)] == [200] * 3
        if number > http_server.PLACES:
            assert slow[0].recv(1) == b"", "the oldest made room"


def test_slow_readers_do_not_shut_out_another(server: Site) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * http_server.PLACES):
            client = stack.enter_context(socket.create_connection(address_of(server), 30))
            client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.0 200 OK"
        assert request(server)[0].status == 200


def test_other_machines_take_no_place_of_this_machine(server: Site) -> None:
    with contextlib.ExitStack() as stack:
        (early,) = slow_clients(server, stack, 1)
        others = slow_clients(server, stack, 3 * http_server.PLACES, NEIGHBOUR)
        assert others[2 * http_server.PLACES - 1].recv(1) == b"", "the oldest ones of the other machines made room"
        early.sendall(b"Host: localhost\r\n\r\n")
        assert early.recv(15) == b"HTTP/1.0 200 OK"


def test_number_of_threads_is_limited(server: Site) -> None:
    """A service may have 256 threads: if clients take them all, a lost camera cannot be opened again."""
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(10 * http_server.PLACES):
            stack.enter_context(socket.create_connection(address_of(server), 30))
            assert threading.active_count() <= before + http_server.PLACES


def test_request_must_arrive_in_time_as_a_whole() -> None:
    """A client that sends a byte now and then gets no more time."""
    clock = ManualClock()
    with Hello("test", "127.0.0.1:0", clock=clock) as server, contextlib.ExitStack() as stack:
        (slow,) = slow_clients(server, stack, 1)
        assert request(server)[0].status == 200, "the slow client was accepted before"
        clock.now += 1.1 * http_server.CLIENT_SECONDS
        assert drip(slow, 1000) < 1000


def drip(client: socket.socket, limit: int) -> int:
    """Send a byte now and then until the server closes the connection, `limit` at most. Return their number."""
    client.settimeout(0.01)
    for number in range(limit):
        with contextlib.suppress(TimeoutError):
            client.send(b"X")
            client.recv(1)
            return number  # it answered, or closed the connection
    return limit


def test_response_must_be_taken_in_time_as_a_whole() -> None:
    clock = ManualClock()
    with Hello("test", "127.0.0.1:0", clock=clock) as server, contextlib.ExitStack() as stack:
        slow = stack.enter_context(socket.create_connection(address_of(server), 30))
        slow.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.0 200 OK"
        clock.now += 0.6 * http_server.CLIENT_SECONDS
        assert slow.recv(100)
        clock.now += 0.6 * http_server.CLIENT_SECONDS
        until(lambda: not server._clients)
        taken = 0
        with contextlib.suppress(ConnectionResetError):
            while part := slow.recv(1 << 20):
                taken += len(part)
        assert taken < len(LARGE)


def test_stream_may_last_longer_than_a_response() -> None:
    clock = ManualClock()
    with Hello("test", "127.0.0.1:0", clock=clock) as server, contextlib.ExitStack() as stack:
        watcher = stack.enter_context(socket.create_connection(address_of(server), 30))
        watcher.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        for number in range(1, 6):
            clock.now += 0.9 * http_server.CLIENT_SECONDS
            server.more.release()
            while not received.endswith(b"%d" % number):
                received += watcher.recv(100)
        slow_clients(server, stack, 2 * http_server.PLACES)
        server.more.release()
        assert watcher.recv(1) == b"6", "a stream makes no room for others"


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
