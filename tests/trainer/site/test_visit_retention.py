"""How long visits are kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from edge.errors import UsageError
from tests.fixtures.events import NOON, make_event
from trainer.site import trail, visit_retention, visits
from trainer.site.folder import Site
from trainer.site.visits import Search

WHO = "tester"
DAY = timedelta(days=1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


@pytest.fixture
def database(site: Site) -> Iterator[sqlite3.Connection]:
    with site.database() as found:
        yield found


def add(database: sqlite3.Connection, *days: float) -> None:
    """Store a visit for each age."""
    for age in days:
        visits.store(database, "north", asdict(make_event(utc=NOON - age * DAY)), b"sealed picture of a face")


def ages(database: sqlite3.Connection, now: datetime = NOON) -> list[int]:
    found = visits.search(database, Search(), most=10_000).visits
    return [(now - datetime.fromisoformat(visit.utc)).days for visit in found]


def test_without_a_setting_all_visits_stay(database: sqlite3.Connection) -> None:
    add(database, 1, 4000)
    assert visit_retention.keep_days(database) == 0
    assert visit_retention.prune_in_passing(database, NOON) == 0
    assert visit_retention.prune_by_setting(database, who=WHO, now=NOON) == 0
    assert ages(database) == [1, 4000]


def test_setting_deletes_older_visits_at_once_and_says_so_in_the_trail(database: sqlite3.Connection) -> None:
    add(database, 0, 29.9, 30.1, 90)
    assert visit_retention.set_keep_days(database, 30, who=WHO, now=NOON) == 2
    assert ages(database) == [0, 29]
    done = [(change.action, change.subject) for change in trail.changes(database, search=WHO)]
    assert done == [("delete visits", "2 visits"), ("keep visits", "30 days")]


def test_requests_apply_the_setting_once_a_day(database: sqlite3.Connection) -> None:
    visit_retention.set_keep_days(database, 30, who=WHO, now=NOON)
    add(database, 31)
    assert visit_retention.prune_in_passing(database, NOON) == 1
    add(database, 31)
    assert visit_retention.prune_in_passing(database, NOON) == 0
    assert visit_retention.prune_in_passing(database, NOON + DAY) == 1


def test_a_request_deletes_a_bounded_number(database: sqlite3.Connection) -> None:
    visit_retention.set_keep_days(database, 30, who=WHO, now=NOON)
    rows = [(str(number),) for number in range(visit_retention.IN_PASSING + 10)]
    database.executemany(
        "INSERT INTO visits (door, event_id, utc, outcome, event) VALUES ('a', ?, '2001-01-01', 'denied', '{}')", rows
    )
    assert visit_retention.prune_in_passing(database, NOON) == visit_retention.IN_PASSING
    assert visit_retention.prune_in_passing(database, NOON) == 10
    assert ages(database) == []


def test_deleted_pictures_leave_no_trace_in_the_files(site: Site, database: sqlite3.Connection) -> None:
    add(database, 40)
    visit_retention.prune(database, 30, who=WHO, now=NOON)
    for file in site.path.glob("console.db*"):
        assert b"sealed picture of a face" not in file.read_bytes(), file


@pytest.mark.parametrize("days", [-1, 36_501])
def test_setting_has_limits(days: int, database: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="days"):
        visit_retention.set_keep_days(database, days, who=WHO, now=NOON)


@pytest.mark.parametrize("days", [0, -1, 36_501, float("nan")])
def test_deletion_has_limits(days: float, database: sqlite3.Connection) -> None:
    add(database, 40)
    with pytest.raises(UsageError, match="days"):
        visit_retention.prune(database, days, who=WHO, now=NOON)
    assert ages(database) == [40]
