"""The whole terminal on real faces: who is let in, once; and that nothing that goes wrong ever lets anybody in."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from edge.camera.base import Camera, Frame
from edge.camera.open import open_camera
from edge.camera.recording import Recording
from edge.decision.doorlist import DoorList
from edge.errors import KitError
from edge.events.event import Event, StreamClosed
from edge.kit import format as kits
from edge.monitor.annotate import View
from edge.terminal.loop import Terminal
from edge.vision.recognize import Recognition, Recognizer
from tests.fakes.mjpeg_server import MjpegServer, jpeg, part
from tests.fakes.stage import Stage
from tests.fixtures import kits as doors
from tests.fixtures import orl_door
from tests.fixtures.data import ROOT
from tests.fixtures.orl_door import FPS, GUEST, OTHER, STRANGER, empty_room, frames, sending, together

DEADLINE = 60.0
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def until(holds: Callable[[], Any], what: str = "that never happened") -> Any:
    """The first true value of `holds`, however slow the machine is."""
    end = time.monotonic() + DEADLINE
    while not (value := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return value


class Events(list[Event]):
    """A sink that remembers."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: str) -> list[tuple[str | None, str | None]]:
        return [(event.outcome, event.label if kind == "decision" else event.reason) for event in self if event.kind == kind]

    @property
    def decisions(self) -> list[tuple[str | None, str | None]]:
        return self.of("decision")


