"""The live status of doors, from the real preview of a terminal and from servers that misbehave."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.events.event import notice
from edge.monitor.preview import Preview
from tests.fixtures.events import NOON, make_event
from tests.fixtures.waiting import until
from trainer.site import door_status, doors
from trainer.site.door_status import Status, Watch, ask, ask_all, overview
from trainer.site.doors import Door
from trainer.site.folder import Site

pytestmark = pytest.mark.slow  # starts servers

HEALTH: dict[str, Any] = {
    "camera": "front",
    "camera_up": True,
    "camera_frozen": False,
    "frame_age_seconds": 0.1,
    "error": "",
    "kit": "0123456789ab",
    "thresholds": "measured",
    "temperature_celsius": 48.3,
    "counters": {},
    "sinks": {},
    "failing": [],
}


@pytest.fixture
def preview() -> Iterator[Preview]:
    with Preview("127.0.0.1:0") as preview:
        preview.watch(lambda: HEALTH)
        yield preview


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


def door(preview: Preview, name: str = "north") -> Door:
    return Door(name=name, status_url=preview.url)


@contextmanager
def answering(body: bytes, status: int = 200, **headers: str) -> Iterator[Door]:
    """A door whose terminal gives the same answer to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    paths: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Door(name="north", status_url=f"http://127.0.0.1:{server.server_address[1]}/a")
        assert set(paths) <= {"/a/health.json", "/a/events.json"}
    finally:
        server.shutdown()
        server.server_close()


def test_terminal_without_problems(preview: Preview) -> None:
    preview.handle(make_event(label="ben"))
    preview.handle(make_event(label="anna"))
    preview.handle(notice("camera", now=11.0, utc=NOON, outcome="back"))
    status = ask(door(preview))
    assert (status.door, status.state, status.problem) == ("north", "online", "")
    assert (status.kit, status.camera, status.temperature_celsius) == ("0123456789ab", "up", 48.3)
    assert status.frames_per_second == 0.0
    assert (status.decided, status.outcome, status.label) == ("2025-03-01T12:03:07.250Z", "granted", "anna"), "the newest"
    assert status.failing == ()


@pytest.mark.parametrize(
    ("changes", "camera", "failing"),
    [
        ({"camera_up": False, "error": "no such device"}, "lost", ()),
        ({"camera_up": False, "camera_frozen": True, "error": "frozen"}, "frozen", ()),
        ({"failing": ["the audit log"]}, "up", ("the audit log",)),
    ],
)
def test_problems_of_a_terminal(preview: Preview, changes: dict[str, Any], camera: str, failing: tuple[str, ...]) -> None:
    preview.watch(lambda: HEALTH | changes)
    status = ask(door(preview))
    assert (status.camera, status.failing, status.problem) == (camera, failing, changes.get("error", ""))


def test_terminal_of_an_earlier_version_has_no_temperature(preview: Preview) -> None:
    preview.watch(lambda: {name: value for name, value in HEALTH.items() if name != "temperature_celsius"})
    status = ask(door(preview))
    assert (status.state, status.temperature_celsius) == ("online", None)


def test_door_without_an_address_is_not_asked() -> None:
    assert ask(Door(name="a")) == Status(door="a", state="no address")


def test_terminal_that_is_switched_off_is_offline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    status = ask(Door(name="a", status_url=f"http://127.0.0.1:{port}"))
    assert (status.state, status.camera) == ("offline", "")
    assert "Connection refused" in status.problem


def test_terminal_that_never_answers_is_offline_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        status = ask(Door(name="a", status_url=f"http://127.0.0.1:{server.getsockname()[1]}"), seconds=0.2)
    assert (status.state, status.problem) == ("offline", "The terminal does not answer (no answer in time).")


def test_terminal_that_answers_byte_by_byte_is_offline_in_time() -> None:
    stop = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection:
            while not stop.wait(0.02):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        status = ask(Door(name="a", status_url=f"http://127.0.0.1:{server.getsockname()[1]}"), seconds=0.3)
        stop.set()
        thread.join()
    assert status.problem == "The terminal does not answer (no answer in time)."


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"hello", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b'{"a": "' + b"x" * door_status.MAX_BYTES + b'"}', "not the preview"),
    ],
)
def test_other_answers_are_not_a_terminal(body: bytes, problem: str) -> None:
    with answering(body) as found:
        status = ask(found)
    assert status.state == "offline"
    assert problem in status.problem


