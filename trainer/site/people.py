"""The people of a site: a folder of photos each, with consent and a note in console.db.

The folders decide who is there. `sync` brings the table up to date with them. Each change here writes
files first, then the table, then the trail.
"""

import os
import secrets
import shutil
import sqlite3
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge.enrol.session import MIN_PHOTOS
from edge.enrol.storage import check_name, write
from edge.errors import UsageError
from edge.files import read_bytes, write_file
from edge.text import plural, printable
from trainer.site import trail
from trainer.site.folder import Site, transaction
from trainer.site.photo_index import checked, count_problems, folder_of, owner_of, photo_file, photo_files, store
from trainer.site.photos import MAX_PHOTO, CheckedPhoto, Checker, check, checker, cut_to_face
from trainer.site.visits import IS

PAGE = 60  # people on a page
MAX_NOTE = 4000  # letters
KINDS = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"BM": ".bmp", b"RI": ".webp"}
"""Suffix of a photo by its first bytes; .pgm for others that can be decoded."""
Only = Literal["", "problems", "few", "no consent"]
ONLY: dict[Only, str] = {
    "": "1",
    "problems": "problems > 0 OR photos = 0",
    "few": f"photos < {MIN_PHOTOS}",
    "no consent": "consent_date IS NULL",
}
"""Conditions of a search."""