class Meddled(Recognizer):
    """The real recogniser, to which something happens at each frame before it answers."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__(orl_door.recognizer().kit)
        self._before, self._calls = before, 0

    def recognize(self, image: Any, *, min_face: int | None = None) -> list[Recognition]:
        self._calls += 1
        self._before(self._calls)
        return super().recognize(image, min_face=min_face)


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("injected")


def watch(camera: Camera, recognizer: Recognizer | None = None, **options: Any) -> tuple[Events, Terminal]:
    """All that is told of what this camera sees."""
    events = Events()
    options["sinks"] = [*options.get("sinks", []), events]
    terminal = Terminal(recognizer or orl_door.recognizer(), camera, **options)
    terminal.run()
    return events, terminal


# Who is let in


def test_a_video_of_three_visits_gives_three_decisions(tmp_path: Path) -> None:
    gone = empty_room(12)
    path = orl_door.video(
        tmp_path / "door.avi", frames(GUEST, 24), gone, frames(STRANGER, 8), gone, frames(OTHER, 8), gone, frames(GUEST, 8)
    )
    with open_camera(str(path)) as camera:
        events, terminal = watch(camera)
    assert events.decisions == [("granted", GUEST), ("denied", None), ("granted", OTHER)], (
        "the guest is back within ten seconds"
    )
    assert [event.kind for event in events] == ["start", "decision", "decision", "decision", "stop"]
    assert events[-1].reason == "the recording is over"
    assert len({event.event_id for event in events}) == 5
    granted = events[1]
    assert granted.confidence is not None
    assert granted.threshold is not None
    assert granted.confidence >= granted.threshold
    assert granted.frames is not None
    assert granted.frames <= 5, "decided while the person still stands there"
    assert terminal.counters["frames"] == 24 + 8 + 8 + 8 + 36
    assert terminal.counters["granted"] == 2
    assert terminal.counters["failures"] == 0


def test_whoever_is_there_when_the_recording_ends_gets_a_decision() -> None:
    events, _ = watch(Recording("video", ((image, i / FPS) for i, image in enumerate(frames(STRANGER, 5)))))
    assert events.decisions == [("denied", None)]
    assert [event.reason for event in events if event.kind == "decision"] == ["unknown person"]


def test_an_empty_scene_tells_nothing() -> None:
    events, terminal = watch(Stage(empty_room(12)))
    assert [event.kind for event in events] == ["start", "stop"]
    assert terminal.counters["faces"] == 0


def test_two_people_at_once_are_two_visits() -> None:
    events, _ = watch(Stage(together(GUEST, OTHER)))
    assert sorted(events.decisions) == [("granted", GUEST), ("granted", OTHER)]
    assert len({event.visit for event in events if event.kind == "decision"}) == 2
    events, _ = watch(Stage(together(GUEST, STRANGER), empty_room(12)))
    assert sorted(events.decisions, key=str) == [("denied", None), ("granted", GUEST)], "nobody comes in with somebody else"


def test_broken_frames_are_counted_and_passed_over(tmp_path: Path) -> None:
    for i, image in enumerate(frames(GUEST, 8)):
        data = jpeg(image)
        (tmp_path / f"{i}a.jpg").write_bytes(data)
        (tmp_path / f"{i}b.jpg").write_bytes(data[: len(data) // 2] if i % 2 else b"no picture")
    with open_camera(str(tmp_path)) as camera:
        events, terminal = watch(camera)
    assert events.decisions == [("granted", GUEST)]
    assert terminal.health()["counters"]["broken"] == 8
    assert terminal.counters["frames"] == 8


# Time


@pytest.mark.parametrize(("age", "outcome"), [(0.9, "granted"), (1.01, "denied")])
def test_a_frame_older_than_a_second_never_leads_to_a_grant(age: float, outcome: str) -> None:
    events, _ = watch(Stage(frames(GUEST, 8), empty_room(24), age=age))
    assert [decision for decision, _ in events.decisions] == [outcome]
    assert all((event.reason, event.frames) == ("stale frame", 8) for event in events if event.outcome == "denied")


def test_a_recogniser_that_takes_longer_than_a_second_grants_nothing() -> None:
    stage = Stage(frames(GUEST, 8))

    def dawdle(_: int) -> None:
        stage.clock += 1.05

    events, terminal = watch(stage, Meddled(dawdle))
    assert ("granted", GUEST) not in events.decisions
    assert terminal.counters["granted"] == 0


def test_a_sink_that_takes_its_time_over_one_does_not_let_the_next_in_late() -> None:
    stage = Stage(together(GUEST, OTHER))

    def relay(event: Event) -> None:
        if event.grants:
            stage.clock += 1.5

    events, terminal = watch(stage, sinks=[relay])
    assert [event.outcome for event in events if event.kind == "decision"] == ["granted", "denied"]
    assert [event.reason for event in events if event.outcome == "denied"] == ["stale frame"]
    assert terminal.counters["granted"] == 1


@pytest.mark.parametrize(
    "stamps",
    [lambda number, now: 1000.0, lambda number, now: 1001.0 - number / FPS, lambda number, now: math.nan],
    ids=["the same again", "backwards", "not a number"],
)
def test_frames_that_are_not_newer_than_the_last_grant_nothing(stamps: Callable[[int, float], float]) -> None:
    events, _ = watch(Stage(frames(GUEST, 8), stamps=stamps))
    assert events.decisions == []


def test_a_frame_from_the_future_is_passed_over_and_those_after_it_count() -> None:
    stage = Stage(frames(GUEST, 8), stamps=lambda number, now: now + 3600 if number <= 3 else now)
    events, terminal = watch(stage)
    assert terminal.counters["failures"] == 3
    assert events.decisions == [("granted", GUEST)]
    assert [event.frames for event in events if event.grants] == [3]


@pytest.mark.parametrize(
    ("zone", "device", "clock", "outcome"),
    [
        ("Asia/Tokyo", "UTC", datetime(2026, 11, 15, 23, 30, tzinfo=UTC), "granted"),  # Monday, 08:30 there
        ("Asia/Tokyo", "UTC", datetime(2026, 11, 16, 8, 30, tzinfo=UTC), "denied"),
        (None, "Asia/Tokyo", datetime(2026, 11, 15, 23, 30, tzinfo=UTC), "granted"),
        (None, "UTC", datetime(2026, 11, 15, 23, 30, tzinfo=UTC), "denied"),  # Sunday
        (None, "UTC", datetime(1970, 1, 1, 8, 30, tzinfo=UTC), "denied"),
    ],
)
def test_the_door_list_is_asked_at_the_time_of_its_place(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, device: str, clock: datetime, outcome: str
) -> None:
    place = f'[door]\ntimezone = "{zone}"\n' if zone else ""
    door_list = DoorList.parse(f'{place}[[allow]]\npeople = ["{GUEST}"]\nweekdays = "mon"\nhours = "08:00-09:00"'.encode())
    with monkeypatch.context() as patch:
        patch.setenv("TZ", device)
        time.tzset()
        events, _ = watch(Stage(frames(GUEST, 8)), door_list=door_list, clock=lambda: clock)
    time.tzset()
    assert events.decisions == [(outcome, GUEST)]


# What goes wrong


def meddle(part: str) -> tuple[Terminal, Events]:
    """A terminal in which one part always fails, before the guest."""
    events = Events()
    options: dict[str, Any] = {"clock": fail} if part == "clock" else {"clock": lambda: NOON}
    recognizer = Meddled(fail) if part == "recognizer" else orl_door.recognizer()
    door_list = DoorList.parse(b'[[allow]]\npeople = "everyone"')
    terminal = Terminal(recognizer, Stage(frames(GUEST, 8)), door_list=door_list, sinks=[events], **options)
    return terminal, events


@pytest.mark.parametrize("part", ["recognizer", "clock", "tracker.update", "tracker.ended", "door.step", "door_list.refusal"])
def test_whatever_fails_lets_nobody_in_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    terminal, events = meddle(part)
    owner, _, method = part.partition(".")
    if method == "refusal":
        monkeypatch.setattr(DoorList, "refusal", fail)
    elif method:
        monkeypatch.setattr(getattr(terminal, f"_{owner}"), method, fail)
    terminal.run()
    assert not any(event.grants for event in events)
    assert terminal.counters["granted"] == 0
    assert terminal.counters["frames"] == 8, "each frame is tried"
    assert terminal.counters["failures"] >= 1
    assert "injected" in caplog.text


def test_one_bad_frame_costs_itself_only() -> None:
    def fail_once(call: int) -> None:
        if call == 2:
            fail()

    events, terminal = watch(Stage(frames(GUEST, 8)), Meddled(fail_once))
    assert events.decisions == [("granted", GUEST)]
    assert [event.frames for event in events if event.grants] == [3], "the bad one is not among them"
    assert terminal.counters["failures"] == 1


def test_a_door_list_that_fails_denies_one_and_costs_the_other_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(self: DoorList, label: str, when: datetime) -> None:
        if label == OTHER:
            fail()

    monkeypatch.setattr(DoorList, "refusal", picky)
    door_list = DoorList.parse(b'[[allow]]\npeople = "everyone"')
    events, terminal = watch(Stage(together(GUEST, OTHER)), door_list=door_list)
    assert sorted(events.decisions) == [("denied", OTHER), ("granted", GUEST)]
    assert terminal.counters["failures"] == 1


def test_a_camera_that_raises_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, calls = Stage(frames(GUEST, 8)), iter(range(100))
    give = stage.frame
    monkeypatch.setattr(stage, "frame", lambda timeout: fail() if next(calls) % 2 else give(timeout))
    events, terminal = watch(stage)
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters["failures"] == 7


def test_sinks_and_viewers_that_fail_cost_the_others_nothing() -> None:
    views: list[View] = []
    events, terminal = watch(Stage(frames(GUEST, 8)), sinks=[fail], viewers=[fail, views.append])
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters["undelivered"] == 3  # start, decision, stop
    assert terminal.counters["failures"] == len(views) == 8
    assert [mark.colour for view in views for mark in view.marks] == ["watching"] * 2 + ["granted"] * 6


def test_an_interrupt_ends_it_with_a_stop_event_and_no_grant() -> None:
    def interrupt(call: int) -> None:
        if call == 3:
            raise KeyboardInterrupt

    events = Events()
    terminal = Terminal(Meddled(interrupt), Stage(frames(GUEST, 8)), sinks=[events])
    with pytest.raises(KeyboardInterrupt):
        terminal.run()
    assert [event.kind for event in events] == ["start", "stop"]
    assert events[-1].reason == "interrupted"


def test_when_nobody_reads_any_more_the_other_sinks_hear_of_the_stop() -> None:
    def read_once(event: Event) -> None:
        if event.kind != "start":
            raise StreamClosed

    events, _ = watch(Stage(frames(GUEST, 8), empty_room(12)), sinks=[read_once])
    assert [event.kind for event in events] == ["start", "decision", "stop"]
    assert events[-1].reason == "nobody reads the events any more"


def test_a_kit_that_finds_no_faces_is_refused_at_the_start() -> None:
    terminal = Terminal(Recognizer(kits.parse(doors.kit())), Stage(empty_room(1)))
    with pytest.raises(KitError, match="cropped"):
        terminal.run()


# Live cameras


@contextmanager
def running(camera: Camera, **options: Any) -> Iterator[tuple[Events, Terminal]]:
    """A terminal at work on a thread of its own."""
    events, stop = Events(), threading.Event()
    terminal = Terminal(orl_door.recognizer(), camera, sinks=[events], **options)
    thread = threading.Thread(target=terminal.run, args=(stop,))
    thread.start()
    try:
        yield events, terminal
    finally:
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_a_stall_in_mid_visit_is_told_in_time_and_grants_nothing_then_the_camera_is_back() -> None:
    with MjpegServer() as server:
        first, second, *_ = map(jpeg, frames(GUEST, 8))
        threading.Timer(0.1, server.push, [first]).start()
        with open_camera(server.url) as camera, running(camera) as (events, terminal):
            until(lambda: terminal.counters["faces"] == 1)
            server.push(second)
            until(lambda: events.of("camera") and events.decisions)
            assert events.of("camera") == [("lost", "No frame for 2 seconds.")]
            assert events.decisions == [("denied", None)], "two frames are not enough, and for a second none came"
            assert not terminal.health()["camera_up"]
            with sending(server, frames(GUEST, 8)):
                granted = until(lambda: [event for event in events if event.grants])
            assert events.of("camera")[1:] == [("back", None)]
            assert len(granted) == 1
            assert granted[0].visit > 1, "none of the two frames before the stall counts"
            assert granted[0].seconds_from_capture < 1
            assert terminal.health()["counters"]["reconnects"] == 1
    assert events[-1].kind == "stop"
    assert events[-1].reason == "asked to"


def test_a_camera_that_drops_sends_rubbish_and_goes_away_lets_one_person_in_once() -> None:
    with MjpegServer() as server, sending(server, frames(GUEST, 8)), open_camera(server.url) as camera:
        with running(camera, max_fps=15) as (events, terminal):
            until(lambda: events.decisions)
            server.drop()
            until(lambda: terminal.health()["counters"]["reconnects"] == 1)
            server.send(part(b"\xff\xd8 no picture"))
            until(lambda: terminal.health()["counters"]["broken"] >= 1)
            server.go_down()
            until(lambda: events.of("camera")[-1:] and events.of("camera")[-1][0] == "lost")
            server.come_up()
            until(lambda: events.of("camera")[-1][0] == "back")
            seen = terminal.counters["faces"]
            until(lambda: terminal.counters["faces"] > seen + 5)
        assert events.decisions == [("granted", GUEST)]
        assert terminal.counters["failures"] == 0


def test_a_camera_that_is_not_there_yet_is_lost_and_then_back() -> None:
    with MjpegServer() as server:
        server.go_down()
        with open_camera(server.url, wait=True) as camera, running(camera) as (events, _):
            until(lambda: events.of("camera"))
            server.come_up()
            with sending(server, frames(GUEST, 8)):
                until(lambda: events.decisions)
    outcomes = [outcome for outcome, _ in events.of("camera")]
    assert outcomes == ["lost", "back"]
    assert "refused" in (events.of("camera")[0][1] or "")


def test_a_camera_that_only_takes_its_time_to_open_was_never_lost() -> None:
    with MjpegServer() as server, open_camera(server.url, wait=True) as camera, running(camera) as (events, _):
        server.wait_for_client()
        time.sleep(0.3)
        assert not camera.health.up
        with sending(server, frames(GUEST, 8)):
            until(lambda: events.decisions)
    assert events.of("camera") == []
    assert events.decisions == [("granted", GUEST)]


def test_no_more_frames_are_looked_at_than_was_asked_for_and_a_stop_does_not_wait() -> None:
    class Endless(Stage):
        ended = False

        def frame(self, timeout: float) -> Frame:
            return Frame(image=empty_room(1)[0], captured=self.clock, number=1)

    began = time.monotonic()
    with running(Endless(), max_fps=20) as (_, terminal):
        until(lambda: terminal.counters["frames"] >= 5)
        assert time.monotonic() - began >= 4 / 20 - 0.05
    with running(Endless(), max_fps=0.01) as (_, terminal):
        until(lambda: terminal.counters["frames"] == 1)
        asked = time.monotonic()
    assert time.monotonic() - asked < DEADLINE, "and not the 100 seconds to the next frame"
    assert terminal.counters["frames"] == 1


def test_health_is_complete_from_the_start_and_without_names() -> None:
    terminal = Terminal(orl_door.recognizer(), Stage(frames(GUEST, 8)))
    before = set(terminal.health()["counters"])
    assert before >= {"frames", "faces", "failures", "granted", "denied", "undelivered", "dropped", "broken", "reconnects"}
    terminal.run()
    assert set(terminal.health()["counters"]) == before, "no key appears while another thread reads"
    assert GUEST not in str(terminal.health()).replace(terminal.health()["kit"], "")


# In other people's programs


def test_the_library_is_loaded_when_it_is_used() -> None:
    script = (
        "import sys, edge\n"
        "assert not {'cv2', 'numpy', 'onnxruntime', 'typer'} & set(sys.modules), sorted(sys.modules)\n"
        "from edge import Recognition, Recognizer, Terminal, open_camera\n"
        "assert Terminal.__module__ == 'edge.terminal.loop' and 'typer' not in sys.modules\n"
        "assert set(edge.__all__) <= {*dir(edge), *edge._MODULES}\n"
        "edge.nonsense\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stderr.splitlines()[-1] == "AttributeError: module 'edge' has no attribute 'nonsense'"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_examples_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "door.kit").write_bytes(orl_door.kit())
    orl_door.video(tmp_path / "door.mp4", frames(GUEST, 8), empty_room(12))
    in_a_loop, whole = examples()
    exec(compile(in_a_loop, "docs/guide/python.md", "exec"), {})
    assert capsys.readouterr().out.count(f"{GUEST} recognised") >= 5
    exec(compile(whole, "docs/guide/python.md", "exec"), {})
    assert f"come in, {GUEST}" in capsys.readouterr().out
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 3
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
