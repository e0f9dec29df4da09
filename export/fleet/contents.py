"""Change what the doors of a group get: kits, door lists, revocations.

Nothing is visible to terminals before `Contents.submit` and `Repository.publish`.
"""

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace

from tuf.api.exceptions import LengthOrHashMismatchError
from tuf.api.metadata import TargetFile, Targets

from edge.decision.doorlist import DoorList
from edge.errors import FleetError, KitError, KitOlderError, UsageError
from edge.fleet import documents
from edge.fleet.documents import Rollout
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.text import same_spelling
from export.fleet.documents import Revocations, check_label, is_complete, rollout_bytes
from export.fleet.repository import PREFIX, Repository
from export.fleet.roles import find_group

ID_BYTES = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
MIN_KIT_ID = 8
"""Digits with which a kit is named."""


class Contents:
    """The targets of one group. Nothing is written before `submit`."""

    def __init__(self, repository: Repository, group: str) -> None:
        self.group, self.role, self._repository = group, find_group(repository, group), repository
        self._signed: Targets = repository.draft(self.role)
        self._before = dict(self._signed.targets)
        self._new: dict[str, bytes] = {}

    @property
    def is_changed(self) -> bool:
        return self._signed.targets != self._before

    @property
    def paths(self) -> list[str]:
        return sorted(self._signed.targets)

    def read(self, path: str) -> bytes | None:
        """Return the contents of a target, or None."""
        target = self._signed.targets.get(path)
        if target is None:
            return None
        if path in self._new:
            return self._new[path]
        data = self._repository.store.read_target(target.get_prefixed_paths()[0])
        try:
            target.verify_length_and_hashes(data)
        except LengthOrHashMismatchError:
            raise FleetError(f"The file of {path} is damaged.", "Restore the repository from a copy.") from None
        return data

    def write(self, path: str, data: bytes) -> None:
        self._signed.targets[path] = TargetFile.from_data(path, data, ["sha256"])
        self._new[path] = data

    def remove(self, path: str) -> None:
        self._signed.targets.pop(path, None)

    def submit(self) -> bool:
        """Write the files, and sign the changes. Return whether there are any."""
        if self.is_changed:
            for path in self._signed.targets.keys() & self._new.keys():
                self._repository.store.write_target(self._signed.targets[path].get_prefixed_paths()[0], self._new[path])
            self._repository.submit(self.role, self._signed)
        return self.is_changed

    def rollout(self) -> Rollout | None:
        data = self.read(documents.rollout_path(self.group))
        return None if data is None else Rollout.from_bytes(data, self.group)

    def revocations(self) -> Revocations:
        data = self.read(documents.revoked_path(self.group))
        return Revocations() if data is None else Revocations.from_bytes(data)

    def kits(self) -> list[str]:
        """Return the SHA-256 of the kits that doors can take."""
        start = documents.kit_path(self.group, "").removesuffix(".kit")
        return [documents.kit_sha256(path) for path in self.paths if path.startswith(start)]


def groups_of(repository: Repository, name: str) -> list[str]:
    """Return the names of all groups for `all`, or this one."""
    if name != documents.ALL:
        return [find_group(repository, name).removeprefix(PREFIX)]
    groups = [role.removeprefix(PREFIX) for role in repository.group_roles()]
    if not groups:
        raise UsageError("The repository has no groups.", "Add one with `edge-export fleet add-group`.")
    return groups


def set_kit(
    contents: Contents, data: bytes, kit: Kit, *, doors: Collection[str] | None = None, share: float | None = None
) -> None:
    """Let a share of the doors take a kit. The kit that is being rolled out stays, and gets these doors and this share.

    A new kit without a share is for all of the doors.
    """
    if kit.sha256 in contents.revocations().kits:
        raise UsageError(f"The kit {kit.id} is revoked in {contents.group}.", "Publish another kit, or unrevoke this one.")
    chosen = None if doors is None else tuple(sorted({documents.check_door(door) for door in doors}))
    old, path = contents.rollout(), documents.kit_path(contents.group, kit.sha256)
    if old is not None and old.kit == path:
        new = replace(old, doors=chosen, share=old.share if share is None else share)
    else:
        new = Rollout(
            id=secrets.token_hex(ID_BYTES),
            kit=path,
            kit_version=kit.manifest.kit_version,
            share=1.0 if share is None else share,
            doors=chosen,
            previous=None if old is None else old.kit if is_complete(old) else old.previous,
        )
        if old is not None and new.kit_version <= old.kit_version:
            problem = f"Kit {kit.id} has version {new.kit_version}, and doors of {contents.group} may have {old.kit_version}."
            hint = f"To go back to it, run `edge-export repack` with --kit-version {old.kit_version + 1} or more."
            raise KitOlderError(problem, hint)
        contents.write(path, data)
    _set_rollout(contents, new)


