"""Sign metadata and publish it. Formats and signatures are those of `tuf.api.metadata`.

A change of root, targets or a group is written to publisher/pending first, with the signatures of all keys that are here.
`publish` moves what is completely signed to metadata/, and writes a new snapshot and timestamp. At every moment, and after a
crash at any of them, readers find a valid repository, because

- files that a reader finds by version or hash are written before the file that names them, and timestamp.json is the last;
- metadata is signed with the keys of the published and of the waiting delegator, so that it is valid before and after a key
  is exchanged: the old key is not needed any more at the moment at which the new root or targets are published;
- a delegator is not published before the metadata of all its roles is valid under it.

The next command completes what a crash interrupted.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Signed,
    Snapshot,
    Targets,
    Timestamp,
    VerificationResult,
)
from tuf.api.serialization import DeserializationError
from tuf.api.serialization.json import JSONSerializer

from edge.errors import FleetError, UsageError
from export.fleet.keys import Keyring
from export.fleet.store import Settings, Store

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = Root.type, Targets.type, Snapshot.type, Timestamp.type
ONLINE = (SNAPSHOT, TIMESTAMP)
PREFIX = "group-"
Delegator = Root | Targets
AnyMetadata = Metadata[Any]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A change that is not published yet."""

    role: str
    missing: int
    """Number of signatures. 0: it waits for another role."""
    signed: tuple[str, ...]
    """IDs of the keys that have signed."""
    unsigned: tuple[str, ...]
    """IDs of the keys that may sign."""


@contextmanager
def opened(
    path: Path, *, keys: Path | None = None, password: bytes | None = None, now: datetime | None = None
) -> Iterator["Repository"]:
    """Open a repository. Other commands wait until the block ends. Without `keys`, the folder of the settings is used."""
    store = Store.open(path)
    with store.locked():
        settings = store.settings()
        repository = Repository(store, settings, Keyring(keys or settings.keys, password), now or datetime.now(UTC))
        repository.promote()  # after a crash in a change of keys, the published metadata of a role may have the old key
        yield repository


def role_of(group: str) -> str:
    return f"{PREFIX}{group}"


