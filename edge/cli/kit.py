"""`edge kit` shows the kits of a terminal, installs a new one, or goes back to the previous one."""

from pathlib import Path
from typing import Annotated

import typer

from edge import paths
from edge import settings as configuration
from edge.cli import common as console
from edge.cli import options
from edge.errors import KitError
from edge.files import read_bytes
from edge.kit import selftest
from edge.kit.format import Kit, read_kit_bytes
from edge.kit.manifest import Thresholds
from edge.kit.store import Store, kit_facts
from edge.vision.recognize import Recognizer

KitOption = Annotated[
    Path | None,
    typer.Option(
        "--kit", envvar=paths.KIT_VARIABLE, help="Where the terminal looks for new kits (default: from the settings)."
    ),
]

app = typer.Typer(no_args_is_help=True, help="Show, install or roll back kits.")


@app.command()
def status(kit: KitOption = None, settings: options.SettingsOption = None) -> None:
    """Print the kits of the terminal. One JSON object: the active, the previous and the dropped kit."""
    found = open_store(kit, settings).status()
    console.print_json(found)
    if "thresholds" in (found["current"] or {}):
        console.say(Thresholds(**found["current"]["thresholds"]).sentence)


@app.command()
def install(
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The new kit.")],
    kit: KitOption = None,
    settings: options.SettingsOption = None,
) -> None:
    """Check a kit as the terminal does, and put it in place. A running terminal loads it within a few seconds."""
    store = open_store(kit, settings)
    installed = store.drop(read_kit_bytes(new))
    console.print_json({"kit": str(store.dropped), **kit_facts(installed)})
    console.say("The kit is in place. A running terminal loads it within a few seconds; see `edge kit status`.")


@app.command()
def rollback(
    kit: KitOption = None,
    settings: options.SettingsOption = None,
    why: Annotated[str, typer.Option(help="Reason, for the record.")] = "by hand",
) -> None:
    """Go back to the previous kit. The active kit is not accepted again."""
    store = open_store(kit, settings)
    store.roll_back(None, why)
    console.print_json(store.status())


def open_store(kit: Path | None, settings: Path | None) -> Store[Recognizer]:
    """Return the store of the terminal that has these settings."""
    found = configuration.load(paths.find_settings(settings))
    chosen = found.kit
    folder = paths.find_kit_store(chosen.store) or (paths.KIT_STORE if paths.STATE_FOLDER.is_dir() else None)
    if folder is None:
        raise KitError("This machine has no kit store.", "Name a folder in the settings: [kit] store.")
    key = None if chosen.public_key is None else read_bytes(chosen.public_key)

    def load(opened: Kit) -> Recognizer:
        if found.liveness.required:
            opened.manifest.require_liveness()
        return selftest.check_with_detector(Recognizer(opened, min_face=chosen.min_face))

    return Store(folder, kit or chosen.path or paths.KIT, load, public_key=key, series=chosen.series)
