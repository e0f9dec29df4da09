"""A command that runs for each grant, with the event as JSON on its standard input."""

import math
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress

from edge.clock import boottime
from edge.errors import UsageError, require
from edge.events.event import Event
from edge.events.worker import DeliveryError, Worker

MAX_SECONDS = 600.0
"""Limit for a command's time: it also delays the end of the service."""
VARIABLES = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"})
"""Variables that a command gets, and those that begin with LC_. Others may contain secrets, or belong to systemd."""


class CommandSink(Worker[Event]):
    """A sink that runs a command for each grant, without a shell.

    After `seconds` the command's process group gets SIGTERM, and half a second later SIGKILL. Processes that a command leaves
    in the background after a normal end are not touched. A grant that waited for more than `seconds` is not run: another
    person may stand at the door by then.
    """

    GRACE_SECONDS = 0.5

    def __init__(self, command: str, seconds: float = 5.0, *, clock: Callable[[], float] = boottime) -> None:
        check_seconds(seconds)
        self._argv, self._seconds = split_command(command), seconds
        self._deadline = math.inf
        super().__init__(
            self._run_command,
            name=f"the command {self._argv[0]}",
            accepts=lambda event: event.grants,
            capacity=8,
            close_seconds=seconds + 3 * self.GRACE_SECONDS,  # a command must not be cut off while it closes a door
            clock=clock,
        )

    def close(self) -> None:
        """Let the running command and the waiting ones end, within the time of one command."""
        self._deadline = self._clock() + self._seconds
        super().close()

    def _run_command(self, event: Event) -> None:
        left = self._deadline - self._clock()
        if self.waited_seconds() > self._seconds or left <= 0:
            raise DeliveryError("a grant waited too long and was not run")
        seconds = min(self._seconds, left)
        try:
            # Its output goes to stderr (2), because stdout is ours. Its own session, so that signals reach its whole group.
            process = subprocess.Popen(
                self._argv,
                env=environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=2,
                close_fds=True,
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryError(f"cannot be started ({error.strerror})") from None
        try:
            process.communicate(event.to_json().encode() + b"\n", timeout=seconds)
        except subprocess.TimeoutExpired:
            for end in (signal.SIGTERM, signal.SIGKILL):
                with suppress(OSError):  # already ended, or owned by another user through sudo
                    os.killpg(process.pid, end)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self.GRACE_SECONDS)
            raise DeliveryError(f"stopped after {seconds:.1f} s") from None
        if process.returncode:
            raise DeliveryError(f"ended with code {process.returncode}")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command gets."""
    return {name: value for name, value in variables.items() if name in VARIABLES or name.startswith("LC_")}


def check_seconds(seconds: float) -> None:
    require(0 < seconds <= MAX_SECONDS, f"on_grant_seconds must be more than 0 and at most {MAX_SECONDS:g}, not {seconds:g}")


def split_command(command: str) -> list[str]:
    """Return the words of a command. The program must exist."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"The command {command!r} cannot be parsed ({error}).", "Check its quotation marks.") from None
    if not argv:
        raise UsageError("The command is empty.", "Name a program.")
    if shutil.which(argv[0]) is None:
        raise UsageError(f"The program {argv[0]} was not found.", "Check its path, and that it is executable.")
    return argv
