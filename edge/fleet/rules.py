"""What the fleet denies at this door, before the door list is asked. It is asked in the loop, so it waits for nothing."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from edge.decision import reasons
from edge.decision.door import AccessRules
from edge.decision.doorlist import DoorList
from edge.fleet.fleet import Fleet
from edge.fleet.settings import DENY_ALL, LIST_ONLY
from edge.text import same_spelling


class ListInUse(AccessRules, Protocol):
    """The door list of a running terminal."""

    door_list: DoorList | None
    """The list in use; None: there is none."""


class FleetRules:
    """Denies revoked people, denies everyone with a revoked kit, and applies `when_stale`. Then the door list decides."""

    def __init__(self, fleet: Fleet, lists: ListInUse, active_kit: Callable[[], str]) -> None:
        """`active_kit` returns the SHA-256 of the kit in use."""
        self._fleet, self._lists, self._active_kit = fleet, lists, active_kit

    def refusal(self, label: str, when: datetime) -> str | None:
        """Say why the person may not pass at this time, or return None."""
        revocations, door_list = self._fleet.revocations, self._lists.door_list
        if revocations is None:
            return reasons.FLEET_TOO_OLD
        if revocations.is_revoked(label):
            return reasons.REVOKED
        if self._active_kit() in revocations.kits:
            return reasons.KIT_REVOKED
        if self._fleet.is_stale():
            policy = self._fleet.settings.when_stale
            is_named = door_list is not None and same_spelling(label) in door_list.people
            if policy == DENY_ALL or (policy == LIST_ONLY and not is_named):
                return reasons.FLEET_TOO_OLD
        if door_list is None and self._fleet.has_list():
            return reasons.DOOR_LIST_FAILED  # it arrived, and is not in use yet
        return self._lists.refusal(label, when)
