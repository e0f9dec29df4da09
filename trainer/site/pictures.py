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

from edge.audit.crypto import open_box
from edge.camera.photo import PhotoError
from edge.enrol.storage import check_name
from edge.errors import UsageError
from edge.files import write_file
from trainer.site import people, trail, visits
from trainer.site.alike import Alike, find_alike
from trainer.site.folder import Site, transaction
from trainer.site.photo_index import photo_files
from trainer.site.photos import CheckedPhoto, Checker, check, checker, cut_to_face, view
from trainer.site.visits import IS, STRANGER, Visit

FACE_FILE = "face.png"
SHOWN_PHOTOS = 6  # of the person, beside the picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """A face of a visit's picture, as it would be saved."""

    visit: Visit
    name: str
    """The person that the face is said to be; empty: a stranger."""
    frame: CheckedPhoto
    """The check of the whole picture, with the boxes of its faces."""
    face: int
    """Index of the face."""
    photo: bytes
    """PNG with this face only."""
    check: CheckedPhoto
    """The check of that photo, as for a photo of a person."""
    alike: tuple[Alike, ...]
    """Enrolled people that the face looks like, other than the one that it is said to be."""

    @property
    def number(self) -> int:
        """Number of the face, counted from the left."""
        return self.frame.from_left.index(self.face) + 1

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
        raise UsageError("The picture is sealed.", "Give the private key with --picture-key FILE.")
    return open_box(box, visit.event_id.encode(), key)


def frame_of(database: sqlite3.Connection, number: int, key: bytes | None, *, using: Checker | None = None) -> CheckedPhoto:
    """Return the check of a visit's whole picture, with the boxes of its faces."""
    return check(open_picture(database, number, key), using or checker())


def shown(picture: bytes, most_pixels: int) -> bytes:
    """Return a picture as a new JPEG file whose sides have at most this many pixels."""
    try:
        return view(picture, most_pixels)
    except PhotoError as error:
        raise UsageError(f"The picture cannot be shown: {error}.", "The terminal may have a fault.") from None


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
    if visit.verdict is not None:
        raise _judged_already()
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
    return Look(visit=visit, name=name, frame=frame, face=chosen, photo=photo, check=found, alike=alike)


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
    name = found.name
    verdict = IS + name if name else STRANGER
    claimed = database.execute("UPDATE visits SET verdict = ? WHERE id = ? AND verdict IS NULL", (verdict, number)).rowcount
    if not claimed:
        raise _judged_already()
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
        # The verdict, too: an undo in between would leave a photo that no visit knows.
        database.execute("UPDATE visits SET verdict = ?, verdict_file = ? WHERE id = ?", (verdict, file.name, number))
        trail.record(database, who, "judge visit", _subject(found.visit), f"{verdict}: {file.relative_to(site.path)}")
    return file


def undo(site: Site, database: sqlite3.Connection, number: int, *, who: str) -> bool:
    """Take a verdict back, and remove the photo that it made. Models that were trained with it keep it.

    Return whether the photo was still in its place.
    """
    visit = visits.get(database, number)
    if visit.verdict is None:
        raise UsageError("This visit has no verdict.", "Load the page again: another user may have undone it.")
    name = visit.verdict_name
    file = site.photos / name / (visit.verdict_file or "") if name is not None else _stranger_file(site, visit)
    removed = file.is_file()
    if name is None:
        file.unlink(missing_ok=True)
        with suppress(OSError):  # there are other photos of this stranger, or the folder is gone
            file.parent.rmdir()
    elif removed:
        people.delete_photo(site, database, name, file.name, who=who)
    with transaction(database):
        database.execute("UPDATE visits SET verdict = NULL, verdict_file = NULL WHERE id = ?", (number,))
        trail.record(database, who, "undo verdict", _subject(visit), visit.verdict)
    return removed


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
    return site.strangers / f"visit-{visit.id}-{visit.event_id}" / FACE_FILE  # two doors may send the same event id


def _judged_already() -> UsageError:
    return UsageError("This visit has a verdict already.", "Load the page again. To change the verdict, undo it first.")


def _subject(visit: Visit) -> str:
    return f"{visit.door}, {visit.utc}, {visit.label or 'unknown'}"
