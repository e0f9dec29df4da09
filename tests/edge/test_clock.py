"""The clock of the door runs on while the device is suspended, and all parts that decide about freshness use it."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest

from edge.audit.gate import AuditGate
from edge.camera.live import LiveCamera
from edge.clock import boottime
from edge.events.worker import Worker
from edge.sinks.command import CommandSink
from edge.sinks.gpio import Relay
from edge.sinks.mqtt import MqttSink
from edge.sinks.webhook import WebhookSink


def test_clock_counts_suspends() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("part", [AuditGate, CommandSink, LiveCamera, MqttSink, Relay, WebhookSink, Worker])
def test_grants_and_frames_get_old_in_a_suspend(part: Any) -> None:
    assert inspect.signature(part).parameters["clock"].default is boottime
