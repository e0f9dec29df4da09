"""`edge fleet` shows what this terminal has from its fleet, and pulls once."""

from pathlib import Path

import typer

from edge import paths
from edge import settings as configuration
from edge.cli import common as console
from edge.cli import options
from edge.cli.kit import KitOption, open_store
from edge.errors import FleetError
from edge.fleet.fleet import LIST, Fleet
from edge.fleet.problems import PullPausedError
from edge.privileges import rights_over

app = typer.Typer(no_args_is_help=True, help="Show or pull what the fleet has for this door.")


@app.command()
def status(kit: KitOption = None, settings: options.SettingsOption = None) -> None:
    """Print what this terminal has from its fleet, and how old it is. One JSON object."""
    fleet = open_fleet(kit, settings)
    with rights_over(fleet.folder):
        console.print_json(fleet.status())


@app.command()
def pull(kit: KitOption = None, settings: options.SettingsOption = None) -> None:
    """Pull once, now. The exit code is 0 if all data are verified and complete. Prints one JSON object."""
    fleet = open_fleet(kit, settings)
    with rights_over(fleet.folder):
        fleet.check_places()
        while True:
            try:
                fleet.pull()
                break
            except PullPausedError as part:
                console.say(part.message)
        console.print_json(fleet.status())


def open_fleet(kit: Path | None, settings: Path | None) -> Fleet:
    """Return the fleet of the terminal that has these settings."""
    found = configuration.load(paths.find_settings(settings))
    if found.fleet is None:
        raise FleetError("This terminal belongs to no fleet.", "Add the table [fleet] to the settings.")
    store = open_store(kit, settings)
    folder = paths.find_fleet_folder(found.fleet.folder, store.folder)
    with rights_over(folder):
        return Fleet(found.fleet, folder, found.door.list or folder / LIST, store)
