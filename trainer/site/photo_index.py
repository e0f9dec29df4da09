"""The photos of people in console.db: what the check of each file found, until the file changes.

Near-duplicates are photos of one person whose coarse features are closer than edge.enrol.session.DUPLICATE: they add nothing
to a training. The table is an index: without it, the files are checked again.
"""

import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.camera.photo import SUFFIXES
from edge.enrol.session import DUPLICATE
from edge.enrol.storage import check_name
from edge.errors import UsageError
from edge.files import read_bytes
from trainer.site.folder import Site, transaction
from trainer.site.photos import VERSION, CheckedPhoto, Checker, Vector, check

COLUMNS = "file, problem, digest, facts, vector, likeness, crop"


def folder_of(site: Site, name: str) -> Path:
    """Return the folder of a person, who may be new. UsageError if the name is not valid, or the folder is a link."""
    folder = site.photos / check_name(name)
    if folder.is_symlink():
        raise UsageError(f"{folder} is a symbolic link.", "Replace it by a folder.")
    return folder


def photo_files(folder: Path) -> list[os.DirEntry[str]]:
    """Return the files of a person's folder that a training reads, sorted by name; none if there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if is_photo_name(entry.name) and entry.is_file()), key=lambda e: e.name)
    except FileNotFoundError:
        return []


def is_photo_name(name: str) -> bool:
    """Whether a training reads a file of this name."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".") and "/" not in name and "\0" not in name


def photo_file(site: Site, person: str, file: str) -> Path:
    """Return the path of a photo. UsageError if there is none."""
    path = folder_of(site, person) / file
    if not is_photo_name(file) or not path.is_file():
        raise UsageError("There is no such photo.", "Load the page again: it may have been deleted.")
    return path


def stored(database: sqlite3.Connection, folder: Path) -> dict[str, CheckedPhoto | None]:
    """Return each photo of a person's folder, as it was checked; None if it was changed since, or not checked yet."""
    rows = {
        row["file"]: row
        for row in database.execute(f"SELECT {COLUMNS}, mtime_ns, bytes, version FROM photos WHERE person = ?", (folder.name,))
    }
    return {entry.name: _current(rows.get(entry.name), entry.stat()) for entry in photo_files(folder)}


def stored_crop(database: sqlite3.Connection, path: Path) -> bytes | None:
    """Return the crop of a photo; None if it was changed since its check, or not checked yet."""
    row = database.execute(
        "SELECT mtime_ns, bytes, version, crop FROM photos WHERE person = ? AND file = ?", (path.parent.name, path.name)
    ).fetchone()
    return bytes(row["crop"]) if row is not None and _is_current(row, path.stat()) else None


def checked(database: sqlite3.Connection, path: Path, using: Checker) -> CheckedPhoto:
    """Return the check of a photo, from the table or by checking it now."""
    row = database.execute(
        f"SELECT {COLUMNS}, mtime_ns, bytes, version FROM photos WHERE person = ? AND file = ?", (path.parent.name, path.name)
    ).fetchone()
    found = path.stat()
    return _current(row, found) or store(database, path, found, check(read_bytes(path), using))


def store(database: sqlite3.Connection, path: Path, found: os.stat_result, photo: CheckedPhoto) -> CheckedPhoto:
    """Write the check of a photo to the table. Return it with its file name."""
    facts = {"size": [photo.width, photo.height], "faces": photo.faces, "meant": photo.meant, "warnings": photo.warnings}
    row = {
        "person": path.parent.name,
        "file": path.name,
        "mtime_ns": found.st_mtime_ns,
        "bytes": found.st_size,
        "version": VERSION,
        "problem": photo.problem,
        "digest": photo.digest,
        "facts": json.dumps(facts),
        "vector": _blob(photo.vector),
        "likeness": _blob(photo.likeness),
        "crop": photo.crop,
    }
    values = ", ".join(f":{column}" for column in row)
    with transaction(database):
        database.execute(f"INSERT OR REPLACE INTO photos ({', '.join(row)}) VALUES ({values})", row)
        count_problems(database, path.parent.name)
    return replace(photo, file=path.name)


def count_problems(database: sqlite3.Connection, person: str) -> None:
    """Write to the table of people how many photos of a person a training leaves out."""
    database.execute(
        "UPDATE people SET problems = (SELECT count(*) FROM photos WHERE person = name AND problem IS NOT NULL)"
        " WHERE name = ?",
        (person,),
    )


def owner_of(database: sqlite3.Connection, digest: str, *, besides: str = "") -> tuple[str, str] | None:
    """Return person and file of a photo with the same pixels, of a person other than `besides`; None if there is none.

    A training stops if one photo has two names.
    """
    row = database.execute(
        "SELECT person, file FROM photos WHERE digest = ? AND digest != '' AND person != ?", (digest, besides)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def near_duplicates(photos: Sequence[CheckedPhoto]) -> dict[str, tuple[str, ...]]:
    """Return for each photo of a person that nearly repeats others the files of these, most similar first."""
    usable = [photo for photo in photos if photo.likeness is not None]
    if len(usable) < 2:
        return {}
    rows = np.stack([photo.likeness for photo in usable if photo.likeness is not None])
    similarity = rows @ rows.T
    np.fill_diagonal(similarity, -1)
    order = np.argsort(-similarity, axis=1)
    pairs = {
        photo.file: tuple(usable[j].file for j in order[i] if similarity[i, j] > DUPLICATE) for i, photo in enumerate(usable)
    }
    return {file: others for file, others in pairs.items() if others}


def _current(row: sqlite3.Row | None, found: os.stat_result) -> CheckedPhoto | None:
    return None if row is None or not _is_current(row, found) else _photo(row)


def _is_current(row: sqlite3.Row, found: os.stat_result) -> bool:
    return (row["mtime_ns"], row["bytes"], row["version"]) == (found.st_mtime_ns, found.st_size, VERSION)


def _photo(row: sqlite3.Row) -> CheckedPhoto:
    facts: dict[str, Any] = json.loads(row["facts"])
    return CheckedPhoto(
        file=row["file"],
        width=facts["size"][0],
        height=facts["size"][1],
        faces=tuple((left, top, right, bottom) for left, top, right, bottom in facts["faces"]),
        meant=facts["meant"],
        problem=row["problem"],
        warnings=tuple(facts["warnings"]),
        digest=row["digest"],
        crop=row["crop"],
        likeness=_vector(row["likeness"]),
        vector=_vector(row["vector"]),
    )


def _blob(vector: Vector | None) -> bytes | None:
    return None if vector is None else vector.astype("<f4").tobytes()


def _vector(blob: bytes | None) -> Vector | None:
    return None if blob is None else np.frombuffer(blob, "<f4")
