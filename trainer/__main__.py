"""`python -m trainer`."""

from trainer.cli.commands import main

main()
