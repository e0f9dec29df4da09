"""The doors of a site: doors.toml, and a secret for the events of each."""

import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from edge.enrol.storage import check_name
from edge.errors import UsageError
from edge.files import locked_folder, read_bytes, write_file
from edge.settings import to_toml
from edge.text import same_spelling, some
from trainer.site import trail
from trainer.site.folder import Site

MAX_DOORS = 1000
MAX_BYTES = 1 << 20
MAX_NAME = 60
MAX_URL = 300
SECRETS = "secrets"
SECRET_BYTES = 32
EVENTS_PATH = "/api/doors/{door}/events"  # of the console
SECRET_NAME = "webhook-secret"  # on the terminal
COMMENT = """\
# The doors of this site. `trainer site add-door` and the console write this file; own comments are lost then.
#
# [[door]]
# name = "north entrance"                        the console's name of the door; its list is lists/NAME.toml
# status_url = "http://192.168.1.20:8080"        where its preview answers ([preview] address of the terminal); may be missing
# drop = "/srv/doors/north/door.kit"             the file that `edge recognize` watches for a new kit; may be missing
# secret_file = "secrets/north.secret"           the secret of its webhook, below the site's folder; may be missing
"""


@dataclass(frozen=True, kw_only=True)
class Door:
    """One door of a site. Its values are checked when it is made."""

    name: str
    """Unique, whatever its capital letters: files have this name."""
    status_url: str = ""
    """Address of the terminal's preview, without a slash at the end. Empty: no live status."""
    drop: Path | None = None
    """Where the terminal watches for a new kit."""
    secret_file: Path | None = None
    """The secret with which the terminal signs its events."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", check_door_name(self.name))
        object.__setattr__(self, "status_url", check_status_url(self.status_url))
        if self.drop is not None and not (self.drop.is_absolute() and self.drop.suffix == ".kit" and _is_plain(self.drop)):
            problem = f"{self.drop} is not a place for kits."
            raise UsageError(problem, "Write the whole path of a kit file, such as /srv/doors/north/door.kit.")


def check_door_name(name: str) -> str:
    """Return the name in NFC spelling. UsageError if it is not safe as a file name."""
    hint = f"Use up to {MAX_NAME} letters without a slash, such as north entrance."
    try:
        name = check_name(name)
    except UsageError:
        raise UsageError(f"{name[:MAX_NAME]!r} is not a valid name of a door.", hint) from None
    if len(name) > MAX_NAME or len(name.encode()) > 3 * MAX_NAME:
        raise UsageError("The name of a door is too long.", hint)
    return name


def check_status_url(url: str) -> str:
    """Return the address of a terminal's preview without a slash at its end."""
    hint = "Write the address that the terminal shows for its preview, such as http://192.168.1.20:8080."
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        valid = valid and url.isascii() and url.isprintable() and not set(url) & set(' "<>\\^`{|}') and len(url) <= MAX_URL
    except ValueError:
        valid = False
    if not url:
        return ""
    if not valid:
        raise UsageError(f"{url[:MAX_URL]!r} is not an address of a preview.", hint)
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("The address of a preview has no user, password, ? or #.", hint)
    return url.rstrip("/")


