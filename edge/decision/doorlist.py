"""The door list: who may pass a door and when. A TOML text, separate from the kit; docs/guide/door-list.md shows the format.

Days and hours are local time. An invalid list is an error: the terminal does not start.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from edge.decision.reasons import CLOCK_NOT_SET, EXPIRED, HOLIDAY, NOT_LISTED, NOT_YET_VALID, OUTSIDE_HOURS
from edge.errors import DoorListError
from edge.text import same_spelling

MAX_BYTES = 1 << 20
FIRST_YEAR, LAST_YEAR = 2025, 9000  # a device without a battery starts long before: then the clock is not set
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
_HOURS = re.compile(r"([0-9]{1,2}):([0-5][0-9])\s*-\s*([0-9]{1,2}):([0-5][0-9])")
_SEE_FORMAT = "docs/guide/door-list.md shows the format."


@dataclass(frozen=True, kw_only=True)
class AllowEntry:
    """One [[allow]] entry."""

    people: frozenset[str] | None
    """None: everyone."""
    weekdays: frozenset[int] = frozenset(range(7))
    """Monday is 0. Hours after midnight belong to the day on which they started."""
    hours: tuple[tuple[int, int], ...] = ((0, DAY_MINUTES),)
    """(from, until) in minutes of the day, without `until`. If from > until, the hours pass midnight."""
    valid_from: date = date.min
    """The first day."""
    valid_until: date = date.max
    """The last day, included."""
    closed_on: frozenset[date] = frozenset()
    """Holidays. The hours that begin on such a day are closed, and so is the day itself until midnight."""

    def refusal(self, when: datetime) -> str | None:
        """Say why this entry does not allow a local time, or return None."""
        if replace(self, people=None) == AllowEntry(people=None):  # without limits; comparing names would take long
            return None
        if not FIRST_YEAR <= when.year <= LAST_YEAR:
            return CLOCK_NOT_SET
        if when.date() < self.valid_from:
            return NOT_YET_VALID
        if when.date() > self.valid_until:
            return EXPIRED
        minute = when.hour * 60 + when.minute
        today, yesterday = (day in self.weekdays for day in (when.weekday(), (when.weekday() - 1) % 7))
        is_closed, was_closed = (when.date() - timedelta(days) in self.closed_on for days in (0, 1))
        reason = OUTSIDE_HOURS
        for start, end in self.hours:
            over_night = start > end
            since_today = today and start <= minute and (over_night or minute < end)
            if since_today or (over_night and yesterday and minute < end):
                if not is_closed and (since_today or not was_closed):
                    return None
                reason = HOLIDAY
        return reason


@dataclass(frozen=True, kw_only=True)
class DoorList:
    """Who may pass a door, and when: everything that at least one entry allows."""

    entries: tuple[AllowEntry, ...]
    name: str = ""
    """Name of the door."""
    zone: tzinfo | None = None
    """Time zone of the hours. None: the device's own."""

    @classmethod
    def parse(cls, data: bytes, source: str = "door list") -> "DoorList":
        """Read a door list from the bytes of a TOML file. `source` is its name in messages."""
        _require(len(data) <= MAX_BYTES, f"{source} is larger than {MAX_BYTES >> 20} MB.")
        try:
            contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            problem = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error) or "nested too deeply"
            raise DoorListError(f"{source} is not valid TOML: {problem}.", _SEE_FORMAT) from None
        _check_keys(contents, ("door", "allow"), source)
        door, entries, where = contents.get("door", {}), contents.get("allow", []), f"{source}, [door]"
        _require(isinstance(door, dict), f"{source}: door must be a table: [door].")
        _check_keys(door, ("name", "timezone", "holidays"), where)
        name, zone, holidays = door.get("name", ""), door.get("timezone"), door.get("holidays", [])
        _require(isinstance(name, str), f"{where}: name must be text.")
        are_dates = isinstance(holidays, list) and all(type(day) is date for day in holidays)
        _require(are_dates, f"{where}: holidays must be a list of dates without quotes: holidays = [2026-12-25, 2026-12-31].")
        are_tables = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        _require(are_tables, f"{source}: allow must be a list of tables: [[allow]].")
        _require(bool(entries), f"{source} allows no person to pass.", 'Add an entry: [[allow]] with people = ["anna"].')
        try:
            zone = None if zone is None else ZoneInfo(zone)
        except (KeyError, ValueError, TypeError, AttributeError, OSError):
            hint = "Write for example Europe/Berlin. If this device has no time zones, `pip install tzdata`."
            raise DoorListError(f"{where}: there is no time zone {str(zone)[:40]!r}.", hint) from None
        days, entry_name = frozenset(holidays), f"{source}, [[allow]] number"
        parsed = tuple(_parse_entry(entry, days, f"{entry_name} {i}") for i, entry in enumerate(entries, 1))
        return cls(name=name, zone=zone, entries=parsed)

    def refusal(self, label: str, when: datetime) -> str | None:
        """Say why the person may not pass at this time, or return None. Of several reasons, return the weakest."""
        if when.utcoffset() is None:
            raise ValueError("the time has no time zone")
        entries = (*self._for_everyone, *self._by_person.get(same_spelling(label), ()))
        if FIRST_YEAR <= when.year <= LAST_YEAR:  # other years may overflow when shifted
            when = when.astimezone(self.zone)
        found = {entry.refusal(when) for entry in entries} or {NOT_LISTED}
        order = (None, CLOCK_NOT_SET, HOLIDAY, OUTSIDE_HOURS, NOT_YET_VALID, EXPIRED, NOT_LISTED)
        return next(reason for reason in order if reason in found)

    @cached_property
    def _for_everyone(self) -> tuple[AllowEntry, ...]:
        return tuple(entry for entry in self.entries if entry.people is None)

    @cached_property
    def _by_person(self) -> dict[str, list[AllowEntry]]:
        """The entries that name a person, by that person: a list may have an entry for each of thousands of people."""
        entries: dict[str, list[AllowEntry]] = {}
        for entry in self.entries:
            for person in entry.people or ():
                entries.setdefault(person, []).append(entry)
        return entries

    def people_not_in(self, labels: Iterable[str]) -> list[str]:
        """Return the people on the list that are not in `labels`: probably misspelt."""
        listed = frozenset[str]().union(*(entry.people or () for entry in self.entries))
        return sorted(listed - {same_spelling(label) for label in labels})


