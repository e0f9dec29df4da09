"""Decisions told to the world: JSON Lines, a calm line for people, a command of the integrator's.

A sink is a callable that takes an Event. None of them may delay a frame: those that write or wait stand behind a
`Background`, which gives them a thread and a short queue. What does not fit is dropped, counted and logged.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any, Generic, TextIO, TypeVar

from edge.decision.door import Decision
from edge.errors import ParameterError, UsageError
from edge.kit.format import kit_id
from edge.text import printable, strict_json

SCHEMA = 1
MAX_SECONDS = 600.0
"""What a command for a grant may be given: no door is held open for longer, and no service kept from its end."""
TEND_SECONDS = 60.0
"""A kit is told from others by the first digits of its SHA-256."""

log = logging.getLogger(__name__)


class StreamClosed(Exception):  # noqa: N818 (nothing went wrong: the reader has seen enough, as in `| head`)
    """Nobody reads the events any more."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened. All kinds have the same fields; those that say nothing about a kind are None."""

    schema: int
    """Version of these fields."""
    event_id: str
    """Unlike any other: a receiver that has seen it before must not act again."""
    kind: str
    """start, camera, kit, challenge, decision or stop."""
    outcome: str | None
    """Of a decision: granted or denied. Of the camera: lost or back. Of a kit: installed, refused or rolled back. Of a
    challenge: left, right or down, which is what the visitor is asked to do."""
    reason: str | None
    """Why, in a few words. Of a challenge: the sentence to say or show."""
    label: str | None
    """The person, or None where nobody was recognised."""
    confidence: float | None
    """Of the recognition, at most 1."""
    threshold: float | None
    """The confidence that a name takes."""
    margin: float | None
    """Lead over the second person."""
    frames: int | None
    """Frames that the decision rests on."""
    visit: int | None
    """Counts the visits since the start."""
    utc: str
    """When, ISO 8601 with milliseconds and Z."""
    monotonic: float | None
    """When, in seconds of the camera's clock, which is never set back."""
    seconds_from_first_sight: float | None
    """From the visit's first frame to now."""
    seconds_from_capture: float | None
    """From the deciding frame to now."""
    camera: str
    """Name of the camera."""
    kit: str
    """First digits of the kit's SHA-256."""

    @property
    def grants(self) -> bool:
        return self.kind == "decision" and self.outcome == "granted"

    def to_json(self) -> str:
        """One line of strict JSON."""
        return strict_json(asdict(self))


def event_from(decision: Decision, *, now: float, utc: datetime, camera: str = "", kit_sha256: str = "") -> Event:
    """The event of a decision, told at `now` on the camera's clock and `utc` on the wall."""
    return Event(
        **_envelope("decision", now, utc, camera, kit_sha256),
        outcome=decision.outcome,
        reason=decision.reason,
        label=decision.label,
        confidence=_number(decision.confidence),
        threshold=_number(decision.threshold),
        margin=_number(decision.margin),
        frames=int(decision.frames),
        visit=int(decision.visit),
        seconds_from_first_sight=_number(now - decision.first_seen),
        seconds_from_capture=_number(now - decision.captured),
    )


