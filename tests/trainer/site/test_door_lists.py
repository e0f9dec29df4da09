"""Door lists as a form: a form that is written and read again is the same, and allows the same people at the same times."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.doorlist import DAY_MINUTES, DoorList
from edge.errors import DoorListError, UsageError
from tests.fixtures.data import ROOT
from tests.fixtures.kits import kit
from trainer.site import door_lists, doors, trail
from trainer.site.door_lists import WHOLE_WEEK, Entry, Form, normal, read_toml, write_toml
from trainer.site.doors import Door
from trainer.site.folder import Site

TODAY = date(2026, 11, 18)
HAND_WRITTEN = """\
# the night shift

[[allow]]
people = ["anna"]   # since March
hours = "22:00-06:00"
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site.create(tmp_path / "site")
    doors.add(site, Door(name="north"), "anna")
    for name in ("anna", "ben", "Zoe\u0308"):
        (site.photos / name).mkdir()
    return site


def weekdays(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    return (spans,) * 5 + ((),) * 2


# Round trip

spans = st.tuples(st.integers(0, DAY_MINUTES - 1), st.integers(1, DAY_MINUTES)).filter(lambda span: span[0] != span[1])
days = st.lists(spans, max_size=3).map(normal)
weeks = st.just(WHOLE_WEEK) | st.lists(days, min_size=7, max_size=7).map(tuple).filter(any)
names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8).map(str.strip)
dates = st.dates(date(2026, 1, 1), date(2026, 12, 31))
periods = st.tuples(st.none() | dates, st.none() | dates).map(
    lambda pair: pair if None in pair else tuple(sorted(filter(None, pair)))
)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    first, last = draw(periods)
    return Entry(
        people=draw(
            st.none() | st.lists(st.sampled_from(("anna", "ben", "Zoë", 'o"x\\')), unique=True, max_size=3).map(tuple)
        ),
        week=draw(weeks),
        valid_from=first,
        valid_until=last,
        holidays=draw(st.booleans()),
    )


forms = st.builds(
    Form,
    name=names | st.just(""),
    timezone=st.sampled_from(("", "Europe/Berlin", "UTC")),
    holidays=st.lists(dates, max_size=3, unique=True).map(lambda found: tuple(sorted(found))),
    entries=st.lists(entries(), min_size=1, max_size=4).map(tuple),
)


def moments(rng: Random, form: Form) -> list[datetime]:
    """Times near the limits of a form."""
    near = [day for entry in form.entries for day in (entry.valid_from, entry.valid_until) if day] + list(form.holidays)
    found = []
    for _ in range(30):
        entry = rng.choice(form.entries)
        limits = [limit for day in entry.week for span in day for limit in span]
        day = rng.choice([*near, date(2026, 6, 1)]) + timedelta(rng.randint(-2, 7))
        minute = rng.choice([*limits, rng.randint(0, DAY_MINUTES)]) + rng.choice((-1, 0, 0))
        found.append(datetime.combine(day, datetime.min.time(), UTC) + timedelta(minutes=minute))
    return found


@settings(max_examples=200, deadline=None)
@given(forms, st.integers(0, 2**32 - 1))
def test_form_that_is_written_and_read_is_the_same(form: Form, seed: int) -> None:
    text = write_toml(form)
    found = read_toml(text.encode())
    assert found is not None
    assert (found.name, found.timezone, found.holidays) == (form.name, form.timezone, form.holidays)
    again = write_toml(found)
    assert read_toml(again.encode()) == found
    one, other = DoorList.parse(text.encode()), DoorList.parse(again.encode())
    rng = Random(seed)
    for when in moments(rng, form):
        for label in ("anna", "ben", "Zoë", "x"):
            assert one.refusal(label, when) == other.refusal(label, when)
            assert (one.refusal(label, when) is None) == any(
                allows(form, entry, label, when.astimezone(one.zone)) for entry in form.entries
            )
    conditions = [(entry.people, entry.valid_from, entry.valid_until, entry.holidays) for entry in form.entries]
    if all(one != other for one, other in pairwise(conditions)):
        assert found == form


def allows(form: Form, entry: Entry, label: str, when: datetime) -> bool:
    """Whether an entry allows a local time, by an independent implementation."""
    day, minute = when.date(), when.hour * 60 + when.minute
    if (entry.people is not None and label not in entry.people) or (day in form.holidays and not entry.holidays):
        return False
    if (entry.valid_from and day < entry.valid_from) or (entry.valid_until and day > entry.valid_until):
        return False
    before = day - timedelta(1)
    if any(start <= minute < (end if start < end else DAY_MINUTES) for start, end in entry.week[day.weekday()]):
        return True
    was_open = entry.holidays or before not in form.holidays
    return was_open and any(start > end > minute for start, end in entry.week[before.weekday()])


