"""What the fleet denies at this door, before the door list is asked. It is asked in the loop, so it waits for nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from edge.decision import reasons
from edge.decision.doorlist import DoorList
from edge.fleet.fleet import Fleet
from edge.fleet.settings import DENY_ALL, LIST_ONLY
from edge.text import same_spelling

UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)
"""A time at which entries with a day or an hour give `clock not set`."""


class ListInUse(Protocol):
    """The door list of a running terminal."""

    door_list: DoorList | None
    """The list in use; None: there is none."""

    def refusal(self, label: str, when: datetime, *, by_name: bool = False) -> str | None:
        """Say why the person may not pass at this time, or return None. `by_name`: entries for everyone do not count."""

    def admit(self, label: str, when: datetime, *, by_name: bool = False) -> str | None:
        """Count a grant by the entries that `refusal` judges. Return why there is none, or None."""


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
        policy = self._policy()
        if policy == DENY_ALL:
            return reasons.FLEET_TOO_OLD
        if policy == LIST_ONLY and (door_list is None or same_spelling(label) not in door_list.people):
            return reasons.FLEET_TOO_OLD
        if door_list is None and self._fleet.has_list():
            return reasons.DOOR_LIST_FAILED  # it arrived, and is not in use yet
        return self._lists.refusal(label, self._time(when), by_name=policy == LIST_ONLY)

    def admit(self, label: str, when: datetime) -> str | None:
        """Count a grant by the same entries that `refusal` judges: others could have no limit. Return why there is none."""
        refusal = self.refusal(label, when)
        return refusal or self._lists.admit(label, self._time(when), by_name=self._policy() == LIST_ONLY)

    def _policy(self) -> str | None:
        """Return what holds because the data are too old; None: they are not."""
        return self._fleet.settings.when_stale if self._fleet.is_stale() else None

    def _time(self, when: datetime) -> datetime:
        return when if self._fleet.is_clock_plausible() else UNKNOWN_TIME