@dataclass(frozen=True, kw_only=True)
class Person:
    """A person as the table has them."""

    name: str
    photos: int = 0
    cover: str | None = None
    """File name of the photo that stands for the person."""
    problems: int = 0
    """Photos, of those that were checked, that a training leaves out."""
    consent_date: str | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One page of a search."""

    people: tuple[Person, ...]
    total: int
    page: int
    pages: int


def sync(site: Site, database: sqlite3.Connection) -> tuple[str, ...]:
    """Bring the table up to date with the folders. Return the names of folders that cannot be shown.

    A person without a folder stays in the table only with a consent date or a note.
    """
    known = dict(database.execute("SELECT name, folder_mtime_ns FROM people").fetchall())
    ignored, there = [], set()
    with os.scandir(site.photos) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            if entry.is_symlink() or (entry.name not in known and not _is_valid(entry.name)):
                ignored.append(printable(entry.name))
                continue
            there.add(entry.name)
            if known.get(entry.name) != entry.stat().st_mtime_ns:
                sync_person(site, database, entry.name)
    for name in known.keys() - there:
        sync_person(site, database, name)
    return tuple(sorted(ignored))


def _is_valid(name: str) -> bool:
    try:
        return check_name(name) == name
    except UsageError:
        return False


def sync_person(site: Site, database: sqlite3.Connection, name: str) -> None:
    """Bring the row of one person, and the index of the photos, up to date with the folder."""
    folder = site.photos / name
    mtime_ns = folder.stat().st_mtime_ns if folder.is_dir() else 0
    files = [entry.name for entry in photo_files(folder)]
    with transaction(database):
        rows = database.execute("SELECT file, problem FROM photos WHERE person = ?", (name,)).fetchall()
        gone = [(name, row["file"]) for row in rows if row["file"] not in files]
        database.executemany("DELETE FROM photos WHERE person = ? AND file = ?", gone)
        bad = {row["file"] for row in rows if row["problem"] is not None}
        cover = next((file for file in files if file not in bad), files[0] if files else None)
        database.execute(
            "INSERT INTO people (name, folder_mtime_ns, photos, cover) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE"
            " SET folder_mtime_ns = excluded.folder_mtime_ns, photos = excluded.photos, cover = excluded.cover",
            (name, mtime_ns, len(files), cover),
        )
        count_problems(database, name)
        if not mtime_ns:
            database.execute("DELETE FROM people WHERE name = ? AND consent_date IS NULL AND note = ''", (name,))


def names(database: sqlite3.Connection) -> list[str]:
    """Return the names of all people, sorted."""
    return [row[0] for row in database.execute("SELECT name FROM people ORDER BY name")]


def get(database: sqlite3.Connection, name: str) -> Person | None:
    row = database.execute(f"SELECT {_FIELDS} FROM people WHERE name = ?", (name,)).fetchone()
    return None if row is None else Person(**row)


def search(database: sqlite3.Connection, text: str = "", page: int = 1, *, only: Only = "") -> Found:
    """Return people whose name contains the text, in any case and with or without accents, sorted by name."""
    database.create_function("folded", 1, folded, deterministic=True)
    wanted = folded(text.strip())
    where = f"({ONLY[only]}) AND (? = '' OR instr(folded(name), ?) > 0)"
    (total,) = database.execute(f"SELECT count(*) FROM people WHERE {where}", (wanted, wanted)).fetchone()
    pages = max(1, -(-total // PAGE))
    page = min(max(page, 1), pages)
    rows = database.execute(
        f"SELECT {_FIELDS} FROM people WHERE {where} ORDER BY name COLLATE NOCASE, name LIMIT ? OFFSET ?",
        (wanted, wanted, PAGE, (page - 1) * PAGE),
    )
    return Found(people=tuple(Person(**row) for row in rows), total=total, page=page, pages=pages)


_FIELDS = "name, photos, cover, problems, consent_date, note"


def folded(text: str) -> str:
    """Return a text in lower case and without accents, for searches."""
    if text.isascii():  # most names: a search folds all of them
        return text.lower()
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))


def add_photo(
    site: Site, database: sqlite3.Connection, person: str, data: bytes, *, who: str, using: Checker | None = None
) -> CheckedPhoto:
    """Write a photo to the folder of a person, who may be new, and return its check.

    A photo that a training would leave out is written, too: its check says why. UsageError for a file that is not a photo, and
    for one that is taken.
    """
    folder, using = folder_of(site, person), using or checker()
    if len(data) > MAX_PHOTO:
        raise UsageError(f"The photo has more than {MAX_PHOTO >> 20} MB.", "Save it at a lower quality.")
    found = check(data, using)
    if not found.digest:
        raise UsageError(f"This file is not a photo that can be used: {found.problem}.", "Use JPEG, PNG, WebP, BMP or PGM.")
    _check_new(database, found.digest, folder.name)
    path = folder / _new_name(data)
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        write_file(path, data)
    except BaseException:
        with suppress(OSError):  # there are other photos
            folder.rmdir()  # a training does not accept an empty folder
        raise
    found = store(database, path, path.stat(), found)
    sync_person(site, database, folder.name)
    trail.record(database, who, "add photo", folder.name, path.name)
    return found


def add_captured(
    site: Site,
    database: sqlite3.Connection,
    person: str,
    images: Sequence[NDArray[np.uint8]],
    *,
    who: str,
    when: datetime,
    using: Checker | None = None,
) -> tuple[Path, ...]:
    """Write the photos of a capture session (BGR) to the folder of a person, all or none, as `edge capture` does."""
    folder, using = folder_of(site, person), using or checker()
    files = write(folder, images, when)
    for file in files:
        checked(database, file, using)
    sync_person(site, database, folder.name)
    trail.record(database, who, "capture photos", folder.name, plural(len(files), "photo"))
    return files


def _check_new(database: sqlite3.Connection, digest: str, person: str) -> None:
    owner = owner_of(database, digest)
    if owner is not None and owner[0] == person:
        raise UsageError("This photo is there already.", "Add another one.")
    if owner is not None:
        hint = "One photo cannot have two names. Move or delete it there first."
        raise UsageError(f"This is a photo of {owner[0]} already ({owner[1]}).", hint)


def _new_name(data: bytes) -> str:
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}{KINDS.get(data[:2], '.pgm')}"


def delete_photo(site: Site, database: sqlite3.Connection, person: str, file: str, *, who: str) -> None:
    """Delete a photo, and the folder with the last one: a training does not accept an empty folder."""
    path = photo_file(site, person, file)
    path.unlink()
    _remove_if_empty(path.parent)
    sync_person(site, database, person)
    trail.record(database, who, "delete photo", person, file)


def move_photo(site: Site, database: sqlite3.Connection, person: str, file: str, to: str, *, who: str) -> str:
    """Move a photo to another person, who may be new. Return its new file name."""
    path, target = photo_file(site, person, file), folder_of(site, to)
    if target.name == person:
        raise UsageError("The photo is there already.", "Choose another person.")
    target.mkdir(mode=0o700, exist_ok=True)
    name = _move(path, target)
    _remove_if_empty(path.parent)
    for changed in (person, target.name):
        sync_person(site, database, changed)
    trail.record(database, who, "move photo", person, f"{file} to {target.name}")
    return name


def _move(path: Path, target: Path) -> str:
    """Move a file to a folder, under another name if it has one like it."""
    name = path.name if not (target / path.name).exists() else f"{path.stem}-{secrets.token_hex(3)}{path.suffix}"
    path.rename(target / name)
    return name


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder in which only hidden files are left, such as those of a file manager."""
    if all(path.name.startswith(".") for path in folder.iterdir()):
        shutil.rmtree(folder)


