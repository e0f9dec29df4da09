"""The door list: who may pass and when, by the clock on the wall; and that no file is guessed at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.doorlist import DAYS, MAX_BYTES, Allowed, DoorList
from edge.errors import DoorListError

BERLIN = ZoneInfo("Europe/Berlin")


def doors(*entries: str, zone: str = "Europe/Berlin") -> DoorList:
    text = f'[door]\ntimezone = "{zone}"\n' + "".join(f"[[allow]]\n{entry}\n" for entry in entries)
    return DoorList.parse(text.encode())


def at(text: str, zone: ZoneInfo = BERLIN) -> datetime:
    """A local time, handed over as UTC: the list itself must find the local one."""
    return datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC)


def test_the_format_of_the_manual(tmp_path: Path) -> None:
    file = tmp_path / "door.toml"
    manual = (Path(__file__).parents[3] / "docs" / "guide" / "door-list.md").read_text(encoding="utf-8")
    file.write_text(manual.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    found = DoorList.load(file)
    assert found.name == "north entrance"
    assert found.allows("anna", at("2026-05-04 12:00")) is None
    assert found.allows("anna", at("2026-05-09 12:00")) == "outside hours"  # a Saturday
    assert found.allows("night guard", at("2026-05-09 03:00")) is None  # Friday's night
    assert found.unknown_people(["anna", "ben"]) == ["carla", "night guard"]


def test_entries_without_conditions_hold_always() -> None:
    found = doors('people = ["anna"]')
    for when in (datetime.min, datetime(1970, 1, 1), datetime(2026, 1, 1), datetime.max):
        assert found.allows("anna", when.replace(tzinfo=UTC)) is None
        assert found.allows("ben", when.replace(tzinfo=UTC)) == "not on this door's list"


def test_everyone_is_everyone_and_a_person_may_be_called_so() -> None:
    assert doors('people = "everyone"').allows("whoever", at("2026-05-04 12:00")) is None
    named = doors('people = ["everyone"]')
    assert named.allows("whoever", at("2026-05-04 12:00")) == "not on this door's list"
    assert named.allows("everyone", at("2026-05-04 12:00")) is None
    assert doors('people = "everyone"').unknown_people([]) == []


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
def test_hours_and_days(when: str, allowed: bool) -> None:
    for entry in ('weekdays = ["mon", "tue-fri"]', 'weekdays = "Mon - Fri"', 'weekdays = ["mon","tue","wed","thu","fri"]'):
        found = doors(f'people = ["anna"]\nhours = "7:00 - 19:00"\n{entry}')
        assert found.allows("anna", at(when)) == (None if allowed else "outside hours")


@pytest.mark.parametrize(
    ("when", "allowed"),
    [
        ("2026-05-08 21:59", False),
        ("2026-05-08 22:00", True),  # Friday
        ("2026-05-09 05:59", True),  # and still Friday's night
        ("2026-05-09 06:00", False),
        ("2026-05-09 22:00", False),  # Saturday is not listed
        ("2026-05-08 05:00", False),  # nor is Thursday
    ],
)
def test_a_night_belongs_to_the_day_it_began(when: str, allowed: bool) -> None:
    found = doors('people = ["anna"]\nweekdays = "fri"\nhours = "22:00-06:00"')
    assert (found.allows("anna", at(when)) is None) == allowed


def test_days_wrap_around_the_week() -> None:
    (entry,) = doors('people = "everyone"\nweekdays = "sat-mon"').entries
    assert entry.weekdays == {5, 6, 0}
    (entry,) = doors('people = "everyone"\nweekdays = "wed-wed"').entries
    assert entry.weekdays == {2}


def test_several_hours_and_the_end_of_the_day() -> None:
    found = doors('people = ["anna"]\nhours = ["06:00-08:00", "20:00-24:00"]')
    hours = [hour for hour in range(24) if found.allows("anna", at(f"2026-05-04 {hour:02}:30")) is None]
    assert hours == [6, 7, 20, 21, 22, 23]


def test_dates_are_inclusive_and_local() -> None:
    found = doors('people = ["anna"]\nvalid_from = 2026-03-01\nvalid_until = 2026-03-31')
    assert found.allows("anna", at("2026-02-28 23:59:59")) == "not yet valid"
    assert found.allows("anna", at("2026-03-01 00:00")) is None
    assert found.allows("anna", at("2026-03-31 23:59:59")) is None
    assert found.allows("anna", at("2026-04-01 00:00")) == "expired"  # in UTC it is still March


def test_summer_time_follows_the_wall() -> None:
    found = doors('people = ["anna"]\nhours = "02:30-03:30"')
    allowed = [
        m for m in range(0, 240) if found.allows("anna", datetime(2026, 3, 29, tzinfo=UTC) + timedelta(minutes=m)) is None
    ]
    assert allowed == list(range(60, 90)), "02:30 does not exist on that night: from 03:00 to 03:30"
    allowed = [
        m for m in range(0, 240) if found.allows("anna", datetime(2026, 10, 25, tzinfo=UTC) + timedelta(minutes=m)) is None
    ]
    assert allowed == [*range(30, 60), *range(90, 150)], "02:30 to 03:00 comes twice"


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_without_a_time_zone_the_devices_own_counts() -> None:
    found = DoorList.parse(b'[[allow]]\npeople = ["anna"]\nhours = "07:00-08:00"')
    tokyo = ZoneInfo("Asia/Tokyo")
    assert found.allows("anna", at("2026-05-04 07:30", tokyo)) is None
    assert found.allows("anna", at("2026-05-04 07:30", BERLIN)) == "outside hours"


@pytest.mark.parametrize("condition", ['hours = "00:00-12:00"', "valid_until = 2026-12-31", 'weekdays = "mon-sat"'])
@pytest.mark.parametrize("when", [datetime.min, datetime(1970, 1, 1), datetime(2024, 6, 1), datetime.max])
def test_a_clock_that_is_not_set_judges_no_hours(condition: str, when: datetime) -> None:
    assert doors(f'people = ["anna"]\n{condition}').allows("anna", when.replace(tzinfo=UTC)) == "clock not set"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        doors('people = ["anna"]').allows("anna", datetime(2026, 5, 4))


def test_the_reason_nearest_to_a_yes_is_given() -> None:
    old, closed = 'people = ["anna"]\nvalid_until = 2026-01-31', 'people = ["anna"]\nhours = "01:00-02:00"'
    assert doors(old, closed).allows("anna", at("2026-05-04 12:00")) == "outside hours"
    assert doors(closed, old).allows("anna", at("2026-05-04 12:00")) == "outside hours"
    assert doors(old).allows("anna", at("2026-05-04 12:00")) == "expired"


def test_accents_have_one_spelling() -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    for written in (composed, decomposed):
        found = doors(f'people = ["{written}"]')
        assert found.allows(composed, at("2026-05-04 12:00")) is None
        assert found.allows(decomposed, at("2026-05-04 12:00")) is None
        assert found.unknown_people([composed]) == found.unknown_people([decomposed]) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "allows nobody to pass"),
        ("allow = []", "allows nobody to pass"),
        ("allow = 3", r"allow must be a list of tables: \[\[allow\]\]"),
        ("[allow]\npeople = []", r"allow must be a list of tables"),
        ("door = 3\n[[allow]]\npeople = []", "door must be a table"),
        ("[door]\nname = 3\n[[allow]]\npeople = []", r"\[door\]: name must be text"),
        ('[door]\ntimezone = "Europe/Berln"\n[[allow]]\npeople = []', "no time zone 'Europe/Berln'.*tzdata"),
        ('[door]\ntimezone = "../../etc/passwd"\n[[allow]]\npeople = []', "no time zone"),
        ('[door]\ntimezone = "Europe"\n[[allow]]\npeople = []', "no time zone"),
        ('[door]\ntimezone = ["UTC"]\n[[allow]]\npeople = []', "no time zone"),
        ("[door]\ntimezone = 1\n[[allow]]\npeople = []", "no time zone"),
        ('[[allow]]\nhours = "07:00-08:00"', "number 1: people must be a list of names"),
        ('[[allow]]\npeople = "anna"', "people must be a list of names"),
        ('[[allow]]\npeople = ["anna", 3]', "people must be"),
        ('[[allow]]\npeople = [""]', "people must be"),
        ('[[allow]]\npeople = []\n[[allow]]\npeople = []\nhour = "07:00-08:00"', "number 2: 'hour' means.*'hours'"),
        ("[[allow]]\npeople = []\nvalid_untill = 2026-01-01", "Did you mean 'valid_until'"),
        ("[[alow]]\npeople = []", "Did you mean 'allow'"),
        ("size = 1\n[[allow]]\npeople = []", "'size' means nothing here. Known are door, allow"),
        ('[[allow]]\npeople = []\nweekdays = ["monday"]', "'monday' names no weekday"),
        ('[[allow]]\npeople = []\nweekdays = "mon-tue-wed"', "names no weekday"),
        ("[[allow]]\npeople = []\nweekdays = []", "weekdays must be text"),
        ("[[allow]]\npeople = []\nweekdays = 1", "weekdays must be text"),
        ('[[allow]]\npeople = []\nhours = "07:00"', "'07:00' are no hours"),
        ('[[allow]]\npeople = []\nhours = "07:60-08:00"', "are no hours"),
        ('[[allow]]\npeople = []\nhours = "07:00-24:01"', "are no hours"),
        ('[[allow]]\npeople = []\nhours = "24:00-07:00"', "are no hours"),
        ('[[allow]]\npeople = []\nhours = "\u0660\u0667:00-08:00"', "are no hours"),
        ('[[allow]]\npeople = []\nhours = "07:00-07:00"', "has no length.*00:00-24:00"),
        ("[[allow]]\npeople = []\nhours = 07:00:00", "hours must be text"),
        ("[[allow]]\npeople = []\nhours = []", "hours must be text"),
        ('[[allow]]\npeople = []\nvalid_until = "2026-12-31"', "valid_until must be a date without quotes"),
        ("[[allow]]\npeople = []\nvalid_from = 2026-12-31T00:00:00", "valid_from must be a date"),
        ("[[allow]]\npeople = []\nvalid_until = 2026-02-30", "not readable as TOML"),
        ("[[allow]]\npeople = []\nvalid_from = 2026-02-02\nvalid_until = 2026-02-01", "valid_until is before valid_from"),
        ("[[allow]\n", "not readable as TOML"),
        ("x = " + "[" * 9999, "not readable as TOML"),
        ("x = " + "9" * 9999, "not readable as TOML"),
    ],
)
def test_what_makes_no_sense_is_a_sentence_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "door.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DoorListError, match=message) as caught:
        DoorList.load(file)
    assert str(file) in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 33


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path, "nul\0byte"):
        with pytest.raises(DoorListError, match="cannot be read"):
            DoorList.load(path)
    (tmp_path / "latin.toml").write_bytes(b'[[allow]]\npeople = ["Zo\xeb"]')
    with pytest.raises(DoorListError, match="not UTF-8"):
        DoorList.load(tmp_path / "latin.toml")
    (tmp_path / "large.toml").write_bytes(b'[[allow]]\npeople = "everyone"\n#' + b"x" * MAX_BYTES)
    with pytest.raises(DoorListError, match="larger than 1 MB"):
        DoorList.load(tmp_path / "large.toml")


def test_a_byte_order_mark_is_no_obstacle() -> None:
    assert DoorList.parse('\ufeff[[allow]]\npeople = ["anna"]'.encode()).unknown_people([]) == ["anna"]


# -- properties ------------------------------------------------------------------------------------------------------------

people = st.sampled_from(("anna", "ben", "cara"))
spans = st.tuples(st.integers(0, 1439), st.integers(0, 1440)).filter(lambda span: span[0] != span[1])
entries = st.builds(
    Allowed,
    people=st.none() | st.frozensets(people),
    weekdays=st.frozensets(st.integers(0, 6), min_size=1),
    hours=st.lists(spans, min_size=1, max_size=3).map(tuple),
    valid_from=st.dates(date(2025, 1, 1), date(2027, 12, 31)),
    valid_until=st.dates(date(2025, 1, 1), date(2027, 12, 31)),
)
moments = st.datetimes(datetime(2025, 1, 2), datetime(2027, 12, 30), timezones=st.just(UTC))


def plainly(entry: Allowed, label: str, when: datetime) -> bool:
    """The oracle: every minute that an entry allows, by walking back to the start of each of its spans."""
    if entry.people is not None and label not in entry.people:
        return False
    if not entry.valid_from <= when.date() <= entry.valid_until:
        return False
    for start, end in entry.hours:
        for days in (0, 1):
            midnight = datetime.combine(when.date() - timedelta(days), datetime.min.time(), UTC)
            length = (end - start) if end > start else (end - start + 1440)
            begin = midnight + timedelta(minutes=start)
            if midnight.weekday() in entry.weekdays and begin <= when < begin + timedelta(minutes=length):
                return True
    return False


@settings(max_examples=300)
@given(st.lists(entries, min_size=1, max_size=4).map(tuple), people, moments)
def test_what_one_entry_allows_is_allowed_and_nothing_else(listed: tuple[Allowed, ...], label: str, when: datetime) -> None:
    reason = DoorList(entries=listed, zone=UTC).allows(label, when)
    assert (reason is None) == any(plainly(entry, label, when) for entry in listed)
    assert reason in (None, "outside hours", "not yet valid", "expired", "not on this door's list")
    assert (reason == "not on this door's list") == all(e.people is not None and label not in e.people for e in listed)


@given(st.lists(entries, min_size=1, max_size=3).map(tuple), entries, people, moments)
def test_a_further_entry_takes_nothing_away(listed: tuple[Allowed, ...], more: Allowed, label: str, when: datetime) -> None:
    if DoorList(entries=listed, zone=UTC).allows(label, when) is None:
        assert DoorList(entries=(*listed, more), zone=UTC).allows(label, when) is None
        assert DoorList(entries=(more, *listed), zone=UTC).allows(label, when) is None


@given(st.lists(entries, min_size=1).map(tuple), moments)
def test_a_person_in_no_entry_never_passes(listed: tuple[Allowed, ...], when: datetime) -> None:
    named = tuple(entry for entry in listed if entry.people is not None)
    assert DoorList(entries=named, zone=UTC).allows("dora", when) == "not on this door's list"


def read_or_refuse(data: bytes) -> None:
    try:
        found = DoorList.parse(data)
    except DoorListError:
        return
    assert found.entries
    found.allows("anna", at("2026-05-04 12:00"))
    found.unknown_people(["anna"])


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_text_is_a_list_or_an_error(data: bytes) -> None:
    read_or_refuse(data)


values = st.recursive(
    st.sampled_from(
        (
            *("1", "-0.5", "nan", "true", "2026-01-01", "2026-01-01T10:00:00", "2026-01-01T10:00:00Z", "07:00:00"),
            *('""', '"everyone"', '"anna"', '"mon-fri"', '"07:00-19:00"', '"UTC"', '"Europe/Berlin"', '"-"', '"\\u0000"'),
            *(f'"{day}"' for day in DAYS),
        )
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]") | inner.map(lambda item: f"{{people = {item}}}")
    ),
    max_leaves=4,
)
keys = st.sampled_from(("people", "weekdays", "hours", "valid_from", "valid_until", "name", "timezone", "allow", "door", "x"))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(("", "[door]", "[[allow]]")), st.dictionaries(keys, values, max_size=4)), max_size=3)
)
def test_any_values_are_a_list_or_an_error(tables: list[tuple[str, dict[str, str]]]) -> None:
    tables.sort(key=lambda table: table[0] != "")
    lines = [line for head, table in tables for line in (head, *(f"{key} = {value}" for key, value in table.items()))]
    read_or_refuse("\n".join(lines).encode())
