"""Who may pass a door, and when: a TOML file of the integrator's, apart from who is recognised.

Days and hours are those of the clock on the wall, so a change to summer time needs nothing. A list that makes no sense is an
error and not a guess: the terminal does not start. docs/guide/door-list.md shows the format.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from edge.errors import DoorListError
from edge.text import same_spelling

NOT_LISTED = "not on this door's list"
OUTSIDE_HOURS = "outside hours"
NOT_YET = "not yet valid"
EXPIRED = "expired"
NO_CLOCK = "clock not set"

MAX_BYTES = 1 << 20
FIRST_YEAR = 2025  # a device without a battery wakes up long before: then no hour and no date can be judged
LAST_YEAR = 9000
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """One [[allow]] entry."""

    people: frozenset[str] | None
    """Who; None is everyone."""
    weekdays: frozenset[int] = frozenset(range(7))
    """Monday is 0. Hours past midnight belong to the day on which they began."""
    hours: tuple[tuple[int, int], ...] = ((0, 24 * 60),)
    """(from, until) in minutes of the day, until not included; from > until passes midnight."""
    valid_from: date = date.min
    """The first day."""
    valid_until: date = date.max
    """The last day, to its end."""

    def refusal(self, when: datetime) -> str | None:
        """Why not at this local time, or None."""
        if self == Allowed(people=self.people):
            return None
        if not FIRST_YEAR <= when.year <= LAST_YEAR:
            return NO_CLOCK
        if when.date() < self.valid_from:
            return NOT_YET
        if when.date() > self.valid_until:
            return EXPIRED
        minute = when.hour * 60 + when.minute
        today, yesterday = (day in self.weekdays for day in (when.weekday(), (when.weekday() - 1) % 7))
        for start, end in self.hours:
            late = start > end
            if (today and start <= minute and (late or minute < end)) or (late and yesterday and minute < end):
                return None
        return OUTSIDE_HOURS


@dataclass(frozen=True, kw_only=True)
class DoorList:
    """Who may pass, and when: whatever one entry allows is allowed."""

    entries: tuple[Allowed, ...]
    name: str = ""
    """Of the door."""
    zone: tzinfo | None = None
    """Whose clock counts; None is the device's own."""

    @classmethod
    def load(cls, path: str | Path) -> DoorList:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not a file name"
            raise DoorListError(f"The door list {path} cannot be read: {why}.", "Check the path.") from None
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, source: str = "door list") -> DoorList:
        """From the bytes of a file; `source` is its name in messages."""
        if len(data) > MAX_BYTES:
            raise DoorListError(f"{source} is larger than {MAX_BYTES >> 20} MB.", "That is no door list.")
        try:
            contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            why = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error) or "nested too deeply"
            raise DoorListError(
                f"{source} is not readable as TOML: {why}.", "docs/guide/door-list.md shows the format."
            ) from None
        return _door_list(contents, source)

    def allows(self, label: str, when: datetime) -> str | None:
        """None if the person may pass at that time, else why not. Of several reasons, the one nearest to a yes."""
        if when.utcoffset() is None:
            raise ValueError("a time without its zone says nothing")
        mine = [entry for entry in self.entries if entry.people is None or same_spelling(label) in entry.people]
        if FIRST_YEAR <= when.year <= LAST_YEAR:  # elsewhere a shift may leave the calendar
            when = when.astimezone(self.zone)
        refusals = {entry.refusal(when) for entry in mine} or {NOT_LISTED}
        return next(reason for reason in (None, NO_CLOCK, OUTSIDE_HOURS, NOT_YET, EXPIRED, NOT_LISTED) if reason in refusals)

    def unknown_people(self, labels: Iterable[str]) -> list[str]:
        """People on the list whom the kit does not know: probably misspelt."""
        listed = frozenset[str]().union(*(entry.people or () for entry in self.entries))
        return sorted(listed - {same_spelling(label) for label in labels})


