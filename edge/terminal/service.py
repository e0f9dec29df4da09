"""The terminal as a systemd service: the unit file, and the messages of the running service to systemd.

Only processed frames reset the watchdog: systemd restarts a terminal that processes no frames.
"""

import grp
import math
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template, digits

from edge import errors, paths
from edge import settings as configuration
from edge.errors import EdgeError, KitError, ServiceError
from edge.events.event import Event
from edge.events.sink import Sink
from edge.files import write_atomically
from edge.text import printable

USER = "edge"
WATCHDOG_SECONDS = 30.0
STOP_SECONDS = 10.0
"""Until it is killed with all its processes. A running command gets its own time in addition, because it may close a door."""
GROUPS = ("video", "render", "gpio")
"""The service joins those that exist on the device: cameras, the Raspberry Pi's camera stack, its pins."""
SERIAL_GROUP = "dialout"
"""With a door controller also this one, for the serial port."""


class SystemdNotifier(Sink):
    """A sink that sends READY, STATUS and STOPPING to systemd. `frame_processed()` resets the watchdog.

    Without systemd it does nothing.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        timeout, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        has_timeout = timeout.isdecimal() and int(timeout) and pid in ("", str(os.getpid()))
        self._interval = int(timeout) / 1e6 / 4 if has_timeout else math.inf  # often enough, but not for every frame
        self._clock, self._last_reset = clock, -math.inf

    def handle(self, event: Event) -> None:
        if event.kind == "start":
            self._send("READY=1", f"STATUS=watching {event.camera}")
        elif event.kind == "camera":
            self._send(f"STATUS=camera {event.outcome}" + (f": {event.reason}" if event.reason else ""))
        elif event.kind == "stop":
            self._send("STOPPING=1", f"STATUS=stopped: {event.reason}")

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


def unit_text(*, kit: Path | None, settings: Path | None, camera: str | None, user: str, watchdog_seconds: float) -> str:
    """Return the unit file that runs this `edge` with these files. The settings must be valid."""
    if not 10 <= watchdog_seconds <= 3600:  # a lost camera needs some seconds to come back
        raise ServiceError("The watchdog time must be between 10 and 3600 seconds.", "30 is usual.")
    if user in ("root", "nobody") or not user.replace("-", "_").isidentifier():
        raise ServiceError(f"The user {user!r} is not allowed.", "Name one without other rights: --user edge.")
    if camera is not None and configuration.holds_password(camera):
        hint = "Put it into a file that only the service's user can read, and set [camera] source_file."
        raise ServiceError("A password must not be in a unit file, which all users can read.", hint)
    active = configuration.load(paths.find_settings(settings)).override(camera={"source": camera})
    program = Path(sys.executable).parent / "edge"
    command = [str(program)] if os.access(program, os.X_OK) else [sys.executable, "-m", "edge"]
    command += ["recognize"] if kit is None else ["recognize", str(kit.absolute())]
    command += [] if settings is None else ["--settings", str(settings.absolute())]
    command += [] if camera is None else ["--camera", camera]
    named = [*command, *map(str, active.paths())]
    reads_homes = any(Path(name).is_relative_to(home) for name in named for home in paths.HOME_FOLDERS)
    existing_groups = {group.gr_name for group in grp.getgrall()}
    final: list[type[EdgeError]] = [
        EdgeError,
        errors.DoorListError,
        errors.SettingsError,
        errors.AuditChainError,
        errors.FleetError,
    ]
    final += KitError.__subclasses__()
    written = [active.kit.store, active.audit and active.audit.path.parent]
    if active.osdp is not None and active.osdp.install_mode:  # the controller may set the key
        written.append(active.osdp.key_file.absolute().parent)
    if active.fleet is not None:  # it puts kits and lists where a person would
        places = [kit or active.kit.path, active.door.list]
        written += [active.fleet.folder, *(place.absolute().parent for place in places if place is not None)]
    # "-": a missing folder leads to our error message, not systemd's. There are no variables here, so $ is not doubled.
    more = [
        f"ReadWritePaths={quoted(f'-{folder}').replace('$$', '$')}"
        for folder in written
        if folder and not folder.is_relative_to(paths.STATE_FOLDER)
    ]
    groups = [*GROUPS]
    if active.osdp is not None:
        groups.append(SERIAL_GROUP)
        port = active.osdp.device.resolve()
        if not port.name.startswith("tty"):
            raise ServiceError(
                f"{port} is not a serial port.", "Connect the adapter first, or name a port such as /dev/ttyUSB0."
            )
        more.append(f"DeviceAllow=char-{port.name.rstrip(digits)} rw")
    more += [] if active.needs_network else ["IPAddressDeny=any", "IPAddressAllow=localhost"]
    template = files("edge.terminal").joinpath("lclrr-edge.service").read_text(encoding="utf-8")
    return Template(template).substitute(
        command=" ".join(map(quoted, [*command, "--wait", "--no-json"])),
        watchdog_seconds=f"{watchdog_seconds:g}",
        stop_seconds=f"{STOP_SECONDS + (active.events.on_grant_seconds if active.events.on_grant else 0):g}",
        final_codes=" ".join(map(str, sorted({kind.exit_code for kind in final}))),
        user=user,
        groups=" ".join(group for group in groups if group in existing_groups),
        state_name=paths.STATE_FOLDER.name,
        state_folder=paths.STATE_FOLDER,
        protect_home="read-only" if reads_homes else "yes",
        more="\n".join(more),
    )


def quoted(word: str) -> str:
    """Return a word of ExecStart, escaped for systemd: % and $ are doubled, unusual letters are put in quotes."""
    if not word.isprintable():
        raise ServiceError(f"{printable(word)!r} cannot stand in a unit file.", "Choose a name without control characters.")
    word = word.replace("%", "%%").replace("$", "$$")
    if word and all(letter.isalnum() or letter in "/._-=:@%$+," for letter in word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def install(unit: str, user: str, path: Path) -> None:
    """Write the unit file, in one atomic step. The user must exist."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        hint = f"Run `sudo useradd --system --shell /usr/sbin/nologin {user}`, or name another with --user."
        raise ServiceError(f"The user {user} does not exist.", hint) from None
    try:
        write_atomically(path, unit.encode(), mode=0o644)
    except OSError as error:
        hint = "Run it with sudo." if isinstance(error, PermissionError) else "Check the path."
        raise ServiceError(f"{path} cannot be written ({error.strerror}).", hint) from None
