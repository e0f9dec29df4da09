"""What the three commands share at the terminal: errors as one sentence with an exit code, and a progress line."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Annotated, NoReturn, TextIO

import typer

from edge.errors import EXIT_INTERRUPTED, EdgeError
from edge.events.event import Background, StreamClosed, _Lines
from edge.files import read_bytes as read_bytes
from edge.text import printable

REPEAT_SECONDS = 10.0
"""A warning is not repeated before: a fault that comes with each frame must not fill an SD card."""


def new_app(help_text: str) -> typer.Typer:
    """A command that shows its help when nothing is asked, and its version with --version."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=help_text)

    @app.callback(invoke_without_command=True)
    def about(show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
        if show_version:
            typer.echo(f"lclrr-edge {version('lclrr-edge')}")
            raise typer.Exit

    return app


def run(app: typer.Typer) -> NoReturn:
    """Run a command: people get a sentence and an exit code, never a traceback for what they can mend themselves."""
    try:
        code = app(standalone_mode=False)
    except EdgeError as error:
        leave(f"error: {error}", error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        leave("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        if not hasattr(error, "show"):  # only what the option parser raises can show itself
            raise
        error.show()
        sys.exit(EdgeError.exit_code)
    if code == EXIT_INTERRUPTED:  # some versions of typer turn Ctrl-C into this code without a word
        leave("interrupted", EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def leave(sentence: str, code: int) -> NoReturn:
    typer.echo(sentence, err=True)
    sys.exit(code)


def say(sentence: str) -> None:
    """For people: stdout is left to results."""
    typer.echo(sentence, err=True)


class CalmHandler(logging.Handler):
    """Each warning or error as one line, written by a thread of its own: a blocked stream delays nobody who logs.

    Of a traceback only the error's kind is told, unless EDGE_DEBUG is 1. What differs by its numbers alone is a repetition.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._told: dict[str, float] = {}
        self._lines = Background(_Lines(stream).write, waiting=64, name="stderr")

    def emit(self, record: logging.LogRecord) -> None:
        line, now = self.format(record), time.monotonic()
        kind = re.sub(r"[0-9]+", "0", line)
        self._told = {told: when for told, when in self._told.items() if now - when < REPEAT_SECONDS}
        if kind not in self._told:
            self._told[kind] = now
            with suppress(StreamClosed):
                self._lines(line)

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {printable(record.getMessage().partition(chr(10))[0])}"
        if record.exc_info and record.exc_info[0] is not None:
            line += f" ({record.exc_info[0].__name__})"
            if os.environ.get("EDGE_DEBUG") == "1":
                line += "\n" + logging.Formatter().formatException(record.exc_info)
        return line

    def close(self) -> None:
        self._lines.close(1.0)
        super().close()


@contextmanager
def calm_logging() -> Iterator[None]:
    """What libraries log, and what Python warns of, told calmly on stderr meanwhile."""
    if sys.stderr is None:
        yield
        return
    handler = CalmHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        handler.close()  # still in its place: what closing has to say must not go to a blocked stderr by another way
        logging.getLogger().removeHandler(handler)


class Progress:
    """One line on a terminal, rewritten in place; nothing where stderr is a file."""

    def __init__(self, task: str) -> None:
        self.task, self.shown = task, sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self.shown:
            sys.stderr.write(f"\r\x1b[K{self.task}: {text}")
            sys.stderr.flush()

    def count(self, done: int, total: int) -> None:
        filled = round(30 * done / max(total, 1))
        self(f"[{'=' * filled}{' ' * (30 - filled)}] {done}/{total}")


@contextmanager
def progress(task: str) -> Iterator[Progress]:
    line = Progress(task)
    try:
        yield line
    finally:
        if line.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
