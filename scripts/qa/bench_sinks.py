"""What telling costs the frame loop when nobody listens, and what the audit log costs: python -m scripts.qa.bench_sinks

Each sink is called as the loop calls it, with a counterpart that is gone, that accepts and says nothing, or that hangs.
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

from edge.audit.gate import AuditGate
from edge.audit.log import AuditLog
from edge.decision.door import Decision
from edge.events.event import Event, decision_event
from edge.events.sink import Sink
from edge.sinks.gpio import Relay
from edge.sinks.mqtt import MqttSettings
from edge.sinks.mqtt import open_sink as open_mqtt
from edge.sinks.webhook import WebhookSettings
from edge.sinks.webhook import open_sink as open_webhook

CALLS = 1000
GAP_SECONDS = 0.002
ENTRIES = 20_000
SECRET = "EDGE_BENCH_SECRET"


class StuckPin:
    """A pin whose driver never returns."""

    def on(self) -> None:
        time.sleep(3600)

    off = close = on


def grant() -> Event:
    decision = Decision(
        outcome="granted",
        reason="recognised",
        label="anna",
        confidence=0.9,
        threshold=0.7,
        margin=0.5,
        frames=5,
        first_seen=1.0,
        captured=1.3,
        visit=1,
    )
    return decision_event(decision, now=1.4, utc=datetime.now(UTC), camera="front", kit="0" * 12)


def called(sink: Sink) -> dict[str, Any]:
    """Times of calls, in microseconds; the pauses between let the sink's own thread do its worst."""
    spent = []
    for _ in range(CALLS):
        event = grant()
        began = time.perf_counter()
        sink.handle(event)
        spent.append(1e6 * (time.perf_counter() - began))
        time.sleep(GAP_SECONDS)
    began = time.perf_counter()
    sink.close()
    return {
        "median": round(float(np.median(spent)), 1),
        "p99": round(float(np.quantile(spent, 0.99)), 1),
        "longest": round(max(spent), 1),
        "dropped": sink.health().dropped,
        "close_seconds": round(time.perf_counter() - began, 2),
    }


def measure(folder: Path) -> dict[str, Any]:
    os.environ[SECRET] = "0123456789abcdef"
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and never listens: connections are refused
        ports = {"refuses": unused.getsockname()[1], "is mute": mute.getsockname()[1]}
        counterparts: dict[str, Callable[[], Sink]] = {"relay, the pin hangs": lambda: Relay(StuckPin(), 3.0)}
        for how, port in ports.items():
            url = f"http://127.0.0.1:{port}/"
            counterparts[f"MQTT, the broker {how}"] = lambda port=port: open_mqtt(  # type: ignore[misc]
                MqttSettings(host="127.0.0.1", port=port, tls=False)
            )
            counterparts[f"webhook, the server {how}"] = lambda url=url: open_webhook(  # type: ignore[misc]
                WebhookSettings(url=url, secret_env=SECRET)
            )
        counterparts["audit log"] = lambda: AuditGate(AuditLog(folder / "door.db"), [])
        microseconds = {name: called(make()) for name, make in counterparts.items()}
    return {"microseconds_of_a_call": microseconds, "audit_log": logged(folder / "many.db")}


def logged(path: Path) -> dict[str, Any]:
    with closing(AuditLog(path)) as log:
        spent = []
        for _ in range(200):
            began = time.perf_counter()
            log.append(grant())
            spent.append(1e3 * (time.perf_counter() - began))
        log._db.execute("PRAGMA synchronous=OFF")  # to fill it quickly
        for _ in range(ENTRIES - 200):
            log.append(grant())
    began = time.perf_counter()
    log = AuditLog(path)
    opened = time.perf_counter()
    log.verify()
    verified = time.perf_counter()
    log.close()
    return {
        "append_milliseconds": {"median": round(float(np.median(spent)), 2), "longest": round(max(spent), 2)},
        "entries": ENTRIES,
        "bytes_an_entry": round(path.stat().st_size / ENTRIES),
        "open_seconds": round(opened - began, 2),
        "verify_seconds": round(verified - opened, 2),
    }


if __name__ == "__main__":
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="lclrr-bench-") as folder:
        print(json.dumps(measure(Path(folder)), indent=2))
