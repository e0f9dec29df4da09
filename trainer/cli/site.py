"""`trainer site`: what the console does, as commands."""

import importlib
import pkgutil

import typer

import trainer.cli

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for found in sorted(module.name for module in pkgutil.iter_modules(trainer.cli.__path__) if module.name.startswith("site_")):
    for name, command in importlib.import_module(f"trainer.cli.{found}").COMMANDS.items():
        app.command(name)(command)
