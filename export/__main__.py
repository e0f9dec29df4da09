"""`python -m export`, because `export` alone is a shell builtin."""

from export.cli import main

main()
