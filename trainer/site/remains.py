"""Search a site for what is left of a person who was deleted: names, photos, training crops.

Models and kits say who is in them. Text files and the columns of console.db are searched for the names as whole words. The raw
pages of console.db are searched, too, for names of at least MIN_BYTES bytes: shorter ones occur by chance.
"""

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.data.gallery import crop_digests
from trainer.model import Model
from trainer.site import contents
from trainer.site.folder import Site

MIN_BYTES = 6
MAX_TEXT = 64 << 20  # bytes of a text file that is searched
BINARY = (".npz", ".kit", ".db", ".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp")
NOT_OF_PEOPLE = {("users", "name"), ("sessions", "user"), ("trail", "who"), ("jobs", "who")}
"""Columns with the names of users of the console."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What identifies a person."""

    names: frozenset[str]
    files: Mapping[str, int]
    """SHA-256 of each photo file, and its size."""
    crops: frozenset[bytes]
    """SHA-256 of each crop in a model."""


@dataclass(frozen=True)
class Remain:
    """A file that still contains the person."""

    file: str
    """Below the site's folder."""
    what: str
    """What it contains: "model", "kit", "name", "photo" or "unreadable"."""

    def __str__(self) -> str:
        return f"{self.file}: {ADVICE[self.what]}"


ADVICE = {
    "model": "this model contains the person. Delete it.",
    "kit": "this kit contains the person. Build a new one for the doors, and delete this one.",
    "name": "this file contains the name. Remove it there.",
    "photo": "this is one of the deleted photos. Delete it.",
    "unreadable": "this file cannot be read. Delete it if it is not needed.",
}


def former_names(database: sqlite3.Connection, name: str) -> frozenset[str]:
    """Return the names that a person had before, by the trail, and the name itself. Names of others today are left out."""
    found, new = {name}, {name}
    while new:
        marks = ", ".join("?" * len(new))
        rows = database.execute(
            f"SELECT subject FROM trail WHERE action IN ('rename person', 'merge people') AND details IN ({marks})", tuple(new)
        )
        new = {row[0] for row in rows} - found
        found |= new
    others = {row[0] for row in database.execute("SELECT name FROM people")}
    return frozenset(found - (others - {name}))


def holds_name(text: str | None, names: frozenset[str]) -> bool:
    """Whether a text has one of the names as a whole word, plain or escaped as in JSON."""
    if not text:
        return False
    spellings = {spelling for name in names for spelling in (name, json.dumps(name)[1:-1])}
    return any(s in text and re.search(rf"(?<!\w){re.escape(s)}(?!\w)", text) is not None for s in spellings)


def search(site: Site, database: sqlite3.Connection, evidence: Evidence) -> list[Remain]:
    """Return all files of the site that contain the person."""
    found = [*_in_models(site, evidence), *_in_kits(site, evidence)]
    sizes = set(evidence.files.values())
    for path in sorted(site.path.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        size, name = path.stat().st_size, str(path.relative_to(site.path))
        if size in sizes and hashlib.sha256(path.read_bytes()).hexdigest() in evidence.files:
            found.append(Remain(name, "photo"))
        elif holds_name(f"{name}\n{_text(path, site)}", evidence.names):
            found.append(Remain(name, "name"))
    if _in_database(site, database, evidence.names):
        found.append(Remain(site.database_file.name, "name"))
    return found


def _text(path: Path, site: Site) -> str:
    """Return the content of a text file; nothing of others."""
    is_database = path.name.startswith(site.database_file.name)
    if path.suffix.lower() in BINARY or is_database or path.stat().st_size > MAX_TEXT:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _in_models(site: Site, evidence: Evidence) -> Iterator[Remain]:
    for one in contents.models(site):
        name = str(one.path.relative_to(site.path))
        if not one.readable:
            yield Remain(name, "unreadable")
        elif evidence.names & one.labels or (
            evidence.crops and evidence.crops & set(crop_digests(Model.load(one.path).crops))
        ):
            yield Remain(name, "model")


def _in_kits(site: Site, evidence: Evidence) -> Iterator[Remain]:
    for one in contents.kits(site):
        name = str(one.path.relative_to(site.path))
        if not one.readable:
            yield Remain(name, "unreadable")
        elif evidence.names & one.labels:
            yield Remain(name, "kit")


def _in_database(site: Site, database: sqlite3.Connection, names: frozenset[str]) -> bool:
    database.create_function("holds", 1, lambda text: holds_name(text, names), deterministic=True)
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        for column in database.execute(f"PRAGMA table_info({table})").fetchall():
            if column["type"] != "TEXT" or (table, column["name"]) in NOT_OF_PEOPLE:
                continue
            if database.execute(f"SELECT 1 FROM {table} WHERE holds({column['name']}) LIMIT 1").fetchone():
                return True
    return any(_in_pages(site, database, name) for name in names if len(name.encode()) >= MIN_BYTES)


def _in_pages(site: Site, database: sqlite3.Connection, name: str) -> bool:
    """Whether the bytes of the database hold a name more often than the texts that contain it as a part explain."""
    if any(name in text for text in _texts_with(database, name)):
        return False  # a part of another name: its bytes prove nothing
    files = [site.database_file.with_name(site.database_file.name + end) for end in ("", "-wal")]
    return any(path.is_file() and name.encode() in path.read_bytes() for path in files)


def _texts_with(database: sqlite3.Connection, name: str) -> list[str]:
    """Return texts of the database that contain a name as a part of a word."""
    found = []
    for table in [row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]:
        for column in database.execute(f"PRAGMA table_info({table})").fetchall():
            if column["type"] == "TEXT":
                sql = f"SELECT {column['name']} FROM {table} WHERE instr({column['name']}, ?) > 0 LIMIT 1"
                found += [row[0] for row in database.execute(sql, (name,))]
    return found
