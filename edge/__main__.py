"""Entry point of the `edge` command and of `python -m edge`."""

import sys


def main() -> None:
    """Run the command. A broken installation gives a sentence instead of a traceback."""
    try:
        try:
            from edge.cli import main as cli
        except ImportError as error:  # a missing system library, a wheel for another processor
            package = error.name or "a package"
            sys.stderr.write(f"error: {package} cannot be loaded ({error}). Install lclrr-edge again, in a new environment.\n")
            sys.exit(37)  # edge.errors.UnfitError
        cli.main()
    except KeyboardInterrupt:  # while modules are loaded, which takes seconds on a Raspberry Pi
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # edge.errors.EXIT_INTERRUPTED


if __name__ == "__main__":
    main()
