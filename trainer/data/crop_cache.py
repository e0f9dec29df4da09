"""The crops of photo files, kept between trainings: a photo that was read before needs no decoding and no face detection.

A crop belongs to the digest of its file, the settings, and the version of this program. The file shows faces: only its owner
can read it, and `keep_only_used` removes the crops of photos that are gone.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import PhotoError

_TABLE = """CREATE TABLE IF NOT EXISTS crops (
    file BLOB NOT NULL, settings TEXT NOT NULL, rejected TEXT, remarks TEXT, digest BLOB, shape TEXT, pixels BLOB,
    PRIMARY KEY (file, settings))"""


@dataclass(frozen=True, eq=False)
class MadeCrop:
    """The crop of a photo."""

    crop: NDArray[np.uint8]
    """(H, W), or (H, W, 3)."""
    digest: bytes
    """Of the whole photo, decoded."""
    remarks: tuple[str, ...]
    """What was changed, for the user."""


class CropCache:
    """Crops by the digest of their file: `with opened(path) as cache`."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._used: set[tuple[bytes, str]] = set()

    def made(self, data: bytes, *, settings: str, make: Callable[[bytes], MadeCrop]) -> MadeCrop:
        """Return the crop of a file with this content. A rejected photo raises the PhotoError that `make` raised."""
        key = hashlib.sha256(data).digest(), f"{version('lclrr-edge')} {settings}"
        self._used.add(key)
        row = self._database.execute("SELECT * FROM crops WHERE file = ? AND settings = ?", key).fetchone()
        if row is None:
            row = self._new(key, data, make)
        _, _, rejected, remarks, digest, shape, pixels = row
        if rejected is not None:
            raise PhotoError(rejected)
        crop = np.frombuffer(pixels, np.uint8).reshape([int(side) for side in shape.split("x")])
        return MadeCrop(crop, digest, tuple(remarks.splitlines()))

    def _new(self, key: tuple[bytes, str], data: bytes, make: Callable[[bytes], MadeCrop]) -> tuple[object, ...]:
        row: tuple[object, ...]
        try:
            found = make(data)
        except PhotoError as error:
            row = (*key, str(error), None, None, None, None)
        else:
            shape = "x".join(map(str, found.crop.shape))
            row = (*key, None, "\n".join(found.remarks), found.digest, shape, found.crop.tobytes())
        self._database.execute("INSERT OR REPLACE INTO crops VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return row

    def keep_only_used(self) -> None:
        """Remove all crops that were not asked for since the cache was opened."""
        rows = self._database.execute("SELECT file, settings FROM crops").fetchall()
        unused = [row for row in rows if row not in self._used]
        self._database.executemany("DELETE FROM crops WHERE file = ? AND settings = ?", unused)

    def remove(self, files: Collection[bytes]) -> set[bytes]:
        """Remove the crops of files with these digests. Return the digests of the crops (gallery.crop_digests)."""
        gone: set[bytes] = set()
        for file in files:
            rows = self._database.execute("SELECT pixels FROM crops WHERE file = ? AND pixels IS NOT NULL", (file,))
            gone.update(hashlib.sha256(pixels).digest() for (pixels,) in rows)
            self._database.execute("DELETE FROM crops WHERE file = ?", (file,))
        return gone


@contextmanager
def opened(path: Path) -> Iterator[CropCache]:
    """Open the cache in a file, and make it if it is missing. A damaged file is replaced: it can be made again."""
    try:
        database = _connect(path)
    except sqlite3.DatabaseError:
        path.unlink(missing_ok=True)
        database = _connect(path)
    with closing(database):
        try:
            yield CropCache(database)
        finally:
            if database.in_transaction:
                database.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    database = sqlite3.connect(path, isolation_level=None, timeout=10.0)
    try:
        database.execute("PRAGMA secure_delete=ON")
        database.execute("PRAGMA synchronous=OFF")
        database.execute("PRAGMA trusted_schema=OFF")
        database.execute(_TABLE)
        database.execute("BEGIN IMMEDIATE")
    except BaseException:
        database.close()
        raise
    return database
