"""When a rollout may go on to more doors, and when it must stop. Pure: what doors report and the time are arguments.

A door is in a rollout if its fraction is below the share. The share is raised to the next step when every door in it has the
kit and has worked for some time. A kit that one of them rejected or rolled back, or a door that went offline with it and stays
so, stops the rollout. A door that does not report stops nothing, but the share is not raised.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Literal

from edge.errors import FleetError, require
from edge.fleet.documents import MAX_DOORS, Rollout, fraction, kit_sha256
from edge.kit.format import kit_id
from edge.text import plural, some
from export.fleet.broker import Report

SCHEMA = 1
DIGITS = 1e6
"""A share that is made for one door has so many steps: rollout.json stays short."""
Action = Literal["advance", "wait", "stop", "done"]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What was seen of one rollout so far."""

    rollout: str = ""
    """Its id."""
    share: float = 0.0
    healthy_since: float | None = None
    """Since when all doors in this share are healthy."""
    doors: Collection[str] = ()
    """All that have reported."""
    took: Collection[str] = ()
    """Doors that had the kit at some time."""
    offline_since: Mapping[str, float] = field(default_factory=dict)
    """Since when a door that took the kit is offline."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """What happened at doors that rejected the kit or rolled it back."""
    stopped: bool = False
    """Whether the rollout was stopped when it was seen last."""
    done: bool = False
    """Whether it was complete: what happens at a door later is not about the kit."""

    def to_bytes(self) -> bytes:
        return json.dumps(
            {"schema": SCHEMA, **asdict(self), "doors": sorted(self.doors), "took": sorted(self.took)}, separators=(",", ":")
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Memory":
        """Read what `to_bytes` wrote. FleetError if it is damaged."""
        try:
            contents = json.loads(data)
            if contents.pop("schema") != SCHEMA:
                raise ValueError("another version")
            found = cls(**contents)
            numbers = [found.share, *found.offline_since.values(), *([found.healthy_since] if found.healthy_since else [])]
            texts = [found.rollout, *found.doors, *found.took, *found.offline_since, *found.failed, *found.failed.values()]
            if not all(type(number) in (int, float) for number in numbers) or not all(type(text) is str for text in texts):
                raise TypeError("wrong types")
            return found
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problem = f"The notes about the rollout are damaged ({type(error).__name__})."
            raise FleetError(problem, "Delete the file health-GROUP.json in `publisher` of the repository.") from None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do with a rollout now."""

    action: Action
    share: float
    """The new share for `advance`, else the present one."""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f": {some(list(self.reasons), '; ')}" if self.reasons else ""
        percent = f"{100 * self.share:g} %"
        return {
            "advance": f"The kit is now for {percent} of the doors{why}.",
            "wait": f"The kit stays at {percent} of the doors{why}.",
            "stop": f"The rollout is stopped at {percent} of the doors{why}.",
            "done": f"The rollout is complete at {percent} of the doors{why}.",
        }[self.action]


def check_steps(steps: Sequence[float]) -> tuple[float, ...]:
    """Return the shares of a rollout, which must ascend."""
    is_ascending = all(one < two for one, two in pairwise(steps))
    require(bool(steps) and is_ascending and steps[0] > 0 and steps[-1] <= 1, "Steps are ascending shares such as 0.01,0.1,1.")
    return tuple(steps)


