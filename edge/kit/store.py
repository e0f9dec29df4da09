"""The kit store: which kit is active on a terminal, which was active before, and whether a new kit may replace it.

A store is a folder that only the terminal uses. It contains the active and the previous kit, each named after its SHA-256, and
`record.json`, which says which is which. A kit is written first and the record last, both atomically: after a power failure
the store is in the old state or in the new one. The path where people drop new kits is only read.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from edge.errors import EdgeError, KitError, KitForeignError, KitOlderError
from edge.files import locked_folder, opened_folder, remove_abandoned, write_atomically
from edge.kit.format import Kit, kit_id, parse, read_kit_bytes
from edge.kit.manifest import MAX_NEW_VERSION
from edge.privileges import controlling_user, rights_over
from edge.text import printable
from edge.vision.recognize import Recognizer

RECORD = "record.json"
INSTALLING = "install.lock"  # an empty folder that an installation locks; the terminal does not wait for it
MAX_ROLLED_BACK = 16  # reasons to remember; the version number alone keeps these kits from coming back
MAX_STARTS = 3

R = TypeVar("R", bound=Recognizer)
Outcome = Literal["installed", "rejected", "rolled back"]


@dataclass(frozen=True, kw_only=True)
class KitChange:
    """A change of the active kit, or a rejected kit. The terminal applies and reports it between two frames."""

    outcome: Outcome
    reason: str
    """Which kit, and why."""
    recognizer: Recognizer | None = None
    """The recognizer to use from now on, or None for no change."""

    @classmethod
    def of(cls, outcome: Outcome, digest: str, reason: str | Exception, recognizer: Recognizer | None = None) -> "KitChange":
        """Return a change of the kit with this SHA-256."""
        if isinstance(reason, Exception):
            reason = reason.message if isinstance(reason, EdgeError) else f"the kit cannot be used ({type(reason).__name__})"
        return cls(outcome=outcome, reason=f"{kit_id(digest) or 'no kit'}: {reason}", recognizer=recognizer)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The contents of record.json."""

    current: str = ""
    """SHA-256 of the active kit."""
    previous: str = ""
    """SHA-256 of the kit to roll back to, or empty."""
    version: int = 0
    """The highest version that was ever active. It never decreases, not even after a rollback."""
    series: str | None = None
    """Series of the active kit."""
    starts: int = 0
    """Number of starts with the active kit on probation. 0 if it is not on probation."""
    rolled_back: Mapping[str, str] = field(default_factory=dict)
    """Reasons of rollbacks, by SHA-256."""
    judged: str = ""
    """SHA-256 of the dropped file that is being checked. If a start still finds it, the process died during the check."""

    @classmethod
    def from_bytes(cls, data: bytes) -> "Record":
        """Read record.json. Fields of later versions are ignored. Raises many kinds of errors if the file is damaged."""
        contents = json.loads(data)
        record = cls(**{one.name: contents[one.name] for one in fields(cls) if one.name in contents})
        texts = [record.current, record.previous, record.judged, record.series or ""]
        texts += [*record.rolled_back, *record.rolled_back.values()]
        if not {"current", "version"} <= contents.keys() or not all(type(text) is str for text in texts):
            raise ValueError("a field is missing, or is not text")
        if not type(record.version) is type(record.starts) is int:
            raise TypeError("a number is not whole")
        return record

    def to_bytes(self) -> bytes:
        """Write record.json. An empty `judged` is left out: earlier versions accept only the fields that they know."""
        contents = asdict(self)
        if not self.judged:
            del contents["judged"]
        return f"{json.dumps(contents, indent=1)}\n".encode()


