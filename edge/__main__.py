"""The `edge` command and `python -m edge`. An installation that is broken gets a sentence, not a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:  # while all is still being loaded, which takes a Raspberry Pi seconds
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # edge.errors.EXIT_INTERRUPTED


def _main() -> None:
    try:
        from edge.cli import main as cli
    except ImportError as error:  # a library that OpenCV needs, a wheel of another processor...
        what = error.name or "a package"
        sys.stderr.write(f"error: {what} cannot be loaded ({error}). Install lclrr-edge again, in its own environment.\n")
        sys.exit(37)  # edge.errors.UnfitError
    cli.main()


if __name__ == "__main__":
    main()