class Repository:
    """The roles of a repository. Everything that `publish` has not moved to metadata/ is invisible to terminals."""

    def __init__(self, store: Store, settings: Settings, keys: Keyring, now: datetime) -> None:
        self.store, self.settings, self.keys, self.now = store, settings, keys, now

    def root(self) -> Root:
        """Return the published root."""
        metadata: Metadata[Root] = self._read(ROOT, self.latest_version(ROOT))
        if not _accepts(metadata.signed, ROOT, metadata):
            raise FleetError("The metadata of root is not signed with its keys.", "Restore the repository from a copy.")
        return metadata.signed

    def targets(self) -> Targets:
        """Return the published list of groups."""
        metadata: Metadata[Targets] = self.published(TARGETS, self.root())
        return metadata.signed

    def group_roles(self) -> list[str]:
        """Return the roles of all groups, with those that wait for the signature of targets."""
        return list(delegations(self.draft(TARGETS)))

    def latest_version(self, role: str) -> int:
        """Return the last version that terminals may know; 0: none. The snapshot names roles that are removed, too."""
        versions = self.store.versions()
        known = versions.get(role, [0])[-1]
        if role not in (ROOT, SNAPSHOT) and versions.get(SNAPSHOT):
            found = self.snapshot().signed.meta.get(f"{role}.json")
            known = max(known, found.version if found else 0)
        return known

    def published(self, role: str, delegator: Delegator) -> AnyMetadata:
        """Return the last published metadata of a role. FleetError if its delegator does not accept it."""
        metadata = self._read(role, self.latest_version(role))
        if not _accepts(delegator, role, metadata):
            problem = f"The metadata of {role} is not signed with its keys."
            raise FleetError(problem, "Restore the repository from a copy, or `edge-export fleet rotate` the role.")
        return metadata

    def pending(self, role: str) -> AnyMetadata | None:
        """Return the metadata that waits for publication. What is published already does not wait."""
        data = self.store.read_pending(role)
        metadata = None if data is None else _parse(data, f"The pending metadata of {role}")
        if metadata is not None and metadata.signed.version <= self.latest_version(role):
            return None
        return metadata

    def draft(self, role: str) -> Any:
        """Return the newest contents of root, targets or a group, to be changed and submitted."""
        if (waiting := self.pending(role)) is not None:
            return waiting.signed
        if role == ROOT:
            return self.root()
        return self.published(role, self.root() if role == TARGETS else self.targets()).signed

    def submit(self, role: str, signed: Signed) -> None:
        """Sign new contents with all keys that are here. They wait for `publish`."""
        signed.version = self.latest_version(role) + 1
        signed.expires = self.now + self.settings.lifetimes.of(role)
        delegators = [self.root(), signed] if isinstance(signed, Root) else self._delegators(role)
        self.store.write_pending(role, _to_bytes(self._signed(role, signed, delegators)))

    def begin(self, root: Root) -> None:
        """Write the first root of a new repository."""
        root.expires = self.now + self.settings.lifetimes.of(ROOT)
        self.store.write_metadata(ROOT, root.version, _to_bytes(self._signed(ROOT, root, [root])))

    def add_signature(self, role: str, signer: CryptoSigner) -> None:
        """Add a signature to pending metadata."""
        metadata = self.pending(role)
        if metadata is None:
            waiting = ", ".join(found.role for found in self.waiting()) or "none"
            raise UsageError(f"No change of {role} waits for a signature.", f"Roles with waiting changes: {waiting}.")
        if signer.public_key.keyid not in _keyids(self._delegators(role), role):
            raise UsageError(f"This key does not belong to {role}.", "See the IDs of its keys with `edge-export fleet show`.")
        metadata.sign(signer, append=True)
        self.store.write_pending(role, _to_bytes(metadata))

    def waiting(self) -> list[Waiting]:
        """Return the changes that are not published yet."""
        found = []
        for role in self.store.pending_roles():
            metadata = self.pending(role)
            results = [] if metadata is None else _results(self._delegators(role), role, metadata)
            if results:
                signed = {keyid for result in results for keyid in result.signed}
                others = {keyid for result in results for keyid in result.unsigned}
                missing = max(result.missing for result in results)
                found.append(
                    Waiting(role=role, missing=missing, signed=tuple(sorted(signed)), unsigned=tuple(sorted(others - signed)))
                )
        return found

    def can_sign(self, role: str) -> bool:
        """Whether enough keys of a role are here for its next version."""
        delegators = self._delegators(role)
        found = {signer.public_key.keyid for signer in self.keys.signers(role, _keyids(delegators, role))}
        roles = [delegator.get_delegated_role(role) for delegator in delegators if _delegates(delegator, role)]
        return bool(roles) and all(len(found & set(known.keyids)) >= known.threshold for known in roles)

    def publish(self, renew: Collection[str] = ()) -> list[Waiting]:
        """Publish what is completely signed. `renew` names snapshot and timestamp if they are needed with a new date.

        Return what still waits.
        """
        new_root = self._ready(ROOT)
        self._advance(self.root(), new_root, renew)
        if new_root is not None:
            self.store.write_metadata(ROOT, new_root.signed.version, _to_bytes(new_root))
            self._advance(self.root(), None, ())
        for role in self.store.pending_roles():
            gone = role.startswith(PREFIX) and role not in self.group_roles()
            if gone or self.pending(role) is None:
                self.store.remove_pending(role)
        return self.waiting()

    def promote(self) -> AnyMetadata:
        """Move targets and groups that are completely signed to metadata/. Return the published targets.

        Terminals see them with the next snapshot.
        """
        if (targets := self._ready(TARGETS)) is not None:
            self.store.write_metadata(TARGETS, targets.signed.version, _to_bytes(targets))
        current = self._read(TARGETS, self.latest_version(TARGETS))
        for role in delegations(current.signed):
            if (group := self.pending(role)) is not None and self._is_signed(role, group):
                self.store.write_metadata(role, group.signed.version, _to_bytes(group))
        return current

    def _advance(self, root: Root, new_root: AnyMetadata | None, renew: Collection[str]) -> None:
        """Publish the targets and groups that are valid now, and name them in a new snapshot and timestamp."""
        targets = self.promote()
        if new_root is not None and not _accepts(root, TARGETS, targets):
            return
        roots = [root] if new_root is None else [root, new_root.signed]
        snapshot = self._write_snapshot(roots, targets.signed, SNAPSHOT in renew)
        if snapshot is not None:
            self._write_timestamp(roots, snapshot, TIMESTAMP in renew)

    def _write_snapshot(self, roots: list[Root], targets: Targets, force: bool) -> int | None:
        """Write a snapshot if there are new versions or keys. Return the valid version; None: only the next root has one."""
        versions = {role: found[-1] for role, found in self.store.versions().items()}
        last = versions.get(SNAPSHOT, 0)
        old = self.snapshot() if last else None
        meta = dict(old.signed.meta) if old else {}  # a client accepts no snapshot without the roles that it knows
        delegators: dict[str, Delegator] = {TARGETS: roots[0]} | dict.fromkeys(delegations(targets), targets)
        for role, delegator in delegators.items():
            name, version = f"{role}.json", versions.get(role, 0)
            if name not in meta or meta[name].version != version:
                self.published(role, delegator)
                meta[name] = self._meta_file(role, version)
        is_valid = old is not None and all(_accepts(root, SNAPSHOT, old) for root in roots)
        if old is not None and meta == old.signed.meta and is_valid and not force:
            return last
        expires = self.now + self.settings.lifetimes.of(SNAPSHOT)
        is_written = self._write_online(Snapshot(version=last + 1, expires=expires, meta=meta), last + 1, roots)
        return last + 1 if is_written else None

    def _write_timestamp(self, roots: list[Root], snapshot: int, force: bool) -> None:
        old = self.timestamp()
        is_valid = old is not None and all(_accepts(root, TIMESTAMP, old) for root in roots)
        if old is not None and old.signed.snapshot_meta.version == snapshot and is_valid and not force:
            return
        version = old.signed.version + 1 if old else 1
        expires = self.now + self.settings.lifetimes.of(TIMESTAMP)
        meta = self._meta_file(SNAPSHOT, snapshot)
        self._write_online(Timestamp(version=version, expires=expires, snapshot_meta=meta), None, roots)

    def _meta_file(self, role: str, version: int) -> MetaFile:
        """Return how the metadata above name a version: with its hash, else a stolen key of a role and a mirror are enough."""
        data = self.store.read_metadata(role, version)
        return MetaFile(version, length=len(data), hashes={"sha256": hashlib.sha256(data).hexdigest()})

    def _write_online(self, signed: Snapshot | Timestamp, version: int | None, roots: list[Root]) -> bool:
        """Sign and write metadata. Return whether the published root accepts it: with a lost key, only the next one does."""
        role = signed.type
        metadata = self._signed(role, signed, roots)
        if _accepts(roots[0], role, metadata):
            self.store.write_metadata(role, version, _to_bytes(metadata))
            return True
        if len(roots) == 1:
            problem = f"A key of {role} is missing in {self.keys.path(role)}: nothing new is visible to terminals."
            raise FleetError(problem, "Repeat the command with --keys, or make a new key with `edge-export fleet rotate`.")
        return False

    def timestamp(self) -> Metadata[Timestamp] | None:
        """Return the published timestamp; None in a repository that is being made."""
        exists = self.store.metadata_file(TIMESTAMP, None).exists()
        return _parse(self.store.read_metadata(TIMESTAMP, None), TIMESTAMP) if exists else None

    def snapshot(self) -> Metadata[Snapshot]:
        return self._read(SNAPSHOT, self.store.versions()[SNAPSHOT][-1])

    def _ready(self, role: str) -> AnyMetadata | None:
        """Return pending root or targets if it is completely signed, and the metadata of all its roles is valid under it."""
        metadata = self.pending(role)
        if metadata is None or not self._is_signed(role, metadata):
            return None
        delegated = [TARGETS] if role == ROOT else list(delegations(metadata.signed))
        return metadata if all(self._has_valid(child, metadata.signed) for child in delegated) else None

    def _is_signed(self, role: str, metadata: AnyMetadata) -> bool:
        """Whether the published delegator and the one that waits both accept it, and it did not expire while it waited."""
        results = _results(self._delegators(role), role, metadata)
        return bool(results) and all(results) and not metadata.signed.is_expired(self.now)

    def _has_valid(self, role: str, delegator: Delegator) -> bool:
        versions = self.store.versions().get(role)  # of a group that was removed and added again, none may be left
        candidates = [self.pending(role), self._read(role, versions[-1]) if versions else None]
        return any(metadata is not None and _accepts(delegator, role, metadata) for metadata in candidates)

    def _delegators(self, role: str) -> list[Delegator]:
        """Return what names the keys of a role: the published root or targets, and the one that waits."""
        parent = TARGETS if role.startswith(PREFIX) else ROOT
        last = self.latest_version(parent)
        found: list[Delegator] = [self._read(parent, last).signed] if last else []
        if (waiting := self.pending(parent)) is not None:
            found.append(waiting.signed)
        return found

    def _signed(self, role: str, signed: Signed, delegators: Sequence[Delegator]) -> AnyMetadata:
        metadata: AnyMetadata = Metadata(signed)
        for signer in self.keys.signers(role, _keyids(delegators, role)):
            metadata.sign(signer, append=True)
        return metadata

    def _read(self, role: str, version: int) -> AnyMetadata:
        return _parse(self.store.read_metadata(role, version), self.store.metadata_file(role, version))


