"""`edge-export publish` and `edge-export fleet`: each function parses, calls the library, reports.

The library is imported when a command runs: it needs the packages of the extra `fleet`.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli import common as console
from edge.credentials import read_secret
from edge.decision.doorlist import MAX_BYTES as MAX_LIST
from edge.errors import UsageError
from edge.files import read_bytes
from edge.fleet import documents
from edge.kit import format as kits
from edge.text import plural, some
from export.fleet.store import Lifetimes

if TYPE_CHECKING:
    from export.fleet.contents import Contents
    from export.fleet.repository import Repository, Waiting

app = typer.Typer(no_args_is_help=True)

PACKAGES = {"tuf", "securesystemslib", "cryptography", "urllib3"}
PASSWORD_VARIABLE = "LCLRR_KEY_PASSWORD"

RepoFolder = Annotated[Path, typer.Argument(metavar="REPO", help="The folder that `fleet init` made.")]
KeysFolder = Annotated[Path | None, typer.Option("--keys", metavar="FOLDER", help="Private keys (default: those of init).")]
Password = Annotated[bool, typer.Option("--password", help=f"Ask for the password of the keys, or use ${PASSWORD_VARIABLE}.")]
Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="Group of doors.")]
AnyGroup = Annotated[str, typer.Option("--group", metavar="GROUP", help="Group of doors, or all.")]
Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="root, targets, snapshot, timestamp or group-NAME.")]
Share = Annotated[float | None, typer.Option(min=0, max=1, help="Share of the doors that take the kit: 0.01 is 1 %.")]
People = Annotated[list[str] | None, typer.Option("--person", metavar="LABEL", help="A person. Can be repeated.")]
KitDigits = Annotated[str | None, typer.Option("--kit", metavar="SHA256", help="A kit, or its first 8 digits or more.")]
Days = Annotated[float | None, typer.Option(help="New metadata expires after so many days.")]


@dataclass(frozen=True, kw_only=True)
class DoorChoice:
    """The value of --doors."""

    group: str
    """A group, or `all`."""
    doors: tuple[str, ...] | None = None
    """None: all doors of the group."""


@app.callback()
def check_packages() -> None:
    """Stop if the packages are missing."""
    try:
        import_module("export.fleet.repository")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in PACKAGES:
            raise
        raise UsageError(f"This command needs the package {error.name}.", "Run: pip install 'lclrr-edge[fleet]'") from None


@app.command()
def init(
    repo: Annotated[Path, typer.Argument(metavar="REPO", help="The repository to make: a new or empty folder.")],
    keys: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the private keys are written.")],
    root_keys: Annotated[int, typer.Option(help="Number of keys of root.")] = 1,
    root_threshold: Annotated[int, typer.Option(help="How many of them must sign.")] = 1,
    targets_keys: Annotated[int, typer.Option(help="Number of keys of targets.")] = 1,
    targets_threshold: Annotated[int, typer.Option(help="How many of them must sign.")] = 1,
    password: Annotated[bool, typer.Option("--password", help="Encrypt the keys of root and targets.")] = False,
    timestamp_days: Days = None,
    snapshot_days: Days = None,
    targets_days: Days = None,
    root_days: Days = None,
) -> None:
    """Make a repository of static files for a fleet of terminals, and its keys."""
    from export.fleet import roles

    root_file = roles.create(
        repo,
        keys,
        datetime.now(UTC),
        root=roles.Keys(number=root_keys, threshold=root_threshold),
        targets=roles.Keys(number=targets_keys, threshold=targets_threshold),
        password=read_password(password, new=True),
        lifetimes=_lifetimes(Lifetimes(), timestamp_days, snapshot_days, targets_days, root_days),
    )
    console.say(f"{repo} is ready. A web server serves {repo}/metadata and {repo}/targets.")
    console.say(f"Move {keys}/root and {keys}/targets to a medium that you keep offline. The other keys stay here.")
    console.say(f"Copy {root_file} to every terminal as root.json. Next: edge-export fleet add-group {repo} NAME")


@app.command("add-group")
def add_group(
    repo: RepoFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.")],
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Add a group of doors. What all other groups refuse is revoked in it, too. It needs the keys of targets."""
    from export.fleet import roles
    from export.fleet.contents import Contents, take_common_revocations

    with _opened(repo, keys, password) as repository:
        others = _contents(repository, documents.ALL) if repository.group_roles() else []
        roles.add_group(repository, name)
        group = Contents(repository, name)
        common = take_common_revocations(group, others)
        if group.submit():
            found = f"{plural(len(common.people), 'person', 'people')} and {plural(len(common.kits), 'kit')}"
            console.say(f"{name}: {found} are revoked, as in all other groups. `edge-export fleet unrevoke` allows them.")
        _publish(repository, f"Added the group {name}.")