def notice(
    kind: str,
    *,
    now: float,
    utc: datetime,
    outcome: str | None = None,
    reason: str | None = None,
    visit: int | None = None,
    camera: str = "",
    kit_sha256: str = "",
) -> Event:
    """An event that is no decision: start, stop, the camera lost and back, what became of a new kit, a challenge."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("label", "confidence", "threshold", "margin", "frames", "seconds_from_first_sight", "seconds_from_capture")
    )
    return Event(**_envelope(kind, now, utc, camera, kit_sha256), outcome=outcome, reason=reason, visit=visit, **nothing)


def _envelope(kind: str, now: float, utc: datetime, camera: str, kit_sha256: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "event_id": uuid.uuid4().hex,
        "kind": kind,
        "utc": utc_text(utc),
        "monotonic": _number(now),
        "camera": camera,
        "kit": kit_id(kit_sha256),
    }


def utc_text(when: datetime) -> str:
    """ISO 8601 with milliseconds and Z: as text, earlier is smaller."""
    if when.tzinfo is None:
        raise ValueError("utc must know its time zone")
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: float) -> float | None:
    """JSON knows no NaN and no infinity. Rounding keeps the order, so a grant never shows less than its threshold."""
    return round(float(value), 6) if math.isfinite(value) else None


Sink = Callable[[Event], None]
T = TypeVar("T")


def deliver(sinks: Iterable[Sink], event: Event) -> int:
    """Give `event` to each sink in turn; how many failed. Only StreamClosed gets out, when all have been served."""
    failed, closed = 0, False
    for sink in sinks:
        try:
            sink(event)
        except StreamClosed:
            closed = True
        except Exception:
            failed += 1
            log.exception("an event was not delivered to %s", type(sink).__name__)
    if closed:
        raise StreamClosed
    return failed


class _Lines:
    """Lines written to what lies below a text stream.

    Not through its buffer: that has a lock, and a writer stuck in a full pipe would hold it when Python ends.
    """

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        self._raw = getattr(stream.buffer, "raw", stream.buffer)

    def write(self, line: str) -> None:
        rest = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            while rest:
                sent = self._raw.write(rest)
                if not sent:  # somebody made the pipe non-blocking, and it is full
                    time.sleep(0.01)
                rest = rest[sent or 0 :]
        except (BrokenPipeError, ValueError):  # ValueError: closed on our side
            raise StreamClosed from None


class JsonLines:
    """One JSON object a line, out at once."""

    def __init__(self, stream: TextIO) -> None:
        self._lines = _Lines(stream)

    def __call__(self, event: Event) -> None:
        self._lines.write(event.to_json())


class ForPeople:
    """One calm line per event, in local time unless a `zone` is given."""

    def __init__(self, stream: TextIO, *, zone: tzinfo | None = None) -> None:
        self._lines, self._zone = _Lines(stream), zone
        self._coloured = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, event: Event) -> None:
        with suppress(StreamClosed):  # a door goes on when its terminal window is closed
            self._lines.write(self.line(event))

    def line(self, event: Event) -> str:
        clock = datetime.fromisoformat(event.utc).astimezone(self._zone).strftime("%H:%M:%S")
        return f"{clock}  {self._words(event)}"

    def _words(self, event: Event) -> str:
        reason = printable(event.reason or "")
        if event.kind == "decision":
            outcome = self._colour(f"{event.outcome:<8}", "32" if event.grants else "33")
            why = "" if event.grants else f"{reason}, "
            # Of two numbers that round to the same, the smaller must not look like the larger.
            digits = 4 if _shown(event.confidence, 2) == _shown(event.threshold, 2) else 2
            numbers = f"{_shown(event.confidence, digits)} (needs {_shown(event.threshold, digits)})"
            frames = f"{event.frames} frame{'' if event.frames == 1 else 's'}"
            delay = f"{_shown(event.seconds_from_first_sight, 1)} s after first sight"
            return f"{printable(event.label or 'someone'):<12}  {outcome}  {why}{numbers}, {frames}, {delay}"
        if event.kind == "camera":
            outcome = self._colour(event.outcome or "", "31" if event.outcome == "lost" else "32")
            return f"camera {outcome}" + (f": {reason}" if reason else "")
        if event.kind == "kit":
            outcome = self._colour(event.outcome or "", "32" if event.outcome == "installed" else "31")
            return f"kit {outcome}" + (f": {reason}" if reason else "")
        if event.kind == "challenge":
            return self._colour(reason, "36")
        if event.kind == "start":
            return f"watching {printable(event.camera) or 'the camera'}" + (f" with kit {event.kit}" if event.kit else "")
        return "stopped" + (f": {reason}" if reason else "")

    def _colour(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text


def _shown(value: float | None, digits: int) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


class Background(Generic[T]):
    """A sink on a thread of its own. Calling it never waits: when `waiting` events are queued the next is dropped.

    `tend` is called on that thread, about once a minute, while there are none.
    """

    def __init__(
        self, sink: Callable[[T], None], *, waiting: int = 256, name: str = "", tend: Callable[[], object] | None = None
    ) -> None:
        self.failed = self.dropped = 0
        self._sink, self._waiting, self._tend = sink, waiting, tend
        self._name = name or type(sink).__name__
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"events to {self._name}", daemon=True)
        self._thread.start()

    def __call__(self, event: T) -> None:
        if self._closed:
            raise StreamClosed
        if self._queue.qsize() >= self._waiting:
            self.dropped += 1
            log.warning("%s is too slow: an event was dropped, %d so far", self._name, self.dropped)
        else:
            self._queue.put(event)

    def close(self, seconds: float = 2.0) -> None:
        """Let the queue run empty, for `seconds` at most."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("%s did not finish, its last events may be lost", self._name)

    def _work(self) -> None:
        while (act := self._next()) is not None:
            try:
                act()
            except StreamClosed:
                self._closed = True
                return
            except Exception:
                self.failed += 1
                log.exception("an event was not delivered to %s", self._name)

    def _next(self) -> Callable[[], object] | None:
        """What to do next; None at the end."""
        try:
            event = self._queue.get(timeout=TEND_SECONDS if self._tend else None)
        except queue.Empty:
            return self._tend
        return None if event is None else partial(self._sink, event)


