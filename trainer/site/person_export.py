"""All that a site holds about one person, as a ZIP for that person: photos, crops, consent, note, visits, changes, models."""

import json
import sqlite3
import zipfile
from pathlib import Path
from typing import BinaryIO

from edge.audit.crypto import open_box
from edge.enrol.storage import check_name
from edge.errors import EdgeError, UsageError
from trainer.site import contents, people, trail, visits
from trainer.site.folder import Site
from trainer.site.photo_index import folder_of, photo_files, stored
from trainer.site.photos import CheckedPhoto
from trainer.site.remains import former_names
from trainer.site.visits import Visit


def export_person(
    site: Site, database: sqlite3.Connection, name: str, file: BinaryIO, *, who: str, picture_key: bytes | None = None
) -> int:
    """Write the ZIP. Return the number of files in it. Pictures of visits that the key does not open stay sealed."""
    name = check_name(name)
    folder, person = folder_of(site, name), people.get(database, name)
    names = sorted(former_names(database, name))
    own_visits = [visit for own in names for visit in visits.of_person(database, own)]
    if person is None and not own_visits and not folder.is_dir():
        raise UsageError("There is no such person.", "Check the name.")
    checks = stored(database, folder)
    with zipfile.ZipFile(file, "w") as archive:
        for entry in photo_files(folder):
            archive.write(entry.path, f"photos/{entry.name}")
            checked = checks.get(entry.name)
            if checked is not None and checked.crop:
                archive.writestr(f"crops/{Path(entry.name).stem}.jpg", checked.crop)
        about = {
            "name": name,
            "former names": [other for other in names if other != name],
            "consent date": None if person is None else person.consent_date,
            "note": "" if person is None else person.note,
            "photos": {file: _facts(photo) for file, photo in checks.items()},
            "models": [one.path.name for one in contents.models(site) if one.labels & set(names)],
            "kits": [one.path.name for one in contents.kits(site) if one.labels & set(names)],
        }
        _write_json(archive, "person.json", about)
        _write_json(archive, "visits.json", [vars(visit) | {"event": event} for visit, event, _ in own_visits])
        for visit, _, box in own_visits:
            if box is not None:
                picture = _opened(visit, box, picture_key)
                archive.writestr(f"visits/{visit.id}.{'sealed' if picture is None else 'jpg'}", picture or box)
        _write_json(archive, "changes.json", _changes(database, names))
        number = len(archive.namelist())
    trail.record(database, who, "export person", name)
    return number


def _opened(visit: Visit, box: bytes, key: bytes | None) -> bytes | None:
    """Return the picture of a visit, or None if the key does not open it."""
    if key is None:
        return None
    try:
        return open_box(box, visit.event_id.encode(), key)
    except EdgeError:
        return None


def _facts(photo: CheckedPhoto | None) -> dict[str, object]:
    if photo is None:
        return {}
    vector = None if photo.vector is None else [round(float(value), 6) for value in photo.vector]
    size = [photo.width, photo.height]
    return {"size": size, "problem": photo.problem, "warnings": list(photo.warnings), "network vector": vector}


def _changes(database: sqlite3.Connection, names: list[str]) -> list[dict[str, object]]:
    marks = ", ".join("?" * len(names))
    rows = database.execute(
        f"SELECT id, utc, who, action, subject, details FROM trail WHERE subject IN ({marks}) ORDER BY id", names
    )
    return [vars(trail.Change(*row)) for row in rows]


def _write_json(archive: zipfile.ZipFile, name: str, value: object) -> None:
    archive.writestr(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
