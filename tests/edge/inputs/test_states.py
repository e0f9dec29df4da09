"""Debounced inputs and the alarms of the door contact, with times as arguments."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.events.event import ALARMS
from edge.inputs.states import Debounce, DoorContact, DoorTimes

TIMES = DoorTimes(open_within=10, held_after=30)


class Played:
    """A door that is played by calls; it keeps the outcomes."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.door = DoorContact(TIMES)
        self.door.change(is_open, 0)

    def opened(self, now: float) -> list[str]:
        return [news.outcome for news in self.door.change(True, now)]

    def closed(self, now: float) -> list[str]:
        return [news.outcome for news in self.door.change(False, now)]

    def tick(self, now: float) -> list[str]:
        return [news.outcome for news in self.door.tick(now)]


# Forced open


@pytest.mark.parametrize(("seconds", "found"), [(0, ["opened"]), (10, ["opened"]), (10.1, ["opened", "forced open"])])
def test_door_may_be_opened_for_some_seconds_after_a_permission(seconds: float, found: list[str]) -> None:
    played = Played()
    played.door.permit(100)
    assert played.opened(100 + seconds) == found


def test_door_without_a_permission_is_forced_open_until_it_is_closed() -> None:
    played = Played()
    assert played.opened(100) == ["opened", "forced open"]
    played.door.permit(101)
    assert played.tick(500) == [], "it is not held open, too"
    assert played.closed(600) == ["closed", "forced open ended"]


def test_permission_is_for_one_opening() -> None:
    played = Played()
    played.door.permit(100)
    assert played.opened(101) == ["opened"]
    assert played.closed(103) == ["closed"]
    assert played.opened(104) == ["opened", "forced open"]


def test_permission_for_the_next_person_counts_while_the_door_is_open() -> None:
    played = Played()
    played.door.permit(100)
    played.opened(101)
    played.door.permit(102)
    played.closed(103)
    assert played.opened(104) == ["opened"]


@pytest.mark.parametrize("is_open", [True, False])
def test_state_at_the_start_is_no_alarm(is_open: bool) -> None:
    (news,) = DoorContact(TIMES).change(is_open, 100)
    assert (news.outcome, news.reason) == ("opened" if is_open else "closed", "at the start")


# Held open


def test_door_is_held_open_after_some_seconds_once() -> None:
    played = Played()
    played.door.permit(100)
    played.opened(101)
    assert played.tick(131) == []
    assert played.tick(131.1) == ["held open"]
    assert played.tick(200) == []
    assert played.closed(201) == ["closed", "held open ended"]
    assert played.tick(300) == []


def test_permission_gives_an_open_door_the_full_time_again() -> None:
    played = Played()
    played.door.permit(100)
    played.opened(101)
    played.door.permit(130)
    assert played.tick(160) == []
    assert played.tick(160.1) == ["held open"]


def test_sensor_that_still_sees_a_person_does_not_give_more_time() -> None:
    played = Played()
    played.door.permit(100)
    played.opened(101)
    played.door.permit(130, renew=False)
    assert played.tick(131.1) == ["held open"]


def test_door_that_is_open_at_the_start_is_held_open_later() -> None:
    played = Played(is_open=True)
    assert played.tick(30) == []
    assert played.tick(30.1) == ["held open"]


# Properties

acts = st.lists(st.tuples(st.sampled_from(("permit", "toggle", "tick")), st.floats(0, 40)), max_size=40)


@given(acts)
def test_each_alarm_ends_when_the_door_is_closed_and_not_before(steps: list[tuple[str, float]]) -> None:
    now, is_open, alarm = 0.0, False, ""
    permits: list[float] = []
    opened_at = renewed_at = 0.0
    played = Played()
    for act, pause in steps:
        now += pause
        if act == "permit":
            played.door.permit(now)
            permits.append(now)
            renewed_at = now
        elif act == "tick":
            is_held = is_open and not alarm and now - max(opened_at, renewed_at) > TIMES.held_after
            assert played.tick(now) == (["held open"] if is_held else [])
            alarm = "held open" if is_held else alarm
        elif is_open:
            assert played.closed(now) == ["closed", *([f"{alarm} ended"] if alarm else [])]
            is_open, alarm = False, ""
            permits = [time for time in permits if time > opened_at]
        else:
            is_forced = not any(now - time <= TIMES.open_within for time in permits)
            assert played.opened(now) == ["opened", *(["forced open"] if is_forced else [])]
            is_open, opened_at, alarm = True, now, "forced open" if is_forced else ""


def test_alarms_are_in_the_table() -> None:
    played = Played()
    found = [*played.opened(1), *played.closed(2)]
    assert [("input", outcome) in ALARMS for outcome in found] == [False, True, False, False]
    played.door.permit(3)
    found = [*played.opened(3), *played.tick(99), *played.closed(100)]
    assert [("input", outcome) in ALARMS for outcome in found] == [False, True, False, False]


# Debouncing


def changes(values: list[tuple[float, bool]], seconds: float = 0.05) -> list[tuple[float, bool]]:
    debounce = Debounce(seconds)
    return [(now, value) for now, value in values if debounce.sample(value, now)]


def test_value_counts_when_it_did_not_change_for_some_time() -> None:
    bouncing = [(0.00, False), (0.06, False), (0.08, True), (0.10, False), (0.12, True), (0.14, True), (0.18, True)]
    assert changes(bouncing) == [(0.06, False), (0.18, True)]


def test_without_a_time_each_change_counts() -> None:
    assert changes([(0, True), (1, False), (1, False), (2, True)], seconds=0) == [(0, True), (1, False), (2, True)]


@given(st.lists(st.tuples(st.floats(0.001, 0.1), st.booleans()), max_size=60))
def test_debounced_value_was_stable_and_alternates(steps: list[tuple[float, bool]]) -> None:
    now, samples = 0.0, list[tuple[float, bool]]()
    for pause, value in steps:
        now += pause
        samples.append((now, value))
    found = changes(samples)
    assert all(one[1] != other[1] for one, other in itertools.pairwise(found))
    for when, value in found:
        last_other = max(
            (index for index, sample in enumerate(samples) if sample[0] <= when and sample[1] != value), default=-1
        )
        assert when - samples[last_other + 1][0] >= 0.05
