"""A terminal that checks liveness, with simulated visitors and photos of them."""

from __future__ import annotations

import itertools
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from edge.decision.challenge import PROMPTS, LivenessSettings
from edge.events.event import Event, notice
from edge.events.health import Count
from edge.monitor.metrics import Metrics
from edge.sinks.stdout import text_line
from edge.terminal.loop import Terminal
from scripts.research import liveness as simulation
from scripts.research import simulated_visitors as visitors
from tests.fakes.scene_camera import SimulatedCamera
from tests.fakes.sinks import CallbackSink, RecordingSink, RecordingViewer, fail
from tests.fixtures import orl_door
from tests.fixtures.orl_door import GUEST
from tests.fixtures.portraits import find_orl, yunet

pytestmark = pytest.mark.slow  # trains a kit

WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
ASKED = LivenessSettings(challenge=True)


class Living(SimulatedCamera):
    """A simulated visitor, or a picture of one, does what the terminal asks for."""

    def __init__(self, case: str, name: str, seconds: float = 14.0) -> None:
        super().__init__(clock=0.0)
        find_orl()
        yunet()
        photos = simulation.portraits(10)[name]
        unseen = [pair for pair in photos if any(pair[0] is photo for photo in _unseen(name))] or photos
        self.visitor = visitors.Visitor(photo=unseen[0][0], landmarks=unseen[0][1], rng=np.random.default_rng(5))
        self.case, self.end = visitors.CASES[case], seconds
        self.asked: list[tuple[float, str]] = []
        self.decided = False

    def react(self, event: Event) -> None:
        if event.kind == "challenge":
            assert event.outcome is not None
            self.asked.append((self.clock, event.outcome))
        self.decided |= event.kind == "decision"

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self.decided or self.clock > self.end

    def image(self) -> Any:
        return self.case(self.visitor, self.clock, self.asked)


def _unseen(name: str) -> list[Any]:
    """Photos on which the kit was not trained."""
    return orl_door.orl.people()[name][orl_door.PHOTOS :]


def watch(case: str, seconds: float = 14.0, **changes: Any) -> tuple[RecordingSink, RecordingViewer, Terminal]:
    camera, events, views = Living(case, GUEST, seconds), RecordingSink(), RecordingViewer()
    liveness = LivenessSettings(**({"challenge": True} | changes))
    sinks = (CallbackSink(camera.react), events)
    terminal = Terminal(orl_door.recognizer(), camera, liveness=liveness, sinks=sinks, viewers=[views])
    prompts = itertools.cycle(("right", "left"))
    terminal._door._draw = lambda choices: next(prompts)
    terminal.run()
    return events, views, terminal


def challenges(terminal: Terminal) -> tuple[int, int]:
    """Return how many challenges were met and not met."""
    return terminal.counters[Count.CHALLENGES_MET], terminal.counters[Count.CHALLENGES_NOT_MET]


def test_terminal_asks_shows_the_prompt_and_grants_after_the_movement() -> None:
    events, views, terminal = watch(visitors.HEAD)
    asked = [event for event in events if event.kind == "challenge"]
    decided = [(event.outcome, event.reason, event.label) for event in events if event.kind == "decision"]
    assert decided == [("granted", "recognised", GUEST)]
    assert len(asked) == 2
    assert all(event.reason == PROMPTS[event.outcome or ""] and event.visit == 1 for event in asked)
    assert not any(event.grants or event.label for event in asked), "the label is not sent before the decision"
    shown = {mark.text for view in views for mark in view.marks}
    assert {event.reason for event in asked} <= shown
    assert challenges(terminal) == (1, 0)


@pytest.mark.parametrize("case", ["a photo on a stand", "a flat photo, turned as prompted"])
def test_flat_photo_is_denied(case: str) -> None:
    events, _, terminal = watch(case)
    (decision,) = (event for event in events if event.kind == "decision")
    assert (decision.outcome, decision.label) == ("denied", GUEST)
    assert (decision.reason or "").startswith("challenge failed: ")
    assert challenges(terminal) == (0, 1)


def test_failing_check_gives_no_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.terminal.loop.relief", fail)
    events, _, terminal = watch(visitors.HEAD, 2.0)
    assert not any(event.grants for event in events)
    assert terminal.counters["failures"] >= 20, "every frame is processed"


def test_challenge_has_a_text_line_and_metrics() -> None:
    asked = notice("challenge", now=1, utc=WHEN, outcome="left", reason=PROMPTS["left"], visit=7)
    assert text_line(asked, zone=UTC) == "12:00:00  Turn your head to the left, and back."
    assert asked.visit == 7
    pytest.importorskip("prometheus_client")
    terminal = Terminal(orl_door.recognizer(), Living(visitors.HEAD, GUEST), liveness=ASKED)
    terminal.counters[Count.CHALLENGES_NOT_MET] += 3
    with closing(Metrics("127.0.0.1:0")) as metrics:
        metrics.watch(terminal.health)
        page = metrics.page("/metrics")
    assert page is not None
    text = page.body.decode()
    assert 'edge_challenges_total{outcome="not met"} 3.0' in text
    assert 'edge_challenges_total{outcome="met"} 0.0' in text
