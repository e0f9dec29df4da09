"""The door list of each door, lists/DOOR.toml: as text, and as a form with a week of hours per entry.

edge.decision.doorlist defines what a valid list is. The form can show every valid list, except those with groups, with moments
or numbers of entries of visitors, very long ones, and names that do not fit on a line; then the text is edited. A form that is
written and read again is the same.
"""

import hashlib
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from edge.decision import doorlist
from edge.decision.doorlist import DAY_MINUTES, DAYS, AllowEntry, DoorList
from edge.errors import DoorListError, UsageError
from edge.files import locked_folder, read_bytes, write_file
from edge.settings import to_toml
from edge.text import plural, same_spelling, some
from trainer.site import contents, doors, trail
from trainer.site.doors import Door
from trainer.site.folder import Site

Span = tuple[int, int]
"""(from, until) in minutes of a day. If from > until, the hours pass midnight and belong to the day on which they began."""
Week = tuple[tuple[Span, ...], ...]
"""The spans of each day, Monday first, as `normal` returns them."""

WHOLE_DAY: tuple[Span, ...] = ((0, DAY_MINUTES),)
WHOLE_WEEK: Week = (WHOLE_DAY,) * 7
HEADER = "# Written by the console. docs/guide/door-list.md explains the fields.\n"
MAX_ENTRIES, MAX_VISITORS = 24, 100  # in a form; a browser sends a field for each hour
LINE = 100  # letters; longer lists of names have a line for each
_SOURCE = "The door list"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Who may pass, and when in a week."""

    people: tuple[str, ...] | None
    """None: everyone."""
    week: Week = WHOLE_WEEK
    valid_from: date | None = None
    valid_until: date | None = None
    holidays: bool = False
    """Whether the entry applies on holidays."""

    @property
    def is_visitor(self) -> bool:
        """Whether this is one person for a limited time, with the same hours every day."""
        is_limited = self.valid_from is not None or self.valid_until is not None
        return self.people is not None and len(self.people) == 1 and is_limited and len(set(self.week)) == 1

    def hours(self, day: int) -> frozenset[int]:
        """Return the whole hours of a day that are allowed, for a grid."""
        parts = [(start, end if start < end else DAY_MINUTES) for start, end in self.week[day]]
        return frozenset(
            hour for hour in range(24) if any(start <= hour * 60 and hour * 60 + 60 <= end for start, end in parts)
        )

    def other_times(self, day: int) -> str:
        """Return what `hours` does not show: parts of hours, and hours that pass midnight."""
        spans: list[Span] = []
        for start, end in self.week[day]:
            first, last = -(-start // 60) * 60, end // 60 * 60
            if start > end or first >= last:
                spans.append((start, end))
            else:
                spans += [part for part in ((start, first), (last, end)) if part[0] < part[1]]
        return format_spans(spans)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A door list as a form."""

    name: str = ""
    timezone: str = ""
    """Empty: that of the device."""
    holidays: tuple[date, ...] = ()
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SavedList:
    """The list of a door, as it is on the disk."""

    text: str
    """Empty: there is no list, and everyone in the kit may pass."""
    form: Form | None
    """None: the list is invalid, or the form cannot show it."""
    problem: str = ""
    """Why the list is invalid."""

    @property
    def version(self) -> str:
        """A digest of the text: it says whether another person changed the list."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def has_comments(self) -> bool:
        """Whether the form would lose text that a person wrote."""
        return "#" in self.text and (self.form is None or write_toml(self.form) != self.text)


class ChangedError(UsageError):
    """The list has another version than the one from which a change was made."""


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """What is probably wrong with a valid list. Its text is a sentence."""

    kind: Literal["no_photos", "not_in_kit", "expired"]
    names: str
    """The first few."""
    kit: str = ""
    """The newest kit, if it is about that."""

    def __str__(self) -> str:
        return {
            "no_photos": f"There are no photos of {self.names}. Check the spelling, or enrol them.",
            "not_in_kit": f"The newest kit, {self.kit}, does not contain {self.names}. Build a kit with them.",
            "expired": f"There are expired entries of {self.names}. Remove what is not needed any more.",
        }[self.kind]


def load(site: Site, door_name: str) -> SavedList:
    """Return the list of a door."""
    file = doors.list_file(site, doors.find(site, door_name))
    if not file.exists():
        return SavedList(text="", form=Form(name=door_name))
    data = read_bytes(file, doorlist.MAX_BYTES + 1)
    text = data.decode("utf-8", "replace")
    try:
        return SavedList(text=text, form=read_toml(data, str(file)))
    except DoorListError as error:
        return SavedList(text=text, form=None, problem=str(error))


def save(site: Site, door_name: str, text: str, who: str, *, before: str | None = None) -> DoorList:
    """Replace the list of a door, if it is valid.

    `before` is the version from which the change was made. UsageError if the file has another version by now.
    """
    data = text.encode("utf-8", "replace").replace(b"\r\n", b"\n")  # browsers send CR LF
    found = DoorList.parse(data, _SOURCE)
    with locked_folder(site.lists), site.database() as database:
        door = doors.find(site, door_name)
        _check_version(site, door, before)
        write_file(doors.list_file(site, door), data)
        trail.record(database, who, "save door list", door.name, plural(len(found.entries), "entry", "entries"))
    return found


def remove(site: Site, door_name: str, who: str, *, before: str | None = None) -> None:
    """Remove the list of a door: a terminal without a list lets every recognised person pass. `before`: see `save`."""
    with locked_folder(site.lists), site.database() as database:
        door = doors.find(site, door_name)
        _check_version(site, door, before)
        doors.list_file(site, door).unlink(missing_ok=True)
        trail.record(database, who, "remove door list", door.name)


def _check_version(site: Site, door: Door, before: str | None) -> None:
    if before is not None and load(site, door.name).version != before:
        problem = f"The list of {door.name} was changed by another person meanwhile."
        raise ChangedError(problem, "Load the page again, and repeat your change.")


def check(text: str) -> DoorList:
    """Return the list that a text describes. DoorListError if it is invalid."""
    return DoorList.parse(text.encode("utf-8", "replace"), _SOURCE)


def doubts(site: Site, text: str, today: date) -> list[Doubt]:
    """Return what is probably wrong with a valid list: unknown people, and entries that are over."""
    found, said = check(text), list[Doubt]()
    with os.scandir(site.photos) as folders:
        unknown = found.people_not_in(folder.name for folder in folders if folder.is_dir())
    if unknown:
        said.append(Doubt(kind="no_photos", names=some(unknown)))
    kit = next((kit for kit in contents.kits(site) if kit.readable), None)
    missing = [] if kit is None else [name for name in found.people_not_in(kit.labels) if name not in unknown]
    if kit is not None and missing:
        said.append(Doubt(kind="not_in_kit", names=some(missing), kit=kit.path.stem))
    expired = [entry for entry in found.entries if entry.valid_until < today]
    if expired:
        said.append(
            Doubt(kind="expired", names=some(sorted({name for entry in expired for name in entry.people or {"everyone"}})))
        )
    return said


# The form


def read_toml(data: bytes, source: str = _SOURCE) -> Form | None:
    """Return a list as a form; None if the form cannot show it. DoorListError if the list is invalid."""
    found = DoorList.parse(data, source)
    contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
    if "groups" in contents or not all(map(_has_fields, found.entries)):
        return None
    door, entries = contents.get("door", {}), list[Entry]()
    for table, allowed in zip(contents["allow"], found.entries, strict=True):
        entry = _to_entry(table, allowed)
        if entries and _same_conditions(entries[-1], entry):
            entry = _union(entries.pop(), entry)
        entries.append(entry)
    form = Form(
        name=found.name,
        timezone=door.get("timezone", ""),
        holidays=tuple(sorted(set(door.get("holidays", [])))),
        entries=tuple(entries),
    )
    return form if _fits(form) else None


def write_toml(form: Form) -> str:
    """Return a form as the text of a list. UsageError if an entry has no hours."""
    facts = {"name": form.name, "timezone": form.timezone}
    lines = [f"{key} = {to_toml(value)}" for key, value in facts.items() if value]
    if form.holidays:
        lines.append(f"holidays = {_list([day.isoformat() for day in sorted(set(form.holidays))])}")
    parts = ["\n".join(["[door]", *lines])] if lines else []
    for number, entry in enumerate(form.entries, 1):
        if not any(entry.week):
            raise UsageError(f"Entry {number} has no hours.", "Choose hours, or remove the entry.")
        for spans in dict.fromkeys(filter(None, entry.week)):
            days = [day for day in range(7) if entry.week[day] == spans]
            parts.append("\n".join(_table(entry, days, spans)))
    return HEADER + "\n" + "\n\n".join(parts) + "\n"


def normal(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same times of a day as sorted spans that do not touch. At most the last one passes midnight."""
    spans = list(spans)
    until = max((end for start, end in spans if start > end), default=0)
    found: list[Span] = []
    for start, end in sorted((start, end if start < end else DAY_MINUTES) for start, end in spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    if until and found[-1][0] > until:
        found[-1] = found[-1][0], until
    elif until:  # nearly all day and the next morning: the last minute stands for the night
        found.append((DAY_MINUTES - 1, until))
    return tuple(found)


def parse_spans(text: str, where: str) -> list[Span]:
    """Parse "07:30-08:00, 22:00-06:00". `where` is the place in messages."""
    return [doorlist.parse_hours(part, where) for part in text.split(",") if part.strip()]


def format_spans(spans: Iterable[Span]) -> str:
    return ", ".join(_span(span) for span in spans)


def _to_entry(table: dict[str, Any], allowed: AllowEntry) -> Entry:
    people = None if allowed.people is None else tuple(dict.fromkeys(map(same_spelling, table["people"])))
    spans = normal(allowed.hours)
    return Entry(
        people=people,
        week=tuple(spans if day in allowed.weekdays else () for day in range(7)),
        valid_from=None if allowed.valid_from == date.min else allowed.valid_from,
        valid_until=None if allowed.valid_until == date.max else allowed.valid_until,
        holidays=table.get("holidays", False),
    )


def _has_fields(allowed: AllowEntry) -> bool:
    """Whether the form has a field for everything in an entry."""
    return allowed.begins is None and allowed.ends is None and allowed.entries is None


def _same_conditions(one: Entry, other: Entry) -> bool:
    """Whether two entries differ in their hours only: a week with different days is written as several entries."""
    return all(getattr(one, name) == getattr(other, name) for name in ("people", "valid_from", "valid_until", "holidays"))


def _union(one: Entry, other: Entry) -> Entry:
    week = tuple(normal([*first, *second]) for first, second in zip(one.week, other.week, strict=True))
    return Entry(people=one.people, week=week, valid_from=one.valid_from, valid_until=one.valid_until, holidays=one.holidays)


def _fits(form: Form) -> bool:
    visitors = sum(entry.is_visitor for entry in form.entries)
    names = [name for entry in form.entries for name in entry.people or ()]
    lines = all(name == name.strip() and "".join(name.splitlines()) == name for name in (form.name, *names))
    return lines and visitors <= MAX_VISITORS and len(form.entries) - visitors <= MAX_ENTRIES


def _table(entry: Entry, days: list[int], spans: Sequence[Span]) -> list[str]:
    lines = ["[[allow]]"]
    lines.append('people = "everyone"' if entry.people is None else f"people = {_list(list(map(to_toml, entry.people)))}")
    if len(days) < 7:
        lines.append(f"weekdays = {_texts(_runs(days))}")
    if spans != WHOLE_DAY:
        lines.append(f"hours = {_texts([_span(span) for span in spans])}")
    for key, day in (("valid_from", entry.valid_from), ("valid_until", entry.valid_until)):
        if day is not None:
            lines.append(f"{key} = {day.isoformat()}")
    return lines + ["holidays = true"] * entry.holidays


def _runs(days: list[int]) -> list[str]:
    """Return weekdays as mon, mon-wed..."""
    runs: list[list[int]] = []
    for day in days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return [DAYS[run[0]] if len(run) == 1 else f"{DAYS[run[0]]}-{DAYS[run[-1]]}" for run in runs]


def _span(span: Span) -> str:
    start, end = span
    return f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"


def _texts(texts: list[str]) -> str:
    return to_toml(texts[0]) if len(texts) == 1 else _list(list(map(to_toml, texts)))


def _list(values: list[str]) -> str:
    line = ", ".join(values)
    return f"[{line}]" if len(line) <= LINE else "[\n" + "".join(f"    {value},\n" for value in values) + "]"
