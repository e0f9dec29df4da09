"""Make a repository, its groups and keys, exchange keys, sign, and renew what expires."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tuf.api.metadata import DelegatedRole, Delegations, Role, Root, Signed, Targets

from edge.errors import UsageError, require
from edge.fleet import documents
from edge.text import some
from export.fleet.keys import SHORT, Keyring, load
from export.fleet.repository import (
    ONLINE,
    PREFIX,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    Repository,
    Waiting,
    delegations,
    role_of,
)
from export.fleet.store import Lifetimes, Settings, Store

TOP_LEVEL = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
OFFLINE = (ROOT, TARGETS)
MAX_KEYS, MAX_GROUPS = 20, 1000
MIN_KEY_ID = 8
"""Digits with which a key is named."""
ONLINE_RESERVE, OFFLINE_RESERVE = 1 / 2, 1 / 3
"""Metadata is renewed when this share of its lifetime is left."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """How many keys a role has, and how many of them must sign."""

    number: int = 1
    threshold: int = 1

    def __post_init__(self) -> None:
        require(
            1 <= self.threshold <= self.number <= MAX_KEYS, f"Use 1 to {MAX_KEYS} keys, and a threshold up to that number."
        )


ONE_KEY = Keys()


def create(
    path: Path,
    keys: Path,
    now: datetime,
    *,
    root: Keys = ONE_KEY,
    targets: Keys = ONE_KEY,
    password: bytes | None = None,
    lifetimes: Lifetimes | None = None,
) -> Path:
    """Make a repository without groups, and its keys. With a password, those of root and targets are encrypted.

    Return the file that every terminal needs.
    """
    folder = keys.resolve()
    if folder.is_relative_to(path.resolve()):
        raise UsageError("The keys must not be in the repository.", "Name a folder outside of it with --keys.")
    if folder.is_dir() and any((folder / role).exists() for role in TOP_LEVEL):
        raise UsageError(f"{keys} contains the keys of another repository.", "Name a new folder with --keys.")
    settings = Settings(keys=folder, lifetimes=lifetimes or Lifetimes())
    store, keyring = Store.create(path, settings), Keyring(folder, password)
    first = Root(version=1, consistent_snapshot=True)
    for role, wanted in ((ROOT, root), (TARGETS, targets), (SNAPSHOT, ONE_KEY), (TIMESTAMP, ONE_KEY)):
        first.roles[role] = Role([], wanted.threshold)
        for _ in range(wanted.number):
            first.add_key(keyring.make(role, encrypt=role in OFFLINE), role)
    with store.locked():
        repository = Repository(store, settings, keyring, now)
        repository.begin(first)
        repository.submit(TARGETS, Targets(delegations=Delegations({}, {})))
        repository.publish()
    return root_file(store)


def root_file(store: Store) -> Path:
    """Return the newest root: a terminal that has any published root finds the others."""
    return store.metadata_file(ROOT, store.versions()[ROOT][-1])


def add_group(repository: Repository, group: str) -> None:
    """Add a group of doors with a key of its own."""
    role = role_of(documents.check_group(group))
    targets: Targets = repository.draft(TARGETS)
    groups = delegations(targets)
    if role in groups:
        raise UsageError(f"There is a group {group} already.", "See the groups with `edge-export fleet show`.")
    require(len(groups) < MAX_GROUPS, f"A repository has at most {MAX_GROUPS:,} groups.")
    if targets.delegations is None or targets.delegations.roles is None:
        targets.delegations = Delegations({}, {})
    assert targets.delegations.roles is not None
    paths = [f"{group}/*", f"{group}/*/*"]
    targets.delegations.roles[role] = DelegatedRole(role, [], 1, terminating=True, paths=paths)
    targets.add_key(repository.keys.make(role), role)
    repository.submit(TARGETS, targets)
    repository.submit(role, Targets())


def remove_group(repository: Repository, group: str) -> None:
    """Remove a group. Its doors keep what they have until it is too old, and raise an alarm. `prune` removes its files."""
    role = find_group(repository, group)
    targets: Targets = repository.draft(TARGETS)
    for keyid in list(targets.get_delegated_role(role).keyids):
        targets.revoke_key(keyid, role)
    assert targets.delegations is not None
    assert targets.delegations.roles is not None
    del targets.delegations.roles[role]
    repository.submit(TARGETS, targets)


def find_group(repository: Repository, group: str) -> str:
    """Return the role of an existing group."""
    role, known = role_of(documents.check_group(group)), repository.group_roles()
    if role not in known:
        names = some([name.removeprefix(PREFIX) for name in known]) or "none yet"
        raise UsageError(f"There is no group {group}.", f"Groups: {names}. Add one with `edge-export fleet add-group`.")
    return role


def check_role(repository: Repository, role: str) -> str:
    """Return the name of an existing role: root, targets, snapshot, timestamp, group-NAME."""
    if role in TOP_LEVEL:
        return role
    if not role.startswith(PREFIX):
        raise UsageError(f"There is no role {role[:60]!r}.", f"Roles: {', '.join(TOP_LEVEL)}, {PREFIX}NAME.")
    return find_group(repository, role.removeprefix(PREFIX))


def rotate(repository: Repository, role: str, *, revoke: str | None = None) -> tuple[str, str]:
    """Exchange a key of a role for a new one. Return the IDs of the old and the new key.

    What the role has published is signed again, with the old and the new key.
    """
    parent = TARGETS if check_role(repository, role).startswith(PREFIX) else ROOT
    delegator: Root | Targets = repository.draft(parent)
    old = _key_to_revoke(delegator.get_delegated_role(role).keyids, role, revoke)
    new = repository.keys.make(role, encrypt=role in OFFLINE)
    delegator.revoke_key(old, role)
    delegator.add_key(new, role)
    contents = None if role in (ROOT, *ONLINE) else repository.draft(role)
    repository.submit(parent, delegator)
    if contents is not None:
        repository.submit(role, contents)
    return old, new.keyid


def _key_to_revoke(keyids: Sequence[str], role: str, start: str | None) -> str:
    shown = ", ".join(keyid[:SHORT] for keyid in keyids)
    found = [keyid for keyid in keyids if start is None or (len(start) >= MIN_KEY_ID and keyid.startswith(start))]
    if len(found) != 1:
        which = f"{role} has {len(keyids)} keys" if start is None else f"{role} has no single key {start[:64]!r}"
        raise UsageError(f"{which}.", f"Name one with --revoke: {shown}.")
    return found[0]


def sign(repository: Repository, role: str, key: Path) -> None:
    """Add the signature of one key to a change that waits."""
    signer = load(key, repository.keys.password)
    if signer is None:
        raise UsageError(f"{key} needs a password.", "Add --password.")
    repository.add_signature(check_role(repository, role), signer)


def discard(repository: Repository, role: str) -> None:
    """Forget a change that waits."""
    if repository.pending(check_role(repository, role)) is None:
        raise UsageError(f"No change of {role} waits.", "See `edge-export fleet show`.")
    repository.store.remove_pending(role)


def refresh(repository: Repository, roles: Sequence[str] = ()) -> list[Waiting]:
    """Renew these roles, and those that expire soon if their keys are here. Return what waits for signatures."""
    forced = {check_role(repository, role) for role in roles}
    due = forced | set(expiring(repository))
    for role in sorted(due - set(ONLINE)):
        if role in forced or (repository.pending(role) is None and repository.can_sign(role)):
            repository.submit(role, repository.draft(role))
    return repository.publish(renew=due & set(ONLINE))


def expiring(repository: Repository) -> dict[str, datetime]:
    """Return the published roles of which little of the lifetime is left, and when they expire."""
    found = {}
    for role, signed in published(repository).items():
        reserve = ONLINE_RESERVE if role in ONLINE else OFFLINE_RESERVE
        if signed.expires - repository.now < repository.settings.lifetimes.of(role) * reserve:
            found[role] = signed.expires
    return found


def published(repository: Repository) -> dict[str, Signed]:
    """Return the published contents of every role."""
    root, targets, timestamp = repository.root(), repository.targets(), repository.timestamp()
    found: dict[str, Signed] = {ROOT: root, TARGETS: targets, SNAPSHOT: repository.snapshot().signed}
    if timestamp is not None:
        found[TIMESTAMP] = timestamp.signed
    return found | {role: repository.published(role, targets).signed for role in delegations(targets)}


def set_lifetimes(repository: Repository, lifetimes: Lifetimes) -> None:
    """Use other lifetimes from the next version of each role on."""
    repository.settings = Settings(keys=repository.settings.keys, lifetimes=lifetimes)
    repository.store.write_settings(repository.settings)
