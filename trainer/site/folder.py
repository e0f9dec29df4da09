"""A site: the folder with everything about one installation, used by the commands and by the console alike.

photos/NAME/...    the people, as `trainer fit` reads them
strangers/         photos of people who are not enrolled, for the threshold
models/*.npz       as `trainer fit` writes them, and a result (.json) beside each
kits/*.kit         as `edge-export release` and `build` write them, and a result (.json) beside each
liveness/*.onnx    liveness models that a kit can contain
published.json     which kit was copied to which door
doors.toml         the doors; lists/DOOR.toml is the door list of each
fleet.toml         repository and broker, if the site has a fleet; written by hand
console.db         consent, visits, jobs, users, and the trail of changes
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from edge.errors import UsageError
from edge.text import printable

APPLICATION_ID = 0x4C434C52
VERSION = 1
BUSY_SECONDS = 10.0
SCHEMA = Path(__file__).with_name("schema.sql")
FOLDERS = ("photos", "strangers", "models", "kits", "lists")


class Site:
    """The paths of a site, and its database."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.photos, self.strangers, self.models, self.kits, self.lists = (self.path / name for name in FOLDERS)
        self.doors_file = self.path / "doors.toml"
        self.database_file = self.path / "console.db"

    @classmethod
    def create(cls, path: Path) -> "Site":
        """Open the site at `path`, and make what is missing. A folder with other files in it is refused."""
        site = cls(path)
        if site.path.exists() and not site.is_site() and any(site.path.iterdir()):
            problem = f"{path} is not empty, and has no folder of photos."
            raise UsageError(problem, "Name a new folder, or one that contains photos/NAME/1.jpg.")
        try:
            for folder in (site.path, *(site.path / name for name in FOLDERS)):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path} cannot be made ({error.strerror}).", "Name a folder that you can write to.") from None
        with site.database():
            return site

    @classmethod
    def open(cls, path: Path) -> "Site":
        """Open an existing site."""
        site = cls(path)
        if not site.is_site():
            raise UsageError(f"{path} is not a site.", f"Make one with `trainer console {path}`.")
        return cls.create(path)

    def is_site(self) -> bool:
        return self.photos.is_dir() or self.database_file.is_file()

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open console.db, and make it if it is missing. Outside `transaction`, each statement is written at once."""
        is_new = not self.database_file.exists()
        try:
            if is_new:  # private from the start; SQLite gives its other files the same mode
                os.close(os.open(self.database_file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            with closing(self._connect()) as database:
                try:
                    yield database
                except OSError as error:  # of a photo, a kit ..., while the database was open
                    raise unusable_file(error) from error
        except (sqlite3.DatabaseError, OSError) as error:
            if not isinstance(error, OSError) and error.sqlite_errorcode not in _PLAIN:
                raise
            raise UsageError(
                f"{self.database_file} cannot be used ({printable(str(error))}).",
                "Check free space and permissions, or restore the file from a copy.",
            ) from error

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.database_file, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("PRAGMA secure_delete=ON")  # a deleted person leaves no traces in the file
        database.execute("PRAGMA trusted_schema=OFF")
        (application,), (version,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        if (application, version) == (0, 0):
            with transaction(database):
                if not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:  # else another process was first
                    for statement in SCHEMA.read_text(encoding="utf-8").split(";\n"):
                        database.execute(statement)
                    database.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    database.execute(f"PRAGMA user_version={VERSION}")
        elif (application, version) != (APPLICATION_ID, VERSION):
            database.close()
            raise UsageError(
                f"{self.database_file} belongs to another program or version.", "Install the version that wrote it."
            )
        return database


_PLAIN = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN} | {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_IOERR,
}


def unusable_file(error: OSError) -> UsageError:
    """Return what a person is told if the disk is full, or a file cannot be read or written."""
    return UsageError(
        f"A file of the site cannot be read or written ({printable(str(error))}).", "Check free space and permissions."
    )


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def utc_now() -> str:
    """Return the time as console.db stores it: 2026-11-18T14:03:07Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def containing(text: str) -> str:
    """Return the pattern for `LIKE ? ESCAPE '!'` that finds texts which contain this one."""
    return "%" + re.sub(r"([!%_])", r"!\1", text) + "%"
