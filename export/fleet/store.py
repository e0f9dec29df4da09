"""The files of a repository on the publisher's computer.

REPO/metadata/VERSION.ROLE.json, REPO/metadata/timestamp.json    for every terminal
REPO/targets/GROUP/HASH.NAME                                     for every terminal
REPO/publisher/settings.json, pending/ROLE.json                  only for the publisher

Metadata and targets are readable by the group of the folder, for a web server: kits describe faces. Nothing that a terminal
may have seen is ever written again with other contents, except timestamp.json.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path

from edge.errors import FleetError, UsageError, require
from edge.files import locked_folder, read_bytes, write_file
from edge.fleet.documents import MAX_BYTES

FOLDERS = ("metadata", "targets", "publisher")
FOLDER_MODE, FILE_MODE = 0o750, 0o640
PRIVATE_FOLDER = 0o700
MAX_METADATA = 5_000_000  # what clients of `tuf` read; terminals accept `documents.MAX_BYTES`
MAX_SETTINGS = 1 << 16
MAX_DAYS = 3650.0
_METADATA_NAME = re.compile(r"([1-9][0-9]{0,9})\.([a-z0-9_-]+)\.json")


@dataclass(frozen=True, kw_only=True)
class Lifetimes:
    """After how many days new metadata expires."""

    timestamp: float = 1.0
    """A terminal notices a frozen server after this time."""
    snapshot: float = 7.0
    targets: float = 90.0
    """Also of the groups."""
    root: float = 365.0

    def __post_init__(self) -> None:
        for item in fields(self):
            days = getattr(self, item.name)
            require(0 < days <= MAX_DAYS, f"The lifetime of {item.name} must be above 0 and at most {MAX_DAYS:g} days.")

    def of(self, role: str) -> timedelta:
        return timedelta(days=getattr(self, role if role in self.__dataclass_fields__ else "targets"))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a repository remembers for its commands."""

    keys: Path
    """Folder of the private keys."""
    lifetimes: Lifetimes = Lifetimes()


class Store:
    """The paths of a repository. Knows nothing about the contents of metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.metadata, self.targets, self.own = (self.path / name for name in FOLDERS)
        self.pending, self.settings_file = self.own / "pending", self.own / "settings.json"

    @classmethod
    def open(cls, path: Path) -> "Store":
        store = cls(path)
        if not store.settings_file.is_file() or not (store.metadata / "timestamp.json").is_file():
            raise FleetError(f"{path} is not a complete repository.", f"Make one with `edge-export fleet init {path}`.")
        return store

    @classmethod
    def create(cls, path: Path, settings: Settings) -> "Store":
        """Make the folders of a new repository. An existing folder must be empty; its group and mode stay."""
        store = cls(path)
        try:
            if store.path.exists() and any(store.path.iterdir()):
                raise UsageError(f"{path} is not empty.", "Name a new folder.")
            store.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            store.metadata.mkdir(mode=FOLDER_MODE)
            store.targets.mkdir(mode=FOLDER_MODE)
            store.own.mkdir(mode=PRIVATE_FOLDER)
            store.pending.mkdir(mode=PRIVATE_FOLDER)
        except OSError as error:
            raise UsageError(f"{path} cannot be made ({error.strerror}).", "Name a folder that you can write to.") from None
        store.write_settings(settings)
        return store

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands waiting while this one reads and writes."""
        try:
            with locked_folder(self.own):
                yield
        except PermissionError as error:
            problem = f"{error.filename or self.path} cannot be used ({error.strerror})."
            raise FleetError(problem, "Run the command as the owner of the repository.") from None

    def settings(self) -> Settings:
        try:
            contents = json.loads(read_bytes(self.settings_file, MAX_SETTINGS, FleetError))
            return Settings(keys=Path(contents["keys"]), lifetimes=Lifetimes(**contents["lifetimes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise FleetError(f"{self.settings_file} is not valid ({error}).", "Restore it from a copy.") from None

    def write_settings(self, settings: Settings) -> None:
        contents = {"keys": str(settings.keys), "lifetimes": asdict(settings.lifetimes)}
        write_file(self.settings_file, json.dumps(contents, indent=1).encode())

    def versions(self) -> dict[str, list[int]]:
        """Return the versions of each role's metadata, in ascending order. The timestamp has no versions."""
        found: dict[str, list[int]] = {}
        for name in os.listdir(self.metadata):
            if match := _METADATA_NAME.fullmatch(name):
                found.setdefault(match[2], []).append(int(match[1]))
        return {role: sorted(versions) for role, versions in found.items()}

    def metadata_file(self, role: str, version: int | None) -> Path:
        return self.metadata / (f"{role}.json" if version is None else f"{version}.{role}.json")

    def read_metadata(self, role: str, version: int | None) -> bytes:
        return read_bytes(self.metadata_file(role, version), MAX_METADATA, FleetError)

    def write_metadata(self, role: str, version: int | None, data: bytes) -> None:
        write_file(self.metadata_file(role, version), data, mode=FILE_MODE, failure=FleetError)

    def pending_roles(self) -> list[str]:
        return sorted(path.stem for path in self.pending.glob("*.json"))

    def read_pending(self, role: str) -> bytes | None:
        path = self.pending / f"{role}.json"
        return read_bytes(path, MAX_METADATA, FleetError) if path.exists() else None

    def write_pending(self, role: str, data: bytes) -> None:
        if len(data) > MAX_BYTES:
            raise FleetError(f"The metadata of {role} is larger than {MAX_BYTES >> 20} MB.", "Make more groups.")
        write_file(self.pending / f"{role}.json", data, failure=FleetError)

    def remove_pending(self, role: str) -> None:
        (self.pending / f"{role}.json").unlink(missing_ok=True)

    def read_target(self, path: str) -> bytes:
        return read_bytes(self.targets / path, failure=FleetError)

    def write_target(self, path: str, data: bytes) -> None:
        """Write a file of which the path contains the hash. One that exists is complete: files are written atomically."""
        file = self.targets / path
        if file.exists():
            return
        try:
            for folder in reversed(list(file.relative_to(self.targets).parents)[:-1]):
                (self.targets / folder).mkdir(mode=FOLDER_MODE, exist_ok=True)
        except OSError as error:
            problem = f"{file.parent} cannot be made ({error.strerror})."
            raise FleetError(problem, "Check free space and permissions.") from None
        write_file(file, data, mode=FILE_MODE, failure=FleetError)
