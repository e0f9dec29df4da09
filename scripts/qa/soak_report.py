"""The report of the soak test: the record of a run, and the figures that pass or fail."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ALLOWED, TIMED, UNLISTED = ("s2", "s5", "s6", "s8"), "s7", "s4"  # enrolled people: on the door list, with dates, not on it
SLACK_SECONDS = 1.0  # maximum age of a frame (VisitRules.max_age_seconds); the pause between two visits is longer
MAX_GROWTH, MIN_OPENED = 0.02, 0.75
GROWTH_MINUTES = 5  # a shorter run is too short to find growth


class ShownVisit(NamedTuple):
    """People in front of the camera, from `start` to `end` (edge.clock, which all processes share)."""

    people: tuple[str, ...]
    fault: str
    """The fault of the camera, or an empty string."""
    clock_shift: float
    """Error of the terminal's clock, in seconds."""
    start: float
    end: float

    def contains(self, event: dict[str, Any]) -> bool:
        """Whether the event is about a frame of this visit."""
        captured = float(event["monotonic"] - (event["seconds_from_capture"] or 0.0))
        return self.start <= captured <= self.end + SLACK_SECONDS


@dataclass(kw_only=True)
class Record:
    """The input of the terminal, and its output."""

    visits: list[ShownVisit] = field(default_factory=list)
    disk_full: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each time with a full disk."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Events on stdout."""
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    """(time, resident bytes, file descriptors, threads)."""
    broker_restarts: int = 0


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    value: str
    passed: bool | None = None
    """None if it is not a check."""


def must_be_zero(name: str, found: Iterable[Any]) -> Figure:
    """A figure that counts the true items, and fails if there are any."""
    count = sum(1 for item in found if item)
    return Figure(name, str(count), count == 0)


def wrong_grant(event: dict[str, Any], visits: list[ShownVisit]) -> str:
    """Return why a grant is wrong, or an empty string."""
    visit = next((visit for visit in visits if visit.contains(event)), None)
    if visit is None or event["label"] not in visit.people:
        return f"{event['label']} granted while {', '.join(visit.people) if visit else 'no person'} was in front of the camera"
    if event["label"] not in (*ALLOWED, TIMED):
        return f"{event['label']} is not on the door list"
    if event["label"] == TIMED and abs(visit.clock_shift) > 86400:
        return f"{TIMED} granted while the clock was {visit.clock_shift:.0f} s wrong"
    return ""


def was_granted(visit: ShownVisit, grants: list[dict[str, Any]]) -> bool:
    return any(event["label"] in visit.people and visit.contains(event) for event in grants)


def decision_figures(record: Record, grants: list[dict[str, Any]]) -> Iterator[Figure]:
    """Figures of the visits and decisions."""
    decisions = sum(event["kind"] == "decision" for event in record.events)
    wrong = [reason for event in grants if (reason := wrong_grant(event, record.visits))]
    faults = Counter(visit.fault for visit in record.visits if visit.fault)
    yield Figure("visits", str(len(record.visits)))
    yield Figure("visits with a camera fault", ", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    yield Figure("visits with a wrong clock", str(sum(visit.clock_shift != 0 for visit in record.visits)))
    yield Figure("decisions", f"{decisions}, {len(grants)} grants", bool(grants))
    yield Figure("wrong grants", "; ".join(wrong) or "0", not wrong)
    # With a full disk nothing can be logged, so no grant is expected.
    allowed = [
        visit
        for visit in record.visits
        if visit.people[0] in ALLOWED
        and not any(start - 8 < visit.end and visit.start < end + 2 for start, end in record.disk_full)
    ]
    undisturbed, disturbed = ([visit for visit in allowed if bool(visit.fault) == faulty] for faulty in (False, True))
    granted = sum(was_granted(visit, grants) for visit in undisturbed)
    enough = granted >= MIN_OPENED * len(undisturbed)
    yield Figure("undisturbed visits that opened the door", f"{granted} of {len(undisturbed)}", enough)
    granted = sum(was_granted(visit, grants) for visit in disturbed)
    yield Figure("disturbed visits that opened the door", f"{granted} of {len(disturbed)}")


def delivery_figures(
    record: Record, grants: list[dict[str, Any]], log: list[dict[str, Any]], received: list[dict[str, Any]] | None
) -> Iterator[Figure]:
    """Figures of the events in the audit log, on stdout, and at the broker (`received`; None without a broker)."""
    logged = Counter(entry["event_id"] for entry in log if "event_id" in entry)
    written = Counter(event["event_id"] for event in record.events)
    missing = [event for event in record.events if event["event_id"] not in logged]
    with_space = [e for e in missing if not any(start <= e["monotonic"] <= end + 3 for start, end in record.disk_full)]
    yield Figure("events in the audit log", f"{len(logged)} of {len(written)}")
    twice = (max(counts.values(), default=0) > 1 for counts in (logged, written))
    yield must_be_zero("events twice, in the log or on stdout", twice)
    yield must_be_zero("missing in the log, with space on the disk", with_space)
    yield Figure("missing in the log, with a full disk", str(len(missing)), bool(missing) or not record.disk_full)
    yield must_be_zero("grants missing in the log", (event for event in missing if event["outcome"] == "granted"))
    yield must_be_zero("logged, but not delivered", logged.keys() - written.keys())
    if received is not None:
        ids = Counter(event["event_id"] for event in received)
        yield Figure("restarts of the broker", str(record.broker_restarts), record.broker_restarts > 0)
        yield must_be_zero("events that the broker missed", written.keys() - ids.keys())
        yield Figure("events that the broker got again", str(sum(ids.values()) - len(ids)))
        nonces = {event["nonce"] for event in received if event["nonce"]}
        yield must_be_zero("nonces without a grant", nonces - {event["event_id"] for event in grants})


def event_figures(record: Record, log: list[dict[str, Any]], received: list[dict[str, Any]] | None) -> list[Figure]:
    grants = [event for event in record.events if event["kind"] == "decision" and event["outcome"] == "granted"]
    return [*decision_figures(record, grants), *delivery_figures(record, grants, log, received)]


def growth_figures(record: Record, minutes: float) -> Iterator[Figure]:
    """Growth of memory, descriptors and threads, from the samples at 20 to 50 % of the run to those at 70 to 100 %.

    Memory is compared by the maximum, because it varies by 3 % with the frames in work.
    """
    start, end = record.visits[0].start, record.visits[-1].end
    span = end - start
    first = [s for s in record.samples if 0.2 * span <= s[0] - start <= 0.5 * span]
    last = [s for s in record.samples if 0.7 * span <= s[0] - start <= span]
    is_long = minutes >= GROWTH_MINUTES
    sizes = [max(s[1] for s in part) for part in (first, last)]
    growth = sizes[1] / sizes[0] - 1
    value = f"{sizes[0] / 2**20:.1f} to {sizes[1] / 2**20:.1f} MB, {growth:+.2%}"
    yield Figure("resident memory", value, growth < MAX_GROWTH if is_long else None)
    for column, name in ((2, "file descriptors"), (3, "threads")):
        before, after = (statistics.median_high([s[column] for s in part]) for part in (first, last))
        most = max(s[column] for s in record.samples)
        yield Figure(name, f"{before} to {after}, at most {most}", after <= before if is_long else None)


def table(figures: list[Figure]) -> str:
    marks = {True: "ok", False: "FAILED", None: ""}
    rows = [f"| {figure.name} | {figure.value} | {marks[figure.passed]} |" for figure in figures]
    return "\n".join(["| | | |", "|---|---|---|", *rows])
