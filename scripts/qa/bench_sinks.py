"""Time that sinks without a working receiver and the audit log take from the frame loop: python -m scripts.qa.bench_sinks

Each sink is called as the loop calls it. Its receiver refuses connections, accepts them and never answers, or hangs.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from edge.audit.gate import AuditGate, AuditSettings
from edge.audit.log import AuditLog
from edge.events.event import Event
from edge.events.sink import Sink
from edge.sinks.gpio import Relay
from edge.sinks.mqtt import MqttSettings, MqttSink
from edge.sinks.webhook import WebhookSettings, WebhookSink
from tests.fixtures.events import make_event

CALLS = 1000
GAP_SECONDS = 0.002
ENTRIES = 20_000
SECRET = "EDGE_BENCH_SECRET"


class StuckPin:
    """A pin whose driver never returns."""

    def on(self) -> None:
        time.sleep(3600)

    off = close = on


def make_grant() -> Event:
    return make_event(utc=datetime.now(UTC))


def handle_times(sink: Sink) -> dict[str, Any]:
    """Return times of `handle` in microseconds. The thread of the sink works in the pauses between the calls."""
    times = []
    for _ in range(CALLS):
        event = make_grant()
        began = time.perf_counter()
        sink.handle(event)
        times.append(1e6 * (time.perf_counter() - began))
        time.sleep(GAP_SECONDS)
    began = time.perf_counter()
    sink.close()
    return {
        "median": round(float(np.median(times)), 1),
        "p99": round(float(np.quantile(times, 0.99)), 1),
        "longest": round(max(times), 1),
        "dropped": sink.health().dropped,
        "close_seconds": round(time.perf_counter() - began, 2),
    }


def measure(folder: Path) -> dict[str, Any]:
    os.environ[SECRET] = "0123456789abcdef"
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # without listen(), connections are refused
        ports = {"refuses": unused.getsockname()[1], "never answers": silent.getsockname()[1]}
        sinks: dict[str, Callable[[], Sink]] = {"relay, the pin hangs": lambda: Relay(StuckPin(), 3.0)}
        for fault, port in ports.items():
            url = f"http://127.0.0.1:{port}/"
            sinks[f"MQTT, the broker {fault}"] = lambda port=port: MqttSink(  # type: ignore[misc]
                MqttSettings(host="127.0.0.1", port=port, tls=False)
            )
            sinks[f"webhook, the server {fault}"] = lambda url=url: WebhookSink(  # type: ignore[misc]
                WebhookSettings(url=url, secret_env=SECRET)
            )
        sinks["audit log"] = lambda: AuditGate(AuditSettings(path=folder / "door.db"), [])
        microseconds = {name: handle_times(make()) for name, make in sinks.items()}
    return {"microseconds_of_a_call": microseconds, "audit_log": audit_times(folder / "many.db")}


def audit_times(path: Path) -> dict[str, Any]:
    with closing(AuditLog(path)) as log:
        times = []
        for _ in range(200):
            began = time.perf_counter()
            log.append(make_grant())
            times.append(1e3 * (time.perf_counter() - began))
        log._db.execute("PRAGMA synchronous=OFF")  # faster
        for _ in range(ENTRIES - 200):
            log.append(make_grant())
    began = time.perf_counter()
    log = AuditLog(path)
    opened = time.perf_counter()
    log.verify()
    verified = time.perf_counter()
    log.close()
    return {
        "append_milliseconds": {"median": round(float(np.median(times)), 2), "longest": round(max(times), 2)},
        "entries": ENTRIES,
        "bytes_an_entry": round(path.stat().st_size / ENTRIES),
        "open_seconds": round(opened - began, 2),
        "verify_seconds": round(verified - opened, 2),
    }


if __name__ == "__main__":
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="lclrr-bench-") as folder:
        print(json.dumps(measure(Path(folder)), indent=2))
