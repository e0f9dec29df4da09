"""Visits: stored once, completed by later copies, and found by an index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from edge.decision import reasons
from edge.errors import UsageError
from edge.events.event import message, utc_text
from tests.fixtures.events import NOON, make_event
from trainer.site import forgetting, visits
from trainer.site.folder import Site, transaction
from trainer.site.visits import Search, Stored, Visit

MANY = 100_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with Site.create(tmp_path / "site").database() as found:
        yield found


def event(**decision: Any) -> dict[str, Any]:
    return asdict(make_event(**decision))


def unknown(**decision: Any) -> dict[str, Any]:
    return event(**{"outcome": "denied", "label": None, "reason": reasons.UNKNOWN_PERSON, **decision})


def found(database: sqlite3.Connection, **wanted: Any) -> list[Visit]:
    return list(visits.search(database, Search(**wanted)).visits)


def test_decision_is_stored_with_its_facts(database: sqlite3.Connection) -> None:
    own = event(label="Zoe\u0308")
    assert visits.store(database, "north", own) == Stored.NEW
    (visit,) = found(database)
    assert (visit.door, visit.label, visit.outcome, visit.reason) == ("north", "Zo\u00eb", "granted", "recognised")
    assert (visit.confidence, visit.threshold, visit.kit, visit.has_picture) == (0.934, 0.71, "0123456789ab", False)
    assert visits.event_of(database, visit.id) == own


def test_event_is_stored_once_for_each_door(database: sqlite3.Connection) -> None:
    own = event()
    assert [visits.store(database, door, own) for door in ("a", "a", "b")] == [Stored.NEW, Stored.KNOWN, Stored.NEW]


def test_other_kinds_of_events_are_not_visits(database: sqlite3.Connection) -> None:
    assert visits.store(database, "a", event() | {"kind": "camera"}) == Stored.NOT_A_VISIT
    assert found(database) == []


def test_later_copy_adds_name_and_picture_and_corrects_a_late_grant(database: sqlite3.Connection) -> None:
    own = make_event()
    late = message(own, age_seconds=60, grant_seconds=5, names=False)
    assert visits.store(database, "a", late) == Stored.NEW
    (visit,) = found(database)
    assert (visit.outcome, visit.label, visit.is_unknown) == ("expired", None, False)
    assert visits.store(database, "a", asdict(own), b"sealed") == Stored.COMPLETED
    (visit,) = found(database)
    assert (visit.outcome, visit.label, visit.reason, visit.has_picture) == ("granted", "anna", "recognised", True)
    assert visits.store(database, "a", event(label="otto") | {"event_id": own.event_id}, b"other") == Stored.KNOWN
    assert found(database) == [visit]


def test_copy_does_not_bring_a_deleted_person_back(tmp_path: Path) -> None:
    site, own = Site.create(tmp_path / "site"), event(label="anna")
    with site.database() as database:
        visits.store(database, "a", own, b"sealed")
        forgetting.forget(site, database, "anna", who="test")
        assert visits.store(database, "a", own, b"sealed") == Stored.KNOWN
        (visit,) = found(database)
        assert (visit.label, visit.has_picture, visit.is_unknown) == (None, False, False)
        assert "anna" not in json.dumps(visits.event_of(database, visit.id))


@pytest.mark.parametrize(
    "wrong",
    [
        {"event_id": "../x"},
        {"event_id": None},
        {"event_id": "x" * 65},
        {"outcome": "open"},
        {"outcome": ["granted"]},
        {"utc": "yesterday"},
        {"utc": "2026-11-18T10:00:00"},
        {"utc": 5},
        {"label": 7},
        {"label": "x" * 301},
        {"confidence": "1"},
        {"confidence": True},
        {"confidence": 10**400},
        {"threshold": float("nan")},
        {"threshold": float("inf")},
        {"reason": "x" * 70_000},
        {"more": "x" * 70_000},
    ],
)
def test_events_that_are_not_valid_are_refused(wrong: dict[str, Any], database: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="not an event of a terminal"):
        visits.store(database, "a", event() | wrong)
    assert found(database) == []


def test_deeply_nested_event_is_refused(database: sqlite3.Connection) -> None:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UsageError, match="not an event of a terminal"):
        visits.store(database, "a", event() | {"more": deep})


def test_picture_that_is_too_large_is_left_out(database: sqlite3.Connection) -> None:
    visits.store(database, "a", event(), bytes(visits.MAX_PICTURE + 1))
    assert [visit.has_picture for visit in found(database)] == [False]


# Search


def test_search_by_person_door_outcome_and_time(database: sqlite3.Connection) -> None:
    hour = timedelta(hours=1)
    visits.store(database, "north", event(label="anna", utc=NOON))
    visits.store(database, "south", event(label="anna", utc=NOON + hour))
    visits.store(database, "south", event(label="annabel", outcome="denied", reason="holiday", utc=NOON + 2 * hour))
    visits.store(database, "south", unknown(utc=NOON + 3 * hour))

    def hours(**wanted: Any) -> list[int]:
        return [visit.local.astimezone(NOON.tzinfo).hour - NOON.hour for visit in found(database, **wanted)]

    assert hours() == [3, 2, 1, 0]
    assert hours(person="anna") == [1, 0], "an exact name is not a part of another one"
    assert hours(person="annab") == [2]
    assert hours(person="ann") == [2, 1, 0]
    assert hours(unknown=True) == [3]
    assert hours(door="south", outcome="granted") == [1]
    assert hours(door="south", unknown=True) == [3]
    assert hours(outcome="denied") == [3, 2]
    assert hours(since=utc_text(NOON + hour), until=utc_text(NOON + 3 * hour)) == [2, 1]
    assert hours(person="otto") == []
    assert visits.count(database, Search(person="ann")) == 3
    assert visits.count(database, Search(), most=2) == 3


def test_visit_without_a_sent_name_is_not_unknown(database: sqlite3.Connection) -> None:
    visits.store(database, "a", message(make_event(), age_seconds=0, grant_seconds=5, names=False))
    assert found(database, unknown=True) == []


@pytest.mark.parametrize("name", ["O'Hara", '"; DROP TABLE visits', "100%", "a_b", "Jörg Müßig", "x!y"])
def test_names_with_special_letters_are_found_and_only_they(name: str, database: sqlite3.Connection) -> None:
    visits.store(database, "a", event(label=name))
    visits.store(database, "a", event(label="acb 200x Jorg xy OHara"))
    for wanted in (name, name[1:], name[:-1]):
        assert [visit.label for visit in found(database, person=wanted)] == [name], wanted


def test_pages_go_to_older_and_newer_visits(database: sqlite3.Connection) -> None:
    for minute in (0, 1, 1, 1, 2, 3, 4):  # three at the same time
        visits.store(database, "a", event(utc=NOON + timedelta(minutes=minute)))
    everything = [visit.id for visit in found(database)]
    first = visits.search(database, Search(), most=3)
    second = visits.search(database, Search(), most=3, older_than=first.older or "")
    third = visits.search(database, Search(), most=3, older_than=second.older or "")
    assert [visit.id for page in (first, second, third) for visit in page.visits] == everything
    assert (first.newer, third.older, len(third.visits)) == (None, None, 1)
    assert visits.search(database, Search(), most=3, newer_than=third.newer or "").visits == second.visits
    assert visits.search(database, Search(), most=3, newer_than=second.newer or "") == first


def test_newest_page_is_full_although_few_visits_are_newer(database: sqlite3.Connection) -> None:
    for minute in range(5):
        visits.store(database, "a", event(utc=NOON + timedelta(minutes=minute)))
    newest = visits.search(database, Search(), most=3)
    assert visits.search(database, Search(), most=3, newer_than=newest.visits[1].cursor) == newest


@pytest.mark.parametrize("cursor", ["x", "_", "2026_x", "2026_" + "9" * 19, "2" * 80 + "_1"])
def test_cursor_of_another_program_is_a_sentence(cursor: str, database: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="address of this page"):
        visits.search(database, Search(), older_than=cursor)


def test_number_beyond_the_database_finds_nothing(database: sqlite3.Connection) -> None:
    assert visits.find(database, 10**30) is None
    with pytest.raises(UsageError, match="no such visit"):
        visits.get(database, 10**30)


def test_doors_with_visits(database: sqlite3.Connection) -> None:
    assert visits.doors(database) == []
    for door in ("south", "north", "south"):
        visits.store(database, door, event())
    assert visits.doors(database) == ["north", "south"]


@pytest.mark.parametrize("text", ["18.11.2026", "2026-13-01", "now", "9999-12-31"])
def test_times_that_are_not_valid_are_sentences(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        visits.utc_bound(text, is_end=True)


def test_day_as_an_end_includes_the_day() -> None:
    assert visits.utc_bound("2026-11-18", is_end=True) == visits.utc_bound("2026-11-19")
    assert visits.utc_bound("") == ""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """MANY visits of 200 people at 20 doors."""
    with Site.create(tmp_path_factory.mktemp("many") / "site").database() as database:
        rows = (
            (
                f"door {i % 20}",
                f"event{i}",
                utc_text(NOON + timedelta(seconds=i)),
                "granted" if i % 10 else "denied",
                f"person {i % 200}" if i % 10 else None,
                "recognised" if i % 10 else reasons.UNKNOWN_PERSON,
            )
            for i in range(MANY)
        )
        with transaction(database):
            database.executemany(
                "INSERT INTO visits (door, event_id, utc, outcome, label, reason, event) VALUES (?, ?, ?, ?, ?, ?, '{}')", rows
            )
        yield database


SEARCHES = {
    "all": Search(),
    "exact person": Search(person="person 7"),
    "part of a name": Search(person="person 7x"),
    "unknown": Search(unknown=True),
    "unknown at a door": Search(unknown=True, door="door 10"),
    "door": Search(door="door 3"),
    "outcome": Search(outcome="denied"),
    "person at a door": Search(person="person 7", door="door 7", outcome="granted"),
    "time": Search(since=utc_text(NOON + timedelta(hours=1)), until=utc_text(NOON + timedelta(hours=2))),
}


@pytest.mark.parametrize("place", ["newest", "older", "newer"])
@pytest.mark.parametrize("wanted", SEARCHES.values(), ids=SEARCHES.keys())
def test_search_of_many_visits_reads_an_index_in_order(wanted: Search, place: str, many: sqlite3.Connection) -> None:
    """Only the visits of the page are sorted and read: the ids come from an index that has all columns of the search."""
    middle = f"{utc_text(NOON + timedelta(seconds=MANY // 2))}_{MANY // 2}"
    cursors: dict[str, Any] = {} if place == "newest" else {f"{place}_than": middle}
    statements: list[str] = []
    many.set_trace_callback(statements.append)
    try:
        page = visits.search(many, wanted, **cursors)
    finally:
        many.set_trace_callback(None)
    inner = next(sql for sql in statements if "INDEXED BY" in sql).partition("IN (")[2].rpartition(") ORDER BY")[0]
    plan = [row["detail"] for row in many.execute(f"EXPLAIN QUERY PLAN {inner}")]
    assert len(plan) == 1, plan
    assert "COVERING INDEX" in plan[0]
    whole = [row["detail"] for row in many.execute("EXPLAIN QUERY PLAN " + statements[-1])]
    assert "SEARCH visits USING INTEGER PRIMARY KEY (rowid=?)" in whole, whole
    assert len(page.visits) == (0 if wanted.person == "person 7x" else visits.PAGE_ROWS)


def test_count_of_many_visits_stops(many: sqlite3.Connection) -> None:
    assert visits.count(many, Search()) == visits.COUNTED + 1
    assert visits.count(many, Search(person="person 7")) == MANY // 200