def change_rollout(contents: Contents, *, share: float | None = None, stopped: bool | None = None) -> Rollout:
    """Change the share of a rollout, stop it, or resume it."""
    old = contents.rollout()
    if old is None:
        raise UsageError(f"{contents.group} has no rollout.", "Publish a kit with `edge-export publish`.")
    if stopped is False and documents.kit_sha256(old.kit) in contents.revocations().kits:
        raise UsageError("The kit of this rollout is revoked.", "Publish another kit.")
    new = replace(old, share=old.share if share is None else share, stopped=old.stopped if stopped is None else stopped)
    _set_rollout(contents, new)
    return new


def _set_rollout(contents: Contents, rollout: Rollout) -> None:
    """Write rollout.json, and name no kits that it does not name."""
    contents.write(documents.rollout_path(contents.group), rollout_bytes(rollout, contents.group))
    for sha256 in contents.kits():
        path = documents.kit_path(contents.group, sha256)
        if path not in (rollout.kit, rollout.previous):
            contents.remove(path)


def set_list(contents: Contents, data: bytes | None, door: str | None = None) -> None:
    """Give all doors of the group, or one door, a door list. None: remove the list."""
    path = documents.list_path(contents.group, None if door is None else documents.check_door(door))
    if data is None:
        if path not in contents.paths:
            raise UsageError(f"There is no list {path}.", "See the lists with `edge-export fleet show`.")
        contents.remove(path)
        return
    DoorList.parse(data)
    contents.write(path, data)


def revoke_people(contents: Contents, labels: Sequence[str], since: str) -> list[str]:
    """Refuse people at all doors of the group. Return those that no published kit of the group knows."""
    old, wanted = contents.revocations(), [check_label(label) for label in labels]
    new = replace(old, people=dict.fromkeys(wanted, since) | dict(old.people))  # a second time does not change the date
    _replace_revocations(contents, new)
    known = {same_spelling(label) for sha256 in contents.kits() for label in _labels(contents, sha256)}
    return [label for label in wanted if label not in known]


def unrevoke_people(contents: Contents, labels: Sequence[str]) -> None:
    """Allow people again."""
    old, wanted = contents.revocations(), {check_label(label) for label in labels}
    _replace_revocations(contents, replace(old, people={name: old.people[name] for name in old.people if name not in wanted}))


def take_common_revocations(contents: Contents, others: Sequence[Contents]) -> Revocations:
    """Refuse in a new group who and what all other groups refuse. Return these people and kits."""
    if not others:
        return Revocations()
    known = [other.revocations() for other in others]
    people = {label: since for label, since in known[0].people.items() if all(label in found.people for found in known)}
    common = Revocations(people=people, kits=frozenset.intersection(*(found.kits for found in known)))
    _replace_revocations(contents, common)
    return common


def revoke_kit(contents: Contents, sha256: str) -> None:
    """Refuse a kit, and stop its rollout."""
    old = contents.revocations()
    _replace_revocations(contents, replace(old, kits=old.kits | {sha256}))
    rollout, path = contents.rollout(), documents.kit_path(contents.group, sha256)
    if rollout is not None and path in (rollout.kit, rollout.previous):
        previous = None if rollout.previous == path else rollout.previous
        _set_rollout(contents, replace(rollout, previous=previous, stopped=rollout.stopped or rollout.kit == path))


def unrevoke_kit(contents: Contents, sha256: str) -> None:
    """Accept a kit again. Its rollout stays stopped."""
    old = contents.revocations()
    _replace_revocations(contents, replace(old, kits=old.kits - {sha256}))


def find_kit(groups: Sequence[Contents], start: str) -> str:
    """Return the SHA-256 of a kit that is named by it, or by its first digits if the groups know the kit."""
    known = {sha256 for contents in groups for sha256 in (*contents.kits(), *contents.revocations().kits)}
    found = [sha256 for sha256 in known if sha256.startswith(start) and len(start) >= MIN_KIT_ID]
    if len(found) == 1:
        return found[0]
    if _SHA256.fullmatch(start):
        return start
    raise UsageError(f"{start[:64]!r} is not one of the kits.", "Write the 64 digits of its SHA-256: `edge-export inspect`.")


def _replace_revocations(contents: Contents, revocations: Revocations) -> None:
    if revocations != contents.revocations():  # without any, there is no file
        contents.write(documents.revoked_path(contents.group), revocations.to_bytes())


def _labels(contents: Contents, sha256: str) -> tuple[str, ...]:
    data = contents.read(documents.kit_path(contents.group, sha256))
    try:
        return () if data is None else tuple(kits.parse(data).manifest.labels)
    except KitError as error:
        raise FleetError(f"A published kit cannot be read: {error.message}", "Publish another kit.") from None
