"""Attacks over the network: slow clients, a receiver that drips, and a camera that sends the terminal elsewhere."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from edge.camera.sources import open_camera
from edge.errors import CameraError
from edge.monitor.metrics import Metrics
from edge.monitor.preview import Preview
from edge.sinks.webhook import WebhookSettings, WebhookSink
from scripts.qa.attacks.attack import Range, Score, Tally, attack
from tests.fakes.webhook_server import SECRET, DrippingServer
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until

# 14: slow sockets.

BEGINNINGS = (b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")


def is_answered(address: tuple[str, int], path: str) -> bool:
    with closing(http.client.HTTPConnection(*address, timeout=10)) as connection, suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status in (200, 503)  # 503: the terminal has no frame yet
    return False


@attack("14", "slow sockets")
def slow_sockets(where: Range) -> Score:
    """Clients that begin a request and never end it take all places."""
    numbers = (32, 100) if where.quick else (32, 33, 64, 100, 200)
    tally = Tally(where, 2 * len(BEGINNINGS) * len(numbers))
    for site, path in ((Metrics, "/healthz"), (Preview, "/health.json")):
        for beginning in BEGINNINGS:
            for number in numbers:
                with site("127.0.0.1:0") as served, ExitStack() as stack:
                    host, port = served.server_address[:2]
                    for _ in range(number):
                        client = stack.enter_context(socket.create_connection((str(host), port), 10))
                        with suppress(OSError):
                            client.sendall(beginning)
                    tally.add(not is_answered((str(host), port), path), f"{path} with {number} slow sockets")
    return tally.score()


# 15: a receiver that drips.

ANSWERS = (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n")


@attack("15", "dripping webhook server")
def dripping_webhook(where: Range) -> Score:
    """A server that sends a byte now and then holds the thread for ever: later events wait."""
    secret = where.folder / "secret"
    secret.write_text(SECRET)
    answers = ANSWERS[: where.tries(2, 4)]
    tally = Tally(where, len(answers))
    for answer in answers:
        with closing(DrippingServer(answer, limit=250)) as server:
            settings = WebhookSettings(url=server.url("http"), secret_file=secret, timeout_seconds=0.3)
            with closing(WebhookSink(settings)) as sink:
                sink.handle(make_event())
                drips = server.drips(1)
                tally.add(drips >= server.limit, f"{drips} bytes in one attempt")
                until(lambda sink=sink: sink.health().retried > 0)  # type: ignore[misc]
    return tally.score()


# 17: a camera that redirects.


@attack("17", "MJPEG redirected to another host")
def redirected_camera(where: Range) -> Score:
    """A camera that was taken over sends the terminal to another machine."""
    visited: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visited.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            """Be silent."""

    class Camera(Other):
        target = ""
        status = 302

        def do_GET(self) -> None:
            self.send_response(type(self).status)
            self.send_header("Location", type(self).target)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ExitStack() as stack:
        other, camera = (
            stack.enter_context(ThreadingHTTPServer((host, 0), handler))
            for host, handler in (("127.0.0.2", Other), ("127.0.0.1", Camera))
        )
        for server in (other, camera):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
        targets = [f"http://127.0.0.2:{other.server_port}/s", f"http://user:word@127.0.0.2:{other.server_port}/s"]
        targets.append(f"//127.0.0.2:{other.server_port}/s")
        statuses = (301, 302, 303, 307, 308)
        tally = Tally(where, len(targets) * len(statuses))
        for Camera.target in targets:
            for Camera.status in statuses:
                visited.clear()
                with suppress(CameraError):
                    open_camera(f"http://user:password@127.0.0.1:{camera.server_port}/").close()
                tally.add(bool(visited), f"{Camera.status} to another host was followed")
    return tally.score()
