"""The form of a door list as a person typed it. Values that are not valid stay in it, to be corrected."""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date

from starlette.datastructures import FormData

from edge.errors import DoorListError, UsageError
from edge.text import same_spelling
from trainer.console.text import Language
from trainer.site.door_lists import (
    MAX_ENTRIES,
    MAX_VISITORS,
    WHOLE_DAY,
    WHOLE_WEEK,
    Entry,
    Form,
    Span,
    format_spans,
    normal,
    parse_spans,
)

SHOWN = 60
"""Letters of a wrong value in a message."""
ISO_DATE = len("2026-12-31")


class FieldError(UsageError):
    """A field of the form is wrong."""

    def __init__(self, message: str, hint: str, field: str) -> None:
        super().__init__(message, hint)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class EntryDraft:
    """An entry of the form."""

    everyone: bool = False
    people: str = ""
    """A name on each line."""
    hours: tuple[frozenset[int], ...] = (frozenset(),) * 7
    """The cells of the grid that are chosen, by day."""
    others: tuple[str, ...] = ("",) * 7
    """Times that are not whole hours, by day."""
    valid_from: str = ""
    valid_until: str = ""
    holidays: bool = False


@dataclass(frozen=True, kw_only=True)
class VisitorDraft:
    """A temporary visitor of the form."""

    name: str = ""
    valid_from: str = ""
    valid_until: str = ""
    hours: str = ""
    """The same every day. Empty: the whole day."""
    holidays: bool = False


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The whole form."""

    name: str = ""
    timezone: str = ""
    holidays: str = ""
    """A date on each line."""
    entries: tuple[EntryDraft, ...] = ()
    visitors: tuple[VisitorDraft, ...] = ()


def from_form(form: Form) -> Draft:
    """Return a list as the form shows it."""
    return Draft(
        name=form.name,
        timezone=form.timezone,
        holidays="\n".join(map(_date_text, form.holidays)),
        entries=tuple(_entry_draft(entry) for entry in form.entries if not entry.is_visitor),
        visitors=tuple(_visitor_draft(entry) for entry in form.entries if entry.is_visitor),
    )


def _entry_draft(entry: Entry) -> EntryDraft:
    return EntryDraft(
        everyone=entry.people is None,
        people="\n".join(entry.people or ()),
        hours=tuple(entry.hours(day) for day in range(7)),
        others=tuple(entry.other_times(day) for day in range(7)),
        valid_from=_date_text(entry.valid_from),
        valid_until=_date_text(entry.valid_until),
        holidays=entry.holidays,
    )


def _visitor_draft(entry: Entry) -> VisitorDraft:
    return VisitorDraft(
        name="".join(entry.people or ()),
        valid_from=_date_text(entry.valid_from),
        valid_until=_date_text(entry.valid_until),
        hours="" if entry.week[0] == WHOLE_DAY else format_spans(entry.week[0]),
        holidays=entry.holidays,
    )


def _date_text(day: date | None) -> str:
    return "" if day is None else day.isoformat()


def from_fields(fields: FormData) -> Draft:
    """Return what a browser sent. The fields that add a name or a date are added to the others."""
    entries, visitors = _numbers(fields, "entry", MAX_ENTRIES), _numbers(fields, "visitor", MAX_VISITORS)
    return Draft(
        name=_text(fields, "name").strip(),
        timezone=_text(fields, "timezone").strip(),
        holidays=_with_new(fields, "holidays", "new_holiday"),
        entries=tuple(_read_entry(fields, f"e{number}") for number in entries),
        visitors=tuple(_read_visitor(fields, f"v{number}") for number in visitors),
    )


def _numbers(fields: FormData, name: str, most: int) -> list[str]:
    found = [number for number in fields.getlist(name) if isinstance(number, str)]
    if len(found) > most:
        raise UsageError(f"The form has more than {most} rows of one kind.", "Edit the list as text.")
    return found


def _read_entry(fields: FormData, prefix: str) -> EntryDraft:
    hours = [{str(hour) for hour in fields.getlist(f"{prefix}.day{day}")} for day in range(7)]
    return EntryDraft(
        everyone=_text(fields, f"{prefix}.who") == "everyone",
        people=_with_new(fields, f"{prefix}.people", f"{prefix}.new"),
        hours=tuple(frozenset(hour for hour in range(24) if str(hour) in chosen) for chosen in hours),
        others=tuple(_text(fields, f"{prefix}.other{day}") for day in range(7)),
        valid_from=_text(fields, f"{prefix}.from"),
        valid_until=_text(fields, f"{prefix}.until"),
        holidays=bool(_text(fields, f"{prefix}.holidays")),
    )


def _read_visitor(fields: FormData, prefix: str) -> VisitorDraft:
    name, first, last, hours, holidays = (
        _text(fields, f"{prefix}.{part}") for part in ("name", "from", "until", "hours", "holidays")
    )
    return VisitorDraft(name=name, valid_from=first, valid_until=last, hours=hours, holidays=bool(holidays))


def _text(fields: FormData, name: str) -> str:
    found = fields.get(name, "")
    return found if isinstance(found, str) else ""


def _with_new(fields: FormData, name: str, new: str) -> str:
    return "\n".join(dict.fromkeys([*_text(fields, name).splitlines(), *_text(fields, new).splitlines()]))


def change(draft: Draft, action: str, text: Language) -> tuple[Draft, str]:
    """Add or remove a row. Return the new form, and the row to go to: "e3", "v0", or "" if one was removed.

    A button has the action "add entry", "add visitor", "remove entry 3" or "remove visitor 0".
    """
    verb, _, rest = action.partition(" ")
    kind, _, number = rest.partition(" ")
    entries, visitors = list(draft.entries), list(draft.visitors)
    rows: list[EntryDraft] | list[VisitorDraft] = visitors if kind == "visitor" else entries
    if verb == "remove" and number.isascii() and number.isdigit() and int(number[:4]) < len(rows):
        rows.pop(int(number[:4]))
        return replace(draft, entries=tuple(entries), visitors=tuple(visitors)), ""
    if verb != "add":
        return draft, ""
    if len(rows) >= (MAX_VISITORS if kind == "visitor" else MAX_ENTRIES):
        raise UsageError(text("doors.too_many_rows", most=len(rows)), text("doors.too_many_rows_hint"))
    if kind == "visitor":
        visitors.append(VisitorDraft())
        return replace(draft, visitors=tuple(visitors)), f"v{len(visitors) - 1}"
    entries.append(EntryDraft())
    return replace(draft, entries=tuple(entries)), f"e{len(entries) - 1}"


def to_form(draft: Draft, text: Language) -> Form:
    """Return the list that was typed. FieldError says what is wrong, and where."""
    lines = filter(None, map(str.strip, draft.holidays.splitlines()))
    days = {_parse_date(line, text, text("doors.holidays"), "holidays") for line in lines}
    entries = [_to_entry(entry, number, text) for number, entry in enumerate(draft.entries)]
    visitors = [
        _to_visitor(visitor, number, text) for number, visitor in enumerate(draft.visitors) if visitor != VisitorDraft()
    ]
    if not entries and not visitors:
        raise UsageError(text("doors.no_entries_problem"), text("doors.no_entries_hint"))
    return Form(
        name=draft.name,
        timezone=draft.timezone,
        holidays=tuple(sorted(day for day in days if day is not None)),
        entries=(*entries, *visitors),
    )


def _to_entry(draft: EntryDraft, number: int, text: Language) -> Entry:
    prefix, where = f"e{number}", text("doors.entry", number=number + 1)
    people = tuple(dict.fromkeys(same_spelling(name.strip()) for name in draft.people.splitlines() if name.strip()))
    if not people and not draft.everyone:
        raise FieldError(text("doors.no_names", where=where), text("doors.no_names_hint"), f"{prefix}.people")
    week = []
    for day in range(7):
        whole = [(hour * 60, hour * 60 + 60) for hour in draft.hours[day]]
        place = f"{where}, {text(f'doors.day_{day}')}"
        week.append(normal([*whole, *_parse_times(draft.others[day], text, place, f"{prefix}.other{day}")]))
    if not any(week):
        raise FieldError(text("doors.no_hours", where=where), text("doors.no_hours_hint"), f"{prefix}.day0")
    first, last = _parse_period(draft.valid_from, draft.valid_until, text, where, prefix)
    return Entry(
        people=None if draft.everyone else people,
        week=tuple(week),
        valid_from=first,
        valid_until=last,
        holidays=draft.holidays,
    )


def _to_visitor(draft: VisitorDraft, number: int, text: Language) -> Entry:
    prefix, where = f"v{number}", text("doors.visitor", number=number + 1)
    name = same_spelling(draft.name.strip())
    if not name:
        raise FieldError(text("doors.no_name", where=where), text("doors.no_name_hint"), f"{prefix}.name")
    first, last = _parse_period(draft.valid_from, draft.valid_until, text, where, prefix)
    if first is None and last is None:
        raise FieldError(text("doors.no_last_day", where=where), text("doors.no_last_day_hint"), f"{prefix}.until")
    spans = normal(_parse_times(draft.hours, text, where, f"{prefix}.hours"))
    return Entry(
        people=(name,),
        week=(spans,) * 7 if spans else WHOLE_WEEK,
        valid_from=first,
        valid_until=last,
        holidays=draft.holidays,
    )


def _parse_times(value: str, text: Language, where: str, field: str) -> list[Span]:
    try:
        return parse_spans(value, where)
    except DoorListError:
        problem = text("doors.wrong_hours", where=where, value=value[:SHOWN])
        raise FieldError(problem, text("doors.wrong_hours_hint"), field) from None


def _parse_period(first: str, last: str, text: Language, where: str, prefix: str) -> tuple[date | None, date | None]:
    begin, end = (_parse_date(value, text, where, f"{prefix}.{part}") for value, part in ((first, "from"), (last, "until")))
    if begin is not None and end is not None and end < begin:
        raise FieldError(text("doors.wrong_period", where=where), text("doors.wrong_period_hint"), f"{prefix}.until")
    return begin, end


def _parse_date(value: str, text: Language, where: str, field: str) -> date | None:
    """Return a date; None if the field is empty."""
    value = value.strip()
    if not value:
        return None
    with suppress(ValueError):
        if len(value) == ISO_DATE:
            return date.fromisoformat(value)
    raise FieldError(text("doors.wrong_date", where=where, value=value[:SHOWN]), text("doors.wrong_date_hint"), field)
