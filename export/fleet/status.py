"""The status of all doors of a fleet, with what the repository expects of them: for tables and JSON. No names of people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edge.fleet.documents import Rollout
from export.fleet.broker import Report
from export.fleet.health import takes, waits_for

UNKNOWN = "-"
WRONG_CLOCK = "its clock is wrong"
COLUMNS = ("door", "online", "kit", "version", "list", "verified", "state", "decisions/h", "problem")


def rows(reports: Mapping[tuple[str, str], Report], rollouts: Mapping[str, Rollout | None]) -> list[dict[str, Any]]:
    """Return one row for each door that reports, or that a rollout names. `rollouts` are by group of the repository."""
    named = {(group, door) for group, rollout in rollouts.items() for door in (rollout.doors or () if rollout else ())}
    found = []
    for group, door in sorted({*reports, *named}):
        report, rollout = reports.get((group, door)), rollouts.get(group)
        is_expected = rollout is not None and takes(rollout, door)
        problem = waits_for(rollout, report) if rollout is not None and is_expected else report.problem if report else ""
        problem = problem or (WRONG_CLOCK if report is not None and report.has_wrong_clock else "")
        facts = asdict(report or Report(group=group, door=door))
        found.append({**facts, "reports": report is not None, "problem": problem or ("" if report else "has not reported")})
    return found


def needing_attention(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the doors with a problem."""
    return [f"{row['group']}/{row['door']}" for row in found if row["problem"]]


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as lines for people."""
    lines = [COLUMNS, *map(_cells, found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS) - 1)]
    padded = [[*(cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=True)), line[-1]] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    values = (
        f"{row['group']}/{row['door']}",
        ("yes" if row["online"] else "no") if row["reports"] else "missing",
        row["kit"],
        row["kit_version"],
        row["list"],
        row["verified"][:19].replace("T", " "),
        row["state"],
        row["decisions_per_hour"],
        row["problem"] or row["error"],
    )
    return tuple(UNKNOWN if value in ("", None) else str(value) for value in values)