def load(site: Site) -> tuple[Door, ...]:
    """Return the doors of a site in the order of doors.toml. No file: no doors."""
    if not site.doors_file.exists():
        return ()
    data = read_bytes(site.doors_file, MAX_BYTES + 1)
    hint = "Correct the file, or restore it from a copy."
    if len(data) > MAX_BYTES:
        raise UsageError(f"{site.doors_file} is larger than {MAX_BYTES >> 20} MB.", hint)
    try:
        contents = tomllib.loads(data.decode().removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{site.doors_file} is not valid TOML ({error}).", hint) from None
    tables = contents.get("door", [])
    if set(contents) - {"door"} or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{site.doors_file} may contain only tables [[door]].", hint)
    doors = tuple(_parse(site, table, f"{site.doors_file}, [[door]] number {i}") for i, table in enumerate(tables, 1))
    _check_unique(doors)
    return doors


def find(site: Site, name: str) -> Door:
    """Return the door with this name."""
    found = next((door for door in load(site) if door.name == same_spelling(name)), None)
    if found is None:
        raise UsageError(f"There is no door {name[:MAX_NAME]!r}.", "See the names with `trainer site doors`.")
    return found


def save(site: Site, doors: Sequence[Door], who: str) -> None:
    """Replace all doors of a site."""
    with locked_folder(site.lists):
        _write(site, doors, who)


def add(site: Site, door: Door, who: str) -> None:
    """Add a door. Its name must be new."""
    with locked_folder(site.lists):
        _write(site, [*load(site), door], who)


def change(site: Site, name: str, door: Door, who: str) -> None:
    """Replace the door `name`. If it gets a new name, its list gets it, too. A secret that it had stays."""
    with locked_folder(site.lists):
        old = find(site, name)
        before, after = list_file(site, old), list_file(site, door)
        if before != after and after.exists():
            raise UsageError(f"There is a door list {after} already.", "Move it away, or choose another name.")
        _exchange(site, old, replace(door, secret_file=door.secret_file or old.secret_file), who)
        if before != after and before.exists():
            before.rename(after)


def remove(site: Site, name: str, who: str) -> None:
    """Remove a door and its secret. Its list stays in lists/."""
    with locked_folder(site.lists):
        old = find(site, name)
        _write(site, [door for door in load(site) if door != old], who)
        _remove_secret(site, old)


def make_secret(site: Site, name: str, who: str) -> Path:
    """Give a door a new secret for its webhook, and return its file. The old one is not valid any more."""
    with locked_folder(site.lists):
        door = find(site, name)
        file = site.path / SECRETS / f"{door.name}-{secrets.token_hex(4)}.secret"  # a renamed door keeps its file
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(file, f"{secrets.token_hex(SECRET_BYTES)}\n".encode())
        _exchange(site, door, replace(door, secret_file=file), who)
        _remove_secret(site, door)
    return file


def events_url(console: str, door_name: str) -> str:
    """Return where a terminal posts its events. `console` is the address of the console, as the terminal sees it."""
    return f"{console.rstrip('/')}{EVENTS_PATH.format(door=quote(door_name, safe=''))}"


def webhook_settings(url: str) -> str:
    """Return the lines for settings.toml of a terminal that sends its events to `url`."""
    return (
        f'[webhook]\nurl = {to_toml(url)}\nsecret_file = "{SECRET_NAME}"  # beside this file, mode 0600\n'
        "names = true  # else visits have no names\n"
    )


def list_file(site: Site, door: Door) -> Path:
    """Return the path of the door's list."""
    return site.lists / f"{door.name}.toml"


def _exchange(site: Site, old: Door, new: Door, who: str) -> None:
    _write(site, [new if door == old else door for door in load(site)], who, renamed={new.name: old.name})


def _remove_secret(site: Site, door: Door) -> None:
    if door.secret_file is not None and door.secret_file.parent == site.path / SECRETS:
        door.secret_file.unlink(missing_ok=True)


def _write(site: Site, doors: Sequence[Door], who: str, *, renamed: Mapping[str, str] | None = None) -> None:
    """Write doors.toml and the trail. `renamed`: the old name of a door by its new one."""
    _check_unique(doors)
    try:
        before = {door.name: door for door in load(site)}
    except UsageError:  # a damaged file is replaced
        before = {}
    after = {(renamed or {}).get(door.name, door.name): door for door in doors}  # by the name before the change
    lines = [COMMENT]
    for door in doors:
        values = {field.name: _relative(site, getattr(door, field.name)) for field in fields(door)}
        lines += ["[[door]]", *(f"{key} = {to_toml(value)}" for key, value in values.items() if value not in ("", None)), ""]
    with site.database() as database:
        write_file(site.doors_file, "\n".join(lines).encode())
        for action, names in (
            ("add door", after.keys() - before.keys()),
            ("remove door", before.keys() - after.keys()),
            ("change door", {name for name in after.keys() & before.keys() if after[name] != before[name]}),
        ):
            for name in sorted(names):
                trail.record(database, who, action, name, _changes(before.get(name), after.get(name)))


def _changes(before: Door | None, after: Door | None) -> str:
    """Name the fields that are new or changed, for the trail. Secrets are files: their names tell nothing."""
    if after is None:
        return ""
    old = before or Door(name=after.name)
    changed = [field.name for field in fields(after) if getattr(after, field.name) != getattr(old, field.name)]
    return ", ".join(f"{name}: {getattr(after, name) or 'none'}" for name in changed)


def _parse(site: Site, table: Mapping[str, Any], where: str) -> Door:
    known = [field.name for field in fields(Door)]
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise UsageError(f"{where}: {some(unknown)} is not a known key.", f"Known keys: {', '.join(known)}.")
    if "name" not in table or not all(isinstance(value, str) for value in table.values()):
        raise UsageError(f"{where}: name is missing, or a value is not text.", f"See the comments in {site.doors_file}.")
    paths = {key: site.path / table[key] for key in ("drop", "secret_file") if key in table}
    try:
        return Door(**{**table, **paths})
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from None


def _check_unique(doors: Sequence[Door]) -> None:
    if len(doors) > MAX_DOORS:
        raise UsageError(f"A site has at most {MAX_DOORS:,} doors.", "Make a second site.")
    seen: set[str] = set()
    for door in doors:
        if (key := door.name.casefold()) in seen:
            raise UsageError(f"There are two doors with the name {door.name}.", "Choose another name.")
        seen.add(key)


def _is_plain(path: Path) -> bool:
    return str(path).isprintable() and ".." not in path.parts


def _relative(site: Site, value: str | Path | None) -> str | Path | None:
    """Write paths in the site relative to it: a site may be moved."""
    return value.relative_to(site.path) if isinstance(value, Path) and value.is_relative_to(site.path) else value
