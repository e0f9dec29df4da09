"""The terminal as a systemd service: the unit file, and the messages of the running service to systemd.

Only processed frames reset the watchdog: systemd restarts a terminal that processes no frames.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from edge import errors, paths
from edge import settings as configuration
from edge.errors import EdgeError, KitError, ServiceError
from edge.events.event import Event
from edge.events.sink import SinkHealth
from edge.files import write_atomically
from edge.text import printable

USER = "edge"
GROUPS = ("video", "render", "gpio")
"""The user joins those that exist on the device: cameras, the Raspberry Pi's camera stack, its pins."""


class SystemdNotifier:
    """A sink that sends READY, STATUS and STOPPING to systemd. `frame_processed()` resets the watchdog.

    Without systemd it does nothing.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval = _watchdog_seconds(environment) / 4  # often enough, but not for every frame
        self._clock, self._last_reset = clock, -math.inf

    def handle(self, event: Event) -> None:
        if event.kind == "start":
            self._send("READY=1", f"STATUS=watching {event.camera}")
        elif event.kind == "camera":
            self._send(f"STATUS=camera {event.outcome}" + (f": {event.reason}" if event.reason else ""))
        elif event.kind == "stop":
            self._send("STOPPING=1", f"STATUS=stopped: {event.reason}")

    def close(self) -> None:
        """Do nothing: no socket stays open."""

    def health(self) -> SinkHealth:
        return SinkHealth()

    def frame_processed(self) -> None:
        if self._clock() - self._last_reset >= self._interval:
            self._last_reset = self._clock()
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.setblocking(False)  # the loop must not wait for systemd
            sender.sendto("\n".join(map(printable, lines)).encode("utf-8", "replace"), self._address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return systemd's timeout for this process, or infinity if it has none."""
    seconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    is_ours = not pid or pid == str(os.getpid())
    return int(seconds) / 1e6 if seconds.isdecimal() and int(seconds) and is_ours else math.inf


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The parts of a unit file that differ between devices."""

    command: tuple[str, ...]
    """The command, with the full path of its program."""
    user: str = USER
    """Owner of the process, never root."""
    groups: tuple[str, ...] = GROUPS
    """Groups of the service. Each must exist, or the service does not start."""
    watchdog_seconds: float = 30.0
    """The service is restarted if no frame is processed for so long. At least 10, so that a lost camera can come back."""
    is_offline: bool = False
    """Whether it needs no network except this machine."""
    stop_seconds: float = 10.0
    """It is killed, with all its processes, if it does not stop in this time."""
    reads_homes: bool = False
    """Whether it reads files in a home folder."""
    writes: tuple[str, ...] = ()
    """Folders that it writes to, besides its state folder."""

    def __post_init__(self) -> None:
        if not 10 <= self.watchdog_seconds <= 3600:
            raise ServiceError("The watchdog time must be between 10 and 3600 seconds.", "30 is usual.")
        if self.user in ("root", "nobody") or not self.user.replace("-", "_").isidentifier():
            raise ServiceError(f"The user {self.user!r} is not allowed.", "Name one without other rights: --user edge.")

    def text(self) -> str:
        # "-": a missing folder leads to our error message, not systemd's. There are no variables here, so $ is not doubled.
        folders = [f"ReadWritePaths={quoted('-' + folder).replace('$$', '$')}" for folder in self.writes]
        network = ["IPAddressDeny=any", "IPAddressAllow=localhost"] if self.is_offline else []
        template = files("edge.terminal").joinpath("lclrr-edge.service").read_text(encoding="utf-8")
        return Template(template).substitute(
            command=" ".join(map(quoted, self.command)),
            watchdog_seconds=f"{self.watchdog_seconds:g}",
            stop_seconds=f"{self.stop_seconds:g}",
            final_codes=" ".join(map(str, sorted(_final_codes()))),
            user=self.user,
            groups=" ".join(self.groups),
            state_name=paths.STATE_FOLDER.name,
            state_folder=paths.STATE_FOLDER,
            protect_home="read-only" if self.reads_homes else "yes",
            more="\n".join([*folders, *network]),
        )


def _final_codes() -> set[int]:
    """Return the exit codes after which a restart would fail again."""
    kinds: list[type[EdgeError]] = [EdgeError, errors.DoorListError, errors.SettingsError, *KitError.__subclasses__()]
    return {kind.exit_code for kind in kinds}


def quoted(word: str) -> str:
    """Return a word of ExecStart, escaped for systemd: % and $ are doubled, unusual letters are put in quotes."""
    if not word.isprintable():
        raise ServiceError(f"{printable(word)!r} cannot stand in a unit file.", "Choose a name without control characters.")
    word = word.replace("%", "%%").replace("$", "$$")
    if word and all(letter.isalnum() or letter in "/._-=:@%$+," for letter in word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def program() -> tuple[str, ...]:
    """Return this `edge` command, with its full path."""
    beside = Path(sys.executable).parent / "edge"
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "edge")


def existing_groups() -> tuple[str, ...]:
    known = {group.gr_name for group in grp.getgrall()}
    return tuple(name for name in GROUPS if name in known)


def unit(
    *, kit: Path | None = None, settings: Path | None = None, camera: str | None = None, user: str, watchdog_seconds: float
) -> Unit:
    """Return the unit that runs this `edge` with these files. The settings must be valid."""
    stored = configuration.load(paths.find_settings(settings))
    if camera is not None and configuration.holds_password(camera):
        hint = "Put it into a file that only the service's user can read, and set [camera] source_file."
        raise ServiceError("A password must not be in a unit file, which all users can read.", hint)
    command = [*program(), "recognize"]
    command += [] if kit is None else [str(kit.absolute())]
    command += [] if settings is None else ["--settings", str(settings.absolute())]
    command += [] if camera is None else ["--camera", camera]
    active = stored.override(camera={"source": camera})
    named = [*command, *map(str, active.paths())]
    written = [active.kit.store, active.audit and active.audit.path.parent]
    return Unit(
        command=(*command, "--wait", "--no-json"),
        user=user,
        groups=existing_groups(),
        watchdog_seconds=watchdog_seconds,
        is_offline=not active.needs_network,
        stop_seconds=Unit.stop_seconds + (active.events.on_grant_seconds if active.events.on_grant else 0.0),
        reads_homes=any(Path(name).is_relative_to(home) for name in named for home in paths.HOME_FOLDERS),
        writes=tuple(str(folder) for folder in written if folder and not folder.is_relative_to(paths.STATE_FOLDER)),
    )


def install(unit: Unit, path: Path = paths.SERVICE_UNIT) -> None:
    """Write the unit file, in one atomic step."""
    try:
        pwd.getpwnam(unit.user)
    except KeyError:
        hint = f"Run `sudo useradd --system --shell /usr/sbin/nologin {unit.user}`, or name another with --user."
        raise ServiceError(f"The user {unit.user} does not exist.", hint) from None
    try:
        write_atomically(path, unit.text().encode(), mode=0o644)
    except OSError as error:
        hint = "Run it with sudo." if isinstance(error, PermissionError) else "Check the path."
        raise ServiceError(f"{path} cannot be written ({error.strerror}).", hint) from None


def next_step(path: Path) -> str:
    return f"Now run `sudo systemctl daemon-reload && sudo systemctl enable --now {path.name.removesuffix('.service')}`."
