"""Delete a person: photos, rows, and what the newest model learned from them. Then search the site for what is left.

    newest model  ->  `trainer.update.forget`: does not depend on the person any more
    photos, index, consent, note  ->  deleted; the database is written anew
    visits  ->  kept without name and picture; trail and job logs  ->  a random word stands for the name
    older models, kits  ->  listed, or deleted if asked: a kit cannot be changed, only built again

The search afterwards is independent of what was deleted. It looks for the names that the person had, for photos with the same
bytes, and for training crops with the same pixels.
"""

import hashlib
import json
import re
import secrets
import shutil
import sqlite3
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.enrol.storage import check_name
from edge.errors import UsageError
from edge.files import write_file
from edge.text import plural, some
from trainer import update
from trainer.data.gallery import crop_digests
from trainer.model import Model
from trainer.site import contents, trail
from trainer.site.contents import Container
from trainer.site.folder import Site, transaction
from trainer.site.photo_index import folder_of, photo_files
from trainer.site.remains import Evidence, Remain, former_names, holds_name, search
from trainer.site.visits import FORGOTTEN, IS
from trainer.types import Say, Stage, silent

LISTED = 10  # files that the summary names


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """The result of `forget`."""

    word: str
    """Stands for the name in the trail."""
    photos: int
    """Photos that were deleted."""
    visits: int
    """Visits that lost name and picture."""
    deleted: tuple[str, ...]
    """Models and kits that were deleted."""
    changed: tuple[str, ...]
    """The model that forgot the person."""
    remains: tuple[Remain, ...]
    """What still contains the person, and what to do about it."""

    def summary(self) -> str:
        """Describe the result in sentences without the name."""
        parts = [f"{self.word}: {plural(self.photos, 'photo')} deleted, {plural(self.visits, 'visit')} without a name now."]
        if self.changed:
            parts.append(f"Forgotten by {', '.join(self.changed)}.")
        if self.deleted:
            parts.append(f"Deleted: {', '.join(self.deleted)}.")
        if self.remains:
            parts.append(f"Still to do: {some([str(remain) for remain in self.remains], ' ', LISTED)}")
        else:
            parts.append("Nothing in this site contains the person any more. Kits on doors and backups are not searched.")
        return " ".join(parts)


def forget(
    site: Site,
    database: sqlite3.Connection,
    name: str,
    *,
    who: str,
    delete_older: bool = False,
    stage: Stage = silent,
    say: Say = silent,
) -> Forgotten:
    """Delete a person. With `delete_older`, also all other models and all kits that contain the person."""
    name = check_name(name)
    names = former_names(database, name)
    models, kits = contents.models(site), contents.kits(site)
    holding = [one for one in (*models, *kits) if names & one.labels]
    folder = folder_of(site, name)
    if not (folder.is_dir() or holding or _has_rows(database, name)):
        raise UsageError("There is no such person.", "Check the name.")
    evidence = _evidence(folder, names, holding, models)
    word = f"deleted-{secrets.token_hex(4)}"

    stage("forget in the newest model", 0, 1)
    changed, deleted = _forget_in_newest(models, names, stage)
    stage("delete photos and rows", 0, 1)
    photos = len(photo_files(folder))
    if folder.is_dir():
        shutil.rmtree(folder)
    if delete_older:
        deleted += _delete(
            [one for one in (*models, *kits) if names & one.labels and one.path.name not in (*changed, *deleted)]
        )
    visits = _delete_rows(database, names, word)
    for file in (*site.models.glob("*.json"), *site.kits.glob("*.json")):
        _scrub_file(file, names, word)
    trail.record(database, who, "delete person", word, plural(photos, "photo"))
    _rewrite(database)

    stage("search what is left", 0, 1)
    remains = search(site, database, evidence)
    for remain in remains[LISTED:]:
        say(str(remain))
    return Forgotten(
        word=word, photos=photos, visits=visits, deleted=tuple(deleted), changed=tuple(changed), remains=tuple(remains)
    )


def _rewrite(database: sqlite3.Connection) -> None:
    """Write the database anew. SQLite overwrites what is deleted, but not the copies that its trees leave between cells."""
    with suppress(sqlite3.OperationalError):  # busy, or no space: the search will find what is left
        database.execute("VACUUM")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _has_rows(database: sqlite3.Connection, name: str) -> bool:
    tables = (("people", "name"), ("photos", "person"), ("visits", "label"), ("trail", "subject"))
    return any(database.execute(f"SELECT 1 FROM {t} WHERE {c} = ? LIMIT 1", (name,)).fetchone() for t, c in tables)


