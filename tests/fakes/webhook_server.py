"""A web server on loopback that receives webhooks."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "a shared secret of some length"


class WebhookServer:
    """Answers each POST with the next of `answers`, then with 204, and keeps the requests."""

    def __init__(self, *answers: int, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
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
