"""Which kit is in force at a terminal, which was before, and whether another may take its place.

A store is a folder of the terminal's own. In it lie the kit in force and the one before, each under its SHA-256, and
`record.json`, which says which is which. A kit is written first and the record last, each in one step: a pulled plug leaves
the old state or the new one. The file that people drop kits at is read and never written here.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from edge.errors import EdgeError, KitError, KitForeignError, KitOlderError
from edge.events.event import KIT_DIGITS
from edge.files import alone_in, write_atomically
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.text import printable
from edge.vision.recognize import Recognizer

RECORD = "record.json"
REMEMBERED = 16  # kits that were rolled back: their version alone keeps them out, this says why
MAX_STARTS = 3

R = TypeVar("R", bound=Recognizer)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a store knows of its kits."""

    current: str = ""
    """SHA-256 of the kit in force."""
    previous: str = ""
    """Of the one before, to go back to; empty where there is none."""
    version: int = 0
    """The highest that was ever in force. It never falls, also when a kit is rolled back."""
    series: str | None = None
    """Of the kit in force."""
    starts: int = 0
    """How often the terminal began with the kit in force while it was on trial; 0 when it has proved itself."""
    rolled_back: Mapping[str, str] = field(default_factory=dict)
    """Why, by SHA-256."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        try:
            record = cls(**json.loads(data))
            texts = [record.current, record.previous, record.series or "", *record.rolled_back, *record.rolled_back.values()]
            sound = all(type(text) is str for text in texts) and type(record.version) is type(record.starts) is int
        except (ValueError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise KitError(
                "The record of the kits that were in force here is damaged.",
                f"Delete {RECORD} in the store, if you are sure of the kit: older ones are not known any more.",
            )
        return record


class Store(Generic[R]):
    """The kits of one terminal. May be used by several threads and processes."""

    def __init__(
        self,
        folder: Path,
        dropped: Path,
        load: Callable[[Kit], R],
        *,
        public_key: bytes | None = None,
        series: str | None = None,
    ) -> None:
        """`dropped` is where new kits are put, `load` makes a recogniser that has passed its self-test, or refuses to.

        With a `public_key` (PEM) kits must be signed with it; with a `series` they must be of that one.
        """
        self.folder, self.dropped = folder, dropped
        self._load, self._public_key, self._series = load, public_key, series

    # Asking.

    def record(self) -> Record:
        try:
            return Record.from_bytes((self.folder / RECORD).read_bytes())
        except FileNotFoundError:
            return Record()
        except OSError as error:
            raise KitError(f"The store {self.folder} cannot be read ({error.strerror}).", "Run it with sudo.") from None

    def judge(self, data: bytes, record: Record | None = None) -> R:
        """The recogniser of a kit that may be in force here now; else the error that says why not."""
        record = record or self.record()
        kit = kits.parse(data, self._public_key)
        manifest, wanted = kit.manifest, record.series if self._series is None else self._series
        if wanted is not None and manifest.series != wanted:
            raise KitForeignError(
                f"The kit is for the series {_named(manifest.series)}, and this terminal is of {_named(wanted)}.",
                "Build it with the right --series.",
            )
        if kit.sha256 != record.current and manifest.kit_version <= record.version:
            why = record.rolled_back.get(kit.sha256)
            raise KitOlderError(
                f"The kit has version {manifest.kit_version}, and version {record.version} was in force here"
                + (f"; this very one was rolled back: {why}." if why else "."),
                f"Build it with --kit-version {record.version + 1}.",
            )
        return self._load(kit)

    def stored(self, digest: str) -> R:
        """One of the kits in the store, judged again."""
        data = self._bytes(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise KitError("A kit in the store was changed.", "Install one again.")
        return self.judge(data, replace(self.record(), current=digest))

    def status(self) -> dict[str, Any]:
        """What is in force, what was, and what became of the kit that was dropped."""
        record = self.record()
        return {
            "kit": str(self.dropped),
            "store": str(self.folder),
            "current": self._facts(record.current),
            "previous": self._facts(record.previous),
            "on_trial": record.starts > 0,
            "highest_version": record.version,
            "dropped": self._dropped_facts(record),
            "rolled_back": dict(record.rolled_back),
        }

    # Changing.

    def install(self, data: bytes) -> R:
        """Put a kit in force, on trial if there is one to go back to. Whoever runs must begin to use it."""
        with self._locked():
            record = self.record()
            recognizer = self.judge(data, record)
            kit = recognizer.kit
            if kit.sha256 != record.current:
                self._write(f"{kit.sha256}.kit", data)
                self._save(
                    replace(
                        record,
                        current=kit.sha256,
                        previous=record.previous if record.starts and record.previous else record.current,  # a proved one
                        version=max(record.version, kit.manifest.kit_version),
                        series=kit.manifest.series,
                        starts=1 if record.current else 0,
                    )
                )
            return recognizer

    def begin(self) -> tuple[R, list[tuple[str, str]]]:
        """The kit to start with, and what there is to tell: (outcome, reason).

        It is the one that was dropped, or else the one in force; one that was never proved in MAX_STARTS starts is given up.
        """
        told: list[tuple[str, str]] = []
        record = self.record()
        if record.starts >= MAX_STARTS and record.previous:
            why = f"it was started {record.starts} times, and did not get through its first frames"
            self.roll_back(record.current, why)
            told.append(("rolled back", about(record.current, why)))
        elif record.starts:
            with suppress(KitError), self._locked():  # a full disk is no reason not to start
                self._save(replace(self.record(), starts=record.starts + 1))
        record = self.record()
        try:
            recognizer = self.install(read(self.dropped))
            if recognizer.kit.sha256 != record.current:
                told.append(("installed", summary(recognizer.kit)))
            return recognizer, told
        except Exception as error:  # whatever it is, there is one to begin with
            if not record.current:
                raise
            digest = _digest_of(self.dropped)
            if digest not in record.rolled_back:
                told.append(("refused", about(digest, why_not(error))))
        try:
            return self.stored(record.current), told
        except EdgeError as error:
            if not record.previous:
                raise
            before = self.stored(record.previous)
            self.roll_back(record.current, error.message)
            return before, [*told, ("rolled back", about(record.current, error.message))]

    def prove(self, digest: str) -> None:
        """The kit in force got through its first frames."""
        with self._locked():
            record = self.record()
            if record.current == digest and record.starts:
                self._save(replace(record, starts=0))

    def roll_back(self, digest: str | None, why: str) -> Record:
        """Put the kit before in force again; the one in force (`digest`, if that matters) will not come back."""
        with self._locked():
            record = self.record()
            if digest not in (None, record.current):
                return record  # somebody was quicker
            if not record.previous:
                raise KitError("There is no kit to go back to.", "Install one.")
            kits.parse(self._bytes(record.previous), self._public_key)
            known = dict([*record.rolled_back.items(), (record.current, why)][-REMEMBERED:])
            return self._save(replace(record, current=record.previous, previous="", starts=0, rolled_back=known))

    def drop(self, data: bytes) -> Kit:
        """Put a kit where a running terminal will find it, if it may be in force: in one step, owner and mode as before."""
        kit = self.judge(data).kit
        path = self.dropped.resolve()
        try:
            before = path.stat() if path.exists() else None
            write_atomically(path, data, mode=0o600 if before is None else before.st_mode & 0o777)
            _give(path, before or path.parent.stat())
        except OSError as error:
            raise KitError(f"{path} cannot be written ({error.strerror}).", "Run it with sudo, or check the path.") from None
        return kit

    # Files.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone with the store."""
        with ExitStack() as stack:
            try:
                if not self.folder.exists():
                    self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    _give(self.folder, self.folder.parent.stat())
                stack.enter_context(alone_in(self.folder))
            except OSError as error:
                raise KitError(f"The store {self.folder} cannot be opened ({error.strerror}).", "Check [kit] store.") from None
            yield

    def _save(self, record: Record) -> Record:
        """The moment from which it holds; what is not needed any more goes afterwards."""
        self._write(RECORD, f"{json.dumps(asdict(record), indent=1)}\n".encode())
        for file in self.folder.glob("*.kit"):
            if file.stem not in (record.current, record.previous):
                with suppress(OSError):
                    file.unlink()
        for file in self.folder.glob(".*.part"):  # of one who was killed
            with suppress(OSError):
                file.unlink()
        return record

    def _write(self, name: str, data: bytes) -> None:
        try:
            write_atomically(self.folder / name, data)
            _give(self.folder / name, self.folder.stat())
        except OSError as error:
            raise KitError(f"The store {self.folder} cannot be written ({error.strerror}).", "Check [kit] store.") from None

    def _bytes(self, digest: str) -> bytes:
        return read(self.folder / f"{digest}.kit")

    def _facts(self, digest: str) -> dict[str, Any] | None:
        if not digest:
            return None
        try:
            return facts(kits.parse(self._bytes(digest), self._public_key))
        except KitError as error:
            return {"sha256": digest, "refused": error.message}

    def _dropped_facts(self, record: Record) -> dict[str, Any] | None:
        try:
            data = read(self.dropped)
        except KitError:
            return None
        digest = hashlib.sha256(data).hexdigest()
        try:
            return {**facts(self.judge(data, record).kit), "in_force": digest == record.current}
        except EdgeError as error:
            return {"sha256": digest, "in_force": False, "refused": error.message}


