"""What an attack of the red team is, and the tools that attacks share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from edge.events.event import Event
from tests.fakes.sinks import RecordingSink
from tests.fixtures.data import ROOT

MEMORY_BYTES = 300 << 20
"""More memory than this for one input is a breach: a small device has not much more."""
CHILD_SECONDS = 300.0


class CannotRunError(Exception):
    """Something that the attack needs is missing here. The message says what."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where an attack runs, and how long."""

    folder: Path
    """Empty, for this attack alone."""
    quick: bool = False
    """Whether to make a few tries only."""
    seed: int = 0
    data: Path = Path("no data")
    """The folder of the research data."""
    models: Path = Path("no models")
    """The folder of the liveness models."""
    count: Callable[[int, int], None] = lambda done, total: None
    """Shows the progress: tries so far, and in total."""

    def tries(self, quick: int, long: int) -> int:
        return quick if self.quick else long


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of an attack."""

    tries: int
    breaches: int
    example: str = ""
    """The first breach, in a few words."""


class Tally:
    """Counts the tries of one attack."""

    def __init__(self, where: Range, total: int = 0) -> None:
        self._where, self._total = where, total
        self._tries = self._breaches = 0
        self._example = ""

    def add(self, is_breach: bool, what: str = "") -> None:
        self._tries += 1
        self._breaches += is_breach
        if is_breach and not self._example:
            self._example = what
        self._where.count(self._tries, max(self._total, self._tries))

    def score(self) -> Score:
        return Score(tries=self._tries, breaches=self._breaches, example=self._example)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack of the list."""

    number: str
    """As in docs/reference/security.md: 1 to 20, with a letter if there are several."""
    title: str
    run: Callable[[Range], Score]


ATTACKS: list[Attack] = []


def attack(number: str, title: str) -> Callable[[Callable[[Range], Score]], Callable[[Range], Score]]:
    """Add a function to the list of attacks."""

    def add(run: Callable[[Range], Score]) -> Callable[[Range], Score]:
        ATTACKS.append(Attack(number=number, title=title, run=run))
        return run

    return add


def run_edge(*arguments: str | Path, module: str = "edge", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of the project."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return run_child(command, **options)


def run_child(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=CHILD_SECONDS, **options)


def peak_memory() -> int:
    """Return the most memory that this process had at any time, in bytes. Other than ru_maxrss it begins anew with exec."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))


def finish(before: int, **found: int) -> NoReturn:
    """Print how much the peak has grown, and end the process at once: threads of a library may still run."""
    print(json.dumps({"bytes": peak_memory() - before, **found}), flush=True)
    os._exit(0)


MEASURE = """
import sys
from scripts.qa.attacks.attack import finish, peak_memory
"""


def measured(script: str, *arguments: str | Path) -> dict[str, Any]:
    """Run a script in a process of its own. It ends with finish(), and measures from `before` on."""
    done = run_child([sys.executable, "-c", MEASURE + script, *map(str, arguments)])
    if done.returncode != 0:
        return {"bytes": 0, "crash": f"code {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def grants(events: RecordingSink) -> list[Event]:
    return [event for event in events if event.grants]
