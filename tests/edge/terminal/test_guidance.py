"""What a visitor is asked to do, from the state of the visit and the last look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.camera.base import Frame
from edge.decision.challenge import PROMPTS
from edge.decision.door import Decision
from edge.events.view import WELCOME_SECONDS, Guidance
from edge.terminal.guidance import guide
from edge.vision import quality
from edge.vision.detect import Face
from edge.vision.quality import Quality
from edge.vision.recognize import Recognition
from tests.fixtures.events import DECISION

SMALL, LARGE = (300.0, 200.0, 400.0, 330.0), (150.0, -60.0, 500.0, 420.0)


def guidance(
    *,
    captured: float = 11.0,
    box: tuple[float, float, float, float] = SMALL,
    decision: Decision | None = None,
    prompt: str | None = None,
    seen: Recognition | None = None,
) -> Guidance:
    frame = Frame(image=np.zeros((480, 640, 3), np.uint8), captured=captured, number=1)
    face = Face(box_xyxy=box, landmarks=np.zeros((5, 2), np.float32))
    return guide(frame, face, decision=decision, prompt=prompt, seen=seen)


def decided(**changes: Any) -> Decision:
    return Decision(**DECISION | changes)


def look(reason: str | None = None, *, label: str | None = None, size: float = 60.0) -> Recognition:
    measured = dict.fromkeys(("sharpness", "brightness", "glare", "contrast", "yaw", "pitch", "roll", "outside"), 0.0)
    found = Quality(reason=reason, size=size, **measured)
    return Recognition(label=label, threshold=0.7, reason=reason or "low confidence", quality=found)


def test_face_without_a_look_waits() -> None:
    assert guidance() is Guidance.WAIT


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_is_shown(prompt: str) -> None:
    assert guidance(prompt=prompt, seen=look(quality.TURNED_AWAY)) == prompt


@pytest.mark.parametrize("reason", quality.REASONS)
def test_every_reason_of_the_quality_has_its_guidance(reason: str) -> None:
    expected = {
        quality.CUT_OFF: Guidance.CENTRE,
        quality.TOO_SMALL: Guidance.CLOSER,
        quality.TURNED_AWAY: Guidance.LOOK,
        quality.TOO_DARK: Guidance.LIGHT,
        quality.TOO_BRIGHT: Guidance.LIGHT,
        quality.LOW_CONTRAST: Guidance.LIGHT,
        quality.BLURRED: Guidance.STILL,
        quality.TOO_CLOSE: Guidance.BACK,
    }
    assert guidance(seen=look(reason)) is expected[reason]


def test_large_face_that_is_cut_off_steps_back() -> None:
    assert guidance(box=LARGE, seen=look(quality.CUT_OFF)) is Guidance.BACK


def test_small_face_that_was_not_recognised_comes_closer() -> None:
    assert guidance(seen=look(size=quality.FULL_SIZE - 1)) is Guidance.CLOSER
    assert guidance(seen=look(size=quality.FULL_SIZE)) is Guidance.WAIT
    assert guidance(seen=look(size=quality.FULL_SIZE - 1, label="anna")) is Guidance.WAIT


def test_grant_is_a_welcome_for_a_short_time() -> None:
    grant = decided(captured=10.0)
    assert guidance(captured=10.0 + WELCOME_SECONDS, decision=grant) is Guidance.GRANTED
    assert guidance(captured=10.1 + WELCOME_SECONDS, decision=grant) is Guidance.AGAIN


@pytest.mark.parametrize("reason", ["unknown person", "expired", "revoked", "presentation attack suspected"])
def test_every_denial_looks_the_same(reason: str) -> None:
    assert guidance(captured=99.0, decision=decided(outcome="denied", reason=reason)) is Guidance.DENIED
