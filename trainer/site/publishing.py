"""Which kit is at which door: a kit is published by copying it to the file that the terminal of a door watches (`drop`).

published.json says which kit was copied to which file, and when. A terminal accepts only a kit whose version is higher than
that of any kit before (edge.kit.store): kits of a site have the time as version, and going back to an older kit means packing
it again with a higher one.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from edge.errors import EdgeError, UsageError
from edge.files import locked_folder, read_bytes, write_atomically, write_file
from edge.kit import format as kit_format
from edge.kit.format import Kit
from edge.kit.manifest import MAX_NEW_VERSION
from edge.text import some
from trainer.site import doors, trail
from trainer.site.contents import kit_head
from trainer.site.doors import Door
from trainer.site.folder import Site, utc_now
from trainer.site.kits import KitInfo, get_kit, list_kits

PUBLISHED = "published.json"
SCHEMA = 1
MAX_BYTES = 4 << 20
ALL = "all"
NO_DROP = "This door has no file for new kits. Set it in the settings of the door (drop)."


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A kit that was copied to the file of a door."""

    door: str
    """The name that the door had then."""
    drop: str
    kit: str
    version: int
    sha256: str
    utc: str


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What happened at one door when a kit was published."""

    door: str
    problem: str = ""
    """Why the door did not get the kit, or empty."""

    def __str__(self) -> str:
        return f"{self.door}: {self.problem or 'published.'}"


def at_doors(site: Site) -> dict[str, Publication]:
    """Return what was published last to each door, by the present names of the doors."""
    known = _read(site)
    return {door.name: known[str(door.drop)] for door in doors.load(site) if str(door.drop) in known}


def doors_with(kit: KitInfo, published: Mapping[str, Publication]) -> list[str]:
    """Return the doors to which a kit was published last."""
    return [door for door, found in published.items() if (found.kit, found.version) == (kit.name, kit.version)]


def doors_with_newer(kit: KitInfo, published: Mapping[str, Publication]) -> list[str]:
    """Return the doors that refuse a kit, because a newer one was published there."""
    return [door for door, found in published.items() if found.version > kit.version]


def named_doors(site: Site, words: Sequence[str]) -> tuple[str, ...]:
    """Return the doors that `--publish` names: a name, names with commas between them, or `all` that have a file for kits."""
    known = doors.load(site)
    names: list[str] = []
    for word in words:
        if word in {door.name for door in known}:
            names.append(word)
        elif word == ALL:
            names += [door.name for door in known if door.drop is not None]
        else:
            names += [part.strip() for part in word.split(",")]
    return tuple(dict.fromkeys(doors.find(site, name).name for name in names))


def next_version(site: Site) -> int:
    """Return a version for a new kit: the time, and more than any kit of the site or at its doors has."""
    known = [kit.version for kit in list_kits(site)] + [found.version for found in _read(site).values()]
    known += [version for door in doors.load(site) if door.drop is not None for version, _ in _waiting(door)]
    version = max(int(f"{datetime.now(UTC):%Y%m%d%H%M%S}"), 1 + max(known, default=0))
    if version > MAX_NEW_VERSION:
        problem = f"A kit of this site has the version {version - 1}, and no version can be higher than {MAX_NEW_VERSION}."
        raise UsageError(problem, "Delete that kit if no door has it.")
    return version


def check_doors(site: Site, names: Collection[str]) -> list[Door]:
    """Return these doors. UsageError with a sentence for each of them that cannot get a kit."""
    chosen = [doors.find(site, name) for name in dict.fromkeys(names)]
    if not chosen:
        raise UsageError("No door was chosen.", "Choose at least one.")
    _refuse({door.name: _place_problem(door) for door in chosen})
    return chosen


def publish(site: Site, name: str, names: Collection[str], *, who: str) -> list[Delivery]:
    """Copy a kit to the files of these doors. Nothing is written unless every door can get it. Return what happened."""
    path = get_kit(site, name).path
    data = kit_format.read_kit_bytes(path)
    kit = kit_format.parse(data)
    with locked_folder(site.kits):
        chosen, known = check_doors(site, names), _read(site)
        _refuse({door.name: _version_problem(door, kit, known) for door in chosen})
        deliveries = [Delivery(door=door.name, problem=_deliver(door, data)) for door in chosen]
        done = {one.door for one in deliveries if not one.problem}
        for door in chosen:
            if door.name in done:
                known[str(door.drop)] = Publication(
                    door=door.name,
                    drop=str(door.drop),
                    kit=name,
                    version=kit.manifest.kit_version,
                    sha256=kit.sha256,
                    utc=utc_now(),
                )
        _write(site, known)
    with site.database() as database:
        trail.record(database, who, "publish kit", name, " ".join(map(str, deliveries)))
    return deliveries


def _refuse(problems: Mapping[str, str]) -> None:
    """Raise one error for all doors with a problem."""
    found = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    if found:
        raise UsageError(f"Nothing was published. {some(found, ' ')}", "Correct this, or choose other doors.")


def _place_problem(door: Door) -> str:
    """Return why a door cannot get kits, or an empty text."""
    if door.drop is None:
        return NO_DROP
    folder = door.drop.parent
    if not os.path.isdir(folder):  # False, not an error, if a folder above cannot be entered
        return f"There is no folder {folder}."
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"The folder {folder} cannot be written."
    return f"{door.drop} is a folder." if os.path.isdir(door.drop) else ""


def _version_problem(door: Door, kit: Kit, known: Mapping[str, Publication]) -> str:
    """Return why the terminal of a door would refuse a kit, or an empty text."""
    new = kit.manifest.kit_version
    record = known.get(str(door.drop))
    seen = _waiting(door) + ([] if record is None else [(record.version, record.sha256)])
    if any(version > new for version, _ in seen):
        return "A newer kit was published there, and a terminal refuses older ones. Go back to this kit instead."
    if any(version == new and digest != kit.sha256 for version, digest in seen):
        return f"Another kit with the version {new} was published there. Build a new kit."
    return ""


def _waiting(door: Door) -> list[tuple[int, str]]:
    """Return version and SHA-256 of the kit in the file of a door; nothing if there is none."""
    assert door.drop is not None
    try:
        data = kit_format.read_kit_bytes(door.drop)
        return [(kit_head(door.drop)[0].kit_version, hashlib.sha256(data).hexdigest())]
    except EdgeError:
        return []


def _deliver(door: Door, data: bytes) -> str:
    """Copy a kit to the file of a door in one step. Return why that failed, or an empty text."""
    assert door.drop is not None
    try:
        # A link may lead to another disk; root follows none, because a user may have made it.
        write_atomically(door.drop if os.geteuid() == 0 else door.drop.resolve(), data, keep_owner=True)
    except OSError as error:
        return f"{door.drop} cannot be written ({error.strerror})."
    return ""


def _read(site: Site) -> dict[str, Publication]:
    """Return what was published last, by the path of the file."""
    file = site.path / PUBLISHED
    if not file.exists():
        return {}
    try:
        contents = json.loads(read_bytes(file, MAX_BYTES))
        if contents["schema"] != SCHEMA:
            raise ValueError("another schema")
        found = [Publication(**one) for one in contents["published"]]
        if not all(type(one.version) is int and all(type(text) is str for text in (one.door, one.kit)) for one in found):
            raise ValueError("a value of another type")
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = "Restore it from a copy, or delete it: then publish again to every door."
        raise UsageError(f"{file} is damaged.", hint) from None
    return {one.drop: one for one in found}


def _write(site: Site, known: Mapping[str, Publication]) -> None:
    """Write what was published last. Files that are of no door any more are left out."""
    drops = {str(door.drop) for door in doors.load(site)}
    entries = [asdict(one) for one in known.values() if one.drop in drops]
    text = json.dumps({"schema": SCHEMA, "published": entries}, ensure_ascii=False, indent=1)
    write_file(site.path / PUBLISHED, f"{text}\n".encode())
