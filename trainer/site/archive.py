"""Import many people: a folder or a ZIP with a folder of photos per person.

A ZIP is checked before anything is read from it: number and size of its entries, their ratio to the file, names, links. Each
person is written in one step: a folder that begins with a dot is filled, and gets its name at the end.
"""

import secrets
import shutil
import sqlite3
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edge.camera.photo import MAX_PIXELS, measure
from edge.enrol.storage import check_name
from edge.errors import EdgeError, UsageError
from edge.files import read_bytes, write_file
from edge.text import plural, printable, same_spelling, some
from trainer.data.archives import max_unpacked
from trainer.site import people, trail
from trainer.site.folder import Site
from trainer.site.photo_index import checked, is_photo_name, owner_of, photo_files
from trainer.site.photos import MAX_PHOTO, Checker, checker
from trainer.types import Say, Stage, silent

MAX_ENTRIES = 200_000
MAX_NAME = 1000  # letters of the name of an entry
MAX_DEPTH = 8
LISTED = 20
NEW = ".import-"
"""First letters of a folder that is being filled."""


@dataclass(frozen=True)
class _Photo:
    """A photo to import."""

    person: str
    file: str
    read: Callable[[], bytes]


@dataclass
class Imported:
    """What an import did."""

    people: list[str] = field(default_factory=list)
    """New people."""
    photos: int = 0
    """Photos that were written."""
    conflicts: list[str] = field(default_factory=list)
    """People who are there already. Their photos were added if that was asked for, and left out otherwise."""
    added: bool = False
    rejected: list[str] = field(default_factory=list)
    """Files that were left out, with the reason."""
    problems: int = 0
    """Photos that a training leaves out."""
    same_photos: list[str] = field(default_factory=list)
    """Photos that two people have: a training stops."""

    def summary(self) -> str:
        """Describe the result in sentences."""
        parts = [f"{plural(len(self.people), 'new person', 'new people')}, {plural(self.photos, 'photo')}."]
        if self.conflicts:
            what = "their photos were added" if self.added else "left out"
            parts.append(f"There already, {what}: {some(self.conflicts, most=LISTED)}.")
        if self.rejected:
            parts.append(f"{plural(len(self.rejected), 'file')} left out: {some(self.rejected, most=LISTED)}.")
        if self.problems:
            parts.append(f"{plural(self.problems, 'photo')} cannot be used for training: see the people with problems.")
        if self.same_photos:
            parts.append(f"The same photo has two names, delete one: {some(self.same_photos, '; ', most=LISTED)}.")
        return " ".join(parts)


def import_people(
    site: Site,
    database: sqlite3.Connection,
    source: Path,
    *,
    who: str,
    add: bool = False,
    using: Checker | None = None,
    stage: Stage = silent,
    say: Say = silent,
) -> Imported:
    """Import a folder or a ZIP. With `add`, people who are there already get the photos, too. Then check all new photos."""
    done = Imported(added=add)
    people.sync(site, database)
    for left in site.photos.glob(f"{NEW}*"):  # of an import that was ended from outside
        shutil.rmtree(left)
    with _photos(source, done) as photos:
        by_person: dict[str, list[_Photo]] = {}
        for photo in photos:
            by_person.setdefault(photo.person, []).append(photo)
        if not by_person:
            raise UsageError(f"{source.name} contains no photos of people.", "It needs a folder for each person: anna/1.jpg.")
        written = []
        for number, (name, own) in enumerate(sorted(by_person.items())):
            stage("import people", number, len(by_person))
            written += _import_person(site, database, name, own, add, done, who)
    _check_all(database, written, using or checker(say), done, stage)
    return done


def _import_person(
    site: Site, database: sqlite3.Connection, name: str, photos: list[_Photo], add: bool, done: Imported, who: str
) -> list[Path]:
    """Write the photos of one person, all or none. Return their paths."""
    target = site.photos / name
    if target.exists() or target.is_symlink():
        done.conflicts.append(name)
        if not add or target.is_symlink():
            return []
    folder = site.photos / f"{NEW}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    try:
        for photo in photos:
            data, file = photo.read(), folder / photo.file
            if problem := _problem(data):
                done.rejected.append(f"{printable(name)}/{printable(photo.file)} ({problem})")
            elif not (file.exists() and file.read_bytes() == data):
                write_file(_free(file), data)
        written = _put_in_place(folder, target)
    finally:
        if folder.exists():
            shutil.rmtree(folder)
    if written:
        people.sync_person(site, database, name)
        trail.record(database, who, "import photos", name, plural(len(written), "photo"))
        done.photos += len(written)
        if name not in done.conflicts:
            done.people.append(name)
    return written


def _put_in_place(folder: Path, target: Path) -> list[Path]:
    files = sorted(path.name for path in folder.iterdir())
    if not files:
        return []
    if not target.exists():
        folder.rename(target)
        return [target / file for file in files]
    moved = []
    for file in files:
        new = target / file
        if new.exists() and new.read_bytes() == (folder / file).read_bytes():
            continue
        moved.append((folder / file).rename(_free(new)))
    return moved


