"""What the checks of a device found, and the report on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found about one matter."""

    name: str
    state: State
    """ok; warn: works, but worse than it could, or unsafely; fail: will not work."""
    found: str
    advice: str = ""
    """What to do, where something should be done."""


def facts(checks: list[Check]) -> dict[str, Any]:
    """For JSON."""
    return {"state": worst(checks), "checks": [vars(check) for check in checks]}


def worst(checks: list[Check]) -> State:
    states: tuple[State, ...] = ("fail", "warn", "ok")
    return next(state for state in states if state == "ok" or any(check.state == state for check in checks))


def table(checks: list[Check]) -> str:
    """For people."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:5} {check.name:12} {check.found}")
        if check.advice:
            lines.append(f"{'':19}-> {check.advice}")
    count = {state: sum(check.state == state for check in checks) for state in ("fail", "warn")}
    lines += ["", f"{len(checks)} checks: {count['fail']} failed, {count['warn']} with a warning."]
    return "\n".join(lines)
