"""The door list allows people by local time, and rejects every invalid list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.doorlist import DAYS, MAX_BYTES, AllowEntry, DoorList
from edge.decision.reasons import (
    CLOCK_NOT_SET,
    EXPIRED,
    HOLIDAY,
    NOT_LISTED,
    NOT_YET_VALID,
    OUTSIDE_HOURS,
)
from edge.errors import DoorListError
from tests.fixtures.door_lists import BERLIN, at, doors


def test_example_of_the_guide_is_valid() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "door-list.md").read_text(encoding="utf-8")
    found = DoorList.parse(guide.split("```toml\n")[1].split("```")[0].encode())
    assert found.name == "north entrance"
    assert found.refusal("anna", at("2026-05-04 12:00")) is None
    assert found.refusal("anna", at("2026-05-09 12:00")) == OUTSIDE_HOURS  # a Saturday
    assert found.refusal("night guard", at("2026-05-09 03:00")) is None  # the night of Friday
    assert found.people_not_in(["anna", "ben"]) == ["carla", "night guard"]


def test_all_lists_of_the_guide_are_valid() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "door-list.md").read_text(encoding="utf-8")
    _, groups, visitors = (DoorList.parse(block.split("```")[0].encode()) for block in guide.split("```toml\n")[1:])
    assert groups.people == {"anna", "ben", "carla"}
    assert visitors.limits_entries


def test_entry_without_conditions_always_allows() -> None:
    found = doors('people = ["anna"]')
    for when in (datetime.min, datetime(1970, 1, 1), datetime(2026, 1, 1), datetime.max):
        assert found.refusal("anna", when.replace(tzinfo=UTC)) is None
        assert found.refusal("ben", when.replace(tzinfo=UTC)) == NOT_LISTED


def test_everyone_is_a_keyword_only_outside_a_list() -> None:
    assert doors('people = "everyone"').refusal("dora", at("2026-05-04 12:00")) is None
    named = doors('people = ["everyone"]')
    assert named.refusal("dora", at("2026-05-04 12:00")) == NOT_LISTED
    assert named.refusal("everyone", at("2026-05-04 12:00")) is None
    assert doors('people = "everyone"').people_not_in([]) == []


@pytest.mark.parametrize(
    ("when", "allowed"),
    [
        ("2026-05-04 06:59:59.999999", False),
        ("2026-05-04 07:00", True),
        ("2026-05-04 18:59:59.999999", True),
        ("2026-05-04 19:00", False),
        ("2026-05-08 12:00", True),  # Friday
        ("2026-05-09 12:00", False),  # Saturday
    ],
)
def test_hours_and_weekdays(when: str, allowed: bool) -> None:
    for entry in ('weekdays = ["mon", "tue-fri"]', 'weekdays = "Mon - Fri"', 'weekdays = ["mon","tue","wed","thu","fri"]'):
        found = doors(f'people = ["anna"]\nhours = "7:00 - 19:00"\n{entry}')
        assert found.refusal("anna", at(when)) == (None if allowed else OUTSIDE_HOURS)


@pytest.mark.parametrize(
    ("when", "allowed"),
    [
        ("2026-05-08 21:59", False),
        ("2026-05-08 22:00", True),  # Friday
        ("2026-05-09 05:59", True),  # still the night of Friday
        ("2026-05-09 06:00", False),
        ("2026-05-09 22:00", False),  # Saturday is not listed
        ("2026-05-08 05:00", False),  # nor is Thursday
    ],
)
def test_hours_after_midnight_belong_to_the_day_they_started(when: str, allowed: bool) -> None:
    found = doors('people = ["anna"]\nweekdays = "fri"\nhours = "22:00-06:00"')
    assert (found.refusal("anna", at(when)) is None) == allowed


def test_weekday_range_may_pass_sunday() -> None:
    (entry,) = doors('people = "everyone"\nweekdays = "sat-mon"').entries
    assert entry.weekdays == {5, 6, 0}
    (entry,) = doors('people = "everyone"\nweekdays = "wed-wed"').entries
    assert entry.weekdays == {2}


def test_several_hours_up_to_midnight() -> None:
    found = doors('people = ["anna"]\nhours = ["06:00-08:00", "20:00-24:00"]')
    hours = [hour for hour in range(24) if found.refusal("anna", at(f"2026-05-04 {hour:02}:30")) is None]
    assert hours == [6, 7, 20, 21, 22, 23]


def test_dates_are_inclusive_and_local() -> None:
    found = doors('people = ["anna"]\nvalid_from = 2026-03-01\nvalid_until = 2026-03-31')
    assert found.refusal("anna", at("2026-02-28 23:59:59")) == NOT_YET_VALID
    assert found.refusal("anna", at("2026-03-01 00:00")) is None
    assert found.refusal("anna", at("2026-03-31 23:59:59")) is None
    assert found.refusal("anna", at("2026-04-01 00:00")) == EXPIRED  # in UTC it is still March


CHRISTMAS = "[2026-12-25, 2026-12-31]"  # a Friday and a Thursday


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("2026-12-24 12:00", None),
        ("2026-12-25 06:59", OUTSIDE_HOURS),  # it would be closed on any day
        ("2026-12-25 07:00", HOLIDAY),
        ("2026-12-25 18:59:59.999999", HOLIDAY),
        ("2026-12-25 19:00", OUTSIDE_HOURS),
        ("2026-12-28 12:00", None),
        ("2026-12-31 12:00", HOLIDAY),
        ("2027-12-31 12:00", None),  # a holiday is one day of one year
    ],
)
def test_holiday_closes_entries_without_holidays(when: str, reason: str | None) -> None:
    entry = 'people = ["anna"]\nweekdays = "mon-fri"\nhours = "07:00-19:00"'
    assert doors(entry, holidays=CHRISTMAS).refusal("anna", at(when)) == reason
    assert doors(entry + "\nholidays = false", holidays=CHRISTMAS).refusal("anna", at(when)) == reason
    open_entry = doors(entry + "\nholidays = true", holidays=CHRISTMAS)
    assert open_entry.refusal("anna", at(when)) == (None if reason == HOLIDAY else reason)
    assert doors(entry, open_entry_of("ben"), holidays=CHRISTMAS).refusal("anna", at(when)) == reason


def open_entry_of(person: str) -> str:
    return f'people = ["{person}"]\nholidays = true'


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("2026-12-24 23:00", None),  # the eve
        ("2026-12-24 23:59:59.999999", None),
        ("2026-12-25 00:00", HOLIDAY),  # the hours of the eve end at midnight, as with valid_until
        ("2026-12-25 05:59", HOLIDAY),
        ("2026-12-25 06:00", OUTSIDE_HOURS),
        ("2026-12-25 22:00", HOLIDAY),
        ("2026-12-26 03:00", HOLIDAY),  # hours that began on the holiday
        ("2026-12-26 06:00", OUTSIDE_HOURS),
        ("2026-12-26 22:00", None),
        ("2026-12-27 03:00", None),
    ],
)
def test_holiday_closes_the_night_before_from_midnight_and_the_night_after(when: str, reason: str | None) -> None:
    night = 'people = ["anna"]\nhours = "22:00-06:00"'
    assert doors(night, holidays=CHRISTMAS).refusal("anna", at(when)) == reason
    guard = doors(night + "\nholidays = true", holidays=CHRISTMAS).refusal("anna", at(when))
    assert guard == (None if reason == HOLIDAY else reason)


def test_morning_hours_of_their_own_are_open_after_a_holiday() -> None:
    found = doors('people = ["anna"]\nhours = ["22:00-06:00", "02:00-03:00"]', holidays=CHRISTMAS)
    assert found.refusal("anna", at("2026-12-26 02:30")) is None
    assert found.refusal("anna", at("2026-12-26 03:00")) == HOLIDAY


def test_holiday_is_a_local_day() -> None:
    found = doors('people = ["anna"]', holidays=CHRISTMAS)
    assert found.refusal("anna", datetime(2026, 12, 24, 22, 59, tzinfo=UTC)) is None
    assert found.refusal("anna", datetime(2026, 12, 24, 23, 0, tzinfo=UTC)) == HOLIDAY, "00:00 in Berlin"
    assert found.refusal("anna", datetime(2026, 12, 25, 23, 0, tzinfo=UTC)) is None


def test_holidays_need_a_clock() -> None:
    closed, always = doors('people = ["anna"]', holidays=CHRISTMAS), doors(open_entry_of("anna"), holidays=CHRISTMAS)
    for when in (datetime.min, datetime(1970, 1, 1), datetime.max):
        assert closed.refusal("anna", when.replace(tzinfo=UTC)) == CLOCK_NOT_SET
        assert always.refusal("anna", when.replace(tzinfo=UTC)) is None


def test_holiday_is_a_weaker_reason_than_hours() -> None:
    closed, old = 'people = ["anna"]\nhours = "01:00-02:00"', 'people = ["anna"]\nvalid_until = 2026-01-31'
    assert doors(closed, old, 'people = "everyone"', holidays=CHRISTMAS).refusal("anna", at("2026-12-25 12:00")) == HOLIDAY


def test_daylight_saving_time_uses_local_time() -> None:
    found = doors('people = ["anna"]\nhours = "02:30-03:30"')
    allowed = [
        m for m in range(0, 240) if found.refusal("anna", datetime(2026, 3, 29, tzinfo=UTC) + timedelta(minutes=m)) is None
    ]
    assert allowed == list(range(60, 90)), "02:30 does not exist on that night: from 03:00 to 03:30"
    allowed = [
        m for m in range(0, 240) if found.refusal("anna", datetime(2026, 10, 25, tzinfo=UTC) + timedelta(minutes=m)) is None
    ]
    assert allowed == [*range(30, 60), *range(90, 150)], "02:30 to 03:00 comes twice"


@pytest.mark.usefixtures("in_tokyo")
def test_default_time_zone_is_that_of_the_device() -> None:
    found = DoorList.parse(b'[[allow]]\npeople = ["anna"]\nhours = "07:00-08:00"')
    tokyo = ZoneInfo("Asia/Tokyo")
    assert found.refusal("anna", at("2026-05-04 07:30", tokyo)) is None
    assert found.refusal("anna", at("2026-05-04 07:30", BERLIN)) == OUTSIDE_HOURS


@pytest.mark.parametrize("condition", ['hours = "00:00-12:00"', "valid_until = 2026-12-31", 'weekdays = "mon-sat"'])
def test_clock_that_is_not_set_denies(condition: str) -> None:
    found = doors(f'people = ["anna"]\n{condition}')
    for when in (datetime.min, datetime(1970, 1, 1), datetime(2024, 12, 30), datetime(9001, 1, 2), datetime.max):
        assert found.refusal("anna", when.replace(tzinfo=UTC)) == CLOCK_NOT_SET
    assert found.refusal("anna", datetime(2025, 1, 1, 6, tzinfo=UTC)) is None
    assert found.refusal("anna", datetime(9000, 12, 30, 6, tzinfo=UTC)) in (None, EXPIRED)
    morning = doors('people = ["anna"]\nhours = "00:00-12:00"')
    for year in (2025, 9000):
        assert morning.refusal("anna", datetime(year, 1, 1, 11, 30, tzinfo=UTC)) == OUTSIDE_HOURS, "12:30 in Berlin"


def test_time_without_a_zone_is_rejected() -> None:
    with pytest.raises(ValueError, match="zone"):
        doors('people = ["anna"]').refusal("anna", datetime(2026, 5, 4))


def test_weakest_reason_is_given() -> None:
    old, closed = 'people = ["anna"]\nvalid_until = 2026-01-31', 'people = ["anna"]\nhours = "01:00-02:00"'
    assert doors(old, closed).refusal("anna", at("2026-05-04 12:00")) == OUTSIDE_HOURS
    assert doors(closed, old).refusal("anna", at("2026-05-04 12:00")) == OUTSIDE_HOURS
    assert doors(old).refusal("anna", at("2026-05-04 12:00")) == EXPIRED


def test_accents_match_in_any_unicode_form() -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    for written in (composed, decomposed):
        found = doors(f'people = ["{written}"]')
        assert found.refusal(composed, at("2026-05-04 12:00")) is None
        assert found.refusal(decomposed, at("2026-05-04 12:00")) is None
        assert found.people_not_in([composed]) == found.people_not_in([decomposed]) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "allows no person to pass"),
        ("allow = []", "allows no person to pass"),
        ("allow = 3", r"allow must be a list of tables: \[\[allow\]\]"),
        ("[allow]\npeople = []", r"allow must be a list of tables"),
        ("door = 3\n[[allow]]\npeople = []", "door must be a table"),
        ("[door]\nname = 3\n[[allow]]\npeople = []", r"\[door\]: name must be text"),
        ('[door]\ntimezone = "Europe/Berln"\n[[allow]]\npeople = []', "no time zone 'Europe/Berln'.*tzdata"),
        ('[door]\ntimezone = "../../etc/passwd"\n[[allow]]\npeople = []', "no time zone"),
        ('[door]\ntimezone = "Europe"\n[[allow]]\npeople = []', "no time zone"),
        ('[door]\ntimezone = ["UTC"]\n[[allow]]\npeople = []', "timezone must be text"),
        (f"[door]\ntimezone = 0x{'F' * 9999}\n[[allow]]\npeople = []", "timezone must be text"),
        ('[[allow]]\nhours = "07:00-08:00"', "number 1: people must be a list of names"),
        ('[[allow]]\npeople = "anna"', "people must be a list of names"),
        ('[[allow]]\npeople = ["anna", 3]', "people must be"),
        ('[[allow]]\npeople = [""]', "people must be"),
        (
            '[[allow]]\npeople = []\n[[allow]]\npeople = []\nhour = "07:00-08:00"',
            "number 2: 'hour' is not a known key.*'hours'",
        ),
        ("[[allow]]\npeople = []\nvalid_untill = 2026-01-01", "Did you mean 'valid_until'"),
        ("[[alow]]\npeople = []", "Did you mean 'allow'"),
        ('[door]\ntimezon = "UTC"\n[[allow]]\npeople = []', r"\[door\]: 'timezon' is not a known key.*'timezone'"),
        ("size = 1\n[[allow]]\npeople = []", "'size' is not a known key. Known keys: door, groups, allow"),
        ('[[allow]]\npeople = []\nweekdays = ["monday"]', "'monday' is not a weekday"),
        ('[[allow]]\npeople = []\nweekdays = "mon-tue-wed"', "is not a weekday"),
        ("[[allow]]\npeople = []\nweekdays = []", "weekdays must be text"),
        ("[[allow]]\npeople = []\nweekdays = 1", "weekdays must be text"),
        ('[[allow]]\npeople = []\nhours = "07:00"', "'07:00' is not a range of hours"),
        ('[[allow]]\npeople = []\nhours = "07:60-08:00"', "is not a range of hours"),
        ('[[allow]]\npeople = []\nhours = "07:00-24:01"', "is not a range of hours"),
        ('[[allow]]\npeople = []\nhours = "24:00-07:00"', "is not a range of hours"),
        ('[[allow]]\npeople = []\nhours = "\u0660\u0667:00-08:00"', "is not a range of hours"),
        ('[[allow]]\npeople = []\nhours = "07:00-07:00"', "is empty.*00:00-24:00"),
        ("[[allow]]\npeople = []\nhours = 07:00:00", "hours must be text"),
        ("[[allow]]\npeople = []\nhours = []", "hours must be text"),
        ('[[allow]]\npeople = []\nvalid_until = "2026-12-31"', "valid_until must be a date without quotes"),
        ("[[allow]]\npeople = []\nvalid_from = 2026-12-31T00:00:00Z", "valid_from must be a date"),
        ("[[allow]]\npeople = []\nvalid_from = 0001-01-01T00:00:00", "valid_from must be a date"),
        ("[[allow]]\npeople = []\nvalid_until = 9999-12-31T23:59:59", "valid_until must be a date"),
        ("[[allow]]\npeople = []\nvalid_until = 07:00:00", "valid_until must be a date"),
        (
            "[[allow]]\npeople = []\nvalid_from = 2026-02-02T10:00:00\nvalid_until = 2026-02-02T10:00:00",
            "valid_until is before valid_from",
        ),
        ("[[allow]]\npeople = []\nvalid_from = 2026-02-02T10:00:00\nvalid_until = 2026-02-01", "valid_until is before"),
        ("[[allow]]\npeople = []\nentries = 0", "entries must be a whole number"),
        ("[[allow]]\npeople = []\nentries = true", "entries must be a whole number"),
        ("[[allow]]\npeople = []\nentries = 2.0", "entries must be a whole number"),
        ("[[allow]]\npeople = []\nentries = 1000001", "entries must be a whole number"),
        ("groups = 3\n[[allow]]\npeople = []", "groups must be a table"),
        ('[groups]\ncleaners = "ben"\n[[allow]]\npeople = []', r"\[groups\] cleaners must be a list of names"),
        ('[groups]\ncleaners = ["ben", 3]\n[[allow]]\npeople = []', r"\[groups\] cleaners must be a list of names"),
        ('[groups]\na = ["ben"]\nb = ["@a"]\n[[allow]]\npeople = []', r"\[groups\] b must not contain another group"),
        ('[groups]\ncleaners = ["ben"]\n[[allow]]\npeople = ["@cleaner"]', "no group 'cleaner'.*'@cleaners'"),
        ('[[allow]]\npeople = ["@cleaners"]', r"no group 'cleaners'.*\[groups\]"),
        ("[[allow]]\npeople = []\nvalid_until = 2026-02-30", "not valid TOML"),
        ("[[allow]]\npeople = []\nvalid_from = 2026-02-02\nvalid_until = 2026-02-01", "valid_until is before valid_from"),
        ("[door]\nholidays = true\n[[allow]]\npeople = []", r"\[door\]: holidays must be a list of dates"),
        ('[door]\nholidays = ["2026-12-25"]\n[[allow]]\npeople = []', "holidays must be a list of dates"),
        ("[door]\nholidays = [2026-12-25T00:00:00]\n[[allow]]\npeople = []", "holidays must be a list of dates"),
        ("[door]\nholiday = []\n[[allow]]\npeople = []", "Did you mean 'holidays'"),
        ("[[allow]]\npeople = []\nholidays = [2026-12-25]", "number 1: holidays must be true or false"),
        ("[[allow]]\npeople = []\nholidays = 1", "holidays must be true or false"),
        ("[[allow]\n", "not valid TOML"),
        ("x = " + "[" * 9999, "not valid TOML"),
        ("x = " + "9" * 9999, "not valid TOML"),
    ],
)
def test_invalid_list_is_rejected_with_its_source(text: str, message: str) -> None:
    with pytest.raises(DoorListError, match=message) as caught:
        DoorList.parse(text.encode(), "door.toml")
    assert "door.toml" in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 33


def test_text_that_is_not_utf8_or_too_large_is_rejected() -> None:
    with pytest.raises(DoorListError, match="not UTF-8"):
        DoorList.parse('[[allow]]\npeople = ["Zoë"]'.encode("latin-1"))
    text = b'[[allow]]\npeople = "everyone"\n#'
    DoorList.parse(text.ljust(MAX_BYTES, b"x"))
    with pytest.raises(DoorListError, match="larger than 1 MB"):
        DoorList.parse(text.ljust(MAX_BYTES + 1, b"x"))


def test_byte_order_mark_is_accepted() -> None:
    assert DoorList.parse('\ufeff[[allow]]\npeople = ["anna"]'.encode()).people_not_in([]) == ["anna"]


# Properties

seeds = st.integers(0, 2**32 - 1)


def random_entry(rng: Random) -> AllowEntry:
    spans = [(rng.randint(0, 1439), rng.randint(0, 1440)) for _ in range(rng.randint(1, 3))]
    day = date(2026, 1, 1) + timedelta(rng.randint(-300, 300))
    return AllowEntry(
        people=rng.choice((None, frozenset(rng.sample(("anna", "ben", "cara"), rng.randint(0, 3))))),
        weekdays=frozenset(rng.sample(range(7), rng.randint(1, 7))),
        hours=tuple((start, end) for start, end in spans if start != end),
        valid_from=day,
        valid_until=day + timedelta(rng.choice((-1, 0, 1, 300))),
        closed_on=frozenset(day + timedelta(rng.choice((-1, 0, 1, 2, 40))) for _ in range(rng.randint(0, 2))),
    )


def random_moment(rng: Random, entries: Sequence[AllowEntry]) -> datetime:
    """Return a time at or near the limits of an entry, or any time."""
    entry = rng.choice(entries)
    day = rng.choice((entry.valid_from, entry.valid_until)) + timedelta(rng.choice((-1, 0, 0, 1, 2, 40)))
    minute = rng.choice([rng.randint(0, 1439), *(limit for span in entry.hours for limit in span)])
    seconds = rng.choice((-1, 0, 0, 1))
    return datetime.combine(day, datetime.min.time(), UTC) + timedelta(minutes=minute, seconds=seconds)


def is_allowed(entry: AllowEntry, label: str, when: datetime) -> bool:
    """Whether an entry allows a time, by an independent implementation."""
    if entry.people is not None and label not in entry.people:
        return False
    if not entry.valid_from <= when.date() <= entry.valid_until or when.date() in entry.closed_on:
        return False
    for start, end in entry.hours:
        for days in (0, 1):
            midnight = datetime.combine(when.date() - timedelta(days), datetime.min.time(), UTC)
            length = (end - start) if end > start else (end - start + 1440)
            begin = midnight + timedelta(minutes=start)
            is_open = midnight.weekday() in entry.weekdays and midnight.date() not in entry.closed_on
            if is_open and begin <= when < begin + timedelta(minutes=length):
                return True
    return False


@settings(max_examples=200)
@given(seeds, st.integers(1, 4))
def test_list_allows_exactly_what_one_entry_allows(seed: int, number: int) -> None:
    rng = Random(seed)
    listed = tuple(random_entry(rng) for _ in range(number))
    for _ in range(5):
        label, when = rng.choice(("anna", "ben", "cara", "dora")), random_moment(rng, listed)
        reason = DoorList(entries=listed, zone=UTC).refusal(label, when)
        assert (reason is None) == any(is_allowed(entry, label, when) for entry in listed)
        assert reason in (None, HOLIDAY, OUTSIDE_HOURS, NOT_YET_VALID, EXPIRED, NOT_LISTED)
        assert (reason == NOT_LISTED) == all(e.people is not None and label not in e.people for e in listed)
        assert DoorList(entries=(), zone=UTC).refusal(label, when) == NOT_LISTED


def parse_or_reject(data: bytes) -> None:
    try:
        found = DoorList.parse(data)
    except DoorListError:
        return
    assert found.entries
    found.answer("anna", at("2026-05-04 12:00"), lambda key: 0)
    found.people_not_in(["anna"])


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_text_gives_a_list_or_an_error(data: bytes) -> None:
    parse_or_reject(data)


values = st.recursive(
    st.sampled_from(
        (
            *("1", "-0.5", "nan", "true", "2026-01-01", "2026-01-01T10:00:00", "2026-01-01T10:00:00Z", "07:00:00"),
            *(
                '""',
                '"everyone"',
                '"anna"',
                '"@x"',
                '"mon-fri"',
                '"07:00-19:00"',
                '"UTC"',
                '"Europe/Berlin"',
                '"-"',
                '"\\u0000"',
            ),
            *(f'"{day}"' for day in DAYS),
        )
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]") | inner.map(lambda item: f"{{people = {item}}}")
    ),
    max_leaves=4,
)
keys = st.sampled_from(
    (
        *("people", "weekdays", "hours", "valid_from", "valid_until", "holidays", "entries", "name", "timezone"),
        *("allow", "door", "groups", "x"),
    )
)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(("", "[door]", "[groups]", "[[allow]]")), st.dictionaries(keys, values, max_size=4)),
        max_size=3,
    )
)
def test_any_values_give_a_list_or_an_error(tables: list[tuple[str, dict[str, str]]]) -> None:
    tables.sort(key=lambda table: table[0] != "")
    lines = [line for head, table in tables for line in (head, *(f"{key} = {value}" for key, value in table.items()))]
    parse_or_reject("\n".join(lines).encode())