def _free(file: Path) -> Path:
    """Return the path, or one like it if there is such a file: folders of two years may have the same person and file."""
    return file.with_name(f"{file.stem}-{secrets.token_hex(3)}{file.suffix}") if file.exists() else file


def _problem(data: bytes) -> str:
    """Return why a file is not imported, by its header; empty if it is."""
    pixels, is_complete = measure(data)
    if len(data) > MAX_PHOTO or pixels > MAX_PIXELS:
        return "too large"
    return "" if pixels and is_complete else "not a readable image"


def _check_all(database: sqlite3.Connection, written: list[Path], using: Checker, done: Imported, stage: Stage) -> None:
    for number, path in enumerate(written):
        stage("check photos", number, len(written))
        photo = checked(database, path, using)
        done.problems += not photo.usable
        other = owner_of(database, photo.digest, besides=path.parent.name)
        if other is not None:
            done.same_photos.append(f"{path.parent.name}/{path.name} and {'/'.join(other)}")


def check_all(site: Site, database: sqlite3.Connection, *, using: Checker | None = None, stage: Stage = silent) -> Imported:
    """Check all photos of a site that were not checked yet. The result counts those that a training leaves out."""
    using = using or checker()
    people.sync(site, database)
    paths = [Path(entry.path) for name in people.names(database) for entry in photo_files(site.photos / name)]
    done = Imported(photos=len(paths))
    _check_all(database, paths, using, done, stage)
    return done


@contextmanager
def _photos(source: Path, done: Imported) -> Iterator[list[_Photo]]:
    """Yield the photos of a folder or ZIP. UsageError if it is neither, or not safe to read."""
    if source.is_dir():
        yield _folder_photos(source, done)
        return
    try:
        with zipfile.ZipFile(source) as archive:
            members = _checked_members(archive, source)
            yield [photo for member in members if (photo := _zip_photo(archive, member, done)) is not None]
    except (zipfile.BadZipFile, OSError, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        if isinstance(error, EdgeError):
            raise
        raise UsageError(f"{source.name} cannot be read as a ZIP file.", "Pack the folders again.") from error


def _folder_photos(source: Path, done: Imported) -> list[_Photo]:
    found = []
    for path in sorted(source.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        photo = _named_photo(path.relative_to(source.parent if path.parent == source else source).as_posix(), done)
        if photo is not None:
            found.append(_Photo(*photo, lambda path=path: read_bytes(path, MAX_PHOTO + 1)))  # type: ignore[misc]
        if len(found) > MAX_ENTRIES:
            raise UsageError(f"The folder has more than {MAX_ENTRIES:,} photos.", "Import it in parts.")
    return found


def _checked_members(archive: zipfile.ZipFile, source: Path) -> list[zipfile.ZipInfo]:
    members, packed = archive.infolist(), source.stat().st_size
    again = "Pack only the folders of photos again."
    if len(members) > MAX_ENTRIES:
        raise UsageError(f"The ZIP file has more than {MAX_ENTRIES:,} entries.", "Import it in parts.")
    if sum(member.file_size for member in members) > max_unpacked(packed):
        raise UsageError("The ZIP file would unpack to far more than its own size.", again)
    for member in members:
        path = PurePosixPath(member.filename)
        if len(member.filename) > MAX_NAME or path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise UsageError(f"The ZIP file has an entry with an unsafe name: {printable(member.filename)[:80]}.", again)
        if len(path.parts) > MAX_DEPTH:
            raise UsageError("The ZIP file has folders inside folders inside folders.", again)
        if stat.S_ISLNK(member.external_attr >> 16):
            raise UsageError("The ZIP file contains a symbolic link.", again)
        if member.flag_bits & 0x1:
            raise UsageError("The ZIP file is encrypted.", "Unpack it, and import the folder.")
    return [member for member in members if not member.is_dir()]


def _zip_photo(archive: zipfile.ZipFile, member: zipfile.ZipInfo, done: Imported) -> _Photo | None:
    named = _named_photo(member.filename, done)
    if named is None:
        return None

    def read() -> bytes:
        with archive.open(member) as file:
            return file.read(min(member.file_size, MAX_PHOTO) + 1)

    return _Photo(*named, read)


def _named_photo(name: str, done: Imported) -> tuple[str, str] | None:
    """Return person and file name of an entry such as all/anna/1.jpg; None if it is not a photo of a person."""
    *folders, file = PurePosixPath(name).parts
    if file.startswith(".") or any(folder.startswith((".", "__MACOSX")) for folder in folders):
        return None
    if not is_photo_name(file):
        done.rejected.append(f"{printable(name)} (not a photo)")
        return None
    if not folders:
        done.rejected.append(f"{printable(name)} (not in the folder of a person)")
        return None
    try:
        return check_name(folders[-1]), same_spelling(check_name(file))
    except UsageError:
        done.rejected.append(f"{printable(name)} (the name is not valid)")
        return None