def test_redirection_is_not_followed(preview: Preview) -> None:
    with answering(b"{}", 302, Location=preview.url) as found:
        status = ask(found)
    assert (status.state, status.kit) == ("offline", "")
    assert "302" in status.problem


def test_refused_name_has_advice(preview: Preview) -> None:
    with answering(b"Wrong host.\n", 403) as found:
        assert "numeric address" in ask(found).problem


@pytest.mark.parametrize("value", ["x" * 10_000, "\u202e\n", 1e400, float("nan"), -1, True, None, [], {}, [["a"]], 10**400])
def test_values_of_other_types_are_ignored(value: Any) -> None:
    names = ("kit", "fps", "temperature_celsius", "error", "failing", "camera_up", "camera_frozen")
    events = [3, {"kind": "decision", "utc": value, "outcome": value, "label": value, "reason": value}]
    for facts in ({"events": value}, {"events": events}):
        with answering(json.dumps(dict.fromkeys(names, value) | facts).encode()) as found:
            status = ask(found)
        assert status.state == "online"
        json.dumps(vars(status), allow_nan=False)
        texts = [text for text in vars(status).values() if isinstance(text, str)]
        assert all(len(text) <= 200 and text.isprintable() for text in texts)
        assert status.decided == ""


def test_many_doors_are_asked_at_the_same_time(preview: Preview) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        never = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = [Door(name=f"{i}", status_url=never if i % 2 else preview.url) for i in range(8)]
        heard: list[str] = []
        statuses = ask_all(found, lambda status: heard.append(status.door))
    assert [status.door for status in statuses] == [door.name for door in found]
    assert [status.state for status in statuses] == ["online", "offline"] * 4
    assert sorted(heard[:4]) == ["0", "2", "4", "6"], "a terminal that hangs does not delay the others"


def test_watch_answers_at_once_and_asks_in_the_background(site: Site, preview: Preview) -> None:
    doors.save(site, [door(preview), Door(name="store")], "anna")
    watch = Watch(site)
    assert [status.state for status in watch.statuses()] == ["waiting", "no address"]
    until(lambda: [status.state for status in watch.statuses()] == ["online", "no address"])


def test_watch_follows_the_doors(site: Site, preview: Preview) -> None:
    watch = Watch(site)
    assert watch.statuses() == []
    doors.save(site, [door(preview)], "anna")
    watch.ask_once()
    assert [status.state for status in watch.statuses()] == ["online"]
    doors.change(site, "north", Door(name="north", status_url="http://127.0.0.1:9"), "anna")
    (status,) = watch.statuses()
    assert status.state == "waiting", "an answer from another address is not shown"


def test_watch_stops_if_nobody_looks(site: Site, preview: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_status, "ROUND_SECONDS", 0.01)
    now = [0.0]
    doors.save(site, [door(preview)], "anna")
    watch = Watch(site, clock=lambda: now[0])

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread is watch._thread]

    watch.statuses()
    assert threads()
    now[0] += door_status.IDLE_SECONDS + 1
    until(lambda: not threads())
    watch.statuses()
    assert threads(), "a page shows them again"
    now[0] += door_status.IDLE_SECONDS + 1
    until(lambda: not threads())


def test_overview_adds_the_name_of_the_kit_and_the_last_visit(site: Site, preview: Preview) -> None:
    (site.kits / "door-7.kit").write_bytes(b"a kit")
    preview.watch(lambda: HEALTH | {"kit": hashlib.sha256(b"a kit").hexdigest()[:12]})
    with site.database() as database:
        for number, (outcome, utc) in enumerate((("granted", "2026-01-02T08:00:00Z"), ("denied", "2026-01-01T08:00:00Z"))):
            database.execute(
                "INSERT INTO visits (door, event_id, utc, outcome, label, event) VALUES ('north', ?, ?, ?, 'anna', '{}')",
                (str(number), utc, outcome),
            )
        (status,) = overview(site, database, [ask(door(preview))])
        assert (status.kit_name, status.decided, status.outcome) == ("door-7", "2026-01-02T08:00:00Z", "granted")
        (site.kits / "door-7.kit").write_bytes(b"another kit")
        preview.handle(make_event(outcome="denied", label=None))
        (status,) = overview(site, database, [ask(door(preview))])
        assert (status.kit_name, status.decided, status.outcome) == ("", "2025-03-01T12:03:07.250Z", "denied")
