"""The whole terminal on real faces: who gets a grant, once; and no fault ever leads to a grant."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edge.camera.base import Camera
from edge.camera.recording import Recording
from edge.camera.sources import open_camera
from edge.decision.doorlist import DoorList
from edge.errors import KitError
from edge.events.event import Event
from edge.events.sink import OutputClosed
from edge.events.view import View
from edge.kit import format as kits
from edge.kit.manifest import ABSOLUTE
from edge.terminal.loop import Terminal
from edge.vision.detect import Face
from edge.vision.recognize import Recognition, Recognizer
from tests.fakes.mjpeg_server import MjpegServer, jpeg, part
from tests.fakes.scene_camera import SceneCamera, SimulatedCamera
from tests.fakes.sinks import CallbackSink, RecordingSink, RecordingViewer, fail
from tests.fixtures import kits as doors
from tests.fixtures import orl_door
from tests.fixtures.data import ROOT
from tests.fixtures.orl_door import FPS, GUEST, OTHER, STRANGER, empty_room, frames, sending, together
from tests.fixtures.terminals import run_to_end
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow  # trains a kit

DEADLINE = 60.0
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
EVERYONE = DoorList.parse(b'[[allow]]\npeople = "everyone"')


class FailingViewer:
    def show(self, view: View) -> None:
        fail()


class HookedRecognizer(Recognizer):
    """The real recognizer with a hook before each frame."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__(orl_door.recognizer().kit)
        self._before, self._calls = before, 0

    def find(self, image: Any, *, min_face: int | None = None) -> list[Face]:
        self._calls += 1
        self._before(self._calls)
        return super().find(image, min_face=min_face)


# Grants and denials


def test_video_of_three_visits_gives_three_decisions(tmp_path: Path) -> None:
    gone = empty_room(12)
    path = orl_door.video(
        tmp_path / "door.avi", frames(GUEST, 24), gone, frames(STRANGER, 8), gone, frames(OTHER, 8), gone, frames(GUEST, 8)
    )
    with open_camera(str(path)) as camera:
        events, terminal = run_to_end(camera)
    assert events.decisions == [("granted", GUEST), ("denied", None), ("granted", OTHER)], (
        "the guest came back within ten seconds: the same visit"
    )
    assert [event.kind for event in events] == ["start", "decision", "decision", "decision", "stop"]
    assert events[-1].reason == "recording ended"
    assert len({event.event_id for event in events}) == 5
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    granted = events[1]
    assert granted.confidence is not None
    assert granted.threshold is not None
    assert granted.confidence >= granted.threshold
    assert granted.frames is not None
    assert granted.frames <= 5, "decided while the person still stands there"
    assert terminal.counters["frames"] == 24 + 8 + 8 + 8 + 36
    assert terminal.counters["granted"] == 2
    assert terminal.counters["failures"] == 0


def test_visit_at_the_end_of_a_recording_gets_a_decision() -> None:
    events, _ = run_to_end(Recording("video", ((image, i / FPS) for i, image in enumerate(frames(STRANGER, 5)))))
    assert events.decisions == [("denied", None)]
    assert [event.reason for event in events if event.kind == "decision"] == ["unknown person"]


def test_empty_scene_gives_no_decision() -> None:
    events, terminal = run_to_end(SceneCamera(empty_room(12)))
    assert [event.kind for event in events] == ["start", "stop"]
    assert terminal.counters["faces"] == 0


def test_two_people_at_once_are_two_visits() -> None:
    events, _ = run_to_end(SceneCamera(together(GUEST, OTHER)))
    assert sorted(events.decisions) == [("granted", GUEST), ("granted", OTHER)]
    assert len({event.visit for event in events if event.kind == "decision"}) == 2
    events, _ = run_to_end(SceneCamera(together(GUEST, STRANGER), empty_room(12)))
    assert sorted(events.decisions, key=str) == [("denied", None), ("granted", GUEST)], "a grant is for one person only"


