"""What the three commands share at the terminal: errors as one sentence with an exit code, and a progress line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from edge.errors import EXIT_INTERRUPTED, EdgeError


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
