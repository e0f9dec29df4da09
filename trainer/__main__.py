"""`python -m trainer`."""

from trainer.cli.main import main

main()
