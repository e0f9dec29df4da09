"""Metrics and /healthz over HTTP: they report what happened, and no names."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge.errors import ListenError, UsageError
from edge.events.event import ALARMS, News
from edge.events.health import Count, Health
from edge.monitor.metrics import Metrics, MetricsSettings, problems
from edge.settings import parse
from edge.stages import STAGES
from edge.terminal.loop import COUNTERS
from edge.terminal.wiring import open_terminal
from edge.vision.recognize import Recognizer
from tests.fakes.scene_camera import SceneCamera
from tests.fixtures import orl_door
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

LABELS: dict[str, set[str] | None] = {
    "outcome": {"granted", "denied"},
    "stage": set(STAGES),
    "how": {"failed", "dropped"},
    "alarm": {f"{kind} {outcome}" for kind, outcome in ALARMS},
    **dict.fromkeys(("le", "sink", "version", "kit")),
}
"""Allowed values of each label; None: any."""


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    with Metrics("127.0.0.1:0") as served:
        yield served


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def samples(url: str) -> dict[str, float]:
    """Return the values by name and labels, as Prometheus reads them."""
    status, kind, text = get(f"{url}metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    return {
        sample.name + "".join(f",{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def health(**changes: Any) -> Health:
    usual = {
        "camera_up": True,
        "camera_frozen": False,
        "frame_age_seconds": 0.1,
        "kit": "0123456789ab",
        "temperature_celsius": 48.3,
        "counters": dict.fromkeys([*COUNTERS, Count.CAMERA_DROPPED, Count.CAMERA_BROKEN, Count.CAMERA_RECONNECTS], 0),
        "sinks": {},
        "alarms": {},
        "failing": [],
    }
    return cast(Health, usual | changes)


def test_metrics_count_what_a_terminal_did_without_names(metrics: Metrics) -> None:
    recognizer = Recognizer(orl_door.recognizer().kit, stage=metrics.stage)
    camera = SceneCamera(frames(GUEST, 8), empty_room(12), frames(STRANGER, 8), empty_room(12))
    _, terminal = run_to_end(camera, recognizer, stage=metrics.stage)
    metrics.watch(terminal.health)
    found = samples(metrics.url)
    assert found["edge_frames_total"] == 40
    assert found["edge_faces_total"] == terminal.counters["faces"] >= 16
    assert (found["edge_decisions_total,granted"], found["edge_decisions_total,denied"]) == (1, 1)
    assert (found["edge_camera_up"], found["edge_camera_reconnects_total"]) == (1, 0)
    assert (found["edge_camera_frames_repeated_total"], found["edge_camera_freezes_total"]) == (0, 0)
    assert found["edge_frame_age_seconds"] == 0
    assert found["edge_stage_seconds_count,whole"] == found["edge_stage_seconds_count,detect"] == 40
    assert found["edge_stage_seconds_count,decide"] == 40
    assert 0 < found["edge_stage_seconds_count,recognise"] <= terminal.counters["faces"]
    assert found["edge_stage_seconds_sum,whole"] >= found["edge_stage_seconds_sum,detect"] > 0
    text = get(f"{metrics.url}metrics")[2]
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("edge_")
        assert family.documentation
        assert not re.search(r"_(ms|milliseconds|mb|percent)$", family.name), "base units"
        for sample in family.samples:
            for label, value in sample.labels.items():
                allowed = LABELS[label]
                assert allowed is None or value in allowed
    for name in recognizer.kit.manifest.labels:
        assert not re.search(rf"\b{name}\b", text + get(f"{metrics.url}healthz")[2])


def test_alarms_are_counted_by_kind_and_outcome(metrics: Metrics) -> None:
    news = iter([News(kind="input", outcome=outcome) for outcome in ("opened", "forced open", "forced open", "tamper")])
    _, terminal = run_to_end(SceneCamera(empty_room(6)), news=[lambda: next(news, None)])
    metrics.watch(terminal.health)
    found = {name: number for name, number in samples(metrics.url).items() if name.startswith("edge_alarms_total,")}
    assert len(found) == len(ALARMS), "each alarm has a number from the start"
    assert {name: number for name, number in found.items() if number} == {
        "edge_alarms_total,input forced open": 2,
        "edge_alarms_total,input tamper": 1,
    }


@pytest.mark.parametrize("is_up", [True, False])
def test_link_to_a_door_controller_is_a_metric_only_if_there_is_one(metrics: Metrics, is_up: bool) -> None:
    metrics.watch(health)
    assert "edge_controller_up" not in samples(metrics.url)
    metrics.watch(lambda: health(controller_up=is_up))
    assert samples(metrics.url)["edge_controller_up"] == is_up


def test_age_is_nan_before_the_first_frame(metrics: Metrics) -> None:
    metrics.watch(lambda: health(frame_age_seconds=None))
    assert math.isnan(samples(metrics.url)["edge_frame_age_seconds"])


@pytest.mark.parametrize(("celsius", "shown"), [(48.3, 48.3), (None, math.nan)])
def test_temperature_is_nan_if_the_device_reports_none(metrics: Metrics, celsius: float | None, shown: float) -> None:
    metrics.watch(lambda: health(temperature_celsius=celsius))
    assert samples(metrics.url)["edge_temperature_celsius"] == pytest.approx(shown, nan_ok=True)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"camera_up": False}, ["the camera is lost"]),
        ({"camera_up": False, "camera_frozen": True}, ["the camera is frozen"]),
        ({"frame_age_seconds": 4.9}, []),
        ({"frame_age_seconds": 6.0}, ["no frame was processed for 6 seconds"]),
        ({"frame_age_seconds": None}, ["no frame was processed yet"]),
        ({"failing": ["the audit log"]}, ["the audit log failed"]),
        ({"camera_up": False, "frame_age_seconds": 60.0}, ["the camera is lost", "no frame was processed for 60 seconds"]),
    ],
)
def test_healthz_is_200_only_without_problems(metrics: Metrics, changes: dict[str, Any], found: list[str]) -> None:
    assert problems(health(**changes)) == found
    metrics.watch(lambda: health(**changes))
    status, kind, text = get(f"{metrics.url}healthz")
    assert (status, kind) == (503 if found else 200, "application/json")
    assert json.loads(text) == {"status": "failing" if found else "ok", "problems": found}


def test_starting_terminal_has_metrics_and_is_not_healthy(metrics: Metrics) -> None:
    assert get(f"{metrics.url}healthz")[0] == 503
    assert samples(metrics.url)["edge_stage_seconds_count,whole"] == 0
    assert get(metrics.url)[0] == 404


@pytest.mark.slow
def test_audit_log_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.audit.log.BUSY_SECONDS", 1.0)  # the last events must still wait when the lock ends
    kit, video = tmp_path / "door.kit", tmp_path / "visits.avi"
    kit.write_bytes(orl_door.kit())
    orl_door.video(video, frames(GUEST, 8), empty_room(12))
    said: list[str] = []
    settings = f'[camera]\nsource = "{video}"\n[events]\njson_lines = false\n[audit]\npath = "{tmp_path}/audit.db"\n'
    chosen = parse(settings.encode()).override(metrics={"address": "127.0.0.1:0"})
    with open_terminal(chosen, kit, say=said.append) as terminal:
        url = said[0].removeprefix("Metrics at ").removesuffix("metrics")
        other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        terminal.run()
        until(lambda: samples(url)["edge_audit_failures_total"])
        assert "the audit log failed" in json.loads(get(f"{url}healthz")[2])["problems"]
        other.close()
        until(lambda: samples(url)["edge_audit_entries_total"])


def test_metrics_are_served_on_this_machine_only() -> None:
    for address in ("0.0.0.0:9109", "[::]:9109", "192.168.0.1:9109"):
        with pytest.raises(ListenError, match="only on this machine"):
            MetricsSettings(address=address)


def test_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match="pip install prometheus-client"):
        Metrics("127.0.0.1:0")
