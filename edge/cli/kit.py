"""`edge kit`: which kit is in force at the terminal, put in a new one, go back to the one before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from edge import paths
from edge import settings as configuration
from edge.cli import common as console
from edge.errors import KitError
from edge.kit import selftest
from edge.kit import store as kit_store
from edge.kit.manifest import Thresholds
from edge.kit.store import Store
from edge.vision.recognize import Recognizer

SCHEMA = 1
SettingsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings (or EDGE_SETTINGS, /etc/lclrr-edge/settings.toml).")
]
KitOption = Annotated[
    Path | None,
    typer.Option("--kit", envvar="EDGE_KIT", help="Where the terminal looks for its kit (default: as in the settings)."),
]

app = typer.Typer(no_args_is_help=True, help="See which kit is in force at the terminal, install another, or go back.")


@app.command()
def status(kit: KitOption = None, settings: SettingsOption = None) -> None:
    """The kits in force, before, and dropped in place, as one JSON object."""
    found = _store(kit, settings).status()
    typer.echo(json.dumps({"schema": SCHEMA, **found}))
    if "thresholds" in (found["current"] or {}):
        console.say(Thresholds(**found["current"]["thresholds"]).sentence)


@app.command()
def install(
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The new kit.")],
    kit: KitOption = None,
    settings: SettingsOption = None,
) -> None:
    """Check a kit as the terminal would, and put it in place: a running terminal takes it up in a few seconds."""
    store = _store(kit, settings)
    installed = store.drop(kit_store.read(new))
    typer.echo(json.dumps({"schema": SCHEMA, "kit": str(store.dropped), **kit_store.facts(installed)}))
    console.say("It is in place. A running terminal takes it up in a few seconds: `edge kit status` tells.")


@app.command()
def rollback(
    kit: KitOption = None,
    settings: SettingsOption = None,
    why: Annotated[str, typer.Option(help="For the record.")] = "by hand",
) -> None:
    """Go back to the kit before; the one in force will not be taken again."""
    store = _store(kit, settings)
    store.roll_back(None, why)
    typer.echo(json.dumps({"schema": SCHEMA, **store.status()}))


def _store(kit: Path | None, settings: Path | None) -> Store[Recognizer]:
    """That of the terminal with these settings."""
    chosen = configuration.load(paths.find_settings(settings)).kit
    folder = paths.find_kit_store(chosen.store) or (paths.KIT_STORE if paths.STATE_FOLDER.is_dir() else None)
    if folder is None:
        raise KitError("There is no store of kits here.", "Name a folder in the settings: [kit] store.")
    key = None if chosen.public_key is None else console.read_bytes(chosen.public_key)
    load = lambda opened: selftest.ready(Recognizer(opened, min_face=chosen.min_face))  # noqa: E731
    return Store(folder, kit or chosen.path or paths.KIT, load, public_key=key, series=chosen.series)
