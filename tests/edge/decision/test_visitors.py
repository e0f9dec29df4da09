"""Groups and visitors of the door list: times of day, and numbers of entries."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from edge.decision.doorlist import Answer, DoorList, uncounted
from edge.decision.reasons import EXPIRED, NO_ENTRIES_LEFT, NOT_LISTED, NOT_YET_VALID
from edge.errors import DoorListError
from tests.fixtures.door_lists import at, doors

# Groups


def test_group_stands_for_its_people() -> None:
    found = DoorList.parse(
        b'[groups]\ncleaners = ["ben", "carla"]\nempty = []\n'
        b'[[allow]]\npeople = ["@cleaners", "@empty", "anna"]\nhours = "07:00-19:00"'
    )
    for person in ("anna", "ben", "carla"):
        assert found.refusal(person, at("2026-05-04 12:00", ZoneInfo("UTC"))) is None
    assert found.refusal("dora", at("2026-05-04 12:00")) == NOT_LISTED
    assert found.refusal("@cleaners", at("2026-05-04 12:00")) == NOT_LISTED
    assert found.people_not_in(["anna"]) == ["ben", "carla"]


def test_person_of_a_group_that_no_entry_uses_is_not_listed() -> None:
    found = DoorList.parse(b'[groups]\ncleaners = ["ben"]\n[[allow]]\npeople = ["anna"]')
    assert found.refusal("ben", at("2026-05-04 12:00")) == NOT_LISTED
    assert found.people_not_in([]) == ["anna"]


# Visitors


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("2026-05-04 09:59:59", NOT_YET_VALID),
        ("2026-05-04 10:00:00", None),
        ("2026-05-06 17:59:59", None),
        ("2026-05-06 18:00:00", EXPIRED),
        ("2026-05-07 10:00:00", EXPIRED),
        ("2026-05-03 12:00:00", NOT_YET_VALID),
    ],
)
def test_visitor_may_pass_from_a_time_until_a_time(when: str, reason: str | None) -> None:
    found = doors('people = ["anna"]\nvalid_from = 2026-05-04T10:00:00\nvalid_until = 2026-05-06T18:00:00')
    assert found.refusal("anna", at(when)) == reason


def test_time_that_comes_twice_ends_a_visit_the_first_time() -> None:
    """On 2026-10-25 in Berlin, 02:00 to 03:00 comes twice."""
    found = doors('people = ["anna"]\nvalid_until = 2026-10-25T02:30:00')
    first = datetime(2026, 10, 25, 0, 29, 59, tzinfo=UTC)
    assert found.refusal("anna", first) is None
    for minutes in (1, 31, 45, 61):
        assert found.refusal("anna", first + timedelta(minutes=minutes)) == EXPIRED


@pytest.mark.usefixtures("in_tokyo")
def test_times_without_a_zone_are_those_of_the_device() -> None:
    found = DoorList.parse(b'[[allow]]\npeople = ["anna"]\nvalid_from = 2026-05-04T10:00:00')
    assert found.refusal("anna", datetime(2026, 5, 4, 0, 59, tzinfo=UTC)) == NOT_YET_VALID
    assert found.refusal("anna", datetime(2026, 5, 4, 1, 0, tzinfo=UTC)) is None


NOON = at("2026-05-04 12:00")


def answer(found: DoorList, used: int, label: str = "anna", when: datetime = NOON) -> Answer:
    return found.answer(label, when, lambda key: used)


@pytest.mark.parametrize(("used", "reason"), [(0, None), (2, None), (3, NO_ENTRIES_LEFT), (4, NO_ENTRIES_LEFT)])
def test_visitor_has_a_number_of_entries(used: int, reason: str | None) -> None:
    found = doors('people = ["anna"]\nentries = 3')
    assert answer(found, used).refusal == reason
    assert (answer(found, used).count_key is None) == (reason is not None)


def test_entries_are_not_asked_for_at_a_time_that_is_not_allowed() -> None:
    found = doors('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-03')
    assert found.answer("anna", NOON, uncounted).refusal == EXPIRED


def test_entry_without_a_limit_is_used_before_one_with_a_limit() -> None:
    found = doors('people = ["anna"]\nentries = 3', 'people = ["anna"]\nhours = "11:00-13:00"')
    assert answer(found, 0) == Answer(refusal=None)
    later = found.answer("anna", at("2026-05-04 14:00"), lambda key: 0)
    assert later.count_key is not None


def test_second_entry_is_used_when_the_first_has_no_entries_left() -> None:
    found = doors('people = ["anna"]\nentries = 1', 'people = ["anna"]\nentries = 1\nweekdays = "mon"')
    first, second = (entry.count_key("anna") for entry in found.entries)
    assert found.answer("anna", NOON, {first: 0, second: 0}.__getitem__).count_key == first
    assert found.answer("anna", NOON, {first: 1, second: 0}.__getitem__).count_key == second
    assert found.answer("anna", NOON, {first: 1, second: 1}.__getitem__).refusal == NO_ENTRIES_LEFT


def test_limit_that_is_not_counted_denies() -> None:
    with pytest.raises(DoorListError, match="limits the number of entries"):
        doors('people = ["anna"]\nentries = 3').refusal("anna", NOON)


def key(text: str, label: str = "anna", holidays: str = "[]") -> str:
    return doors(text, holidays=holidays).entries[0].count_key(label)


def test_count_key_changes_only_with_the_person_and_the_times_of_the_entry() -> None:
    usual = key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:00')
    same = (
        key('people = ["ben", "anna"]\nentries = 5\nvalid_until = 2026-05-06T18:00:00'),
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:00\nhours = ["00:00-24:00"]'),
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:00', holidays="[2026-12-25]"),
    )
    other = (
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:00', label="ben"),
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:01'),
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06'),
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:00\nweekdays = "mon"'),
        key('people = ["anna"]\nentries = 3\nvalid_until = 2026-05-06T18:00:00\nholidays = true'),
    )
    assert set(same) == {usual}
    assert usual not in other
    assert "anna" not in usual


def test_version_is_a_digest_of_the_bytes() -> None:
    one, other = (DoorList.parse(f'[[allow]]\npeople = ["{name}"]'.encode()) for name in ("anna", "ben"))
    assert re.fullmatch("[0-9a-f]{12}", one.version)
    assert one.version != other.version
