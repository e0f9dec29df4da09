"""`edge config` checks, shows or starts a settings file."""

from __future__ import annotations

import typer

from edge import paths, settings
from edge.cli import common as console
from edge.cli import options
from edge.errors import SettingsError
from edge.text import plural

app = typer.Typer(no_args_is_help=True, help="Check or show the settings.")


@app.command()
def check(file: options.SettingsArgument = None) -> None:
    """List all problems of the settings."""
    path = paths.find_settings(file)
    problems = settings.problems(path)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise SettingsError(f"{path} cannot be used: {plural(len(problems), 'problem')}.")
    console.say("There is no settings file. The defaults are used." if path is None else f"{path}: OK")


@app.command()
def show(file: options.SettingsArgument = None) -> None:
    """Print the active settings as TOML. Includes the defaults. Passwords are hidden."""
    stored = settings.load(paths.find_settings(file))
    typer.echo(settings.as_toml(stored.override(kit={"path": paths.kit_from_environment()})), nl=False)


@app.command()
def template() -> None:
    """Print a settings file to start from. It has every key, its meaning and its default."""
    typer.echo(settings.template(), nl=False)