def _door_list(contents: dict[str, Any], source: str) -> DoorList:
    _refuse_other_keys(contents, ("door", "allow"), source)
    door = contents.get("door", {})
    if not isinstance(door, dict):
        raise _wrong(source, "door", "a table: [door]")
    _refuse_other_keys(door, ("name", "timezone"), f"{source}, [door]")
    name = door.get("name", "")
    if not isinstance(name, str):
        raise _wrong(f"{source}, [door]", "name", "text")
    entries = contents.get("allow", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _wrong(source, "allow", "a list of tables: [[allow]]")
    if not entries:
        raise DoorListError(f"{source} allows nobody to pass.", 'Add an entry: [[allow]] with people = ["anna"].')
    return DoorList(
        name=name,
        zone=_zone(door.get("timezone"), f"{source}, [door]"),
        entries=tuple(_allowed(entry, f"{source}, [[allow]] number {i}") for i, entry in enumerate(entries, 1)),
    )


def _zone(name: Any, where: str) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, AttributeError, OSError):
        hint = "Write it as in Europe/Berlin; if this device has no time zones at all, `pip install tzdata`."
        raise DoorListError(f"{where}: there is no time zone {str(name)[:40]!r} here.", hint) from None


def _allowed(entry: dict[str, Any], where: str) -> Allowed:
    _refuse_other_keys(entry, ("people", "weekdays", "hours", "valid_from", "valid_until"), where)
    people = entry.get("people")
    if people != "everyone" and (not isinstance(people, list) or not all(isinstance(name, str) and name for name in people)):
        raise _wrong(where, "people", 'a list of names, people = ["anna", "ben"], or "everyone"')
    allowed = Allowed(
        people=None if people == "everyone" else frozenset(map(same_spelling, people)),
        weekdays=frozenset(day for days in _texts(entry, "weekdays", where, "mon-sun") for day in _days(days, where)),
        hours=tuple(_span(hours, where) for hours in _texts(entry, "hours", where, "00:00-24:00")),
        valid_from=_day(entry, "valid_from", where, date.min),
        valid_until=_day(entry, "valid_until", where, date.max),
    )
    if allowed.valid_from > allowed.valid_until:
        raise DoorListError(f"{where}: valid_until is before valid_from.", "No day is left.")
    return allowed


def _texts(entry: dict[str, Any], key: str, where: str, default: str) -> list[str]:
    """One text, or a list of them."""
    value = entry.get(key, default)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(text, str) for text in values):
        raise _wrong(where, key, f'text such as "{default}", or a list of such')
    return values


def _days(text: str, where: str) -> list[int]:
    """mon, or mon-fri, or sat-mon."""
    ends = [end.strip().lower() for end in text.split("-")]
    if len(ends) > 2 or not set(ends) <= set(DAYS):
        raise DoorListError(f"{where}: {text[:40]!r} names no weekday.", f'Write {", ".join(DAYS)}, or a range: "mon-fri".')
    first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
    return [(first + i) % 7 for i in range((last - first) % 7 + 1)]


def _span(text: str, where: str) -> tuple[int, int]:
    found = _HOURS.fullmatch(text.strip())
    hours = [int(number) for number in found.groups()] if found else [99] * 4
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if max(hours[1], hours[3]) > 59 or start >= 24 * 60 or end > 24 * 60:
        raise DoorListError(f"{where}: {text[:40]!r} are no hours.", 'Write them as in "07:00-19:00".')
    if start == end:
        raise DoorListError(f"{where}: {text!r} has no length.", 'The whole day is "00:00-24:00".')
    return start, end


def _day(entry: dict[str, Any], key: str, where: str, default: date) -> date:
    value = entry.get(key, default)
    if type(value) is not date:  # a datetime is a date, too
        raise _wrong(where, key, f"a date without quotes: {key} = 2026-12-31")
    return value


def _refuse_other_keys(table: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in [key for key in table if key not in known]:
        near = get_close_matches(key, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known)}."
        raise DoorListError(f"{where}: {key[:40]!r} means nothing here.", hint)


def _wrong(where: str, key: str, wanted: str) -> DoorListError:
    return DoorListError(f"{where}: {key} must be {wanted}.", "docs/guide/door-list.md shows the format.")
