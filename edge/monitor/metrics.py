"""Metrics of a terminal for Prometheus at /metrics, and its state at /healthz: only on this machine, without names.

Everything except the stage times is read from the terminal at each request, so nothing is counted twice.
"""

import ipaddress
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from edge.errors import ListenError, UsageError
from edge.events.health import Count
from edge.monitor.http_server import Page, Site, parse_address
from edge.stages import STAGES
from edge.text import strict_json

MAX_FRAME_AGE_SECONDS = 5.0
"""A terminal that processed no frame for so long is failing."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# Counters of Terminal.health(): metric name and help text.
COUNTERS = {
    Count.FRAMES: ("edge_frames", "Frames processed."),
    Count.FACES: ("edge_faces", "Faces found."),
    Count.LOOKS: ("edge_looks", "Faces recognised; the others were only tracked."),
    Count.ATTACKS: ("edge_presentation_attacks", "Visits denied because the face seems to be a print or a screen."),
    Count.FAILURES: ("edge_failures", "Errors while processing frames."),
    Count.UNDELIVERED: ("edge_events_undelivered", "Events that a sink did not accept."),
    Count.LOGGED: ("edge_audit_entries", "Events written to the audit log."),
    Count.NOT_LOGGED: ("edge_audit_failures", "Events that could not be written to the audit log."),
    Count.WITHHELD: ("edge_grants_withheld", "Grants that were not delivered, because they were not logged in time."),
    Count.CAMERA_DROPPED: ("edge_camera_frames_dropped", "Camera frames dropped because processing was too slow."),
    Count.CAMERA_BROKEN: ("edge_camera_frames_broken", "Camera frames that could not be decoded."),
    Count.CAMERA_RECONNECTS: ("edge_camera_reconnects", "Times that the camera was lost and reconnected."),
    Count.CAMERA_REPEATED: ("edge_camera_frames_repeated", "Camera frames that repeated an earlier one and did not count."),
    Count.CAMERA_FROZEN: ("edge_camera_freezes", "Times that the frames of the camera did not change any more."),
}


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Metrics for Prometheus at /metrics, and /healthz."""

    address: str | None = None
    """Address on this machine, e.g. 127.0.0.1:9109 (not set: no metrics)."""

    def __post_init__(self) -> None:
        host = "127.0.0.1" if self.address is None else parse_address(self.address)[0]
        if not ipaddress.ip_address(host).is_loopback:
            problem = f"Metrics can be served only on this machine, not at {host}."
            raise ListenError(problem, "Use an address such as 127.0.0.1:9109.")


def problems(health: Mapping[str, Any]) -> list[str]:
    """Return the problems that Terminal.health() shows; empty if there are none."""
    age = health["frame_age_seconds"]
    old = "no frame was processed yet" if age is None else f"no frame was processed for {age:.0f} seconds"
    found = {
        "the camera is frozen": health["camera_frozen"],
        "the camera is lost": not health["camera_up"] and not health["camera_frozen"],
        old: age is None or age > MAX_FRAME_AGE_SECONDS,
        **{f"{part} failed": True for part in health["failing"]},
    }
    return [problem for problem, holds in found.items() if holds]


class Metrics(Site):
    """Serves the metrics of one terminal at `address`. Before `watch`, /healthz reports that the terminal is starting.

    `stage` is the stage timer for recogniser and terminal.
    """

    def __init__(self, address: str) -> None:
        try:
            import prometheus_client.core
        except ImportError:
            problem = "Metrics need the package prometheus-client, which is not installed."
            raise UsageError(problem, "Run `pip install prometheus-client`.") from None
        self._prometheus = prometheus_client
        self._registry = self._prometheus.CollectorRegistry()
        self._registry.register(self)
        self._seconds = self._prometheus.Histogram(
            "edge_stage_seconds", "Seconds that a stage of a frame takes.", ["stage"], buckets=BUCKETS, registry=self._registry
        )
        for stage in STAGES:
            self._seconds.labels(stage)  # exists from the start, with count 0
        super().__init__("metrics", address)

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return a timer for a stage."""
        timer: AbstractContextManager[object] = self._seconds.labels(name).time()
        return timer

    def page(self, path: str) -> Page | None:
        if path == "/metrics":
            return Page(self._prometheus.generate_latest(self._registry), self._prometheus.CONTENT_TYPE_LATEST)
        if path != "/healthz":
            return None
        found = ["the terminal is starting"] if self._health is None else problems(self._health())
        body = strict_json({"status": "failing" if found else "ok", "problems": found}).encode()
        return Page(body, "application/json", HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK)

    def collect(self) -> Iterator[Any]:
        """Return the metrics for one request; called by the registry."""
        if self._health is None:
            return
        core, health = self._prometheus.core, self._health()
        counters = health["counters"]
        for name, (metric, about) in COUNTERS.items():
            if name in counters:
                yield core.CounterMetricFamily(metric, about, counters[name])
        decisions = [((str(count),), counters[count]) for count in (Count.GRANTED, Count.DENIED)]
        challenges = {"met": Count.CHALLENGES_MET, "not met": Count.CHALLENGES_NOT_MET}
        answers = [((outcome,), counters[count]) for outcome, count in challenges.items() if count in counters]
        alarms = [((alarm,), number) for alarm, number in health["alarms"].items()]
        losses = [((sink, how), number) for sink, lost in health["sinks"].items() for how, number in lost.items()]
        for metric, about, labels, values in (
            ("edge_decisions", "Decisions on visits.", ["outcome"], decisions),
            ("edge_challenges", "Challenges to visitors.", ["outcome"], answers),
            ("edge_alarms", "Alarms, by kind and outcome of the event.", ["alarm"], alarms),
            ("edge_sink_losses", "Events that did not reach the receiver.", ["sink", "how"], losses),
        ):
            family = core.CounterMetricFamily(metric, about, labels=labels)
            for names, value in values:
                family.add_metric(names, value)
            yield family
        if "controller_up" in health:
            about = "1 while there is a Secure Channel to the door controller."
            yield core.GaugeMetricFamily("edge_controller_up", about, int(health["controller_up"]))
        age = health["frame_age_seconds"]
        yield core.GaugeMetricFamily("edge_camera_up", "1 while the camera delivers new frames.", int(health["camera_up"]))
        yield core.GaugeMetricFamily("edge_frame_age_seconds", "Age of the last frame.", math.nan if age is None else age)
        heat = health["temperature_celsius"]
        about = "Temperature of the hottest sensor of the device."
        yield core.GaugeMetricFamily("edge_temperature_celsius", about, math.nan if heat is None else heat)
        running = {"version": version("lclrr-edge"), "kit": health["kit"]}
        yield core.InfoMetricFamily("edge_terminal", "Version and kit of this terminal.", running)