@given(st.lists(spans, max_size=5))
def test_normal_spans_cover_the_same_minutes(found: list[tuple[int, int]]) -> None:
    def cover(spans: list[tuple[int, int]]) -> set[int]:
        minutes = set[int]()
        for start, end in spans:
            minutes |= set(range(start, end if start < end else end + DAY_MINUTES))
        return minutes

    once = normal(found)
    assert cover(list(once)) == cover(found)
    assert normal(once) == once == normal(reversed(found))
    assert sum(start > end for start, end in once) <= 1


@given(st.lists(spans, max_size=4).map(normal))
def test_grid_and_other_times_together_are_the_day(day: tuple[tuple[int, int], ...]) -> None:
    entry = Entry(people=None, week=(day,) * 7)
    hours = [(hour * 60, hour * 60 + 60) for hour in entry.hours(0)]
    assert normal([*hours, *door_lists.parse_spans(entry.other_times(0), "here")]) == day


@pytest.mark.parametrize(
    ("day", "hours", "other"),
    [
        (((7 * 60, 19 * 60),), set(range(7, 19)), ""),
        (((450, 1155),), set(range(8, 19)), "07:30-08:00, 19:00-19:15"),
        (((450, 465),), set(), "07:30-07:45"),
        (((22 * 60, 6 * 60),), {22, 23}, "22:00-06:00"),
        (((0, 1440),), set(range(24)), ""),
        ((), set(), ""),
    ],
)
def test_grid_shows_whole_hours(day: tuple[tuple[int, int], ...], hours: set[int], other: str) -> None:
    entry = Entry(people=None, week=(day,) * 7)
    assert (entry.hours(3), entry.other_times(3)) == (frozenset(hours), other)


def test_written_list_is_short() -> None:
    office = Entry(people=("anna", "ben"), week=weekdays(((420, 1140),)))
    visitor = Entry(people=("carl",), valid_from=date(2026, 12, 1), valid_until=date(2026, 12, 3))
    form = Form(name="north", timezone="Europe/Berlin", holidays=(date(2026, 12, 25),), entries=(office, visitor))
    assert write_toml(form).removeprefix(door_lists.HEADER) == (
        '\n[door]\nname = "north"\ntimezone = "Europe/Berlin"\nholidays = [2026-12-25]\n'
        '\n[[allow]]\npeople = ["anna", "ben"]\nweekdays = "mon-fri"\nhours = "07:00-19:00"\n'
        '\n[[allow]]\npeople = ["carl"]\nvalid_from = 2026-12-01\nvalid_until = 2026-12-03\n'
    )
    assert visitor.is_visitor
    assert not office.is_visitor


def test_different_days_are_one_entry_of_the_form() -> None:
    week = (((480, 960),), (), ((600, 720), (1320, 360)), ((480, 960),), (), (), ())
    form = Form(entries=(Entry(people=("anna",), week=week),))
    text = write_toml(form)
    assert text.count("[[allow]]") == 2
    assert read_toml(text.encode()) == form


def test_entry_without_hours_is_an_error() -> None:
    closed = Entry(people=("anna",), week=((),) * 7)
    with pytest.raises(UsageError, match="Entry 2 has no hours"):
        write_toml(Form(entries=(Entry(people=None), closed)))


def test_many_names_have_a_line_each() -> None:
    form = Form(entries=(Entry(people=tuple(f"person {i}" for i in range(200))),))
    text = write_toml(form)
    assert max(map(len, text.splitlines())) < 120
    assert read_toml(text.encode()) == form


