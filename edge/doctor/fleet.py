"""Checks of a terminal that belongs to a fleet."""

from collections.abc import Iterator

from edge.doctor.report import Check
from edge.errors import FleetError
from edge.fleet.fleet import Fleet
from edge.fleet.problems import PullError
from edge.privileges import rights_over

CLOCK = "Set the clock (date -u), or connect the device to a time server: without it, old data may be taken for new."


def check_fleet(fleet: Fleet) -> Iterator[Check]:
    """Check that kits and lists can be stored, that the repository is there and verifies, and how old the data are."""
    with rights_over(fleet.folder):  # as the terminal has them
        status, repository = fleet.status(), _check_repository(fleet)
    yield repository
    if status["verified"] is None:
        yield Check("fleet data", "warn", "none were verified yet", "Run `edge fleet pull`, or start the terminal.")
        return
    advice = f"They are too old, so this holds: {status['policy']}. Check the network and the server."
    is_wrong = not status["clock_is_plausible"]
    found = f"verified at {status['verified']}"
    yield Check.judge("fleet data", found, (fleet.is_stale(), "fail", advice), (is_wrong, "warn", CLOCK))


def _check_repository(fleet: Fleet) -> Check:
    place = f"door {fleet.settings.door} of group {fleet.settings.group}"
    try:
        fleet.check_places()
        fleet.probe()
    except PullError as error:
        return Check("fleet", "warn" if error.cause == "network" else "fail", f"{place}: {error.message}", error.hint)
    except FleetError as error:
        return Check("fleet", "fail", f"{place}: {error.message}", error.hint)
    return Check("fleet", "ok", f"{place}: the repository is signed as it must be")
