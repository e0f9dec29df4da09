"""Events as text: JSON lines on stdout for programs, short lines on stderr for people."""

import os
import time
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import TextIO

from edge.events.event import Event
from edge.events.sink import OutputClosed
from edge.events.worker import Worker
from edge.text import plural, printable


class LineWriter:
    """Writes lines to the raw file of a text stream.

    It avoids the stream's buffer, which has a lock: a thread stuck in a full pipe would hold it when Python ends.
    """

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        self._raw = getattr(stream.buffer, "raw", stream.buffer)

    def write(self, line: str) -> None:
        rest = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            while rest:
                sent = self._raw.write(rest)
                if not sent:  # the pipe is non-blocking and full
                    time.sleep(0.01)
                rest = rest[sent or 0 :]
        except (BrokenPipeError, ValueError):  # ValueError: closed on our side
            raise OutputClosed from None


def json_sink(stream: TextIO) -> Worker[Event]:
    """Return a sink that writes one JSON object per line. A reader that leaves ends the run."""
    lines = LineWriter(stream)
    return Worker(lambda event: lines.write(event.to_json()), name="stdout")


def text_sink(stream: TextIO) -> Worker[Event]:
    """Return a sink that writes one line per event for people. It ignores a terminal window that is closed."""
    lines = LineWriter(stream)
    coloured = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def write(event: Event) -> None:
        with suppress(OutputClosed):
            lines.write(text_line(event, coloured=coloured))

    return Worker(write, name="stderr")


def text_line(event: Event, *, zone: tzinfo | None = None, coloured: bool = False) -> str:
    """Return an event as one line for people, in local time unless a `zone` is given."""

    def colour(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if coloured else text

    reason = printable(event.reason or "")
    if event.kind == "decision":
        text = _decision_text(event, colour(f"{event.outcome:<8}", "32" if event.grants else "33"), reason)
    elif event.kind in ("camera", "kit", "list", "input", "fleet"):
        outcome = colour(event.outcome or "", "31" if event.is_alarm else "32")
        text = f"{event.kind} {outcome}" + (f": {reason}" if reason else "")
    elif event.kind == "challenge":
        text = colour(reason, "36")
    elif event.kind == "start":
        text = f"watching {printable(event.camera) or 'the camera'}" + (f" with kit {event.kit}" if event.kit else "")
    else:
        text = "stopped" + (f": {reason}" if reason else "")
    return f"{datetime.fromisoformat(event.utc).astimezone(zone):%H:%M:%S}  {text}"


def _decision_text(event: Event, outcome: str, reason: str) -> str:
    # More digits if the two numbers round to the same: a confidence below the threshold must look smaller.
    digits = 4 if _rounded(event.confidence, 2) == _rounded(event.threshold, 2) else 2
    numbers = f"{_rounded(event.confidence, digits)} (needs {_rounded(event.threshold, digits)})"
    delay = f"{_rounded(event.seconds_from_first_sight, 1)} s after first sight"
    why = "" if event.grants else f"{reason}, "
    label = printable(event.label or "unknown")
    return f"{label:<12}  {outcome}  {why}{numbers}, {plural(event.frames or 0, 'frame')}, {delay}"


def _rounded(value: float | None, digits: int) -> str:
    return "?" if value is None else f"{value:.{digits}f}"