def _evidence(folder: Path, names: frozenset[str], holding: Collection[Container], models: Collection[Container]) -> Evidence:
    """Collect what identifies the person, before anything is deleted."""
    files = {}
    if folder.is_dir():
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                files[hashlib.sha256(path.read_bytes()).hexdigest()] = path.stat().st_size
    crops: set[bytes] = set()
    for one in holding:
        if one in models:
            model = Model.load(one.path)
            own = [i for i, label in enumerate(model.labels) if label in names]
            crops.update(crop_digests(model.crops[i] for i, person in enumerate(model.crop_people) if person in own))
    return Evidence(names=names, files=files, crops=frozenset(crops))


def _forget_in_newest(models: list[Container], names: frozenset[str], stage: Stage) -> tuple[list[str], list[str]]:
    """Return the names of the model that was changed, and of the model that was deleted."""
    if not models or not names & models[0].labels:
        return [], []
    path = models[0].path
    model = Model.load(path)
    for name in sorted(names & models[0].labels):
        if len(model.labels) < 3:  # a model needs two people
            return [], _delete(models[:1])
        try:
            model = update.forget(model, name, stage=stage)
        except UsageError:  # a method whose models cannot be changed: the search will list it
            return [], []
    model.save(path)
    return [path.name], []


def _delete(containers: list[Container]) -> list[str]:
    """Delete models or kits, and the facts beside them. Return their names."""
    for one in containers:
        one.path.unlink()
        one.path.with_suffix(".json").unlink(missing_ok=True)
    return [one.path.name for one in containers]


def _delete_rows(database: sqlite3.Connection, names: frozenset[str], word: str) -> int:
    """Delete the rows of a person. Return how many visits lost their name."""
    database.create_function("holds", 1, lambda text: holds_name(text, names), deterministic=True)
    database.create_function("scrubbed", 1, lambda text: scrubbed(text, names, word), deterministic=True)
    verdicts, marks = {IS + own for own in names}, ", ".join("?" * len(names))
    with transaction(database):
        for own in names:
            database.execute("DELETE FROM photos WHERE person = ?", (own,))
            database.execute("DELETE FROM kept_photos WHERE person = ?", (own,))
            database.execute("DELETE FROM people WHERE name = ?", (own,))
        rows = database.execute(
            f"SELECT id, label, verdict, event FROM visits WHERE label IN ({marks}) OR verdict IN ({marks}) OR holds(event)",
            (*names, *verdicts),
        ).fetchall()
        own_visits = {row["id"] for row in rows if row["label"] in names or row["verdict"] in verdicts}
        for row in rows:
            event = _without(json.loads(row["event"]), names) | ({FORGOTTEN: True} if row["id"] in own_visits else {})
            database.execute("UPDATE visits SET event = ? WHERE id = ?", (json.dumps(event, ensure_ascii=False), row["id"]))
        database.executemany(
            "UPDATE visits SET label = NULL, picture = NULL, verdict = NULL, verdict_file = NULL WHERE id = ?",
            [(number,) for number in own_visits],
        )
        for table, columns in (("trail", ("subject", "details")), ("job_lines", ("line",)), ("jobs", _JOB_TEXTS)):
            for column in columns:
                database.execute(f"UPDATE {table} SET {column} = scrubbed({column}) WHERE holds({column})")
    return len(own_visits)


_JOB_TEXTS = ("options", "message", "result", "stage")


def _without(value: Any, names: frozenset[str]) -> Any:
    """Return a JSON value with None in the place of the names."""
    if isinstance(value, dict):
        return {key: _without(part, names) for key, part in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(part, names) for part in value if not (isinstance(part, str) and part in names)]
    return None if isinstance(value, str) and value in names else value


def scrubbed(text: str, names: frozenset[str], word: str) -> str:
    """Return a text with a word in the place of the names. JSON may have them escaped."""
    for name in sorted(names, key=len, reverse=True):
        for spelling in {name, json.dumps(name)[1:-1]}:
            text = re.sub(rf"(?<!\w){re.escape(spelling)}(?!\w)", word, text)
    return text


def _scrub_file(file: Path, names: frozenset[str], word: str) -> None:
    text = file.read_text(encoding="utf-8", errors="replace")
    if holds_name(text, names):
        write_file(file, scrubbed(text, names, word).encode())