class Store(Generic[R]):
    """The kits of one terminal. Several threads and processes may use it at the same time."""

    def __init__(
        self,
        folder: Path,
        dropped: Path,
        load: Callable[[Kit], R],
        *,
        public_key: bytes | None = None,
        series: str | None = None,
    ) -> None:
        """`dropped` is the path of new kits. `load` returns a recognizer that passed its self-test, or raises an error.

        With a `public_key` (PEM), kits must be signed with it. With a `series`, kits must belong to it.
        """
        self.folder, self.dropped = folder, dropped
        self._load, self._public_key, self._series = load, public_key, series

    def record(self) -> Record:
        with _os_errors(self.folder):
            try:
                data = (self.folder / RECORD).read_bytes()
            except FileNotFoundError:
                return Record()
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            return Record.from_bytes(data)
        hint = "If you trust the kit, delete that file. Older kits can then be installed again."
        raise KitError(f"{RECORD} in the kit store is damaged.", hint)

    def check(self, data: bytes, record: Record | None = None) -> R:
        """Return the recognizer of a kit that may be active here. Raise the error that says why it may not."""
        record = record or self.record()
        kit = parse(data, self._public_key)
        manifest, series = kit.manifest, record.series if self._series is None else self._series
        if series is not None and manifest.series != series:
            its, ours = (printable(name) or "without a name" for name in (manifest.series, series))
            problem = f"The kit is for the series {its}, but this terminal uses {ours}."
            raise KitForeignError(problem, "Build it with the correct --series.")
        if kit.sha256 != record.current and manifest.kit_version <= record.version:
            problem = f"The kit has version {manifest.kit_version}, but version {record.version} was already active here"
            if reason := record.rolled_back.get(kit.sha256):
                problem += f"; this kit was rolled back: {reason}"
            raise KitOlderError(f"{problem}.", f"Build it with --kit-version {record.version + 1}.")
        if kit.sha256 != record.current and manifest.kit_version - record.version > MAX_NEW_VERSION:
            problem = f"The kit has version {manifest.kit_version}, which is too far above version {record.version}"
            hint = f"Build it with --kit-version {record.version + 1}, or with a date such as 20261118."
            raise KitOlderError(f"{problem}: after it, few updates would be possible.", hint)
        return self._load(kit)

    def load_stored(self, digest: str) -> R:
        """Check and load a kit of the store."""
        data = self._read(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise KitError("A kit in the store was changed.", "Install a kit again.")
        return self.check(data, replace(self.record(), current=digest))

    def status(self) -> dict[str, Any]:
        """Describe the active, the previous and the dropped kit, for JSON."""
        with rights_over(self.folder):
            record = self.record()
            return {
                "kit": str(self.dropped),
                "store": str(self.folder),
                "current": self._stored_facts(record.current),
                "previous": self._stored_facts(record.previous),
                "on_probation": record.starts > 0,
                "highest_version": record.version,
                "dropped": self._dropped_facts(record),
                "rolled_back": dict(record.rolled_back),
            }

    def activate(self, data: bytes) -> R:
        """Make a kit the active one, on probation if there is a kit to roll back to. The caller must use the result."""
        with self._locked():
            record = self.record()
            digest = hashlib.sha256(data).hexdigest()
            if digest == record.current:
                return self.check(data, record)
            with self._noted(digest, record) as record:
                recognizer = self.check(data, record)
                self._write(f"{digest}.kit", data)
                if not (record.starts and record.previous):  # a kit on probation is no kit to roll back to
                    record = replace(record, previous=record.current)
                manifest = recognizer.kit.manifest
                version, starts = max(record.version, manifest.kit_version), 1 if record.current else 0
                self._save(replace(record, current=digest, version=version, series=manifest.series, starts=starts, judged=""))
            return recognizer

    @contextmanager
    def _noted(self, digest: str, record: Record) -> Iterator[Record]:
        """Note in the record which file is being checked, until the check ends.

        If the process died during the last check of this file, for example of too little memory, it is rejected: it would
        end every start. Without an active kit there is nothing to protect, and it is checked again.
        """
        if digest == record.judged and record.current:
            raise KitError("The terminal ended while it checked this kit.", "Check it again with `edge kit install`.")
        noted = self._save(replace(record, judged=digest))
        try:
            yield noted
        except BaseException:
            self._save(record)
            raise

    def start(self) -> tuple[R, list[KitChange]]:
        """Choose the kit to start with. Return its recognizer and the changes to report.

        The dropped kit is used if it passes all checks, else the active one. A kit that was started MAX_STARTS times
        without passing its probation is rolled back.
        """
        if os.geteuid() == 0 and controlling_user(self.folder)[0] != 0:  # root's files would end the next start of that user
            hint = "Run the terminal as that user, or name another folder in the settings: [kit] store."
            raise KitError(f"{self.folder} belongs to another user, and this terminal runs as root.", hint)
        changes: list[KitChange] = []
        record = self.record()
        if record.starts >= MAX_STARTS and record.previous:
            reason = f"it did not process its first frames in {record.starts} starts"
            self.roll_back(record.current, reason)
            changes.append(KitChange.of("rolled back", record.current, reason))
        elif record.starts:
            with suppress(KitError), self._locked():  # a full disk must not prevent the start
                self._save(replace(self.record(), starts=record.starts + 1))
        record = self.record()
        digest = ""
        try:
            data = read_kit_bytes(self.dropped)
            digest = hashlib.sha256(data).hexdigest()
            recognizer = self.activate(data)
            if recognizer.kit.sha256 != record.current:
                changes.append(KitChange.of("installed", digest, summary(recognizer.kit)))
            return recognizer, changes
        except Exception as error:  # no error of the dropped kit may prevent a start with the active one
            if not record.current:
                raise
            if digest not in record.rolled_back:
                changes.append(KitChange.of("rejected", digest, error))
        try:
            return self.load_stored(record.current), changes
        except EdgeError as error:
            if not record.previous:
                raise
            recognizer = self.load_stored(record.previous)
            self.roll_back(record.current, error.message)
            return recognizer, [*changes, KitChange.of("rolled back", record.current, error)]

    def confirm(self, digest: str) -> None:
        """End the probation of the active kit: its first frames passed."""
        with self._locked():
            record = self.record()
            if record.current == digest and record.starts:
                self._save(replace(record, starts=0))

    def roll_back(self, digest: str | None, reason: str) -> Record:
        """Make the previous kit active again, if `digest` is None or the active kit. That kit cannot come back."""
        with self._locked():
            record = self.record()
            if digest not in (None, record.current):
                return record
            if not record.previous:
                raise KitError("There is no previous kit.", "Install a kit.")
            parse(self._read(record.previous), self._public_key)
            reasons = dict([*record.rolled_back.items(), (record.current, reason)][-MAX_ROLLED_BACK:])
            return self._save(replace(record, current=record.previous, previous="", starts=0, rolled_back=reasons))

    def drop(self, data: bytes) -> Kit:
        """Check a kit and write it where a running terminal finds it. Owner and mode of the file stay as they were.

        Other installations wait meanwhile: of two kits that are dropped at the same time, the second must be newer.
        """
        with self._locked(INSTALLING):
            record = self.record()
            kit = self.check(data, record).kit
            if record.judged == kit.sha256:  # a person asks for it again, and it passed all checks
                with self._locked():
                    record = self._save(replace(self.record(), judged=""))
            with _os_errors(self.dropped), rights_over(self.dropped, replaced=True) as path:
                path = path if os.geteuid() == 0 else path.resolve()  # root follows no link again
                waiting = self._waiting(path, kit, record)
                if waiting is not None:
                    version = waiting.manifest.kit_version
                    problem = f"The kit has version {kit.manifest.kit_version}, but version {version} is already in place."
                    raise KitOlderError(problem, f"Build it with --kit-version {version + 1}.")
                write_atomically(path, data, keep_owner=True)
        return kit

    def _waiting(self, path: Path, new: Kit, record: Record) -> Kit | None:
        """Return the dropped kit at `path` if the terminal will activate it, and would then reject the new one."""
        try:
            data = read_kit_bytes(path)
            found = parse(data, self._public_key)
            is_newer = found.manifest.kit_version >= new.manifest.kit_version
            will_be_active = is_newer and found.sha256 not in (new.sha256, record.current, record.judged)
            return self.check(data, record).kit if will_be_active else None
        except EdgeError:
            return None

    @contextmanager
    def _locked(self, name: str = "") -> Iterator[None]:
        """Exclude all other users of the store, or of a folder in it. Errors of the disk are KitErrors."""
        with _os_errors(self.folder):
            for folder in (self.folder, self.folder / name):
                with rights_over(folder):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with rights_over(folder), locked_folder(folder):  # looked up again: another user may have been faster
                yield

    def _save(self, record: Record) -> Record:
        """Write the record. From then on it holds, and files that it does not name are deleted."""
        self._write(RECORD, record.to_bytes())
        for file in self.folder.glob("*.kit"):
            if file.stem not in (record.current, record.previous):
                with suppress(OSError):
                    file.unlink()
        with opened_folder(self.folder) as folder:
            remove_abandoned(folder)
        return record

    def _write(self, name: str, data: bytes) -> None:
        write_atomically(self.folder / name, data)

    def _read(self, digest: str) -> bytes:
        return read_kit_bytes(self.folder / f"{digest}.kit")

    def _stored_facts(self, digest: str) -> dict[str, Any] | None:
        try:
            return kit_facts(parse(self._read(digest), self._public_key)) if digest else None
        except KitError as error:
            return {"sha256": digest, "rejected": error.message}

    def _dropped_facts(self, record: Record) -> dict[str, Any] | None:
        try:
            with rights_over(self.dropped):
                data = read_kit_bytes(self.dropped)
        except KitError:
            return None
        digest = hashlib.sha256(data).hexdigest()
        try:
            return {**kit_facts(self.check(data, record).kit), "active": digest == record.current}
        except EdgeError as error:
            return {"sha256": digest, "active": False, "rejected": error.message}


def kit_facts(kit: Kit) -> dict[str, Any]:
    """Describe a kit for JSON, without the names of people."""
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
    return f"version {kit.manifest.kit_version}, {len(kit.manifest.labels)} people, signature {kit.signature}"


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "Run it with sudo, or as the owner of the folder, or check [kit] in the settings."
        raise KitError(f"{path} cannot be read or written ({error.strerror}).", hint) from None