def test_broken_frames_are_counted_and_skipped(tmp_path: Path) -> None:
    for i, image in enumerate(frames(GUEST, 8)):
        data = jpeg(image)
        (tmp_path / f"{i}a.jpg").write_bytes(data)
        (tmp_path / f"{i}b.jpg").write_bytes(data[: len(data) // 2] if i % 2 else b"no picture")
    with open_camera(str(tmp_path)) as camera:
        events, terminal = run_to_end(camera)
    assert events.decisions == [("granted", GUEST)]
    assert terminal.health()["counters"]["broken"] == 8
    assert terminal.counters["frames"] == 8


# Looks


def test_person_is_recognised_a_few_times_and_never_after_the_decision() -> None:
    """The guest stands there for 20 seconds."""
    events, terminal = run_to_end(SceneCamera(frames(GUEST, 8) * 25))
    (grant,) = (event for event in events if event.grants)
    assert (grant.looks, grant.frames) == (3, 3)
    assert terminal.counters["looks"] == 3
    assert terminal.counters["frames"] == 200


def test_unknown_person_is_recognised_a_few_times() -> None:
    events, terminal = run_to_end(SceneCamera(frames(STRANGER, 8) * 25))
    (denial,) = (event for event in events if event.kind == "decision")
    assert denial.reason == "unknown person"
    assert denial.looks == terminal.counters["looks"]
    assert 5 <= terminal.counters["looks"] <= 12


def test_length_of_the_scores_counts_in_a_visit() -> None:
    """If the scores of a frame are short, as in kits with an absolute confidence, their direction is not enough."""

    class ShortScores(Recognizer):
        def look(self, image: Any, faces: Sequence[Face], *, liveness: Any = None) -> list[Recognition]:
            return [replace(seen, score_length=0.1) for seen in super().look(image, faces)]

    kit = orl_door.recognizer().kit
    kit = replace(kit, manifest=replace(kit.manifest, confidence=ABSOLUTE))
    events, _ = run_to_end(SceneCamera(frames(GUEST, 8)), ShortScores(kit))
    assert [decision for decision, _ in events.decisions] == ["denied"]


def test_next_person_in_the_same_place_is_recognised() -> None:
    """The face is missing for 0.6 seconds, which is less than `leave_seconds`."""
    events, _ = run_to_end(SceneCamera(frames(GUEST, 8), empty_room(6)[:6], frames(OTHER, 8)))
    assert events.decisions == [("granted", GUEST), ("granted", OTHER)]


def test_person_replaced_during_a_visit_gets_a_visit_of_their_own() -> None:
    events, _ = run_to_end(SceneCamera(frames(GUEST, 2), frames(OTHER, 8)))
    assert ("granted", GUEST) not in events.decisions
    assert events.decisions == [("granted", OTHER)]


def test_faces_are_searched_less_often_while_no_visit_needs_it() -> None:
    searched: list[int] = []
    camera = SceneCamera(frames(GUEST, 8) * 3, empty_room(20), fps=30)
    _, terminal = run_to_end(camera, HookedRecognizer(lambda call: searched.append(camera.number)))
    assert terminal.counters["frames"] == 44
    waits = [later - earlier for earlier, later in pairwise(searched)]
    assert max(waits) == 3, "at 30 frames per second, a new person is seen within 0.1 seconds"
    assert len(searched) < 44


def test_views_show_the_last_text_of_a_visit_in_frames_without_a_look() -> None:
    views = RecordingViewer()
    run_to_end(SceneCamera(frames(STRANGER, 8) * 3, fps=15), viewers=[views])
    marks = [mark for view in views for mark in view.marks]
    assert len(views) == len(marks) == 24, "a mark in every frame"
    assert all(re.fullmatch(r"-?\d\.\d\d of \d\.\d\d", mark.detail) for mark in marks)
    assert len({mark.detail for mark in marks}) < 8


# Time


@pytest.mark.parametrize(("age", "outcome"), [(0.9, "granted"), (1.01, "denied")])
def test_frame_older_than_a_second_gives_no_grant(age: float, outcome: str) -> None:
    events, _ = run_to_end(SceneCamera(frames(GUEST, 8), empty_room(24), age=age))
    assert [decision for decision, _ in events.decisions] == [outcome]
    assert all((event.reason, event.frames) == ("stale frame", 8) for event in events if event.outcome == "denied")


def test_recognizer_slower_than_a_second_gives_no_grant() -> None:
    camera = SceneCamera(frames(GUEST, 8))

    def dawdle(_: int) -> None:
        camera.clock += 1.05

    events, terminal = run_to_end(camera, HookedRecognizer(dawdle))
    assert ("granted", GUEST) not in events.decisions
    assert terminal.counters["granted"] == 0


def test_slow_sink_does_not_cause_a_late_grant() -> None:
    camera = SceneCamera(together(GUEST, OTHER))

    def relay(event: Event) -> None:
        if event.grants:
            camera.clock += 1.5

    events, terminal = run_to_end(camera, sinks=[CallbackSink(relay)])
    assert [event.outcome for event in events if event.kind == "decision"] == ["granted", "denied"]
    assert [event.reason for event in events if event.outcome == "denied"] == ["stale frame"]
    assert terminal.counters["granted"] == 1


@pytest.mark.parametrize(
    "stamps",
    [lambda number, now: 1000.0, lambda number, now: 1001.0 - number / FPS, lambda number, now: math.nan],
    ids=["the same again", "backwards", "not a number"],
)
def test_frames_that_are_not_newer_give_no_grant(stamps: Callable[[int, float], float]) -> None:
    events, _ = run_to_end(SceneCamera(frames(GUEST, 8), stamps=stamps))
    assert events.decisions == []


def test_frame_from_the_future_is_skipped() -> None:
    camera = SceneCamera(frames(GUEST, 8), stamps=lambda number, now: now + 3600 if number <= 3 else now)
    events, terminal = run_to_end(camera)
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
def test_door_list_uses_its_time_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, device: str, clock: datetime, outcome: str
) -> None:
    place = f'[door]\ntimezone = "{zone}"\n' if zone else ""
    door_list = DoorList.parse(f'{place}[[allow]]\npeople = ["{GUEST}"]\nweekdays = "mon"\nhours = "08:00-09:00"'.encode())
    with monkeypatch.context() as patch:
        patch.setenv("TZ", device)
        time.tzset()
        events, _ = run_to_end(SceneCamera(frames(GUEST, 8)), door_list=door_list, clock=lambda: clock)
    time.tzset()
    assert events.decisions == [(outcome, GUEST)]


# Faults


def faulty_terminal(part: str) -> tuple[Terminal, RecordingSink]:
    """A terminal in which one part always fails."""
    events = RecordingSink()
    options: dict[str, Any] = {"clock": fail} if part == "clock" else {"clock": lambda: NOON}
    recognizer = HookedRecognizer(fail) if part == "recognizer" else orl_door.recognizer()
    terminal = Terminal(recognizer, SceneCamera(frames(GUEST, 8)), door_list=EVERYONE, sinks=[events], **options)
    return terminal, events


@pytest.mark.parametrize("part", ["recognizer", "clock", "tracker.update", "tracker.ended", "door.step", "door_list.refusal"])
def test_failing_part_gives_no_grant_and_the_loop_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    terminal, events = faulty_terminal(part)
    owner, _, method = part.partition(".")
    if method == "refusal":
        monkeypatch.setattr(DoorList, "refusal", fail)
    elif method:
        monkeypatch.setattr(getattr(terminal, f"_{owner}"), method, fail)
    terminal.run()
    assert not any(event.grants for event in events)
    assert terminal.counters["granted"] == 0
    assert terminal.counters["frames"] == 8, "every frame is processed"
    assert terminal.counters["failures"] >= 1
    assert "injected" in caplog.text


def test_one_failing_frame_does_not_affect_the_others() -> None:
    def fail_once(call: int) -> None:
        if call == 2:
            fail()

    events, terminal = run_to_end(SceneCamera(frames(GUEST, 8)), HookedRecognizer(fail_once))
    assert events.decisions == [("granted", GUEST)]
    assert [event.frames for event in events if event.grants] == [3], "the bad one is not among them"
    assert terminal.counters["failures"] == 1


def test_failing_door_list_denies_only_that_person(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(self: DoorList, label: str, when: datetime) -> None:
        if label == OTHER:
            fail()

    monkeypatch.setattr(DoorList, "refusal", picky)
    events, terminal = run_to_end(SceneCamera(together(GUEST, OTHER)), door_list=EVERYONE)
    assert sorted(events.decisions) == [("denied", OTHER), ("granted", GUEST)]
    assert terminal.counters["failures"] == 1


def test_camera_that_raises_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    camera, calls = SceneCamera(frames(GUEST, 8)), iter(range(100))
    give = camera.frame
    monkeypatch.setattr(camera, "frame", lambda timeout: fail() if next(calls) % 2 else give(timeout))
    events, terminal = run_to_end(camera)
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters["failures"] == 7


def test_failing_sinks_and_viewers_do_not_affect_the_others() -> None:
    views = RecordingViewer()
    events, terminal = run_to_end(SceneCamera(frames(GUEST, 8)), sinks=[CallbackSink(fail)], viewers=[FailingViewer(), views])
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters["undelivered"] == 3  # start, decision, stop
    assert terminal.counters["failures"] == len(views) == 8
    assert [mark.state for view in views for mark in view.marks] == ["watching"] * 2 + ["granted"] * 6


def test_interrupt_gives_a_stop_event_and_no_grant() -> None:
    def interrupt(call: int) -> None:
        if call == 3:
            raise KeyboardInterrupt

    events = RecordingSink()
    terminal = Terminal(HookedRecognizer(interrupt), SceneCamera(frames(GUEST, 8)), sinks=[events])
    with pytest.raises(KeyboardInterrupt):
        terminal.run()
    assert [event.kind for event in events] == ["start", "stop"]
    assert events[-1].reason == "interrupted"


def test_closed_output_ends_the_run_with_a_stop_event() -> None:
    def read_once(event: Event) -> None:
        if event.kind != "start":
            raise OutputClosed

    events, _ = run_to_end(SceneCamera(frames(GUEST, 8), empty_room(12)), sinks=[CallbackSink(read_once)])
    assert [event.kind for event in events] == ["start", "decision", "stop"]
    assert events[-1].reason == "output closed"


def test_kit_without_detection_is_an_error_at_the_start() -> None:
    terminal = Terminal(Recognizer(kits.parse(doors.kit())), SceneCamera(empty_room(1)))
    with pytest.raises(KitError, match="cropped"):
        terminal.run()


# Live cameras


@contextmanager
def running(camera: Camera, **options: Any) -> Iterator[tuple[RecordingSink, Terminal]]:
    """A terminal that runs on its own thread."""
    events, stop = RecordingSink(), threading.Event()
    terminal = Terminal(orl_door.recognizer(), camera, sinks=[events], **options)
    thread = threading.Thread(target=terminal.run, args=(stop,))
    thread.start()
    try:
        yield events, terminal
    finally:
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_stalled_camera_is_lost_then_back_and_old_frames_do_not_count() -> None:
    with MjpegServer() as server:
        first, second, *_ = map(jpeg, frames(GUEST, 8))
        threading.Timer(0.1, server.push, [first]).start()
        with open_camera(server.url) as camera, running(camera) as (events, terminal):
            until(lambda: terminal.counters["faces"] == 1)
            server.push(second)
            until(lambda: events.of("camera") and events.decisions)
            assert events.of("camera") == [("lost", "No frame for 2 seconds.")]
            assert events.decisions == [("denied", None)], "two frames are not enough"
            assert not terminal.health()["camera_up"]
            with sending(server, frames(GUEST, 8)):
                granted = until(lambda: [event for event in events if event.grants])
            assert events.of("camera")[1:] == [("back", None)]
            assert len(granted) == 1
            assert granted[0].visit > 1, "the frames before the stall do not count"
            assert granted[0].seconds_from_capture < 1
            assert terminal.health()["counters"]["reconnects"] == 1
    assert events[-1].kind == "stop"
    assert events[-1].reason == "stop requested"


def test_unreliable_camera_gives_one_grant() -> None:
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


def test_missing_camera_is_lost_and_then_back() -> None:
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


def test_camera_that_opens_slowly_is_not_lost() -> None:
    with MjpegServer() as server, open_camera(server.url, wait=True) as camera, running(camera) as (events, _):
        server.wait_for_client()
        time.sleep(0.3)
        assert not camera.health.up
        with sending(server, frames(GUEST, 8)):
            until(lambda: events.decisions)
    assert events.of("camera") == []
    assert events.decisions == [("granted", GUEST)]


def test_max_fps_limits_the_frames_and_a_stop_does_not_wait() -> None:
    class Endless(SimulatedCamera):
        def image(self) -> Any:
            return empty_room(1)[0]

    began = time.monotonic()
    with running(Endless(), max_fps=20) as (_, terminal):
        until(lambda: terminal.counters["frames"] >= 5)
        assert time.monotonic() - began >= 4 / 20 - 0.05
    with running(Endless(), max_fps=0.01) as (_, terminal):
        until(lambda: terminal.counters["frames"] == 1)
        asked = time.monotonic()
    assert time.monotonic() - asked < DEADLINE, "less than the 100 seconds to the next frame"
    assert terminal.counters["frames"] == 1


def test_health_has_all_keys_from_the_start_and_no_names() -> None:
    terminal = Terminal(orl_door.recognizer(), SceneCamera(frames(GUEST, 8)))
    before = set(terminal.health()["counters"])
    assert before >= {"frames", "faces", "failures", "granted", "denied", "undelivered", "dropped", "broken", "reconnects"}
    terminal.run()
    assert set(terminal.health()["counters"]) == before, "no key appears while another thread reads"
    assert GUEST not in str(terminal.health()).replace(terminal.health()["kit"], "")


# Use as a library


def test_library_is_imported_on_first_use() -> None:
    script = (
        "import sys, edge\n"
        "assert not {'cv2', 'numpy', 'onnxruntime', 'typer'} & set(sys.modules), sorted(sys.modules)\n"
        "from edge import Recognition, Recognizer, Terminal, open_camera\n"
        "assert Terminal.__module__ == 'edge.terminal.loop' and 'typer' not in sys.modules\n"
        "assert all(hasattr(edge, name) for name in edge.__all__)\n"
        "edge.nonsense\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stderr.splitlines()[-1] == "AttributeError: module 'edge' has no attribute 'nonsense'"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8"), re.DOTALL)


def test_examples_of_the_documentation_run(
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
