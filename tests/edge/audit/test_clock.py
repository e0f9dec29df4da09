"""A wrong clock does not delete young entries."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from edge.audit.clock import ClockTrust, clock_doubt
from edge.audit.log import AuditLog
from tests.fixtures.events import NOON, make_event

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def write(log: AuditLog, *times: datetime) -> None:
    for time in times:
        log.append(make_event(utc=time))


def allowed_after(log: AuditLog, now: datetime) -> float:
    """Hours of a run after which entries may be deleted, if it starts at `now`."""
    trust = ClockTrust(log, now=now, running=0.0)
    return next(hours for hours in range(100) if trust.allows(now + hours * HOUR, hours * 3600.0))


def test_nothing_is_deleted_in_the_first_hour(log: AuditLog) -> None:
    assert allowed_after(log, NOON) == 1
    write(log, NOON)
    assert allowed_after(log, NOON) == 1
    assert allowed_after(log, NOON + DAY) == 1


@pytest.mark.parametrize("away", [timedelta(milliseconds=-1), -DAY, -20_000 * DAY, DAY + HOUR, 400 * DAY, 20_000 * DAY])
def test_clock_that_is_behind_or_far_ahead_is_distrusted_for_a_day(log: AuditLog, away: timedelta) -> None:
    write(log, NOON - HOUR, NOON)
    assert allowed_after(log, NOON + away) == 24


@pytest.mark.parametrize("jump", [400 * DAY, -400 * DAY])
def test_restart_does_not_end_the_distrust(log: AuditLog, jump: timedelta) -> None:
    """The first run has written entries with the wrong clock, so the newest entry agrees with it."""
    wrong = NOON + jump
    write(log, NOON - HOUR, NOON, wrong, wrong + HOUR)
    assert allowed_after(log, wrong + 2 * HOUR) == 24
    write(log, *(wrong + hours * HOUR for hours in range(2, 30)))
    assert allowed_after(log, wrong + 30 * HOUR) == 1


def test_entries_that_are_out_of_order_by_seconds_are_no_jump(log: AuditLog) -> None:
    write(log, NOON, NOON + timedelta(seconds=5), NOON + timedelta(seconds=3))
    assert allowed_after(log, NOON + HOUR) == 1


@pytest.mark.parametrize("jump", [2 * HOUR, -2 * HOUR])
def test_jump_while_running_is_distrusted_for_a_day(log: AuditLog, jump: timedelta) -> None:
    trust = ClockTrust(log, now=NOON, running=0.0)
    assert trust.allows(NOON + 2 * HOUR, 7200.0)
    assert not trust.allows(NOON + 2 * HOUR + jump, 7200.0)
    assert not trust.allows(NOON + 25 * HOUR + jump, 25 * 3600.0)
    assert trust.allows(NOON + 26 * HOUR + jump, 26 * 3600.0)


@pytest.mark.parametrize("facts", [{"kind": "start"}, {"kind": "start", "utc": 3}, {"utc": "today"}, {"utc": "2025-03-01"}])
def test_entries_without_a_valid_time_are_a_reason_for_doubt(log: AuditLog, facts: dict[str, object]) -> None:
    log._append(facts)
    assert "no valid time" in clock_doubt(log, NOON)
    assert allowed_after(log, NOON) == 24
