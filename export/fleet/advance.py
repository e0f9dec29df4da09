"""One look at a rollout: read what the doors report, decide, and publish a larger share or a stop."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edge.errors import FleetError, UsageError
from edge.files import read_bytes, write_file
from edge.fleet.documents import Rollout, kit_sha256
from edge.kit.format import kit_id
from export.fleet import health
from export.fleet.broker import KitAlarm, Report
from export.fleet.contents import Contents, change_rollout
from export.fleet.health import Decision, Memory
from export.fleet.repository import Repository, Waiting

MAX_BYTES = 2 << 20


def look(
    repository: Repository,
    group: str,
    reports: Mapping[tuple[str, str], Report],
    alarms: Sequence[KitAlarm],
    *,
    steps: Sequence[float],
    after: float,
) -> tuple[Decision, Sequence[Waiting]]:
    """Raise the share of a group's rollout, stop it, or leave it. Return what was decided, and what waits for signatures."""
    contents = Contents(repository, group)
    rollout = contents.rollout()
    if rollout is None:
        raise UsageError(f"{group} has no rollout.", "Publish a kit with `edge-export publish --share 0`.")
    own = {door: report for (of_group, door), report in reports.items() if of_group == group}
    file = memory_file(repository, group)
    memory = Memory.from_bytes(read_bytes(file, MAX_BYTES, FleetError)) if file.exists() else Memory()
    failures = _failures(rollout, own, alarms)
    decision, memory = health.decide(rollout, own, failures, memory, repository.now.timestamp(), steps=steps, after=after)
    write_file(file, memory.to_bytes(), failure=FleetError)
    if decision.action == "advance":
        change_rollout(contents, share=decision.share)
    elif decision.action == "stop":
        change_rollout(contents, stopped=True)
    contents.submit()
    return decision, repository.publish()


def memory_file(repository: Repository, group: str) -> Path:
    return repository.store.own / f"health-{group}.json"


def _failures(rollout: Rollout, reports: Mapping[str, Report], alarms: Sequence[KitAlarm]) -> dict[str, str]:
    """Return what doors of the group said about the kit of the rollout."""
    kit = kit_id(kit_sha256(rollout.kit))
    doors = {report.terminal: door for door, report in reports.items()}
    reported = [report.refused for report in reports.values() if report.refused is not None]
    said = [*alarms, *reported]
    return {doors[alarm.terminal]: alarm.sentence for alarm in said if alarm.kit == kit and alarm.terminal in doors}
