"""Helpers that the commands `edge`, `trainer` and `edge-export` share: errors and exit codes, output, logging, progress."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any, NoReturn, TextIO

import typer

from edge.errors import EXIT_INTERRUPTED, EdgeError
from edge.events.sink import OutputClosed
from edge.events.worker import Worker
from edge.sinks.stdout import LineWriter
from edge.text import printable

OUTPUT_SCHEMA = 2
"""Version of the JSON objects that `edge` commands print. Events have a version of their own."""
REPEAT_SECONDS = 10.0
"""A repeated warning is logged once in this time: a fault in every frame must not fill an SD card."""


def new_app(help_text: str) -> typer.Typer:
    """Return a command that shows its help if it gets no arguments, and has --version."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=help_text)

    @app.callback(invoke_without_command=True)
    def show_version(show: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
        if show:
            typer.echo(f"lclrr-edge {version('lclrr-edge')}")
            raise typer.Exit

    return app


def run(app: typer.Typer) -> NoReturn:
    """Run a command and exit. An error that a user can fix gives one sentence and an exit code, no traceback."""
    try:
        code = app(standalone_mode=False)
    except EdgeError as error:
        say(f"error: {error}")
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except Exception as error:
        if not hasattr(error, "show"):  # only errors of the option parser have it
            raise
        error.show()
        code = EdgeError.exit_code
    if code == EXIT_INTERRUPTED:  # some versions of typer return this code for Ctrl-C, too
        say("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def say(sentence: str) -> None:
    """Print a sentence for people to stderr. Results go to stdout."""
    typer.echo(sentence, err=True)


def print_json(facts: Mapping[str, Any]) -> None:
    """Print a result as one JSON object with its schema version."""
    typer.echo(json.dumps({"schema": OUTPUT_SCHEMA, **facts}))


class StderrHandler(logging.Handler):
    """Writes each warning and error as one line, in a thread: a blocked stream does not delay the program.

    Messages that differ only in numbers count as repeated. Tracebacks are written only if EDGE_DEBUG is 1.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._logged: dict[str, float] = {}
        self._lines = Worker(LineWriter(stream).write, name="stderr", capacity=64)

    def emit(self, record: logging.LogRecord) -> None:
        line, now = self.format(record), time.monotonic()
        kind = re.sub(r"[0-9]+", "0", line)
        self._logged = {known: when for known, when in self._logged.items() if now - when < REPEAT_SECONDS}
        if kind not in self._logged:
            self._logged[kind] = now
            with suppress(OutputClosed):
                self._lines.handle(line)

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {printable(record.getMessage().partition(chr(10))[0])}"
        if record.exc_info and record.exc_info[0] is not None:
            line += f" ({record.exc_info[0].__name__})"
            if os.environ.get("EDGE_DEBUG") == "1":
                line += "\n" + logging.Formatter().formatException(record.exc_info)
        return line

    def close(self) -> None:
        self._lines.close()
        super().close()


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write log messages and Python warnings to stderr while the block runs."""
    if sys.stderr is None:
        yield
        return
    handler = StderrHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        handler.close()  # before it is removed: without a handler, Python would write to a blocked stderr itself
        logging.getLogger().removeHandler(handler)


class Progress:
    """One line on a terminal that is rewritten in place. Writes nothing if stderr is not a terminal."""

    def __init__(self, task: str) -> None:
        self.task, self.shown = task, sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self.shown:
            sys.stderr.write(f"\r\x1b[K{self.task}: {text}")
            sys.stderr.flush()

    def count(self, done: int, total: int) -> None:
        """Show a bar."""
        filled = round(30 * done / max(total, 1))
        self(f"[{'=' * filled}{' ' * (30 - filled)}] {done}/{total}")


@contextmanager
def progress(task: str) -> Iterator[Progress]:
    """Show progress while the block runs, and clear the line afterwards."""
    line = Progress(task)
    try:
        yield line
    finally:
        if line.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
