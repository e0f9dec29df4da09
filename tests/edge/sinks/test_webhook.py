"""Webhooks with a real web server on loopback: signatures, failures, restarts."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge.errors import ParameterError, SettingsError, SinkError
from edge.sinks.webhook import WebhookSettings, WebhookSink
from tests.fakes.mqtt_broker import free_port, write_certificates
from tests.fakes.webhook_server import SECRET, DrippingServer, WebhookServer
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


@contextmanager
def posting(
    url: str,
    secret: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    utc: Callable[[], float] = time.time,
    **settings: Any,
) -> Iterator[WebhookSink]:
    with closing(WebhookSink(WebhookSettings(url=url, secret_file=secret, **settings), clock=clock, utc=utc)) as sink:
        sink._pause_seconds, sink._close_seconds = 0.01, 30.0
        yield sink


def test_signature_covers_time_and_body(secret: Path) -> None:
    event = make_event(label="Zoë")
    with closing(WebhookServer()) as server:
        url = f"http://127.0.0.1:{server.port}/door?a=b"
        with posting(url, secret, names=True, utc=lambda: 1_700_000_000.9) as sink:
            sink.handle(event)
            until(lambda: sink.health().delivered == 1)
        ((path, headers, body),) = server.got
    # As in docs/guide/sinks.md, independent of the code that signs.
    stamp, given = (part.split("=", 1)[1] for part in headers["X-Edge-Signature"].split(","))
    wanted = hmac.digest(SECRET.encode(), stamp.encode() + b"." + body, hashlib.sha256).hex()
    assert hmac.compare_digest(given, wanted)
    assert (stamp, path, headers["Content-Type"]) == ("1700000000", "/door?a=b", "application/json")
    assert headers["Idempotency-Key"] == event.event_id
    found = json.loads(body)
    assert (found["label"], found["outcome"], found["nonce"]) == ("Zoë", "granted", event.event_id)


@pytest.mark.parametrize("answer", [500, 503, 408, 425, 429])
def test_temporary_answer_is_retried_with_the_same_key(answer: int, secret: Path) -> None:
    with closing(WebhookServer(answer, answer, 200)) as server, posting(f"http://127.0.0.1:{server.port}/", secret) as sink:
        sink.handle(make_event())
        until(lambda: sink.health().delivered == 1)
        assert sink.health().retried == 2
        assert len({headers["Idempotency-Key"] for _, headers, _ in server.got}) == 1
        assert len(server.got) == 3


@pytest.mark.parametrize("answer", [301, 307, 400, 403, 410])
def test_permanent_answer_is_final_and_redirections_are_not_followed(
    answer: int, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(WebhookServer(answer)) as server, posting(f"http://127.0.0.1:{server.port}/tok-en", secret) as sink:
        sink.handle(make_event(label="a-secret-name"))
        sink.handle(make_event())
        until(lambda: sink.health().delivered == 1)
        assert (sink.health().failed, sink.health().retried) == (1, 0)
        assert [path for path, _, _ in server.got] == ["/tok-en", "/tok-en"]
    assert str(answer) in caplog.text
    for word in ("a-secret-name", "tok-en", SECRET):
        assert word not in caplog.text


def test_server_that_was_offline_gets_all_events_and_no_late_grant(secret: Path) -> None:
    port, now = free_port(), [100.0]
    events = [make_event(), make_event(outcome="denied"), make_event()]
    with posting(f"http://localhost:{port}/", secret, clock=lambda: now[0]) as sink:
        sink.handle(events[0])
        sink.handle(events[1])
        until(lambda: sink.health().retried > 0)
        now[0] += 5.0
        with closing(WebhookServer(port=port)) as server:
            sink.handle(events[2])
            until(lambda: sink.health().delivered == 3)
            found = [json.loads(body) for _, _, body in server.got]
    assert [facts["event_id"] for facts in found] == [event.event_id for event in events]
    assert [facts["outcome"] for facts in found] == ["expired", "denied", "granted"]


def test_slow_server_never_blocks_and_times_out(secret: Path) -> None:
    with closing(WebhookServer()) as server:
        server.open.clear()
        url = f"http://127.0.0.1:{server.port}/"
        with posting(url, secret, timeout_seconds=0.5, waiting=3) as sink:
            for _ in range(5):
                sink.handle(make_event())  # would block here
            assert (sink.health().dropped, sink.health().waiting) == (2, 3)
            until(lambda: sink.health().retried > 0)
            server.open.set()
            until(lambda: sink.health().delivered == 3)


STATUS = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "first",
    [b"", b"HTTP/1.1 2", STATUS, STATUS + b"X: ", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 "],
    ids=["status", "number", "name", "value", "second status"],
)
def test_dripping_answer_ends_with_the_attempt(secret: Path, first: bytes) -> None:
    with closing(DrippingServer(first)) as server, posting(server.url("http"), secret, timeout_seconds=0.5) as sink:
        sink.handle(make_event())
        assert 0 < server.drips(1) < server.limit, "the terminal closed the connection"
        until(lambda: sink.health().retried > 0)
        assert sink.health().delivered == sink.health().failed == 0


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03"], ids=["silent", "server hello"])
def test_dripping_tls_handshake_ends_with_the_attempt(secret: Path, first: bytes) -> None:
    with closing(DrippingServer(first)) as server, posting(server.url("https"), secret, timeout_seconds=0.5) as sink:
        sink.handle(make_event())
        assert server.drips(1) < server.limit, "the terminal closed the connection"
        until(lambda: sink.health().retried > 0)
        assert sink.health().delivered == sink.health().failed == 0


def test_dripping_tls_answer_ends_with_the_attempt(secret: Path, tmp_path: Path) -> None:
    write_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    settings: dict[str, Any] = {"timeout_seconds": 0.5, "ca_file": tmp_path / "ca.pem"}
    with closing(DrippingServer(STATUS, context)) as server, posting(server.url("https"), secret, **settings) as sink:
        sink.handle(make_event())
        assert 0 < server.drips(1) < server.limit, "the terminal closed the connection"
        until(lambda: sink.health().retried > 0)


def test_invalid_answer_is_retried(secret: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with posting(url, secret) as sink:
            sink.handle(make_event())
            for answer in (b"SSH-2.0-hello\r\n", b"", b"HTTP/1.1 204 No Content\r\n\r\n"):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
            until(lambda: sink.health().delivered == 1)
            assert sink.health().retried == 2


def test_https_certificate_is_checked(secret: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        write_certificates(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with closing(WebhookServer(tls=context)) as server:
        url = f"https://127.0.0.1:{server.port}/"
        wrong_settings: tuple[dict[str, Any], ...] = ({}, {"ca_file": other / "ca.pem"})
        for wrong in wrong_settings:
            with posting(url, secret, **wrong) as sink:
                sink.handle(make_event())
                until(partial(lambda sink: sink.health().retried > 0, sink))
                assert sink.health().delivered == 0
        assert server.got == []
        with posting(url, secret, ca_file=tmp_path / "ca.pem") as sink:
            sink.handle(make_event())
            until(lambda: sink.health().delivered == 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://example.org/"},
        {"url": "http://192.168.1.2/"},
        {"url": "ftp://127.0.0.1/"},
        {"url": "https://"},
        {"url": "https://user:password@example.org/"},
        {"url": "https://example.org:x/"},
        {"url": "https://exa mple.org/"},
        {"url": "https://example.org/\r\nHost: other"},
        {"secret_file": None},
        {"secret_env": "BOTH"},
        {"timeout_seconds": 0.0},
        {"grant_seconds": float("nan")},
        {"keep_seconds": float("inf")},
        {"waiting": 0},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        WebhookSettings(**dict[str, Any](url="https://example.org/", secret_file=Path("secret")) | wrong)


def test_plain_http_needs_loopback_or_allow_http() -> None:
    for url in ("http://localhost:8000/", "http://127.0.0.1/", "http://[::1]/"):
        WebhookSettings(url=url, secret_env="S")
    WebhookSettings(url="http://192.168.1.2/", secret_env="S", allow_http=True)


def test_missing_or_short_secret_is_an_error_at_the_start(tmp_path: Path) -> None:
    settings = WebhookSettings(url="https://example.org/", secret_file=tmp_path / "secret")
    with pytest.raises(SettingsError):
        WebhookSink(settings)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SinkError, match="16"):
        WebhookSink(settings)
    (tmp_path / "secret").write_text(SECRET)
    with pytest.raises(SinkError, match="ca_file"):
        WebhookSink(WebhookSettings(url="https://h/", secret_file=tmp_path / "secret", ca_file=tmp_path / "none"))
