"""A terminal whose camera repeats itself: repeated frames give no look, and the camera is reported as frozen."""

from __future__ import annotations

import pytest

from edge.camera.recording import Recording
from tests.fakes.scene_camera import RepeatingCamera, SceneCamera
from tests.fakes.sinks import RecordingViewer
from tests.fixtures.orl_door import FPS, GUEST, frames
from tests.fixtures.terminals import run_to_end

pytestmark = pytest.mark.slow  # trains a kit


def test_picture_that_repeats_is_one_look_and_the_camera_is_frozen(caplog: pytest.LogCaptureFixture) -> None:
    picture, resets = frames(GUEST, 1), [0]

    def reset_watchdog() -> None:
        resets[0] += 1

    camera, views = RepeatingCamera(picture * 70), RecordingViewer()
    events, terminal = run_to_end(camera, viewers=[views], on_frame=reset_watchdog)
    assert events.decisions == [], "a person in one frame only"
    assert events.of("camera") == [("frozen", "The picture has not changed for 5 seconds.")]
    assert (terminal.counters["frames"], terminal.counters["looks"], resets) == (1, 1, [1])
    assert (terminal.counters["repeated"], terminal.counters["frozen"]) == (69, 1)
    assert len(views) == 70, "a person can see what the camera sends"
    health = terminal.health()
    assert (health["camera_up"], health["camera_frozen"]) == (False, True)
    assert health["error"] == "The picture has not changed for 5 seconds."
    assert health["frame_age_seconds"] == pytest.approx(6.9)
    assert "is frozen" in caplog.text


def test_repeated_picture_stays_repeated_after_the_camera_was_lost() -> None:
    picture, away = frames(GUEST, 1), [None] * 30
    events, terminal = run_to_end(RepeatingCamera(picture * 60, away, picture * 60, away, picture * 60, frames(GUEST, 3)[1:]))
    outcomes = [outcome for outcome, _ in events.of("camera")]
    assert outcomes == ["frozen", "lost", "frozen", "lost", "frozen", "back"]
    assert terminal.counters["looks"] == 3
    assert events.decisions == [("denied", None)], "two new frames are not enough"


def test_frames_sent_twice_count_once() -> None:
    twice = [image for image in frames(GUEST, 8) for _ in range(2)]
    events, terminal = run_to_end(RepeatingCamera(twice, fps=2 * FPS))
    assert events.decisions == [("granted", GUEST)]
    assert events.of("camera") == []
    assert (terminal.counters["frames"], terminal.counters["repeated"]) == (8, 8)


def test_time_that_stands_still_is_a_frozen_camera() -> None:
    camera = SceneCamera(frames(GUEST, 8) * 10, stamps=lambda number, now: min(now, 1000.15))
    events, terminal = run_to_end(camera)
    assert events.of("camera") == [("frozen", "The time of the frames has not changed for 5 seconds.")]
    assert events.decisions == [("denied", None)], "two frames are not enough"
    assert terminal.counters["frames"] == 2


def test_recording_may_stand_still() -> None:
    images = ((image, i / FPS) for i, image in enumerate(frames(GUEST, 1) * 100))
    events, terminal = run_to_end(Recording("video", images))
    assert [event.kind for event in events] == ["start", "stop"]
    assert (terminal.counters["frames"], terminal.counters["frozen"]) == (1, 0)
