"""The door list: who may pass a door and when. A TOML text, separate from the kit; docs/guide/door-list.md shows the format.

Days and hours are local time. An invalid list is an error: the terminal does not start with it, and a running one keeps the
list before. The list says how many entries a visitor has; edge.terminal.entry_counts knows how many were used.
"""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from difflib import get_close_matches
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from edge.decision.reasons import (
    CLOCK_NOT_SET,
    EXPIRED,
    HOLIDAY,
    NO_ENTRIES_LEFT,
    NOT_LISTED,
    NOT_YET_VALID,
    OUTSIDE_HOURS,
)
from edge.errors import DoorListError
from edge.text import same_spelling

MAX_BYTES = 1 << 20
FIRST_YEAR, LAST_YEAR = 2025, 9000  # a device without a battery starts long before: then the clock is not set
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
MAX_ENTRIES = 1_000_000
GROUP_SIGN = "@"
VERSION_DIGITS = 12
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
    begins: datetime | None = None
    """The moment on the first day, in UTC. None: midnight."""
    ends: datetime | None = None
    """The moment on the last day from which it is too late, in UTC. None: the end of the day."""
    closed_on: frozenset[date] = frozenset()
    """Holidays. The hours that begin on such a day are closed, and so is the day itself until midnight."""
    entries: int | None = None
    """How often each of the people may pass. None: any number."""
    digest: str = ""
    """Of the times of this entry. Together with a person it identifies what is counted."""

    def refusal(self, when: datetime) -> str | None:
        """Say why this entry does not allow a local time, or return None. The number of entries is not considered."""
        if replace(self, people=None, entries=None, digest="") == _ANY_TIME:  # comparing names would take long
            return None
        if not FIRST_YEAR <= when.year <= LAST_YEAR:
            return CLOCK_NOT_SET
        if when.date() < self.valid_from or (self.begins is not None and when.astimezone(UTC) < self.begins):
            return NOT_YET_VALID
        if when.date() > self.valid_until or (self.ends is not None and when.astimezone(UTC) >= self.ends):
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

    def count_key(self, label: str) -> str:
        """Return what the used entries of a person are counted under. It does not show the name."""
        return hashlib.sha256(f"{self.digest}\0{same_spelling(label)}".encode("utf-8", "replace")).hexdigest()[:32]


