"""Figures about a terminal for Prometheus at /metrics, and whether it is well at /healthz: on this machine only, no names.

All but the seconds of the stages is read from the terminal when somebody asks: nothing is counted twice.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from types import ModuleType
from typing import Any

from edge.errors import ListenError, UsageError
from edge.monitor.http_server import Handler, Server, parse_address
from edge.text import strict_json

OLD_SECONDS = 5.0
"""A terminal that has processed no frame for so long is not well."""
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


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Figures for Prometheus at /metrics, and /healthz."""

    address: str | None = None
    """Where to serve them, on this machine only, as 127.0.0.1:9109 (not set: nowhere)."""

    def __post_init__(self) -> None:
        if self.address is not None:
            _refuse_others(self.address)


def _refuse_others(address: str) -> None:
    host, _ = parse_address(address)
    if not ipaddress.ip_address(host).is_loopback:
        raise ListenError(f"The metrics are served on this machine only, not at {host}.", "Write it like 127.0.0.1:9109.")


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
        _refuse_others(address)
        self._prometheus = _prometheus_client()
        self._registry = self._prometheus.CollectorRegistry()
        self._registry.register(self)
        self._seconds = self._prometheus.Histogram(
            "edge_stage_seconds", "Time that a stage of a frame takes.", ["stage"], buckets=BUCKETS, registry=self._registry
        )
        for stage in STAGES:
            self._seconds.labels(stage)  # there from the start, at 0
        self._health: Callable[[], Mapping[str, Any]] | None = None
        self._server = Server("metrics", address, _Handler, self)

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Metrics:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

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


class _Handler(Handler):
    def get(self, path: str) -> None:
        metrics: Metrics = self.server.site
        if path == "/metrics":
            self.answer(*metrics.text())
        elif path == "/healthz":
            is_well, body = metrics.healthz()
            self.answer(body, "application/json", HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self.nothing_here()
