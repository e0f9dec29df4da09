"""Figures about a terminal for Prometheus at /metrics, and whether it is well at /healthz: on this machine only, no names.

All but the seconds of the stages is read from the terminal when somebody asks: nothing is counted twice.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from types import ModuleType
from typing import Any

from edge.errors import ListenError, UsageError
from edge.events import strict_json
from edge.preview import parse_address

OLD_SECONDS = 5.0
"""A terminal that has processed no frame for so long is not well."""
CLIENT_SECONDS = 5.0
STAGES = ("detect", "recognise", "decide", "whole")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# What Terminal.health() counts, and how that is called in Prometheus.
COUNTERS = {
    "frames": ("edge_frames", "Frames looked at."),
    "faces": ("edge_faces", "Faces found in them."),
    "failures": ("edge_failures", "Errors that cost a frame or more."),
    "undelivered": ("edge_events_undelivered", "Events that a sink did not take."),
    "logged": ("edge_audit_entries", "Events written into the audit log."),
    "not logged": ("edge_audit_failures", "Events that could not be written into it."),
    "withheld": ("edge_grants_withheld", "Grants that were not acted upon, as they were not logged in time."),
    "dropped": ("edge_camera_frames_dropped", "Frames of the camera that nobody had time for."),
    "broken": ("edge_camera_frames_broken", "Frames of the camera that could not be read."),
    "reconnects": ("edge_camera_reconnects", "Times that the camera was lost and came back."),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Figures for Prometheus at /metrics, and /healthz."""

    address: str | None = None
    """Where to serve them, on this machine only, as 127.0.0.1:9109 (not set: nowhere)."""

    def __post_init__(self) -> None:
        if self.address is not None:
            _loopback(self.address)


def _loopback(address: str) -> tuple[str, int]:
    host, port = parse_address(address)
    if not ipaddress.ip_address(host).is_loopback:
        raise ListenError(f"The metrics are served on this machine only, not at {host}.", "Write it like 127.0.0.1:9109.")
    return host, port


def problems(health: Mapping[str, Any]) -> list[str]:
    """What is not well, by what Terminal.health() says: nothing, if the door works."""
    age = health["frame_age_seconds"]
    old = "no frame was processed yet" if age is None else f"no frame was processed for {age:.0f} seconds"
    found = {
        "the camera is lost": not health["camera_up"],
        old: age is None or age > OLD_SECONDS,
        **{f"{part} fails": True for part in health.get("failing", ())},
    }
    return [problem for problem, holds in found.items() if holds]


class Metrics:
    """Serves the figures at `address` between start() and close(). Give `stage` to the recogniser and the terminal.

    `watch` says whose health is told; before, the terminal is starting and not well.
    """

    def __init__(self, address: str) -> None:
        host, port = _loopback(address)
        self._prometheus = _prometheus_client()
        self._registry = self._prometheus.CollectorRegistry()
        self._registry.register(self)
        self._seconds = self._prometheus.Histogram(
            "edge_stage_seconds", "Time that a stage of a frame takes.", ["stage"], buckets=BUCKETS, registry=self._registry
        )
        for stage in STAGES:
            self._seconds.labels(stage)  # there from the start, at 0
        self._health: Callable[[], Mapping[str, Any]] | None = None
        self._server = _Server(host, port, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def __enter__(self) -> Metrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def watch(self, health: Callable[[], Mapping[str, Any]]) -> None:
        self._health = health

    def stage(self, name: str) -> AbstractContextManager[object]:
        timer: AbstractContextManager[object] = self._seconds.labels(name).time()
        return timer

    def text(self) -> tuple[bytes, str]:
        """The body of /metrics, and its type."""
        return self._prometheus.generate_latest(self._registry), self._prometheus.CONTENT_TYPE_LATEST

    def healthz(self) -> tuple[bool, bytes]:
        """Whether all is well, and the body of /healthz."""
        found = ["the terminal is starting"] if self._health is None else problems(self._health())
        return not found, strict_json({"status": "failing" if found else "ok", "problems": found}).encode()

    def collect(self) -> Iterator[Any]:
        """What the registry asks for at each visit."""
        if self._health is None:
            return
        core, health = self._prometheus.core, self._health()
        counters = health["counters"]
        for name, (metric, about) in COUNTERS.items():
            if name in counters:
                yield core.CounterMetricFamily(metric, about, counters[name])
        decisions = core.CounterMetricFamily("edge_decisions", "Decisions on visits.", labels=["outcome"])
        for outcome in ("granted", "denied"):
            decisions.add_metric([outcome], counters[outcome])
        yield decisions
        if "met" in counters:
            challenges = core.CounterMetricFamily("edge_challenges", "Challenges to visitors.", labels=["outcome"])
            for outcome in ("met", "not met"):
                challenges.add_metric([outcome], counters[outcome])
            yield challenges
        losses = core.CounterMetricFamily("edge_sink_losses", "Events that did not reach a receiver.", labels=["sink", "how"])
        for sink, numbers in health.get("sinks", {}).items():
            for how, number in numbers.items():
                losses.add_metric([sink, how], number)
        yield losses
        yield core.GaugeMetricFamily("edge_camera_up", "1 while pictures come.", int(health["camera_up"]))
        age = health["frame_age_seconds"]
        yield core.GaugeMetricFamily(
            "edge_frame_age_seconds", "Age of the newest processed frame.", float("nan") if age is None else age
        )
        yield core.InfoMetricFamily(
            "edge_terminal", "What runs here.", {"version": version("lclrr-edge"), "kit": health["kit"]}
        )

    def describe(self) -> list[Any]:
        """Nothing is known before the terminal runs."""
        return []


def _prometheus_client() -> ModuleType:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise UsageError("Metrics need the package prometheus-client.", "Run `pip install 'lclrr-edge[metrics]'`.") from None
    return prometheus_client


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        self.metrics = metrics
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ListenError(
                f"The metrics cannot be served at {host}, port {port} ({error.strerror}).", "Choose another port."
            ) from None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own would look up the machine's name in the network

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the metrics went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS
    server_version = "lclrr-edge"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, kind = self.server.metrics.text()
            self._answer(HTTPStatus.OK, body, kind)
        elif path == "/healthz":
            is_well, body = self.server.metrics.healthz()
            self._answer(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, body, "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here.\n", "text/plain; charset=utf-8")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
