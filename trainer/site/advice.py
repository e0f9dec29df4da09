"""Advice after a training: which people are recognised worst, and what would help. As data: a key and its numbers.

A console or a command turns it into sentences in its language.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from trainer.evaluation.cross_validation import PersonResult

ENOUGH = 5  # photos of a person
WEAKEST = 20  # people that are listed
EXIF_BYTES = 1 << 16  # of a file, where EXIF data are
_EXIF_TIME = re.compile(rb"((?:19|20)\d\d):([01]\d):([0-3]\d) [0-2]\d:[0-5]\d:[0-6]\d")
_NAMED_TIME = re.compile(r"(20\d\d)([01]\d)([0-3]\d)-[0-2]\d[0-5]\d[0-6]\d\b")

ONE_PHOTO, ONE_DAY, FEW, CONFUSED, SUSPECTED, VARIED = "one_photo", "one_day", "few", "confused", "suspected", "varied"
KEYS = (ONE_PHOTO, ONE_DAY, FEW, CONFUSED, SUSPECTED, VARIED)


def photo_day(path: Path) -> date | None:
    """Return the day on which a photo was taken: by its EXIF data, else by a name that a camera gave, else by the file's time.

    None if the file is gone.
    """
    try:
        with path.open("rb") as file:
            head = file.read(EXIF_BYTES)
        changed = datetime.fromtimestamp(path.stat().st_mtime).date()
    except OSError:
        return None
    days = [day for found in _EXIF_TIME.finditer(head) if (day := _day(*found.groups())) is not None]
    if days:
        return min(days)  # a later one is that of an editor
    named = _NAMED_TIME.match(path.name)
    return (_day(*named.groups()) if named else None) or changed


def _day(year: Any, month: Any, day: Any) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


def weakest(
    people: Sequence[PersonResult], suspected: Iterable[str], files_of: Callable[[str], Iterable[Path]]
) -> list[dict[str, Any]]:
    """Return the people who are recognised worst, worst first, with advice. `suspected` has a name for each such photo."""
    doubts = list(suspected)

    def is_weak(person: PersonResult) -> bool:
        return person.recognised < person.tested or person.photos < 2 or person.name in doubts

    def order(person: PersonResult) -> tuple[float, float, int, str]:
        share = person.recognised / person.tested if person.tested else 0.0
        return share, person.confidence or 0.0, person.photos, person.name

    found = sorted(filter(is_weak, people), key=order)[:WEAKEST]
    return [
        {
            "name": one.name,
            "photos": one.photos,
            "tested": one.tested,
            "recognised": one.recognised,
            "confidence": one.confidence,
            "advice": list(_advice(one, doubts.count(one.name), [photo_day(file) for file in files_of(one.name)])),
        }
        for one in found
    ]


def _advice(person: PersonResult, doubts: int, days: Sequence[date | None]) -> Iterable[dict[str, Any]]:
    known = {day for day in days if day is not None}
    missing = max(ENOUGH - person.photos, 0)
    if doubts:
        yield {"key": SUSPECTED, "fields": {"photos": doubts}}
    if person.photos <= 1:
        yield {"key": ONE_PHOTO, "fields": {"add": ENOUGH - 1}}
    elif len(known) == 1:
        yield {"key": ONE_DAY, "fields": {"photos": person.photos, "add": max(missing, 3)}}
    elif missing:
        yield {"key": FEW, "fields": {"photos": person.photos, "add": missing}}
    if person.taken_for:
        yield {"key": CONFUSED, "fields": {"other": person.taken_for}}
    if not doubts and person.photos > 1 and len(known) != 1 and not missing and not person.taken_for:
        yield {"key": VARIED, "fields": {"photos": person.photos, "missed": person.tested - person.recognised}}
