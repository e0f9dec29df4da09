"""Results of the device checks, and how they are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    """ok; warn: works, but slowly or unsafely; fail: does not work."""
    found: str
    advice: str = ""
    """What to do, if anything."""


def facts(checks: list[Check]) -> dict[str, Any]:
    """Return all results for JSON."""
    return {"state": worst(checks), "checks": [vars(check) for check in checks]}


def worst(checks: list[Check]) -> State:
    """Return fail if a check failed, else warn if a check warns, else ok."""
    states: tuple[State, ...] = ("fail", "warn", "ok")
    return next(state for state in states if state == "ok" or any(check.state == state for check in checks))


def table(checks: list[Check]) -> str:
    """Return all results as text."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:5} {check.name:12} {check.found}")
        if check.advice:
            lines.append(f"{'':19}-> {check.advice}")
    failed, warned = (sum(check.state == state for check in checks) for state in ("fail", "warn"))
    summary = f"{failed} failed, {warned} with a warning." if failed or warned else "all passed."
    return "\n".join([*lines, "", f"{len(checks)} checks: {summary}"])
