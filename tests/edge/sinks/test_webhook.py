"""Webhooks against a real web server on loopback: signatures, failures, restarts."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.errors import ParameterError, SettingsError, SinkError
from edge.sinks.webhook import Webhook, WebhookSettings, open_sink
from tests.edge.events.test_event import told
from tests.fakes.mqtt_broker import free_port, until, write_certificates

SECRET = "a shared secret of some length"


class Server:
    """Answers each POST with the next of `answers`, then with 204, and remembers what it got."""

    def __init__(self, *answers: int, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.answers, self.got = list(answers), []  # type: ignore[var-annotated]
        self.open = threading.Event()
        self.open.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, dict(self.headers), body))
                outer.open.wait(30)
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.open.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


@contextmanager
def posting(url: str, secret: Path, *, clock: Any = None, **other: Any) -> Iterator[Webhook]:
    courier = {} if clock is None else {"clock": clock}
    with closing(Webhook(WebhookSettings(url=url, secret_file=secret, **other), pause_seconds=0.01, **courier)) as sink:
        yield sink


def test_a_receiver_can_check_who_sent_what_and_when(secret: Path) -> None:
    event = told(label="Zoë")
    with closing(Server()) as server:
        settings = WebhookSettings(url=f"http://127.0.0.1:{server.port}/door?a=b", secret_file=secret, names=True)
        with closing(Webhook(settings, utc=lambda: 1_700_000_000.9)) as sink:
            sink(event)
            until(lambda: sink.delivered == 1)
        ((path, headers, body),) = server.got
    # Written as in docs/guide/sinks.md, and not with the code that signs.
    stamp, given = (part.split("=", 1)[1] for part in headers["X-Edge-Signature"].split(","))
    wanted = hmac.digest(SECRET.encode(), stamp.encode() + b"." + body, hashlib.sha256).hex()
    assert hmac.compare_digest(given, wanted)
    assert (stamp, path, headers["Content-Type"]) == ("1700000000", "/door?a=b", "application/json")
    assert headers["Idempotency-Key"] == event.event_id
    said = json.loads(body)
    assert (said["label"], said["outcome"], said["nonce"]) == ("Zoë", "granted", event.event_id)


@pytest.mark.parametrize("answer", [500, 502, 503, 408, 425, 429])
def test_it_tries_again_with_the_same_key_until_it_is_taken(answer: int, secret: Path) -> None:
    with closing(Server(answer, answer, 200)) as server, posting(f"http://127.0.0.1:{server.port}/", secret) as sink:
        sink(told())
        until(lambda: sink.delivered == 1)
        assert sink.retried == 2
        assert len({headers["Idempotency-Key"] for _, headers, _ in server.got}) == 1
        assert len(server.got) == 3


@pytest.mark.parametrize("answer", [301, 307, 400, 401, 403, 404, 410, 422])
def test_a_no_is_final_and_redirections_are_not_followed(answer: int, secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Server(answer)) as server, posting(f"http://127.0.0.1:{server.port}/tok-en", secret) as sink:
        sink(told(label="a-secret-name"))
        sink(told())
        until(lambda: sink.delivered == 1)
        assert (sink.failed, sink.retried) == (1, 0)
        assert [path for path, _, _ in server.got] == ["/tok-en", "/tok-en"]
    assert str(answer) in caplog.text
    for word in ("a-secret-name", "tok-en", SECRET):
        assert word not in caplog.text


def test_a_server_that_was_away_gets_all_in_order_and_no_late_grant(secret: Path) -> None:
    port, now = free_port(), [100.0]
    events = [told(), told(outcome="denied"), told()]
    with posting(f"http://localhost:{port}/", secret, clock=lambda: now[0]) as sink:
        sink(events[0])
        sink(events[1])
        until(lambda: sink.retried > 0)
        now[0] += 5.0
        with closing(Server(port=port)) as server:
            sink(events[2])
            until(lambda: sink.delivered == 3)
            said = [json.loads(body) for _, _, body in server.got]
    assert [facts["event_id"] for facts in said] == [event.event_id for event in events]
    assert [facts["outcome"] for facts in said] == ["expired", "denied", "granted"]


def test_a_slow_server_delays_nobody_and_is_given_up(secret: Path) -> None:
    with closing(Server()) as server:
        server.open.clear()
        url = f"http://127.0.0.1:{server.port}/"
        with posting(url, secret, timeout_seconds=0.5, waiting=3) as sink:
            for _ in range(5):
                sink(told())  # would never return if it waited
            assert (sink.dropped, sink.waiting) == (2, 3)
            until(lambda: sink.retried > 0)
            server.open.set()
            until(lambda: sink.delivered == 3)


def test_one_that_accepts_and_talks_nonsense_is_tried_again(secret: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with posting(url, secret) as sink:
            sink(told())
            for answer in (b"SSH-2.0-hello\r\n", b"", b"HTTP/1.1 204 No Content\r\n\r\n"):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
            until(lambda: sink.delivered == 1)
            assert sink.retried == 2


def test_https_is_checked(secret: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        write_certificates(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with closing(Server(tls=context)) as server:
        url = f"https://127.0.0.1:{server.port}/"
        for wrong in ({}, {"ca_file": other / "ca.pem"}):
            with posting(url, secret, **wrong) as sink:
                sink(told())
                until(lambda sink=sink: sink.retried > 0)
                assert sink.delivered == 0
        assert server.got == []
        with posting(url, secret, ca_file=tmp_path / "ca.pem") as sink:
            sink(told())
            until(lambda: sink.delivered == 1)


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
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        WebhookSettings(**dict[str, Any](url="https://example.org/", secret_file=Path("secret")) | wrong)


def test_plain_http_is_for_this_device_or_on_purpose() -> None:
    for url in ("http://localhost:8000/", "http://127.0.0.1/", "http://[::1]/"):
        WebhookSettings(url=url, secret_env="S")
    WebhookSettings(url="http://192.168.1.2/", secret_env="S", allow_http=True)


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    settings = WebhookSettings(url="https://example.org/", secret_file=tmp_path / "secret")
    with pytest.raises(SettingsError):
        open_sink(settings)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(SinkError, match="16"):
        open_sink(settings)
    (tmp_path / "secret").write_text(SECRET)
    with pytest.raises(SinkError, match="ca_file"):
        open_sink(WebhookSettings(url="https://h/", secret_file=tmp_path / "secret", ca_file=tmp_path / "none"))