def test_guide_fits_the_form() -> None:
    guide = (ROOT / "docs" / "guide" / "door-list.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    form = read_toml(guide.encode())
    assert form is not None
    assert form.holidays == (date(2026, 12, 25), date(2026, 12, 31))
    assert [entry.holidays for entry in form.entries] == [False, True]
    assert form.entries[1].other_times(4) == "22:00-06:00"


@pytest.mark.parametrize(
    "text",
    [
        '[[allow]]\npeople = ["an\\nna"]',
        '[[allow]]\npeople = [" anna"]',
        '[door]\nname = "a\\nb"\n[[allow]]\npeople = []',
        '[groups]\ncleaners = ["ben"]\n[[allow]]\npeople = ["@cleaners"]',
        '[groups]\n[[allow]]\npeople = ["anna"]',
        '[[allow]]\npeople = ["anna"]\nvalid_from = 2027-01-01T10:00:00',
        '[[allow]]\npeople = ["anna"]\nvalid_until = 2027-01-01T10:00:00',
        '[[allow]]\npeople = ["anna"]\nentries = 3',
        "".join(f'[[allow]]\npeople = ["p{i}"]\n' for i in range(door_lists.MAX_ENTRIES + 1)),
        "".join(f'[[allow]]\npeople = ["p{i}"]\nvalid_until = 2027-01-01\n' for i in range(door_lists.MAX_VISITORS + 1)),
    ],
)
def test_list_that_does_not_fit_is_edited_as_text(site: Site, text: str) -> None:
    door_lists.save(site, "north", text, "anna")
    found = door_lists.load(site, "north")
    assert (found.text, found.form, found.problem) == (text, None, "")


# Files


def test_door_without_a_list(site: Site) -> None:
    found = door_lists.load(site, "north")
    assert (found.text, found.form) == ("", Form(name="north"))


def test_text_is_kept_as_it_was_written(site: Site) -> None:
    door_lists.save(site, "north", HAND_WRITTEN.replace("\n", "\r\n"), "anna")
    found = door_lists.load(site, "north")
    assert found.text == HAND_WRITTEN
    assert found.has_comments
    assert found.form is not None
    door_lists.save(site, "north", write_toml(found.form), "anna")
    assert not door_lists.load(site, "north").has_comments


@pytest.mark.parametrize("text", ["", "x", "[[allow]]\npeople = 3", "[[allow]]\npeople = []\nhours = '25:00-26:00'", "\ud800"])
def test_invalid_list_is_not_saved(site: Site, text: str) -> None:
    door_lists.save(site, "north", HAND_WRITTEN, "anna")
    with pytest.raises(DoorListError, match=r"^The door list"):
        door_lists.save(site, "north", text, "anna")
    assert door_lists.load(site, "north").text == HAND_WRITTEN


def test_invalid_list_on_the_disk_is_shown_with_its_problem(site: Site) -> None:
    (site.lists / "north.toml").write_bytes(b'[[allow]]\npeople = ["\xff"]\n')
    found = door_lists.load(site, "north")
    assert found.form is None
    assert "UTF-8" in found.problem
    assert "people" in found.text


def test_two_people_do_not_overwrite_each_other(site: Site) -> None:
    before = door_lists.load(site, "north").version
    door_lists.save(site, "north", HAND_WRITTEN, "anna", before=before)
    with pytest.raises(UsageError, match="changed by another person"):
        door_lists.save(site, "north", '[[allow]]\npeople = "everyone"', "ben", before=before)
    assert door_lists.load(site, "north").text == HAND_WRITTEN
    door_lists.save(site, "north", '[[allow]]\npeople = "everyone"', "ben", before=door_lists.load(site, "north").version)


def test_changes_are_on_the_trail(site: Site) -> None:
    door_lists.save(site, "north", HAND_WRITTEN, "anna")
    door_lists.remove(site, "north", "ben")
    with site.database() as database:
        last, first, *_ = trail.changes(database)
    assert (first.who, first.action, first.subject, first.details) == ("anna", "save door list", "north", "1 entry")
    assert (last.who, last.action, last.subject) == ("ben", "remove door list", "north")
    assert door_lists.load(site, "north").text == ""


def test_list_of_an_unknown_door_is_an_error(site: Site) -> None:
    with pytest.raises(UsageError, match="no door"):
        door_lists.save(site, "../north", HAND_WRITTEN, "anna")
    assert [file.name for file in site.path.rglob("*north*")] == []


def test_doubts_name_people_without_photos_and_expired_entries(site: Site) -> None:
    text = '[[allow]]\npeople = ["anna", "Zo\u00eb", "bne"]\n[[allow]]\npeople = ["ben"]\nvalid_until = 2026-11-17\n'
    unknown, expired = door_lists.doubts(site, text, TODAY)
    assert (unknown.kind, unknown.names, expired.kind, expired.names) == ("no_photos", "bne", "expired", "ben")
    assert "no photos of bne." in str(unknown)
    assert door_lists.doubts(site, '[[allow]]\npeople = ["ben"]\nvalid_until = 2026-11-18\n', TODAY) == []


def test_doubts_name_people_who_are_not_in_the_newest_kit(site: Site) -> None:
    (site.kits / "old.kit").write_bytes(b"damaged")
    (site.kits / "new.kit").write_bytes(kit())
    (doubt,) = door_lists.doubts(site, '[[allow]]\npeople = ["anna", "Zo\u00eb"]\n', TODAY)
    assert (doubt.kind, doubt.names, doubt.kit) == ("not_in_kit", "Zoë", "new")


def test_list_that_another_person_changed_is_not_removed(site: Site) -> None:
    before = door_lists.load(site, "north").version
    door_lists.save(site, "north", HAND_WRITTEN, "anna")
    with pytest.raises(door_lists.ChangedError):
        door_lists.remove(site, "north", "ben", before=before)
    assert door_lists.load(site, "north").text == HAND_WRITTEN
