"""What a repository contains: roles, keys, expiry, and what each group publishes."""

from typing import Any

from edge.fleet import documents
from edge.fleet.documents import Rollout
from edge.kit.format import kit_id
from edge.text import plural, some
from export.fleet.contents import Contents, groups_of
from export.fleet.keys import SHORT
from export.fleet.repository import PREFIX, Repository
from export.fleet.roles import expiring, published, root_file


def overview(repository: Repository) -> dict[str, Any]:
    """Return all facts, for JSON."""
    soon = expiring(repository)
    return {
        "root_file": str(root_file(repository.store)),
        "keys": str(repository.keys.folder),
        "roles": [
            {
                "role": role,
                "version": signed.version,
                "expires": signed.expires.isoformat(),
                "expires_soon": role in soon,
                "threshold": known.threshold,
                "keys": list(known.keyids),
            }
            for role, signed in published(repository).items()
            for known in [_role(repository, role)]
        ],
        "groups": {group: _group(Contents(repository, group)) for group in _groups(repository)},
        "waiting": [vars(found) for found in repository.waiting()],
    }


def _groups(repository: Repository) -> list[str]:
    return groups_of(repository, documents.ALL) if repository.group_roles() else []


def _role(repository: Repository, role: str) -> Any:
    delegator = repository.targets() if role.startswith(PREFIX) else repository.root()
    return delegator.get_delegated_role(role)


def _group(contents: Contents) -> dict[str, Any]:
    rollout, revocations = contents.rollout(), contents.revocations()
    return {
        "rollout": None if rollout is None else vars(rollout),
        "summary": rollout_sentence(rollout),
        "kits": contents.kits(),
        "lists": [path for path in contents.paths if path.endswith("/list.toml")],
        "revoked_people": dict(revocations.people),
        "revoked_kits": sorted(revocations.kits),
    }


def sentences(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people, without names of people."""
    width = max(len(role["role"]) for role in facts["roles"])
    lines = [f"{'role':<{width}}  {'version':>7}  {'expires (UTC)':<20}  keys"]
    for role in facts["roles"]:
        keys = ", ".join(keyid[:SHORT] for keyid in role["keys"])
        needed = f" ({role['threshold']} must sign)" if len(role["keys"]) > 1 else ""
        soon = "  expires soon" if role["expires_soon"] else ""
        expires = role["expires"][:16].replace("T", " ")
        lines.append(f"{role['role']:<{width}}  {role['version']:>7}  {expires:<20}  {keys}{needed}{soon}")
    for group, found in facts["groups"].items():
        lines += ["", f"group {group}", f"  {found['summary']}"]
        lines.append(
            f"  {plural(len(found['lists']), 'door list')}: {some(found['lists'])}" if found["lists"] else "  no door list"
        )
        people, kits = len(found["revoked_people"]), len(found["revoked_kits"])
        lines.append(f"  revoked: {plural(people, 'person', 'people')}, {plural(kits, 'kit')}")
    if facts["waiting"]:
        lines += ["", *map(waiting_sentence, facts["waiting"])]
    return [*lines, "", f"The file for the terminals: {facts['root_file']}"]


def waiting_sentence(waiting: dict[str, Any]) -> str:
    """Say what a change waits for."""
    role = waiting["role"]
    if not waiting["missing"]:
        return f"The change of {role} is signed. It waits for another role, or has expired: `fleet refresh --role {role}`."
    keys = " or ".join(keyid[:SHORT] for keyid in waiting["unsigned"])
    number = plural(waiting["missing"], "signature")
    return f"The change of {role} waits for {number}. Sign it with `edge-export fleet sign`; keys: {keys}."


def rollout_sentence(rollout: Rollout | None) -> str:
    """Say which doors take which kit."""
    if rollout is None:
        return "no kit"
    doors = "all doors" if rollout.doors is None else some(list(rollout.doors))
    stopped = ", stopped" if rollout.stopped else ""
    kit = kit_id(documents.kit_sha256(rollout.kit))
    return f"kit {kit}, version {rollout.kit_version}, for {100 * rollout.share:g} % of {doors}{stopped}"
