"""A terminal whose kit has a liveness model: screens and faces that fill the frame get no grant."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest

from edge.decision.challenge import LivenessSettings
from edge.decision.visit import VisitRules
from edge.errors import KitError
from edge.events.health import Count
from edge.kit import format as kits
from edge.kit import selftest
from edge.kit.store import KitChange
from edge.settings import Settings
from edge.terminal.loop import Terminal
from edge.terminal.wiring import _load
from edge.vision.recognize import Recognizer
from tests.fakes.scene_camera import SceneCamera
from tests.fakes.sinks import RecordingSink, fail
from tests.fixtures import orl_door
from tests.fixtures.liveness import bluish, with_liveness
from tests.fixtures.orl_door import GUEST, STRANGER, empty_room, frames

pytestmark = pytest.mark.slow  # trains a kit


@cache
def recognizer() -> Recognizer:
    return Recognizer(kits.parse(with_liveness(orl_door.kit())))


def screen(number: int = 8) -> tuple[Any, ...]:
    return tuple(bluish(frame) for frame in frames(GUEST, number))


def watch(*scenes: tuple[Any, ...], **options: Any) -> tuple[RecordingSink, Terminal]:
    events = RecordingSink()
    terminal = Terminal(options.pop("with_recognizer", recognizer()), SceneCamera(*scenes), sinks=[events], **options)
    terminal.run()
    return events, terminal


def reasons(events: RecordingSink) -> list[str | None]:
    return [event.reason for event in events if event.kind == "decision"]


def test_live_face_is_granted_and_a_screen_is_not() -> None:
    events, terminal = watch(frames(GUEST, 8))
    assert events.decisions == [("granted", GUEST)]
    assert terminal.counters[Count.ATTACKS] == 0
    events, terminal = watch(screen())
    assert events.decisions == [("denied", GUEST)]
    assert reasons(events) == ["presentation attack suspected"]
    assert terminal.counters[Count.ATTACKS] == 1


def test_model_is_used_only_for_recognised_people() -> None:
    class NoScore(Recognizer):
        def __init__(self) -> None:
            super().__init__(recognizer().kit)
            self.liveness.score = fail  # type: ignore[union-attr,method-assign]

    events, terminal = watch(frames(STRANGER, 8), with_recognizer=NoScore())
    assert [outcome for outcome, _ in events.decisions] == ["denied"]
    assert terminal.counters[Count.FAILURES] == 0
    events, terminal = watch(frames(GUEST, 8), with_recognizer=NoScore())
    assert not any(event.grants for event in events), "a model that fails gives no grant"
    assert terminal.counters[Count.FAILURES] > 0


def test_face_that_fills_the_frame_is_not_granted() -> None:
    """A screen close to the camera hides its edges from the model."""

    def near(frame: Any) -> Any:
        face = max(recognizer().find(frame), key=lambda found: found.area)
        left, top, right, bottom = face.box_xyxy
        x, y, side = (left + right) / 2, (top + bottom) / 2, 0.7 * (bottom - top)
        part = frame[max(0, int(y - side)) : int(y + side), max(0, int(x - side)) : int(x + side)]
        return np.asarray(cv2.resize(part, (480, 480)), np.uint8)

    events, _ = watch(tuple(near(frame) for frame in frames(GUEST, 8)) * 2, empty_room(12))
    assert not any(event.grants for event in events)
    assert reasons(events) == ["low image quality: face too close"]


def test_model_can_be_switched_off() -> None:
    events, _ = watch(screen(), liveness=LivenessSettings(passive=False))
    assert events.decisions == [("granted", GUEST)]


def test_new_kit_brings_its_own_liveness_model() -> None:
    """A screen passes with the old kit, which has no model, and not after the change of the kit."""
    changes = iter([None] * 30 + [KitChange(outcome="installed", reason="", recognizer=recognizer())])
    events, _ = watch(
        *(screen(8), empty_room(22), screen(8)),
        with_recognizer=orl_door.recognizer(),
        changes=lambda: next(changes, None),
        rules=VisitRules(again_seconds=0.0),
    )
    assert reasons(events) == ["recognised", "presentation attack suspected"]


def test_self_test_covers_the_liveness_model() -> None:
    selftest.check(recognizer())
    manifest = recognizer().kit.manifest
    wrong = replace(manifest, selftest={**manifest.selftest, "live": [0.1, 0.2, 0.3, 0.4]})
    with pytest.raises(KitError, match="self-test"):
        selftest.check(Recognizer(replace(recognizer().kit, manifest=wrong)))


def load(kit: bytes, **liveness: bool) -> list[str]:
    """Load a kit as the terminal does, and return what it says."""
    said: list[str] = []
    settings = Settings(liveness=LivenessSettings(**liveness))
    _load(kits.parse(kit), settings, None, lambda _: pytest.fail("no stage runs"), said.append)
    return said


def test_start_says_that_a_kit_has_no_liveness_model() -> None:
    assert any("no liveness model: a photo or a phone" in sentence for sentence in load(orl_door.kit()))
    assert not any("liveness" in sentence for sentence in load(with_liveness(orl_door.kit())))
    assert any("switched off" in sentence for sentence in load(with_liveness(orl_door.kit()), passive=False))


def test_settings_can_require_a_liveness_model() -> None:
    assert load(with_liveness(orl_door.kit()), required=True) == load(with_liveness(orl_door.kit()))
    with pytest.raises(KitError, match="no liveness model"):
        load(orl_door.kit(), required=True)