@app.command("remove-group")
def remove_group(
    repo: RepoFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.")],
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Remove a group of doors. Its doors keep what they have until it is too old. It needs the keys of targets."""
    from export.fleet import roles

    with _opened(repo, keys, password) as repository:
        roles.remove_group(repository, name)
        _publish(repository, f"Removed the group {name}.")


def publish(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A kit that `build` wrote.")],
    repo: Annotated[Path, typer.Option(metavar="REPO", help="The folder that `fleet init` made.")],
    doors: Annotated[str, typer.Option(metavar="DOORS", help="group:NAME, group:all, or doors: north,south.")],
    group: Annotated[str | None, typer.Option(help="Group of the named doors, if there are several groups.")] = None,
    share: Share = None,
    door_list: Annotated[Path | None, typer.Option("--list", metavar="FILE", help="Door list for the same doors.")] = None,
    revoke: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Refuse a person. Can be repeated.")] = None,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Publish a kit for the doors of a fleet."""
    check_packages()
    from export.fleet import contents as library
    from export.fleet import overview

    data, allowed = kits.read_kit_bytes(kit), _read_list(door_list)
    opened = kits.parse(data)
    if opened.signature == "none":
        console.say(f"warning: {kit} is not signed. Terminals with [kit] public_key reject it; see --sign of build.")
    with _opened(repo, keys, password) as repository:
        choice = _doors(repository, doors, group)
        groups = _contents(repository, choice.group)
        for contents in groups:
            library.set_kit(contents, data, opened, doors=choice.doors, share=share)
            if allowed is not None:
                for door in choice.doors or (None,):
                    library.set_list(contents, allowed, door)
            _revoke(contents, revoke)
        _submit(groups, "changed")
        for contents in groups:
            console.say(f"{contents.group}: {overview.rollout_sentence(contents.rollout())}.")
        _publish(repository)


@app.command("lists")
def publish_list(
    repo: RepoFolder,
    group: Group,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A door list (TOML).")] = None,
    door: Annotated[str | None, typer.Option(metavar="DOOR", help="Only for this door.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the list instead.")] = False,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Publish a door list for a group or one door, without a new kit."""
    if (file is None) != remove:
        raise UsageError("Name a door list, or use --remove.", "docs/guide/door-list.md shows the format.")
    from export.fleet import contents as library

    data = _read_list(file)
    with _opened(repo, keys, password) as repository:
        contents = library.Contents(repository, group)
        library.set_list(contents, data, door)
        _submit([contents], "no list" if remove else "a new list")
        _publish(repository)


@app.command()
def revoke(
    repo: RepoFolder,
    group: AnyGroup,
    people: People = None,
    kit: KitDigits = None,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Refuse people or a kit at all doors of a group, without a new kit."""
    from export.fleet import contents as library

    _require_choice(people, kit)
    with _opened(repo, keys, password) as repository:
        groups = _contents(repository, group)
        sha256 = None if kit is None else library.find_kit(groups, kit)
        for contents in groups:
            _revoke(contents, people)
            if sha256 is not None:
                library.revoke_kit(contents, sha256)
        _submit(groups, "new revocations")
        _publish(repository)


@app.command()
def unrevoke(
    repo: RepoFolder,
    group: AnyGroup,
    people: People = None,
    kit: KitDigits = None,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Accept people or a kit again. The rollout of a revoked kit stays stopped."""
    from export.fleet import contents as library

    _require_choice(people, kit)
    with _opened(repo, keys, password) as repository:
        groups = _contents(repository, group)
        sha256 = None if kit is None else library.find_kit(groups, kit)
        for contents in groups:
            library.unrevoke_people(contents, people or [])
            if sha256 is not None:
                library.unrevoke_kit(contents, sha256)
        _submit(groups, "fewer revocations")
        _publish(repository)


@app.command()
def rollout(
    repo: RepoFolder,
    group: Group,
    share: Share = None,
    stop: Annotated[bool, typer.Option("--stop", help="No more doors take the kit.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after --stop.")] = False,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Change the share of doors that take the kit, stop the rollout, or resume it."""
    if (share is None and not stop and not resume) or (stop and resume):
        raise UsageError("Use --share, --stop or --resume.", "For example: --share 0.1.")
    from export.fleet import contents as library

    with _opened(repo, keys, password) as repository:
        contents = library.Contents(repository, group)
        new = library.change_rollout(contents, share=share, stopped=stop or (False if resume else None))
        stopped = ", and it is stopped" if new.stopped else ""
        _submit([contents], f"the kit is for {100 * new.share:g} % of the doors{stopped}")
        _publish(repository)


@app.command()
def refresh(
    repo: RepoFolder,
    roles: Annotated[list[str] | None, typer.Option("--role", metavar="ROLE", help="Renew this role now.")] = None,
    timestamp_days: Days = None,
    snapshot_days: Days = None,
    targets_days: Days = None,
    root_days: Days = None,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Renew what expires soon, if its keys are here. Run it every hour. Options for days are stored."""
    from export.fleet import roles as library

    with _opened(repo, keys, password) as repository:
        lifetimes = _lifetimes(repository.settings.lifetimes, timestamp_days, snapshot_days, targets_days, root_days)
        if lifetimes != repository.settings.lifetimes:
            library.set_lifetimes(repository, lifetimes)
        report_waiting(library.refresh(repository, roles or []))
        for role, expires in library.expiring(repository).items():
            hint = f"run `edge-export fleet refresh {repo} --role {role}` with its keys"
            console.say(f"warning: {role} expires at {expires:%Y-%m-%d %H:%M} UTC: {hint}.")


@app.command()
def rotate(
    repo: RepoFolder,
    role: Role,
    revoke: Annotated[str | None, typer.Option(metavar="KEYID", help="The old key, if the role has several.")] = None,
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Exchange a key of a role for a new one. It needs the keys of root, or of targets for a group."""
    from export.fleet import roles
    from export.fleet.keys import SHORT

    with _opened(repo, keys, password) as repository:
        old, new = roles.rotate(repository, role, revoke=revoke)
        folder = repository.keys.path(role)
        short = [keyid[:SHORT] for keyid in (old, new)]
        _publish(repository, f"{role}: key {short[0]} is replaced by {folder}/{short[1]}.pem.")
        console.say(f"Delete {short[0]}.pem when the change is published.")


@app.command()
def sign(
    repo: RepoFolder,
    role: Role,
    key: Annotated[Path, typer.Option(metavar="FILE", help="Private key of one person.")],
    keys: KeysFolder = None,
    password: Password = False,
) -> None:
    """Add a signature to a change that waits. The last one publishes it."""
    from export.fleet import roles

    with _opened(repo, keys, password) as repository:
        roles.sign(repository, role, key)
        _publish(repository, "Signed.")


@app.command()
def discard(repo: RepoFolder, role: Role) -> None:
    """Forget a change that waits for signatures."""
    from export.fleet import roles

    with _opened(repo, None, False) as repository:
        roles.discard(repository, role)
        console.say(f"The change of {role} is discarded.")


@app.command()
def show(repo: RepoFolder, as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Show roles, keys, expiry, and what each group gets. --json includes the names of revoked people."""
    from export.fleet import overview

    with _opened(repo, None, False) as repository:
        facts = overview.overview(repository)
        typer.echo(json.dumps(facts) if as_json else "\n".join(overview.sentences(facts)))


@app.command()
def prune(repo: RepoFolder, keep: Annotated[int, typer.Option(help="Versions of each role that stay.")] = 5) -> None:
    """Remove kits, lists and metadata that no terminal needs any more."""
    from export.fleet import pruning

    with _opened(repo, None, False) as repository:
        console.say(f"Removed {plural(len(pruning.prune(repository, keep)), 'file')}.")


@contextmanager
def _opened(repo: Path, keys: Path | None, password: bool) -> Iterator["Repository"]:
    """Open a repository. The password is asked for first: other commands wait while the repository is open."""
    from export.fleet.repository import opened

    secret = read_password(password)
    with opened(repo, keys=keys, password=secret) as repository:
        yield repository


def read_password(wanted: bool, *, new: bool = False) -> bytes | None:
    if not wanted:
        return None
    if PASSWORD_VARIABLE in os.environ:
        secret = read_secret("keys", None, PASSWORD_VARIABLE)
    else:
        secret = typer.prompt("Password of the keys", hide_input=True, confirmation_prompt=new, err=True)
    return str(secret).encode()


def _lifetimes(
    lifetimes: Lifetimes, timestamp: float | None, snapshot: float | None, targets: float | None, root: float | None
) -> Lifetimes:
    given = {"timestamp": timestamp, "snapshot": snapshot, "targets": targets, "root": root}
    return replace(lifetimes, **{role: days for role, days in given.items() if days is not None})


def _doors(repository: "Repository", text: str, group: str | None) -> DoorChoice:
    """Parse --doors. Doors have no group in the repository: it is the only one, or --group."""
    if text.startswith("group:"):
        if group is not None:
            raise UsageError("Use --group with names of doors only.", "--doors group:NAME names the group.")
        return DoorChoice(group=text.removeprefix("group:"))
    doors = tuple(documents.check_door(name.strip()) for name in text.split(","))
    groups = [role.removeprefix("group-") for role in repository.group_roles()]
    if group is None and len(groups) != 1:
        raise UsageError("The repository has not exactly one group.", "Name the group of the doors with --group.")
    return DoorChoice(group=documents.check_group(group or groups[0]), doors=doors)


def _contents(repository: "Repository", group: str) -> list["Contents"]:
    from export.fleet.contents import Contents, groups_of

    return [Contents(repository, name) for name in groups_of(repository, group)]


def _read_list(path: Path | None) -> bytes | None:
    return None if path is None else read_bytes(path, MAX_LIST + 1)


def _require_choice(people: list[str] | None, kit: str | None) -> None:
    if not people and kit is None:
        raise UsageError("Name a person or a kit.", "Use --person LABEL or --kit SHA256.")


def _revoke(contents: "Contents", people: list[str] | None) -> None:
    from export.fleet.contents import revoke_people

    if not people:
        return
    unknown = revoke_people(contents, people, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    if unknown:
        names = some(unknown)
        console.say(f"warning: no published kit of {contents.group} knows {names}. Check the spelling. Revoked all the same.")


def _submit(groups: Sequence["Contents"], what: str) -> None:
    """Sign the changes of groups. All of them are made before the first is signed: an error changes no group."""
    for contents in groups:
        console.say(f"{contents.group}: {what if contents.submit() else 'no change'}.")


def _publish(repository: "Repository", sentence: str = "") -> None:
    if sentence:
        console.say(sentence)
    report_waiting(repository.publish())


def report_waiting(waiting: Sequence["Waiting"]) -> None:
    from export.fleet.overview import waiting_sentence

    for change in waiting:
        console.say(waiting_sentence(vars(change)))
