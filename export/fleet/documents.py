"""Write the files of a group. edge/fleet/documents.py defines them, and reads them at the door."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edge.errors import UsageError, require
from edge.fleet import documents
from edge.fleet.documents import MAX_DOORS, MAX_LABEL, MAX_REVOKED, SCHEMA, Rollout
from edge.text import same_spelling


def check_label(label: str) -> str:
    """Return the name of a person as kits spell it."""
    label = same_spelling(label)
    if not label.strip() or not label.isprintable() or len(label.encode()) > MAX_LABEL:
        raise UsageError(f"{label[:60]!r} is not a name of a person.", "Write the name as `trainer show` prints it.")
    return label


def is_complete(rollout: Rollout) -> bool:
    """Whether every door of the group takes the kit."""
    return rollout.share == 1 and rollout.doors is None and not rollout.stopped


def rollout_bytes(rollout: Rollout, group: str) -> bytes:
    """Return rollout.json, which every terminal of the group can read."""
    require(0 <= rollout.share <= 1, "The share of a rollout must be from 0 to 1.")
    require(rollout.doors is None or 0 < len(rollout.doors) <= MAX_DOORS, f"Name 1 to {MAX_DOORS:,} doors.")
    data = _to_bytes(asdict(rollout))
    Rollout.from_bytes(data, group)
    return data


@dataclass(frozen=True, kw_only=True)
class Revocations:
    """People who are never granted, and kits that are never used."""

    people: Mapping[str, str] = field(default_factory=dict)
    """Label, and since when."""
    kits: frozenset[str] = frozenset()
    """SHA-256 of each."""

    def to_bytes(self) -> bytes:
        """Return revoked.json, which every terminal can read."""
        people = [{"label": label, "since": since} for label, since in sorted(self.people.items())]
        data = _to_bytes({"people": people, "kits": sorted(self.kits)})
        entries = max(len(self.people), len(self.kits))
        if entries > MAX_REVOKED or len(data) > documents.MAX_BYTES:
            raise UsageError(
                "There are too many revoked people or kits.", "Publish a kit without these people, and unrevoke them."
            )
        documents.Revocations.from_bytes(data)
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> "Revocations":
        known, fields = documents.Revocations.from_bytes(data), json.loads(data)
        return cls(people={person["label"]: person["since"] for person in fields["people"]}, kits=known.kits)


def _to_bytes(fields: dict[str, Any]) -> bytes:
    """Return compact JSON: every byte is downloaded by every door."""
    return json.dumps({"schema": SCHEMA, **fields}, ensure_ascii=False, separators=(",", ":")).encode()
