"""The files of a group in the repository of a fleet, as a terminal reads them. Here only their form counts: `tuf` checks them.

G/rollout.json          which kit, for which doors            G/kits/SHA256.kit    the kits that rollout.json names
G/revoked.json          people and kits that are refused      G/list.toml          the door list of all doors of the group
G/DOOR/list.toml        the door list of one door; it wins over that of the group
"""

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edge.errors import FleetError, UsageError
from edge.text import same_spelling

SCHEMA = 1
ALL, KITS = "all", "kits"
MAX_BYTES = 2 << 20
"""Of a file except a kit, also of metadata."""
MAX_DOORS, MAX_REVOKED, MAX_LABEL = 10_000, 10_000, 255
MAX_VERSION = 1 << 53
SHARE_DIGITS = 13
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_ID = re.compile(r"[0-9a-f]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_group(name: str) -> str:
    """Return the name of a group. UsageError if it is not safe in paths and addresses."""
    return _checked("group", name, ALL)


def check_door(name: str) -> str:
    """Return the name of a door. UsageError if it is not safe in paths and addresses."""
    return _checked("door", name, KITS)


def _checked(kind: str, name: str, reserved: str) -> str:
    if name == reserved or _NAME.fullmatch(name) is None:
        hint = f"Use up to 40 small letters a-z, digits, - and _, such as north-2, but not {reserved!r}."
        raise UsageError(f"{name[:60]!r} is not a valid name of a {kind}.", hint)
    return name


def rollout_path(group: str) -> str:
    return f"{group}/rollout.json"


def revoked_path(group: str) -> str:
    return f"{group}/revoked.json"


def list_path(group: str, door: str | None = None) -> str:
    return f"{group}/list.toml" if door is None else f"{group}/{door}/list.toml"


def kit_path(group: str, sha256: str) -> str:
    return f"{group}/{KITS}/{sha256}.kit"


def kit_sha256(path: str) -> str:
    """Return the SHA-256 in the path of a kit."""
    return path.rpartition("/")[2].removesuffix(".kit")


def fraction(rollout_id: str, door: str) -> float:
    """Return where a door stands in the order of a rollout, from 0 to less than 1. Doors below the share take the kit."""
    digits = hashlib.sha256(f"{rollout_id}:{door}".encode()).hexdigest()[:SHARE_DIGITS]
    return float(int(digits, 16) / 16**SHARE_DIGITS)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Which kit the doors of a group take."""

    id: str
    """Random: it decides, with the name of a door, whether the door is in the share."""
    kit: str
    """Path of the kit."""
    kit_version: int
    share: float = 1.0
    """The share of the doors that take the kit."""
    doors: tuple[str, ...] | None = None
    """Only these doors. None: all doors of the group."""
    previous: str | None = None
    """Path of the kit for doors that do not take `kit` and have no kit of the fleet yet."""
    stopped: bool = False
    """Whether doors that have not taken the kit yet do not take it."""

    @classmethod
    def from_bytes(cls, data: bytes, group: str) -> "Rollout":
        """Read rollout.json. FleetError if anything in it is not as described here."""
        fields = _fields(data, "rollout.json", {"id", "kit", "kit_version", "share", "doors", "previous", "stopped"})
        share, doors, version = fields["share"], fields["doors"], fields["kit_version"]
        _require(_is_text(fields["id"], _ID), "rollout.json", "id")
        _require(_is_kit(fields["kit"], group), "rollout.json", "kit")
        _require(fields["previous"] is None or _is_kit(fields["previous"], group), "rollout.json", "previous")
        _require(type(version) is int and 0 <= version <= MAX_VERSION, "rollout.json", "kit_version")
        _require(type(share) in (int, float) and 0 <= share <= 1, "rollout.json", "share")
        _require(type(fields["stopped"]) is bool, "rollout.json", "stopped")
        are_doors = isinstance(doors, list) and 0 < len(doors) <= MAX_DOORS and all(_is_text(door, _NAME) for door in doors)
        _require(doors is None or are_doors, "rollout.json", "doors")
        return cls(**fields | {"share": float(share), "doors": None if doors is None else tuple(doors)})

    def kit_for(self, door: str, *, has_kit: bool) -> str | None:
        """Return the path of the kit that a door takes, or None. `has_kit`: it has a kit of the fleet."""
        is_named = self.doors is None or door in self.doors
        if not self.stopped and is_named and fraction(self.id, door) < self.share:
            return self.kit
        return None if has_kit else self.previous


@dataclass(frozen=True, kw_only=True)
class Revocations:
    """People who are never granted, and kits that are never used."""

    people: frozenset[str] = frozenset()
    kits: frozenset[str] = frozenset()
    """SHA-256 of each."""

    @classmethod
    def from_bytes(cls, data: bytes) -> "Revocations":
        """Read revoked.json. FleetError if anything in it is not as described here."""
        fields = _fields(data, "revoked.json", {"people", "kits"})
        people, kits = fields["people"], fields["kits"]
        are_people = isinstance(people, list) and len(people) <= MAX_REVOKED and all(map(_is_revoked_person, people))
        _require(are_people, "revoked.json", "people")
        are_kits = isinstance(kits, list) and len(kits) <= MAX_REVOKED and all(_is_text(kit, _SHA256) for kit in kits)
        _require(are_kits, "revoked.json", "kits")
        return cls(people=frozenset(same_spelling(person["label"]) for person in people), kits=frozenset(kits))

    def is_revoked(self, label: str) -> bool:
        return same_spelling(label) in self.people


def _fields(data: bytes, name: str, keys: set[str]) -> dict[str, Any]:
    """Return the fields of a JSON object of this schema that has exactly these keys."""
    fields: Any = None
    with suppress(ValueError, RecursionError):
        fields = json.loads(data) if len(data) <= MAX_BYTES else None
    _require(isinstance(fields, dict), name, "JSON")
    schema = fields.pop("schema", None)
    if type(schema) is not int or schema != SCHEMA:
        raise FleetError(f"{name} of the fleet was written for another version.", "Update lclrr-edge on this device.")
    _require(fields.keys() == keys, name, "keys")
    return dict(fields)


def _is_revoked_person(person: Any) -> bool:
    if not isinstance(person, dict) or person.keys() != {"label", "since"}:
        return False
    label, since = person["label"], person["since"]
    if type(label) is not str or not label or len(label) > MAX_LABEL or type(since) is not str:
        return False
    try:
        return datetime.fromisoformat(since).tzinfo is not None
    except ValueError:
        return False


def _is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return type(value) is str and pattern.fullmatch(value) is not None


def _is_kit(value: Any, group: str) -> bool:
    return (
        type(value) is str and _SHA256.fullmatch(kit_sha256(value)) is not None and value == kit_path(group, kit_sha256(value))
    )


def _require(holds: bool, name: str, part: str) -> None:
    if not holds:
        raise FleetError(f"{name} of the fleet is not valid ({part}).", "Ask the person who publishes it.")
