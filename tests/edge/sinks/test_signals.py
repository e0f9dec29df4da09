"""What LED and buzzer show: pure functions of events and time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.decision import reasons
from edge.events.event import Event, notice
from edge.events.view import Guidance
from edge.sinks.signals import (
    ALARMS,
    PATTERNS,
    BuzzerCommand,
    Colour,
    Commanded,
    Display,
    LedCommand,
    Signal,
    State,
)
from tests.fixtures.events import NOON, make_event

ROOM = Display(began={State.IDLE: 0.0})
"""A started terminal without a visitor."""
TIMES = st.floats(0, 1000)


def event(kind: str, outcome: str | None = None) -> Event:
    return notice(kind, outcome=outcome, now=1, utc=NOON)


EVENTS = [
    make_event(),
    make_event(outcome="denied", reason=reasons.UNKNOWN_PERSON),
    *(event("input", f"{alarm}{end}") for alarm in ALARMS for end in ("", " ended")),
    *(event("camera", outcome) for outcome in ("lost", "frozen", "back")),
    *(event("controller", outcome) for outcome in ("lost", "back")),
    *(event("kit", "installed"), event("start"), event("stop")),
]


def seen(display: Display, start: float, seconds: float = 20.0) -> list[Signal]:
    """The signals from a time on, without repetitions."""
    signals = [display.at(start + step / 100) for step in range(int(seconds * 100))]
    return [signals[0], *(after for before, after in pairwise(signals) if after != before)]


def tones(signals: list[Signal]) -> int:
    return sum(signal.tone for signal in signals)


def test_grant_is_green_with_one_tone() -> None:
    signals = seen(ROOM.after(make_event(), 100.0), 100.0, 2.9)
    assert {signal.colour for signal in signals} == {Colour.GREEN}
    assert tones(signals) == 1


def test_denial_is_red_with_two_tones() -> None:
    signals = seen(ROOM.after(make_event(outcome="denied"), 100.0), 100.0, 2.9)
    assert {signal.colour for signal in signals} == {Colour.RED}
    assert tones(signals) == 2


def test_stranger_learns_nothing_from_a_denial() -> None:
    """All denials look the same, whatever their reason, and also if a person was recognised."""
    texts = [value for name, value in vars(reasons).items() if name.isupper() and value != reasons.RECOGNISED]
    events = [make_event(outcome="denied", reason=text, label=label) for text in texts for label in ("anna", None)]
    assert len({tuple(seen(ROOM.after(denial, 0.0), 0.0)) for denial in events}) == 1


@given(since=TIMES, now=TIMES)
def test_only_a_grant_is_green(since: float, now: float) -> None:
    for other in EVENTS[1:]:
        assert ROOM.after(other, since).at(now).colour is not Colour.GREEN
    is_shown = 0 <= now - since < 3
    assert (ROOM.after(EVENTS[0], since).at(now).colour is Colour.GREEN) == is_shown


@given(steps=st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0, 5)), max_size=30))
def test_any_events_leave_a_defined_display(steps: list[tuple[Event, float]]) -> None:
    display, now = ROOM, 0.0
    for happened, seconds in steps:
        now += seconds
        display = display.after(happened, now)
        signal = display.at(now)
        if happened.kind == "decision":
            assert signal.colour is (Colour.GREEN if happened.grants else Colour.RED)
        assert len(display.began) <= len(State)
    later = display.at(now + 60)
    if not display.failed and not display.alarms:
        assert later.colour in (Colour.OFF, Colour.WHITE), "only what lasts is left"
    assert not later.tone


def test_prompt_blinks_blue_until_the_decision() -> None:
    display = ROOM.after_faces([Guidance.LEFT], 10.0)
    assert {signal.colour for signal in seen(display, 10.0, 5.0)} == {Colour.BLUE, Colour.OFF}
    decided = display.after(make_event(), 12.0).after_faces([Guidance.GRANTED], 12.1)
    assert Colour.BLUE not in {signal.colour for signal in seen(decided, 12.0)}


def test_face_and_waiting_are_shown_while_the_face_is_there() -> None:
    near = [Guidance.WAIT, Guidance.CLOSER]
    assert ROOM.after_faces(near[1:], 5.0).at(5.1).colour is Colour.WHITE
    waiting = ROOM.after_faces(near, 5.0)
    assert waiting.at(5.1).colour is Colour.AMBER
    assert waiting.after_faces(near, 14.0).at(14.5).colour is Colour.AMBER, "its time began with the face"
    assert waiting.after_faces(near, 14.0).at(15.5).colour is not Colour.AMBER
    assert waiting.after_faces([Guidance.AGAIN], 6.0).at(6.5).colour is Colour.OFF


@pytest.mark.parametrize("guidance", Guidance)
def test_guidance_alone_is_never_green_or_red(guidance: Guidance) -> None:
    """Only a decision is. A person who was decided about sees nothing new."""
    colours = {signal.colour for signal in seen(ROOM.after_faces([guidance], 10.0), 10.0)}
    assert not colours & {Colour.GREEN, Colour.RED}
    if guidance in (Guidance.GRANTED, Guidance.DENIED, Guidance.AGAIN):
        assert colours == {Colour.OFF, Colour.WHITE}, "as an empty room"


@pytest.mark.parametrize(("part", "outcome"), [("camera", "lost"), ("camera", "frozen"), ("controller", "lost")])
def test_broken_part_blinks_red_until_it_works_again(part: str, outcome: str) -> None:
    display = ROOM.after(event(part, outcome), 10.0)
    signals = seen(display, 100.0)
    assert {signal.colour for signal in signals} == {Colour.RED, Colour.OFF}
    assert tones(signals) == 0
    assert Colour.RED not in {signal.colour for signal in seen(display.after(event(part, "back"), 120.0), 120.0)}


def test_second_broken_part_keeps_the_signal() -> None:
    display = ROOM.after(event("camera", "lost"), 1.0).after(event("controller", "lost"), 2.0)
    display = display.after(event("camera", "back"), 3.0)
    assert Colour.RED in {signal.colour for signal in seen(display, 10.0)}


@pytest.mark.parametrize("alarm", sorted(ALARMS))
def test_alarm_lasts_until_its_end_and_is_loud_only_at_first(alarm: str) -> None:
    display = ROOM.after(event("input", alarm), 10.0)
    assert tones(seen(display, 10.0, 10.0)) > 5
    later = seen(display, 100.0)
    assert Colour.RED in {signal.colour for signal in later}
    assert tones(later) == 0
    ended = display.after(event("input", f"{alarm} ended"), 110.0)
    assert Colour.RED not in {signal.colour for signal in seen(ended, 110.0)}


def test_end_of_one_alarm_is_not_the_end_of_another() -> None:
    display = ROOM.after(event("input", "tamper"), 1.0).after(event("input", "held open"), 2.0)
    display = display.after(event("input", "held open ended"), 3.0)
    assert Colour.RED in {signal.colour for signal in seen(display, 10.0)}


def test_stopped_terminal_is_dark() -> None:
    assert ROOM.at(0.0) == Signal(Colour.WHITE)
    assert Display().at(5.0) == ROOM.after(event("camera", "lost"), 1.0).after(event("stop"), 2.0).at(5.0) == Signal()


@given(elapsed=st.floats(-10, 1e6), state=st.sampled_from(State))
def test_pattern_is_defined_at_every_time_until_its_end(elapsed: float, state: State) -> None:
    pattern = PATTERNS[state]
    assert (pattern.at(elapsed) is None) == (elapsed < 0 or elapsed >= pattern.lasts)


# Commands of a door controller

RED = LedCommand(is_temporary=False, on_seconds=1.0, on_colour=Colour.RED)
BLINK = LedCommand(
    is_temporary=True, on_seconds=0.2, off_seconds=0.3, on_colour=Colour.CYAN, off_colour=Colour.MAGENTA, seconds=2.0
)


def test_command_comes_before_the_own_pattern() -> None:
    own = ROOM.after(make_event(), 0.0).at(0.1)
    assert Commanded().over(own, 0.1) == own == Signal(Colour.GREEN, True)
    assert Commanded().after_led(RED, 0.0).over(own, 0.1) == Signal(Colour.RED, True), "the buzzer was not commanded"
    assert Commanded().after_buzzer(BuzzerCommand(), 0.0).over(own, 0.1) == Signal(Colour.GREEN, False)


def test_temporary_command_blinks_and_ends() -> None:
    given_ = Commanded().after_led(RED, 0.0).after_led(BLINK, 10.0)
    colours = [given_.over(Signal(), 10.0 + after).colour for after in (0.1, 0.3, 0.6, 1.9, 2.0)]
    assert colours == [Colour.CYAN, Colour.MAGENTA, Colour.CYAN, Colour.MAGENTA, Colour.RED]
    cancelled = given_.after_led(LedCommand(is_temporary=True, cancels=True), 10.5)
    assert cancelled.over(Signal(), 10.6).colour is Colour.RED


def test_own_pattern_returns_after_a_temporary_command_alone() -> None:
    assert Commanded().after_led(BLINK, 0.0).over(Signal(Colour.GREEN), 2.0).colour is Colour.GREEN


@given(times=st.integers(0, 20), on=st.floats(0.1, 2), off=st.floats(0, 2), elapsed=TIMES)
def test_buzzer_ends_after_the_commanded_times(times: int, on: float, off: float, elapsed: float) -> None:
    command = BuzzerCommand(on_seconds=on, off_seconds=off, times=times)
    if times and elapsed >= times * (on + off):
        assert not command.sounds(elapsed)
    assert command.sounds(0.0)
    assert not BuzzerCommand(times=times).sounds(elapsed)