class Command:
    """Runs a command for each grant, with the event as JSON on its standard input. No shell is involved.

    The command has `seconds`; then its process group is asked to end, and half a second later it is killed. What it leaves
    in the background after a normal end (a relay that falls back later) is its own affair. A grant that has waited for
    longer than `seconds` is not run any more: by then somebody else may stand at the door.
    """

    GRACE_SECONDS = 0.5

    def __init__(
        self, command: str, seconds: float = 5.0, *, waiting: int = 8, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_seconds(seconds)
        self._argv, self._seconds, self._clock = arguments(command), seconds, clock
        self.succeeded = self.failed = self.stale = 0
        self._deadline = math.inf
        self._background = Background(self._take, waiting=waiting, name=self._argv[0])

    @property
    def dropped(self) -> int:
        """Grants that did not fit in the queue."""
        return self._background.dropped

    def __call__(self, event: Event) -> None:
        if event.grants:
            self._background((self._clock(), event))

    def close(self) -> None:
        """Let the running command end and the waiting ones run, within the time that one command has."""
        self._deadline = self._clock() + self._seconds
        self._background.close(self._seconds + 3 * self.GRACE_SECONDS)

    def _take(self, asked: tuple[float, Event]) -> None:
        since, event = asked
        now = self._clock()
        if now - since > self._seconds or now >= self._deadline:
            self.stale += 1
            log.warning("a grant waited too long for %s and was not run", self._argv[0])
            return
        problem = self._run(event.to_json() + "\n", min(self._seconds, self._deadline - now))
        if problem:
            self.failed += 1
            log.warning("the command %s %s", self._argv[0], problem)
        else:
            self.succeeded += 1

    def _run(self, line: str, seconds: float) -> str:
        """What went wrong, or nothing."""
        try:
            # Its words go to stderr (2): stdout is ours. Its own session, so that Ctrl-C and killing reach the right ones.
            process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        try:
            process.communicate(line.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            self._end(process)
            return f"was stopped after {seconds:.1f} s"
        return f"ended with code {process.returncode}" if process.returncode else ""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for end in (signal.SIGTERM, signal.SIGKILL):
            with suppress(OSError):  # gone already, or another user's by way of sudo
                os.killpg(process.pid, end)
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.GRACE_SECONDS)


def check_seconds(seconds: float) -> None:
    if not 0 < seconds <= MAX_SECONDS:
        raise ParameterError(f"on_grant_seconds must be more than 0 and at most {MAX_SECONDS:g}, not {seconds:g}")


def arguments(command: str) -> list[str]:
    """The words of a command whose program is there."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"The command {command!r} cannot be read ({error}).", "Check its quotation marks.") from None
    if not argv:
        raise UsageError("The command is empty.", "Name a program.")
    if shutil.which(argv[0]) is None:
        raise UsageError(f"There is no program {argv[0]}.", "Check its path, and that it may be executed.")
    return argv
