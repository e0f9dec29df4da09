"""The terminal as a service of systemd: the unit file, and what a running service tells systemd of itself.

The watchdog is fed by frames that were really processed and by nothing else: a terminal that no longer looks is started anew.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge import errors, paths
from edge import settings as configuration
from edge.errors import EdgeError, KitError, ServiceError
from edge.events.event import Event
from edge.files import write_atomically
from edge.text import printable

USER = "edge"
GROUPS = ("video", "render", "gpio")
"""Of those that a device has, the user is a member: cameras, the Raspberry Pi's camera stack, its pins."""
DEVICES = ("char-video4linux", "char-media", "char-dma_heap", "char-vchiq", "char-vcsm-cma", "char-gpiochip")


class Systemd:
    """What systemd is told: a sink for events, and `frame()` after each frame. Silent where nobody listens.

    READY at the start, when kit and camera are there (or waited for); then a sign of life when a frame was processed.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._pause = _watchdog_seconds(environment) / 4  # often enough, and not with every frame
        self._clock, self._told = clock, -math.inf

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._tell("READY=1", f"STATUS=watching {event.camera}")
        elif event.kind == "camera":
            self._tell(f"STATUS=camera {event.outcome}" + (f": {event.reason}" if event.reason else ""))
        elif event.kind == "stop":
            self._tell("STOPPING=1", f"STATUS=stopped: {event.reason}")

    def frame(self) -> None:
        """A frame was processed."""
        if self._clock() - self._told >= self._pause:
            self._told = self._clock()
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.setblocking(False)  # a door does not wait for whoever watches it
            sender.sendto("\n".join(map(printable, lines)).encode("utf-8", "replace"), self._address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """How long systemd waits for a sign of life; infinity where it does not wait for one of ours."""
    seconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    is_ours = not pid or pid == str(os.getpid())
    return int(seconds) / 1e6 if seconds.isdecimal() and int(seconds) and is_ours else math.inf


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What a unit file says that differs from device to device."""

    command: tuple[str, ...]
    """What to run; the program by its whole path."""
    user: str = USER
    """Whose process it is: never root's."""
    groups: tuple[str, ...] = GROUPS
    """Which that user is in for the service: those that are missing here would keep it from starting."""
    watchdog_seconds: float = 30.0
    """Without a processed frame for so long the service is started anew. 10 or more: a lost camera is given a chance."""
    memory_mb: int = 512
    """More than this is a leak."""
    is_alone: bool = False
    """Whether it needs no network but this machine itself."""
    stop_seconds: float = 10.0
    """After so long without an end it is killed, with all that it started."""
    sees_homes: bool = False
    """Whether something that it reads lies in a home."""
    writes: tuple[str, ...] = ()
    """Folders that it writes to beside its own."""

    def __post_init__(self) -> None:
        if not 10 <= self.watchdog_seconds <= 3600:
            raise ServiceError("The watchdog must be given between 10 and 3600 seconds.", "30 is usual.")
        if self.user in ("root", "nobody") or not self.user.replace("-", "_").isidentifier():
            raise ServiceError(f"{self.user!r} is not a user for a door.", "Name one that can do little else: --user edge.")

    def text(self) -> str:
        never_again = " ".join(str(code) for code in sorted(_lasting_codes()))
        lines = f"""\
            # Written by `edge install-service`. Changes of your own: `systemctl edit lclrr-edge`.
            [Unit]
            Description=Face recognition at the door
            Wants=time-sync.target
            After=time-sync.target
            StartLimitIntervalSec=0

            [Service]
            Type=notify
            NotifyAccess=main
            ExecStart={" ".join(map(quoted, self.command))}
            WatchdogSec={self.watchdog_seconds:g}
            WatchdogSignal=SIGTERM
            TimeoutStartSec=90
            TimeoutStopSec={self.stop_seconds:g}
            KillMode=mixed
            Restart=always
            RestartSec=2
            # What a person has to mend: bad options, settings, kit or door list.
            RestartPreventExitStatus={never_again}

            User={self.user}
            SupplementaryGroups={" ".join(self.groups)}
            StateDirectory={paths.STATE_FOLDER.name}
            StateDirectoryMode=0700
            UMask=0077
            Environment=PYTHONUNBUFFERED=1 HOME={paths.STATE_FOLDER}
            WorkingDirectory={paths.STATE_FOLDER}

            MemoryMax={self.memory_mb}M
            TasksMax=256
            OOMScoreAdjust=-500

            NoNewPrivileges=yes
            CapabilityBoundingSet=
            AmbientCapabilities=
            ProtectSystem=strict
            ProtectHome={"read-only" if self.sees_homes else "yes"}
            PrivateTmp=yes
            ProtectProc=invisible
            ProtectClock=yes
            ProtectHostname=yes
            ProtectKernelTunables=yes
            ProtectKernelModules=yes
            ProtectKernelLogs=yes
            ProtectControlGroups=yes
            RestrictNamespaces=yes
            RestrictRealtime=yes
            RestrictSUIDSGID=yes
            RemoveIPC=yes
            LockPersonality=yes
            KeyringMode=private
            SystemCallArchitectures=native
            SystemCallFilter=@system-service
            SystemCallErrorNumber=EPERM
            RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
            DevicePolicy=closed
            {{devices}}
            {{folders}}
            {{network}}

            [Install]
            WantedBy=multi-user.target
            """
        devices = [f"DeviceAllow={device} rw" for device in DEVICES]
        network = ["IPAddressDeny=any", "IPAddressAllow=localhost"] if self.is_alone else []
        # "-": a folder that is missing gives our sentence, not systemd's. There are no variables here, so $ stays as it is.
        folders = [f"ReadWritePaths={quoted('-' + folder).replace('$$', '$')}" for folder in self.writes]
        wide = {"{devices}": devices, "{folders}": folders, "{network}": network}
        plain = (line.strip() for line in lines.splitlines())
        return "\n".join(part for line in plain for part in wide.get(line, [line])) + "\n"