def _parse_entry(entry: dict[str, Any], holidays: frozenset[date], where: str) -> AllowEntry:
    _check_keys(entry, ("people", "weekdays", "hours", "valid_from", "valid_until", "holidays"), where)
    people: Any = entry.get("people")
    are_names = isinstance(people, list) and all(isinstance(name, str) and name for name in people)
    expected = 'a list of names, people = ["anna", "ben"], or "everyone"'
    _require(are_names or people == "everyone", f"{where}: people must be {expected}.")
    first, last = entry.get("valid_from", date.min), entry.get("valid_until", date.max)
    for key, value in (("valid_from", first), ("valid_until", last)):  # a datetime is a date, too
        _require(type(value) is date, f"{where}: {key} must be a date without quotes: {key} = 2026-12-31.")
    _require(first <= last, f"{where}: valid_until is before valid_from.", "Correct one of the dates.")
    on_holidays = entry.get("holidays", False)
    _require(isinstance(on_holidays, bool), f"{where}: holidays must be true or false. The dates are in [door].")
    return AllowEntry(
        people=None if people == "everyone" else frozenset(map(same_spelling, people)),
        weekdays=frozenset(day for text in _texts(entry, "weekdays", where, "mon-sun") for day in _parse_days(text, where)),
        hours=tuple(parse_hours(text, where) for text in _texts(entry, "hours", where, "00:00-24:00")),
        valid_from=first,
        valid_until=last,
        closed_on=frozenset() if on_holidays else holidays,
    )


def _texts(entry: Mapping[str, Any], key: str, where: str, default: str) -> list[str]:
    """Return one text, or a list of texts, as a list."""
    value = entry.get(key, default)
    texts = value if isinstance(value, list) else [value]
    are_texts = bool(texts) and all(isinstance(text, str) for text in texts)
    _require(are_texts, f'{where}: {key} must be text, for example "{default}", or a list of texts.')
    return texts


def _parse_days(text: str, where: str) -> list[int]:
    """Parse "mon", "mon-fri" or "sat-mon"."""
    ends = [end.strip().lower() for end in text.split("-")]
    are_days = len(ends) <= 2 and set(ends) <= set(DAYS)
    _require(are_days, f"{where}: {text[:40]!r} is not a weekday.", f'Write {", ".join(DAYS)}, or a range: "mon-fri".')
    first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
    return [(first + i) % 7 for i in range((last - first) % 7 + 1)]


def parse_hours(text: str, where: str) -> tuple[int, int]:
    """Parse "07:00-19:00" into minutes of the day. If the first is larger, the hours pass midnight."""
    found = _HOURS.fullmatch(text.strip())
    numbers = [int(number) for number in found.groups()] if found else [99] * 4
    start, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
    is_range = start < DAY_MINUTES and end <= DAY_MINUTES
    _require(is_range, f"{where}: {text[:40]!r} is not a range of hours.", 'Write for example "07:00-19:00".')
    _require(start != end, f"{where}: {text!r} is empty.", 'The whole day is "00:00-24:00".')
    return start, end


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            similar = get_close_matches(key, known, n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else f"Known keys: {', '.join(known)}."
            raise DoorListError(f"{where}: {key[:40]!r} is not a known key.", hint)


def _require(holds: bool, problem: str, hint: str = _SEE_FORMAT) -> None:
    if not holds:
        raise DoorListError(problem, hint)
