"""Looks like an enrolled person: the nearest photo of another person, by the network's vectors of all photos.

LOOKS_ALIKE was chosen on the development half of LFW (2,880 people, at most five photos of each, 12,000 trials). Of new
people, 0.9 % look like one of 300 others, and 6.7 % like one of 2,900. Of people who are enrolled under another name, with
other photos, 97.4 % are found. Without the network, coarse features find only photos that are nearly equal (SAME_PERSON).
"""

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge.enrol.session import SAME_PERSON
from trainer.site.folder import Site
from trainer.site.photos import CheckedPhoto, Vector

LOOKS_ALIKE = 0.47
MOST = 3  # people that are named for a photo
CANDIDATES = 64  # nearest photos among which these are searched

Column = Literal["vector", "likeness"]
LIMITS: dict[Column, float] = {"vector": LOOKS_ALIKE, "likeness": SAME_PERSON}


@dataclass(frozen=True)
class Alike:
    """A photo of another person that a face looks like."""

    person: str
    file: str
    similarity: float


@dataclass
class _Rows:
    """The vectors of all photos of a site, in memory. A changed photo has a new id, and ids are not used again."""

    column: Column
    ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    state: tuple[int, int] = (-1, -1)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, database: sqlite3.Connection) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids and vectors as the table has them now. Only new ones are read."""
        with self.lock:
            # New ids are above all others: with the same number and the same sum, the ids are the same.
            state = tuple(database.execute("SELECT count(*), coalesce(sum(id), 0) FROM photos").fetchone())
            if state != self.state:
                (last,) = self.ids[-1:] if len(self.ids) else (0,)
                new = database.execute(
                    f"SELECT id, {self.column} FROM photos WHERE id > ? AND {self.column} IS NOT NULL ORDER BY id",
                    (int(last),),
                ).fetchall()
                there = np.array([row[0] for row in database.execute("SELECT id FROM photos")], np.int64)
                kept = np.isin(self.ids, there)
                parts = [self.rows[kept]] if kept.any() else []
                if new:
                    parts.append(np.stack([np.frombuffer(row[1], "<f4") for row in new]))
                self.ids = np.concatenate([self.ids[kept], np.array([row[0] for row in new], np.int64)])
                self.rows = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
                self.state = (state[0], state[1])
            return self.ids, self.rows


_CACHE: dict[tuple[Path, Column], _Rows] = {}


def load(site: Site) -> None:
    """Read all vectors into memory, so that the first search does not wait for them."""
    with site.database() as database:
        _CACHE.setdefault((site.path, "vector"), _Rows("vector")).refresh(database)


def find_alike(site: Site, database: sqlite3.Connection, photos: Sequence[CheckedPhoto], name: str) -> list[tuple[Alike, ...]]:
    """Return for each photo the other people that its face looks like, most alike first; `name` is its own person."""
    found: list[tuple[Alike, ...]] = [()] * len(photos)
    columns: tuple[Column, ...] = ("vector", "likeness")
    for column in columns:
        chosen = [i for i, photo in enumerate(photos) if _kind(photo) == column]
        if chosen:
            rows = np.stack([vector for i in chosen if (vector := getattr(photos[i], column)) is not None])
            for i, people in zip(chosen, _nearest(site, database, rows, name, column), strict=True):
                found[i] = people
    return found


def label_of(site: Site, database: sqlite3.Connection, vector: Vector, name: str, column: Column = "vector") -> str | None:
    """Return the other person that a face looks like most, or None."""
    ((*people,),) = _nearest(site, database, vector[None], name, column)
    return people[0].person if people else None


def _kind(photo: CheckedPhoto) -> Column | None:
    if photo.vector is not None:
        return "vector"
    return None if photo.likeness is None else "likeness"


def _nearest(
    site: Site, database: sqlite3.Connection, vectors: NDArray[np.float32], name: str, column: Column
) -> list[tuple[Alike, ...]]:
    """Return for each vector (rows) the photos of other people above the limit: the nearest of each person."""
    ids, rows = _CACHE.setdefault((site.path, column), _Rows(column)).refresh(database)
    own = [row[0] for row in database.execute("SELECT id FROM photos WHERE person = ?", (name,))]
    others = ~np.isin(ids, own)
    if not others.any():
        return [()] * len(vectors)
    similarity = np.where(others, vectors @ rows.T, -1)
    return [_people(database, ids, line, LIMITS[column]) for line in similarity]


def _people(
    database: sqlite3.Connection, ids: NDArray[np.int64], similarity: NDArray[np.float32], limit: float
) -> tuple[Alike, ...]:
    above = np.flatnonzero(similarity > limit)
    best = above[np.argsort(-similarity[above])][:CANDIDATES]
    found: dict[str, Alike] = {}
    for i in best:
        row = database.execute("SELECT person, file FROM photos WHERE id = ?", (int(ids[i]),)).fetchone()
        if row is not None:  # deleted a moment ago
            found.setdefault(row["person"], Alike(row["person"], row["file"], float(similarity[i])))
    return tuple(found.values())[:MOST]