def read(path: Path) -> bytes:
    """The bytes of a file that may be a kit; of one that is too large, enough to notice."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would keep the reader waiting for ever
                raise KitError(f"{path} is not a file.", "Check the path.")
            return file.read(kits.MAX_BYTES + 1)
    except OSError as error:
        raise KitError(f"{path} cannot be opened ({error.strerror or error}).", "Check the path.") from None


def facts(kit: Kit) -> dict[str, Any]:
    """What a person wants to know of a kit here: no name."""
    manifest = kit.manifest
    return {
        "sha256": kit.sha256,
        "version": manifest.kit_version,
        "series": manifest.series,
        "people": len(manifest.labels),
        "thresholds": asdict(manifest.thresholds),
        "bytes": kit.length,
        "signature": kit.signature,
    }


def summary(kit: Kit) -> str:
    manifest = kit.manifest
    return about(kit.sha256, f"version {manifest.kit_version}, {len(manifest.labels)} people, signature {kit.signature}")


def why_not(error: Exception) -> str:
    """In words, why a kit cannot be used."""
    return error.message if isinstance(error, EdgeError) else f"it cannot be used ({type(error).__name__})"


def about(digest: str, text: str) -> str:
    """A reason that says which kit it is about."""
    return f"{digest[:KIT_DIGITS] or 'no kit'}: {text}"


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(read(path)).hexdigest()
    except KitError:
        return ""


def _named(series: str) -> str:
    return printable(series) if series else "no name"


def _give(path: Path, like: os.stat_result) -> None:
    """What root writes belongs to whom it belonged: the service is another user."""
    if os.geteuid() == 0:
        os.chown(path, like.st_uid, like.st_gid)