def choose_face(
    site: Site, database: sqlite3.Connection, person: str, file: str, face: int, *, who: str, using: Checker | None = None
) -> CheckedPhoto:
    """Replace a photo by the part that shows one of its faces, so that a training uses this face."""
    path, using = photo_file(site, person, file), using or checker()
    data = cut_to_face(read_bytes(path), face, using)
    new = path.with_name(_new_name(data))
    write_file(new, data)
    path.unlink()
    found = store(database, new, new.stat(), check(data, using))
    sync_person(site, database, person)
    trail.record(database, who, "choose face", person, f"{file} is now {new.name}")
    return found


def rename(site: Site, database: sqlite3.Connection, name: str, new: str, *, who: str) -> str:
    """Give a person another name: folder, consent, visits. Models, kits and door lists keep the old name until they are made
    again. Return the new name."""
    folder, target = _existing(site, name), folder_of(site, new)
    if target.exists():
        raise UsageError(f"There is a person called {target.name} already.", "Choose another name, or merge the two.")
    with transaction(database):
        database.execute("DELETE FROM people WHERE name = ?", (target.name,))  # a row without a folder
        database.execute("UPDATE people SET name = ? WHERE name = ?", (target.name, name))
        _rename_rows(database, name, target.name)
        trail.record(database, who, "rename person", name, target.name)
        folder.rename(target)
    sync_person(site, database, target.name)
    return target.name


def merge(site: Site, database: sqlite3.Connection, name: str, into: str, *, who: str) -> int:
    """Move all photos of a person to another one, who is the same, and remove the first. Return how many were moved."""
    folder, target = _existing(site, name), _existing(site, into)
    if folder == target:
        raise UsageError("These are the same person.", "Choose another person.")
    moved = [(_move(folder / entry.name, target), entry.name) for entry in photo_files(folder)]
    for path in list(folder.iterdir()):  # other files in the folder
        if not path.name.startswith("."):
            _move(path, target)
    with transaction(database):
        one, other = get(database, name) or Person(name=name), get(database, into) or Person(name=into)
        note = "\n".join(text for text in (other.note, one.note) if text)
        database.execute("DELETE FROM people WHERE name = ?", (name,))
        database.execute(
            "UPDATE people SET consent_date = ?, note = ? WHERE name = ?",
            (other.consent_date or one.consent_date, note[:MAX_NOTE], into),
        )
        for new, old in moved:
            database.execute("UPDATE photos SET person = ?, file = ? WHERE person = ? AND file = ?", (into, new, name, old))
        _rename_rows(database, name, into)
        trail.record(database, who, "merge people", name, into)
    _remove_if_empty(folder)
    for changed in (name, into):
        sync_person(site, database, changed)
    return len(moved)


def _rename_rows(database: sqlite3.Connection, name: str, new: str) -> None:
    database.execute("UPDATE OR REPLACE photos SET person = ? WHERE person = ?", (new, name))
    database.execute("UPDATE OR REPLACE kept_photos SET person = ? WHERE person = ?", (new, name))
    database.execute("UPDATE visits SET label = ? WHERE label = ?", (new, name))
    database.execute("UPDATE visits SET verdict = ? WHERE verdict = ?", (IS + new, IS + name))


def _existing(site: Site, name: str) -> Path:
    folder = folder_of(site, name)
    if not folder.is_dir():
        raise UsageError(f"There are no photos of {folder.name}.", "Check the name.")
    return folder


def set_consent(site: Site, database: sqlite3.Connection, name: str, day: str, note: str, *, who: str) -> None:
    """Set the date of consent (ISO, or empty) and the note of a person."""
    name = check_name(name)
    if day:
        try:
            day = date.fromisoformat(day).isoformat()
        except ValueError:
            raise UsageError(f"{printable(day)} is not a date.", "Write it as 2026-11-18.") from None
    note = note.replace("\r\n", "\n").strip()
    if len(note) > MAX_NOTE:
        raise UsageError(f"The note is longer than {plural(MAX_NOTE, 'letter')}.", "Shorten it.")
    with transaction(database):
        database.execute(
            "INSERT INTO people (name, folder_mtime_ns, photos, consent_date, note) VALUES (?, 0, 0, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET consent_date = excluded.consent_date, note = excluded.note",
            (name, day or None, note),
        )
        trail.record(database, who, "set consent", name, day or "no date")
    sync_person(site, database, name)
