"""When the link to a controller counts as lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.events.event import ALARMS, News
from edge.osdp.link import BACK, LOST, LOST_SECONDS, NO_CHANNEL, PORT, SILENT, START_SECONDS, Link

LOST_NEWS = News(kind="controller", outcome=LOST, reason=SILENT)


def test_controller_has_time_to_connect_after_the_start() -> None:
    link = Link(100.0)
    assert link.step(SILENT, 100.0 + START_SECONDS - 0.1) is None
    assert link.step(SILENT, 100.0 + START_SECONDS) == LOST_NEWS
    assert link.step(SILENT, 200.0) is None, "it is said once"


def test_lost_link_is_reported_with_its_reason_and_comes_back() -> None:
    link = Link(0.0)
    assert link.step(None, 1.0) is None
    assert link.step(PORT, 20.0) is None
    assert link.step(NO_CHANNEL, 20.0 + LOST_SECONDS) == News(kind="controller", outcome=LOST, reason=NO_CHANNEL)
    assert link.problem == NO_CHANNEL
    assert link.step(None, 30.0) == News(kind="controller", outcome=BACK)
    assert link.problem is None


def test_new_secure_channel_within_the_time_is_not_reported() -> None:
    link = Link(0.0)
    link.step(None, 1.0)
    assert link.step(NO_CHANNEL, 50.0) is None
    assert link.step(None, 50.0 + LOST_SECONDS - 0.1) is None
    assert link.step(NO_CHANNEL, 60.0) is None, "the time begins anew"


def test_lost_link_is_an_alarm() -> None:
    assert (LOST_NEWS.kind, LOST_NEWS.outcome) in ALARMS


@given(st.lists(st.tuples(st.sampled_from([None, PORT, SILENT, NO_CHANNEL]), st.floats(0, 20)), max_size=60))
def test_lost_and_back_take_turns(steps: list[tuple[str | None, float]]) -> None:
    link, now, outcomes = Link(0.0), 0.0, []
    for problem, seconds in steps:
        now += seconds
        news = link.step(problem, now)
        if news is not None:
            outcomes.append(news.outcome)
            assert (news.outcome == LOST) == (problem is not None)
    assert outcomes == [LOST, BACK] * (len(outcomes) // 2) + [LOST] * (len(outcomes) % 2)
