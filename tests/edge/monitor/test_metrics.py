"""Figures for Prometheus and /healthz over real HTTP: they tell what happened, and never who it was."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge.errors import ListenError, UsageError
from edge.events.health import Count, Health
from edge.monitor import http_server as web
from edge.monitor import metrics as module
from edge.monitor.metrics import Metrics, problems
from edge.settings import parse
from edge.terminal.loop import COUNTERS
from edge.terminal.wiring import open_terminal
from edge.vision.recognize import Recognizer
from tests.fakes.mjpeg_server import MjpegServer
from tests.fakes.stage import Stage
from tests.fixtures import orl_door
from tests.fixtures.data import ROOT
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames, sending
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

DEADLINE = 60.0
LABELS = {
    "outcome": {"granted", "denied"},
    "stage": set(module.STAGES),
    "le": None,
    "sink": None,
    "how": {"failed", "dropped"},
}
"""All that a label may say; None is checked by itself."""


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    with Metrics("127.0.0.1:0") as served:
        yield served


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def figures(url: str) -> dict[str, float]:
    """By name and labels, as Prometheus itself reads them."""
    status, kind, text = get(f"{url}metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    return {
        sample.name + "".join(f",{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def health(**changes: Any) -> Health:
    usual = Health(
        camera="front",
        camera_up=True,
        frame_age_seconds=0.1,
        error="",
        kit="0123456789ab",
        thresholds="",
        counters=dict.fromkeys([*COUNTERS, Count.CAMERA_DROPPED, Count.CAMERA_BROKEN, Count.CAMERA_RECONNECTS], 0),
        sinks={},
        failing=[],
    )
    return cast(Health, usual | changes)


# What is told


def test_what_a_terminal_did_is_told_in_numbers(metrics: Metrics) -> None:
    recognizer = Recognizer(orl_door.recognizer().kit, stage=metrics.stage)
    stage = Stage(frames(GUEST, 8), empty_room(12), frames(STRANGER, 8), empty_room(12))
    _, terminal = run_to_end(stage, recognizer, stage=metrics.stage)
    metrics.watch(terminal.health)
    told = figures(metrics.url)
    assert told["edge_frames_total"] == 40
    assert told["edge_faces_total"] == terminal.counters["faces"] >= 16
    assert (told["edge_decisions_total,granted"], told["edge_decisions_total,denied"]) == (1, 1)
    assert (told["edge_camera_up"], told["edge_camera_reconnects_total"]) == (1, 0)
    assert told["edge_frame_age_seconds"] == 0
    assert told["edge_stage_seconds_count,whole"] == told["edge_stage_seconds_count,detect"] == 40
    assert told["edge_stage_seconds_count,decide"] == 40
    assert 0 < told["edge_stage_seconds_count,recognise"] <= terminal.counters["faces"]
    assert told["edge_stage_seconds_sum,whole"] >= told["edge_stage_seconds_sum,detect"] > 0


def test_no_name_is_in_any_figure_nor_in_the_health(metrics: Metrics) -> None:
    events, terminal = run_to_end(Stage(frames(GUEST, 8)), Recognizer(orl_door.recognizer().kit), stage=metrics.stage)
    assert events.decisions == [("granted", GUEST)]
    metrics.watch(terminal.health)
    text = get(f"{metrics.url}metrics")[2]
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for label, value in sample.labels.items():
                allowed = {"version": None, "kit": None, **LABELS}[label]
                assert allowed is None or value in allowed
    for name in orl_door.recognizer().kit.manifest.labels:
        assert not re.search(rf"\b{name}\b", text + get(f"{metrics.url}healthz")[2])


def test_every_figure_is_in_base_units_and_has_its_prefix(metrics: Metrics) -> None:
    metrics.watch(health)
    for family in text_string_to_metric_families(get(f"{metrics.url}metrics")[2]):
        assert family.name.startswith("edge_")
        assert family.documentation
        assert not re.search(r"_(ms|milliseconds|mb|percent)$", family.name)


def test_before_the_first_frame_its_age_is_no_number(metrics: Metrics) -> None:
    metrics.watch(lambda: health(frame_age_seconds=None))
    assert math.isnan(figures(metrics.url)["edge_frame_age_seconds"])


# Whether it is well


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"camera_up": False}, ["the camera is lost"]),
        ({"frame_age_seconds": 4.9}, []),
        ({"frame_age_seconds": 6.0}, ["no frame was processed for 6 seconds"]),
        ({"frame_age_seconds": None}, ["no frame was processed yet"]),
        ({"failing": ["the audit log"]}, ["the audit log failed"]),
        ({"camera_up": False, "frame_age_seconds": 60.0}, ["the camera is lost", "no frame was processed for 60 seconds"]),
    ],
)
def test_healthz_is_200_only_if_all_is_well(metrics: Metrics, changes: dict[str, Any], found: list[str]) -> None:
    assert problems(health(**changes)) == found
    metrics.watch(lambda: health(**changes))
    status, kind, text = get(f"{metrics.url}healthz")
    assert (status, kind) == (503 if found else 200, "application/json")
    assert json.loads(text) == {"status": "failing" if found else "ok", "problems": found}


def test_a_terminal_that_is_starting_is_not_well_and_has_figures(metrics: Metrics) -> None:
    assert get(f"{metrics.url}healthz")[0] == 503
    assert figures(metrics.url)["edge_stage_seconds_count,whole"] == 0


def test_an_audit_log_that_cannot_be_written_is_not_well(tmp_path: Path) -> None:
    kit, video = tmp_path / "door.kit", tmp_path / "visits.avi"
    kit.write_bytes(orl_door.kit())
    orl_door.video(video, frames(GUEST, 8), empty_room(12))
    said: list[str] = []
    settings = f'[camera]\nsource = "{video}"\n[events]\njson_lines = false\n[audit]\npath = "{tmp_path}/audit.db"\n'
    chosen = parse(settings.encode()).override(metrics={"address": "127.0.0.1:0"})
    with open_terminal(chosen, kit, say=said.append) as terminal:
        url = said[0].removeprefix("Metrics at ").removesuffix("metrics")
        with subprocess.Popen(
            [sys.executable, "-c", LOCK, str(tmp_path / "audit.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as locking:
            assert locking.stdout is not None
            assert locking.stdout.readline() == b"locked\n"
            terminal.run()
            until(lambda: figures(url)["edge_audit_failures_total"])
            assert "the audit log failed" in json.loads(get(f"{url}healthz")[2])["problems"]
            locking.communicate(b"")
        until(lambda: figures(url)["edge_audit_entries_total"])


LOCK = """
import sqlite3, sys
log = sqlite3.connect(sys.argv[1], isolation_level=None)
log.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


