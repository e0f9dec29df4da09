"""The fleet of a site, if it has one: fleet.toml, and what `edge-export fleet status` says about its doors.

That command runs in a process of its own, because it needs packages and code of `export`. So the console shows exactly what
the command prints.
"""

import json
import logging
import math
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import IO, Any

from edge.errors import UsageError
from edge.files import read_bytes
from edge.text import printable, some
from trainer.site.folder import Site

NAME = "fleet.toml"
MAX_BYTES, MAX_LINE, MAX_TEXT = 1 << 16, 32 << 20, 300
IDLE_SECONDS = 30.0
"""If no page shows the doors for so long, the command ends."""
RETRY_SECONDS = 5.0
HINT = "docs/guide/fleet.md has an example."

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FleetFile:
    """The contents of fleet.toml. Paths may be relative to the site."""

    repo: Path
    """The repository that `edge-export fleet init` made."""
    broker: str
    """Address of the MQTT broker, mqtts://HOST[:PORT]."""
    user: str = ""
    """User name at the broker."""
    password_file: Path | None = None
    """File with the password in its first line."""
    ca_file: Path | None = None
    """Certificates to trust, PEM."""

    def status_arguments(self) -> list[str]:
        """Return the arguments of `edge-export` that write the status of all doors again and again."""
        options: dict[str, str | Path | None] = {
            "--user": self.user,
            "--password-file": self.password_file,
            "--ca-file": self.ca_file,
        }
        given = [f"{name}={value}" for name, value in options.items() if value]
        return ["fleet", "status", f"--broker={self.broker}", *given, "--follow", "--", str(self.repo)]


@dataclass(frozen=True, kw_only=True)
class FleetFacts:
    """The last answer of the command."""

    groups: Mapping[str, Any] = field(default_factory=dict)
    doors: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""
    """Why there is no new answer."""
    is_known: bool = False
    """Whether there was an answer."""


def exists(site: Site) -> bool:
    return (site.path / NAME).is_file()


def load(site: Site) -> FleetFile:
    """Read fleet.toml."""
    file = site.path / NAME
    if not exists(site):
        raise UsageError("This site has no fleet.", f"Write {file}; {HINT}")
    try:
        contents = tomllib.loads(read_bytes(file, MAX_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid TOML ({error}).", HINT) from None
    known = {one.name for one in fields(FleetFile)}
    if unknown := sorted(set(contents) - known):
        raise UsageError(f"{file}: {some(unknown)} is not a known key.", f"Known keys: {', '.join(sorted(known))}.")
    if not {"repo", "broker"} <= contents.keys() or not all(isinstance(value, str) for value in contents.values()):
        raise UsageError(f"{file} needs repo and broker, as text.", HINT)
    for key in {"repo", "password_file", "ca_file"} & contents.keys():
        contents[key] = site.path / contents[key]
    return FleetFile(**contents)


class Watch:
    """Runs the command in a background thread while a page shows its answers, and keeps the last one."""

    def __init__(self, site: Site, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._site, self._clock = site, clock
        self._facts = FleetFacts()
        self._looked = -math.inf
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def facts(self) -> FleetFacts:
        """Return the last answer, at once. The command runs from now on."""
        self._looked = self._clock()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="fleet status", daemon=True)
                self._thread.start()
        return self._facts

    def _run(self) -> None:
        while self._is_watched():
            try:
                problem = self._follow()
            except UsageError as error:
                problem = str(error)
            if problem:
                log.warning("the fleet: %s", problem)
                known = self._facts
                self._facts = FleetFacts(groups=known.groups, doors=known.doors, problem=problem, is_known=known.is_known)
                time.sleep(RETRY_SECONDS)

    def _is_watched(self) -> bool:
        return self._clock() - self._looked < IDLE_SECONDS

    def _follow(self) -> str:
        """Read what the command writes. Return why it ended, or an empty text if its answers are not needed any more."""
        command = [sys.executable, "-m", "export", *load(self._site).status_arguments()]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
            assert process.stdout is not None
            try:
                while self._is_watched() and (line := process.stdout.readline(MAX_LINE)):
                    found = json.loads(line)
                    self._facts = FleetFacts(groups=found["groups"], doors=tuple(found["doors"]), is_known=True)
            except (ValueError, KeyError, TypeError) as error:
                return f"The status of the fleet cannot be read ({type(error).__name__})."
            finally:
                has_ended = process.poll() is not None
                process.kill()
                process.wait()
                process.stdout.close()
            return _last_line(said) if has_ended or self._is_watched() else ""


@cache
def watch(path: Path) -> Watch:
    """Return the watch of a site, the same for all browsers."""
    return Watch(Site(path))


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return printable(lines[-1] if lines else "The command ended.").removeprefix("error: ")[:MAX_TEXT]
