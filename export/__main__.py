"""`python -m export`: the command `edge-export` (`export` alone is a shell builtin)."""

from export.cli import main

main()
