"""Results of the device checks, and their table."""

from dataclasses import dataclass
from typing import Literal

State = Literal["fail", "warn", "ok"]
STATES: tuple[State, ...] = ("fail", "warn", "ok")


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    """ok; warn: works, but slowly or unsafely; fail: does not work."""
    found: str
    advice: str = ""
    """What to do, if anything."""

    @classmethod
    def judge(cls, name: str, found: str, *problems: tuple[bool, State, str]) -> "Check":
        """Return a result with state and advice of the first problem that holds, or ok."""
        return next((cls(name, state, found, advice) for holds, state, advice in problems if holds), cls(name, "ok", found))


def worst(checks: list[Check]) -> State:
    """Return fail if a check failed, else warn if a check warns, else ok."""
    return min((check.state for check in checks), key=STATES.index, default="ok")


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