# Over HTTP


def test_there_is_nothing_else_and_nothing_can_be_changed(metrics: Metrics) -> None:
    assert get(metrics.url)[0] == 404
    request = urllib.request.Request(f"{metrics.url}metrics", b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=DEADLINE)


def test_a_page_elsewhere_cannot_read_them_by_a_name_of_its_own(metrics: Metrics) -> None:
    request = urllib.request.Request(f"{metrics.url}metrics", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=DEADLINE)


def test_many_who_say_nothing_take_few_threads(metrics: Metrics) -> None:
    """A service may have 256: whoever takes them all keeps a camera from being opened again."""
    address: Any = metrics._server.server_address
    before = threading.active_count()
    with ExitStack() as stack:
        mute = [stack.enter_context(socket.create_connection(address[:2], DEADLINE)) for _ in range(web.CONNECTIONS + 8)]
        assert mute[-1].recv(1) == b"", "refused at once"
        assert threading.active_count() <= before + web.CONNECTIONS


def test_a_client_that_says_nothing_keeps_nobody_waiting(metrics: Metrics) -> None:
    host, port = re.fullmatch(r"http://(.*):(\d+)/", metrics.url).groups()  # type: ignore[union-attr]
    with socket.create_connection((host, int(port)), DEADLINE):
        assert get(f"{metrics.url}healthz")[0] == 503


def test_it_is_served_on_this_machine_only() -> None:
    for address in ("0.0.0.0:9109", "[::]:9109", "192.168.0.1:9109"):
        with pytest.raises(ListenError, match="only on this machine"):
            Metrics(address)
    with Metrics("127.0.0.1:0") as taken, pytest.raises(ListenError, match="cannot be served"):
        Metrics(taken.url.removeprefix("http://").rstrip("/"))


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"lclrr-edge\[metrics\]"):
        Metrics("127.0.0.1:0")


def test_the_real_command_with_a_camera_that_goes_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    with MjpegServer() as server, sending(server, frames(STRANGER, 8)):
        command = [sys.executable, "-m", "edge.cli.main", "recognize", "--no-json", "--camera", server.url, "--metrics", "0"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE)
        assert process.stderr is not None
        try:
            url = process.stderr.readline().removeprefix("Metrics at ").strip().removesuffix("metrics")
            until(lambda: get(f"{url}healthz")[0] == 200)
            assert figures(url)["edge_camera_up"] == 1
            server.go_down()
            until(lambda: get(f"{url}healthz")[0] == 503)
            assert figures(url)["edge_camera_up"] == 0
            server.come_up()
            until(lambda: get(f"{url}healthz")[0] == 200)
            assert figures(url)["edge_camera_reconnects_total"] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
            process.communicate()