def _lasting_codes() -> set[int]:
    """The exit codes after which another try would end in the same way."""
    kinds: list[type[EdgeError]] = [EdgeError, errors.DoorListError, errors.SettingsError, *KitError.__subclasses__()]
    return {kind.exit_code for kind in kinds}


def quoted(word: str) -> str:
    """A word of ExecStart as systemd reads it: % and $ stand for themselves, and whatever is odd is in quotes."""
    if not word.isprintable():
        raise ServiceError(f"{printable(word)!r} cannot be in a unit file.", "Choose a name without control characters.")
    word = word.replace("%", "%%").replace("$", "$$")
    if word and all(letter.isalnum() or letter in "/._-=:@%$+," for letter in word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def program() -> tuple[str, ...]:
    """This very `edge`, by its whole path."""
    beside = Path(sys.executable).parent / "edge"
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "edge")


def groups_here(wanted: Iterable[str] = GROUPS) -> tuple[str, ...]:
    known = {group.gr_name for group in grp.getgrall()}
    return tuple(name for name in wanted if name in known)


def unit(
    *, kit: Path | None = None, settings: Path | None = None, camera: str | None = None, user: str, watchdog_seconds: float
) -> Unit:
    """The unit that runs this `edge` with these files, whose settings must make sense."""
    stored = configuration.load(paths.find_settings(settings))
    if camera is not None and configuration.holds_password(camera):
        hint = "Put it into a file that only the service's user can read, and name that in the settings: [camera] source_file."
        raise ServiceError("Everybody here can read a unit file, so no password may be in it.", hint)
    command = [*program(), "recognize"]
    command += [] if kit is None else [str(kit.absolute())]
    command += [] if settings is None else ["--settings", str(settings.absolute())]
    command += [] if camera is None else ["--camera", camera]
    in_force = stored.override(camera={"source": camera})
    named = [*command, *map(str, in_force.paths())]
    written = [in_force.kit.store, in_force.audit and in_force.audit.path.parent]
    return Unit(
        command=(*command, "--wait", "--no-json"),
        user=user,
        groups=groups_here(),
        watchdog_seconds=watchdog_seconds,
        is_alone=not in_force.needs_network,
        stop_seconds=Unit.stop_seconds + (in_force.events.on_grant_seconds if in_force.events.on_grant else 0.0),
        sees_homes=any(Path(name).is_relative_to(home) for name in named for home in paths.HOME_FOLDERS),
        writes=tuple(str(folder) for folder in written if folder and not folder.is_relative_to(paths.STATE_FOLDER)),
    )


def install(unit: Unit, path: Path = paths.SERVICE_UNIT) -> None:
    """Write the unit file, in one step."""
    try:
        pwd.getpwnam(unit.user)
    except KeyError:
        hint = f"Run `sudo useradd --system --shell /usr/sbin/nologin {unit.user}`, or name another with --user."
        raise ServiceError(f"There is no user {unit.user} here.", hint) from None
    try:
        write_atomically(path, unit.text().encode(), mode=0o644)
    except OSError as error:
        hint = "Run it with sudo." if isinstance(error, PermissionError) else "Check the path."
        raise ServiceError(f"{path} cannot be written ({error.strerror}).", hint) from None


def next_step(path: Path) -> str:
    return f"Now run `sudo systemctl daemon-reload && sudo systemctl enable --now {path.name.removesuffix('.service')}`."