_ANY_TIME = AllowEntry(people=None)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a list says about a person at a time."""

    refusal: str | None
    """Why the person may not pass, one of edge.decision.reasons; None: the person may pass."""
    count_key: str | None = None
    """What this entry is counted under, if the number of entries is limited."""


def uncounted(_: str) -> int:
    """Take the place of a count of used entries. It raises, because a limit that is not counted is no limit."""
    raise DoorListError("The door list limits the number of entries, but the used ones are not counted here.")


@dataclass(frozen=True, kw_only=True)
class DoorList:
    """Who may pass a door, and when: everything that at least one entry allows."""

    entries: tuple[AllowEntry, ...]
    """What the list allows, in its order."""
    name: str = ""
    """Name of the door."""
    zone: tzinfo | None = None
    """Time zone of the hours. None: the device's own."""
    version: str = ""
    """The first digits of the SHA-256 of its bytes."""

    @classmethod
    def parse(cls, data: bytes, source: str = "door list") -> "DoorList":
        """Read a door list from the bytes of a TOML file. `source` is its name in messages."""
        _require(len(data) <= MAX_BYTES, f"{source} is larger than {MAX_BYTES >> 20} MB.")
        try:
            contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            problem = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error) or "nested too deeply"
            raise DoorListError(f"{source} is not valid TOML: {problem}.", _SEE_FORMAT) from None
        _check_keys(contents, ("door", "groups", "allow"), source)
        name, zone, holidays = _parse_door(contents.get("door", {}), source)
        groups = _parse_groups(contents.get("groups", {}), source)
        entries = contents.get("allow", [])
        are_tables = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        _require(are_tables, f"{source}: allow must be a list of tables: [[allow]].")
        _require(bool(entries), f"{source} allows no person to pass.", 'Add an entry: [[allow]] with people = ["anna"].')
        parsed = tuple(
            _parse_entry(entry, holidays, groups, zone, f"{source}, [[allow]] number {i}")
            for i, entry in enumerate(entries, 1)
        )
        version = hashlib.sha256(data).hexdigest()[:VERSION_DIGITS]
        return cls(name=name, zone=zone, entries=parsed, version=version)

    def refusal(self, label: str, when: datetime) -> str | None:
        """Say why the person may not pass at this time, or return None. Of several reasons, return the weakest.

        DoorListError if that depends on the number of used entries: see `answer`.
        """
        return self.answer(label, when, uncounted).refusal

    def answer(self, label: str, when: datetime, used: Callable[[str], int]) -> Answer:
        """Say whether the person may pass at this time. `used` returns the number of used entries for a count key."""
        if when.utcoffset() is None:
            raise ValueError("the time has no time zone")
        entries = (*self._for_everyone, *self._by_person.get(same_spelling(label), ()))
        if FIRST_YEAR <= when.year <= LAST_YEAR:  # other years may overflow when shifted
            when = when.astimezone(self.zone)
        reasons = [(entry, entry.refusal(when)) for entry in entries]
        found = {reason for _, reason in reasons} or {NOT_LISTED}
        if None in found:
            return _first_with_entries_left([entry for entry, reason in reasons if reason is None], label, used)
        order = (CLOCK_NOT_SET, HOLIDAY, OUTSIDE_HOURS, NOT_YET_VALID, EXPIRED, NOT_LISTED)
        return Answer(refusal=next(reason for reason in order if reason in found))

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
        return sorted(self.people - {same_spelling(label) for label in labels})

    @cached_property
    def people(self) -> frozenset[str]:
        """The people that the entries name."""
        return frozenset[str]().union(*(entry.people or () for entry in self.entries))

    @cached_property
    def by_name(self) -> "DoorList":
        """The same list without the entries for everyone."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.people is not None))

    @property
    def limits_entries(self) -> bool:
        """Whether an entry has a number of entries."""
        return any(entry.entries is not None for entry in self.entries)


def _first_with_entries_left(allowing: list[AllowEntry], label: str, used: Callable[[str], int]) -> Answer:
    """Return the answer of the entries that allow a time: an entry without a limit counts first."""
    if any(entry.entries is None for entry in allowing):
        return Answer(refusal=None)
    for entry in allowing:
        key = entry.count_key(label)
        if used(key) < (entry.entries or 0):
            return Answer(refusal=None, count_key=key)
    return Answer(refusal=NO_ENTRIES_LEFT)


def _parse_door(door: Any, source: str) -> tuple[str, tzinfo | None, frozenset[date]]:
    """Return name, time zone and holidays."""
    where = f"{source}, [door]"
    _require(isinstance(door, dict), f"{source}: door must be a table: [door].")
    _check_keys(door, ("name", "timezone", "holidays"), where)
    name, zone, holidays = door.get("name", ""), door.get("timezone"), door.get("holidays", [])
    _require(isinstance(name, str), f"{where}: name must be text.")
    _require(zone is None or isinstance(zone, str), f'{where}: timezone must be text: timezone = "Europe/Berlin".')
    are_dates = isinstance(holidays, list) and all(type(day) is date for day in holidays)
    _require(are_dates, f"{where}: holidays must be a list of dates without quotes: holidays = [2026-12-25, 2026-12-31].")
    try:
        return name, None if zone is None else ZoneInfo(zone), frozenset(holidays)
    except (KeyError, ValueError, OSError):
        hint = "Write for example Europe/Berlin. If this device has no time zones, `pip install tzdata`."
        raise DoorListError(f"{where}: there is no time zone {zone[:40]!r}.", hint) from None


def _parse_groups(groups: Any, source: str) -> dict[str, frozenset[str]]:
    """Return the people of each group."""
    _require(isinstance(groups, dict), f"{source}: groups must be a table: [groups].")
    for name, people in groups.items():
        where = f"{source}, [groups] {name[:40]}"
        _require(_are_names(people), f'{where} must be a list of names: ["anna", "ben"].')
        is_flat = not any(person.startswith(GROUP_SIGN) for person in people)
        _require(is_flat, f"{where} must not contain another group.", "Name the people themselves.")
    return {name: frozenset(map(same_spelling, people)) for name, people in groups.items()}


def _parse_entry(
    entry: dict[str, Any],
    holidays: frozenset[date],
    groups: Mapping[str, frozenset[str]],
    zone: tzinfo | None,
    where: str,
) -> AllowEntry:
    _check_keys(entry, ("people", "weekdays", "hours", "valid_from", "valid_until", "holidays", "entries"), where)
    first, last = entry.get("valid_from", date.min), entry.get("valid_until", date.max)
    for key, value in (("valid_from", first), ("valid_until", last)):
        is_moment = isinstance(value, datetime) and value.tzinfo is None and FIRST_YEAR <= value.year <= LAST_YEAR
        example = f"{key} = 2026-12-31, or a local time: {key} = 2026-12-31T18:00"
        _require(type(value) is date or is_moment, f"{where}: {key} must be a date without quotes: {example}.")
    is_in_order = _moment(first, time.min) < _moment(last, time.max)
    _require(is_in_order, f"{where}: valid_until is before valid_from.", "Correct one of the dates.")
    on_holidays, number = entry.get("holidays", False), entry.get("entries")
    _require(isinstance(on_holidays, bool), f"{where}: holidays must be true or false. The dates are in [door].")
    is_number = number is None or (type(number) is int and 1 <= number <= MAX_ENTRIES)
    _require(is_number, f"{where}: entries must be a whole number of 1 or more: entries = 3.")
    weekdays = frozenset(day for text in _texts(entry, "weekdays", where, "mon-sun") for day in _parse_days(text, where))
    hours = tuple(parse_hours(text, where) for text in _texts(entry, "hours", where, "00:00-24:00"))
    times = repr((sorted(weekdays), sorted(hours), str(first), str(last), on_holidays))
    return AllowEntry(
        people=_parse_people(entry.get("people"), groups, where),
        weekdays=weekdays,
        hours=hours,
        valid_from=first.date() if isinstance(first, datetime) else first,
        valid_until=last.date() if isinstance(last, datetime) else last,
        begins=_utc(first, zone) if isinstance(first, datetime) else None,
        ends=_utc(last, zone) if isinstance(last, datetime) else None,
        closed_on=frozenset() if on_holidays else holidays,
        entries=number,
        digest=hashlib.sha256(times.encode()).hexdigest(),
    )


def _parse_people(people: Any, groups: Mapping[str, frozenset[str]], where: str) -> frozenset[str] | None:
    """Return the people of an entry, and those of its groups; None: everyone."""
    expected = 'a list of names, people = ["anna", "ben"], or "everyone"'
    _require(_are_names(people) or people == "everyone", f"{where}: people must be {expected}.")
    if people == "everyone":
        return None
    found = set[str]()
    for name in people:
        if not name.startswith(GROUP_SIGN):
            found.add(same_spelling(name))
        elif (group := groups.get(name.removeprefix(GROUP_SIGN))) is not None:
            found |= group
        else:
            similar = get_close_matches(name.removeprefix(GROUP_SIGN), groups, n=1)
            hint = f"Did you mean {GROUP_SIGN + similar[0]!r}?" if similar else "Add it to [groups]."
            raise DoorListError(f"{where}: there is no group {name[1:40]!r}.", hint)
    return frozenset(found)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name for name in value)


def _moment(day: date, at: time) -> datetime:
    return day if isinstance(day, datetime) else datetime.combine(day, at)


def _utc(moment: datetime, zone: tzinfo | None) -> datetime:
    """Return a local time in UTC. If clocks are set back and the time comes twice, it is the first one."""
    return moment.replace(tzinfo=zone).astimezone(UTC)


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