def decide(
    rollout: Rollout,
    reports: Mapping[str, Report],
    failures: Mapping[str, str],
    memory: Memory,
    now: float,
    *,
    steps: Sequence[float],
    after: float,
) -> tuple[Decision, Memory]:
    """Return what to do, and what to remember. `reports` and `failures` of the kit are by door of the group, `now` is UTC.

    All doors in the share must be healthy for `after` seconds. A door that is offline with the kit for so long has failed.
    """
    memory = _observed(rollout, reports, failures, memory, now)
    if memory.done:
        return Decision(action="done", share=rollout.share), memory
    found = _failures(rollout, reports, memory, now, after)
    if found or rollout.stopped:
        return Decision(action="stop", share=rollout.share, reasons=tuple(found) or ("it was stopped before",)), memory
    known = [door for door in memory.doors if rollout.doors is None or door in rollout.doors]
    expected = sorted({*known, *(rollout.doors or ())})
    if not expected:
        return Decision(action="wait", share=rollout.share, reasons=("no door of the group has reported yet",)), memory
    chosen = [door for door in expected if takes(rollout, door)]
    if not chosen:
        share = max(_next_step(rollout.share, steps[:1]) or 0.0, _share_of_one(rollout, expected))
        return Decision(action="advance", share=share, reasons=(f"no door was in {100 * rollout.share:g} %",)), memory
    problems = [f"{door} {problem}" for door in chosen if (problem := waits_for(rollout, reports.get(door)))]
    if problems:
        return Decision(action="wait", share=rollout.share, reasons=tuple(problems)), replace(memory, healthy_since=None)
    since = memory.healthy_since if memory.healthy_since is not None and memory.healthy_since <= now else now
    memory = replace(memory, healthy_since=since)
    if now - since < after:
        left = math.ceil(after - (now - since))
        reason = f"{plural(len(chosen), 'door')} work with it, for {plural(left, 'more second')} to be sure"
        return Decision(action="wait", share=rollout.share, reasons=(reason,)), memory
    share_after = _next_step(rollout.share, steps)
    done = f"{plural(len(chosen), 'door')} work with it"
    if share_after is None:
        return Decision(action="done", share=rollout.share, reasons=(done,)), replace(memory, done=True)
    return Decision(action="advance", share=share_after, reasons=(done,)), memory


def takes(rollout: Rollout, door: str) -> bool:
    """Whether a door should have the kit of a rollout."""
    return rollout.kit_for(door, has_kit=True) == rollout.kit


def waits_for(rollout: Rollout, report: Report | None) -> str:
    """Return what is missing at a door that should have the kit; empty: nothing."""
    if report is None:
        return "has not reported"
    kit = kit_id(kit_sha256(rollout.kit))
    if report.refused is not None and report.refused.kit == kit:
        return report.refused.sentence
    return report.problem or ("" if report.kit == kit else f"does not have the kit {kit} yet")


def _observed(
    rollout: Rollout, reports: Mapping[str, Report], failures: Mapping[str, str], memory: Memory, now: float
) -> Memory:
    """Add what doors report now. Another rollout begins anew, and so does one that a person resumed."""
    if memory.rollout != rollout.id or (memory.stopped and not rollout.stopped):
        memory = Memory(rollout=rollout.id, doors=memory.doors if memory.rollout == rollout.id else ())
    if memory.share != rollout.share:
        memory = replace(memory, share=rollout.share, healthy_since=None, done=False)
    memory = replace(memory, stopped=rollout.stopped, failed={**memory.failed, **failures})
    doors = sorted({*memory.doors, *reports})[:MAX_DOORS]
    kit = kit_id(kit_sha256(rollout.kit))
    took = sorted({*memory.took, *(door for door, report in reports.items() if report.kit == kit)} & {*doors})
    offline = [door for door in took if door not in reports or not reports[door].online]
    since = {door: min(memory.offline_since.get(door, now), now) for door in offline}
    return replace(memory, doors=doors, took=took, offline_since=since)


def _failures(rollout: Rollout, reports: Mapping[str, Report], memory: Memory, now: float, after: float) -> list[str]:
    """Return why the kit must not go to more doors."""
    kit = kit_id(kit_sha256(rollout.kit))
    found = {door: f"{door} {sentence}" for door, sentence in memory.failed.items()}
    for door in memory.took:
        report = reports.get(door)
        if report is not None and report.state and report.kit != kit:
            found.setdefault(door, f"{door} had the kit {kit}, and now has {report.kit or 'none'}")
        elif door in memory.offline_since and now - memory.offline_since[door] >= after:
            found.setdefault(door, f"{door} is offline since it has the kit {kit}")
    return [found[door] for door in sorted(found)]


def _next_step(share: float, steps: Sequence[float]) -> float | None:
    return next((step for step in steps if step > share), None)


def _share_of_one(rollout: Rollout, doors: Sequence[str]) -> float:
    """Return the smallest share with one of these doors: with few doors, 1 % of them may be none."""
    first = min(fraction(rollout.id, door) for door in doors)
    return min(1.0, (math.floor(first * DIGITS) + 1) / DIGITS)