def target_files(data: bytes) -> set[str]:
    """Return the files below targets/ that the metadata of a group names."""
    targets: Targets = _parse(data, "The metadata of a group").signed
    return {path for target in targets.targets.values() for path in target.get_prefixed_paths()}


def delegations(targets: Targets) -> dict[str, Any]:
    """Return the groups of targets.json by the names of their roles."""
    return dict(targets.delegations.roles or {}) if targets.delegations is not None else {}


def _delegates(delegator: Delegator, role: str) -> bool:
    try:
        delegator.get_delegated_role(role)
    except ValueError:
        return False
    return True


def _keyids(delegators: Sequence[Delegator], role: str) -> set[str]:
    known = [delegator.get_delegated_role(role) for delegator in delegators if _delegates(delegator, role)]
    return {keyid for found in known for keyid in found.keyids}


def _results(delegators: Sequence[Delegator], role: str, metadata: AnyMetadata) -> list[VerificationResult]:
    known = [delegator for delegator in delegators if _delegates(delegator, role)]
    return [found.get_verification_result(role, metadata.signed_bytes, metadata.signatures) for found in known]


def _accepts(delegator: Delegator, role: str, metadata: AnyMetadata) -> bool:
    results = _results([delegator], role, metadata)
    return bool(results) and all(results)


def _to_bytes(metadata: AnyMetadata) -> bytes:
    return metadata.to_bytes(JSONSerializer(compact=True))


def _parse(data: bytes, name: object) -> AnyMetadata:
    try:
        return Metadata.from_bytes(data)
    except DeserializationError:
        raise FleetError(f"{name} is not valid metadata.", "Restore the repository from a copy.") from None
