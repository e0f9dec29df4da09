"""A second look at the sealed picture of a visit, and what follows from it: a stranger, or a training photo of a person.

`look` shows what would be saved. `judge` saves it, and only what was looked at. `undo` removes it again. A door learns nothing
from its visits by itself: each photo needs a person who looked at it.
"""

import hashlib
import hmac
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import cv2

from edge.audit.crypto import open_box
from edge.camera.photo import PhotoError
from edge.enrol.storage import check_name
from edge.errors import UsageError
from edge.files import write_file
from trainer.site import people, trail, visits
from trainer.site.alike import Alike, find_alike
from trainer.site.folder import Site, transaction
from trainer.site.photo_index import photo_files
from trainer.site.photos import AT_ONCE, CheckedPhoto, Checker, check, checker, cut_to_face, decoded
from trainer.site.visits import IS, STRANGER, Visit

SHOWN_QUALITY = 85  # JPEG
FACE_FILE = "face.png"
SHOWN_PHOTOS = 6  # of the person, beside the picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """A face of a visit's picture, as it would be saved."""

    visit: Visit
    frame: CheckedPhoto
    """The check of the whole picture, with the boxes of its faces."""
    face: int
    """Index of the face."""
    photo: bytes
    """PNG with this face only."""
    check: CheckedPhoto
    """The check of that photo, as for a photo of a person."""
    alike: tuple[Alike, ...]
    """Enrolled people whom the face looks like, other than the one that it is said to be."""

    @property
    def seen(self) -> str:
        """Digest of the photo: `judge` saves only what was looked at."""
        return hashlib.sha256(self.photo).hexdigest()


def open_picture(database: sqlite3.Connection, number: int, key: bytes | None) -> bytes:
    """Return the picture of a visit: the whole frame, as a JPEG file."""
    visit = visits.get(database, number)
    (box,) = database.execute("SELECT picture FROM visits WHERE id = ?", (visit.id,)).fetchone()
    if box is None:
        raise UsageError("This visit has no picture.", "Import the audit log of the door, if it keeps sealed pictures.")
    if key is None:
        raise UsageError("The picture is sealed.", "Give the private key: --picture-key FILE.")
    return open_box(box, visit.event_id.encode(), key)


def shown(picture: bytes, most_pixels: int) -> bytes:
    """Return a picture as a new JPEG file whose sides have at most this many pixels."""
    with AT_ONCE:
        try:
            image = decoded(picture)
        except PhotoError as error:
            raise UsageError(f"The picture cannot be shown: {error}.", "The terminal may have a fault.") from None
        scale = min(1.0, most_pixels / max(image.shape[:2]))
        size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, (cv2.IMWRITE_JPEG_QUALITY, SHOWN_QUALITY))[1].tobytes()


def look(
    site: Site,
    database: sqlite3.Connection,
    number: int,
    key: bytes | None,
    *,
    name: str = "",
    face: int | None = None,
    using: Checker | None = None,
) -> Look:
    """Return what a verdict on a visit would save. `name` is the person that the face is said to be; empty: a stranger.

    `face` is an index into `Look.frame.faces`; by default, it is the face that the picture is meant to show.
    """
    using = using or checker()
    visit = visits.get(database, number)
    if name:
        name = _enrolled(site, name)
    picture = open_picture(database, number, key)
    frame = check(picture, using)
    if not frame.faces:
        raise UsageError("No face is found in the picture.", "Nothing can be learned from it.")
    chosen = face if face is not None else frame.meant or 0
    photo = cut_to_face(picture, chosen, using)
    found = check(photo, using)
    (alike,) = find_alike(site, database, [found], name)
    return Look(visit=visit, frame=frame, face=chosen, photo=photo, check=found, alike=alike)


def judge(
    site: Site,
    database: sqlite3.Connection,
    number: int,
    key: bytes | None,
    *,
    who: str,
    seen: str,
    name: str = "",
    face: int | None = None,
    using: Checker | None = None,
) -> Path:
    """Save the face of a visit as a training photo of `name`, or without a name as a stranger. Return the file.

    `seen` is that of the Look that the operator saw.
    """
    using = using or checker()
    found = look(site, database, number, key, name=name, face=face, using=using)
    if not hmac.compare_digest(found.seen.encode(), seen.encode()):
        raise UsageError("The face is not the one that was shown.", "Look at the picture again.")
    name = _enrolled(site, name) if name else ""
    verdict = IS + name if name else STRANGER
    claimed = database.execute("UPDATE visits SET verdict = ? WHERE id = ? AND verdict IS NULL", (verdict, number)).rowcount
    if not claimed:
        raise UsageError("This visit has a verdict already.", "Undo it first.")
    try:
        if name:
            file = site.photos / name / people.add_photo(site, database, name, found.photo, who=who, using=using).file
        else:
            file = _stranger_file(site, found.visit)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_file(file, found.photo)
    except BaseException:
        database.execute("UPDATE visits SET verdict = NULL WHERE id = ?", (number,))
        raise
    with transaction(database):
        database.execute("UPDATE visits SET verdict_file = ? WHERE id = ?", (file.name, number))
        trail.record(database, who, "judge visit", _subject(found.visit), f"{verdict}: {file.relative_to(site.path)}")
    return file


def undo(site: Site, database: sqlite3.Connection, number: int, *, who: str) -> None:
    """Take a verdict back, and remove the photo that it made. Models that were trained with it keep it."""
    visit = visits.get(database, number)
    if visit.verdict is None:
        raise UsageError("This visit has no verdict.", "Load the page again: somebody may have undone it.")
    name = visit.verdict_name
    if name is not None and visit.verdict_file is not None:
        if (site.photos / name / visit.verdict_file).is_file():
            people.delete_photo(site, database, name, visit.verdict_file, who=who)
    elif name is None:
        file = _stranger_file(site, visit)
        file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody added other photos of this stranger, or removed the folder
            file.parent.rmdir()
    with transaction(database):
        database.execute("UPDATE visits SET verdict = NULL, verdict_file = NULL WHERE id = ?", (number,))
        trail.record(database, who, "undo verdict", _subject(visit), visit.verdict)


def photos_of(site: Site, name: str | None) -> list[str]:
    """Return the names of some photo files of a person, for comparison; none if there is no such person."""
    if name is None:
        return []
    try:
        return [entry.name for entry in photo_files(site.photos / check_name(name))][:SHOWN_PHOTOS]
    except UsageError:
        return []


def _enrolled(site: Site, name: str) -> str:
    """Return the name of a person of the site. A misspelled name must not make a new person."""
    name = check_name(name.strip())
    if not (site.photos / name).is_dir():
        raise UsageError(f"There is no person called {name}.", "Check the spelling, or add the person first.")
    return name


def _stranger_file(site: Site, visit: Visit) -> Path:
    """A folder for each visit: in training, each folder of strangers is one person."""
    return site.strangers / f"visit-{visit.event_id}" / FACE_FILE


def _subject(visit: Visit) -> str:
    return f"{visit.door}, {visit.utc}, {visit.label or 'unknown'}"
