"""Where an installed device keeps its files, and the environment variables that name other places.

`scripts/install_pi.sh` uses the same paths; tests/edge/test_paths.py compares them.
"""

import os
from pathlib import Path

from edge.errors import KitError

CONFIG_FOLDER = Path("/etc/lclrr-edge")
STATE_FOLDER = Path("/var/lib/lclrr-edge")
SETTINGS = CONFIG_FOLDER / "settings.toml"
KIT = CONFIG_FOLDER / "door.kit"
KIT_SEARCH = (Path(KIT.name), KIT)
"""Searched in this order if no kit is named."""
KIT_STORE = STATE_FOLDER / "kits"
ENTRY_COUNTS = STATE_FOLDER / "entries.json"
FLEET = STATE_FOLDER / "fleet"
AUDIT_LOG = STATE_FOLDER / "audit.db"
SERVICE_UNIT = Path("/etc/systemd/system/lclrr-edge.service")
HOME_FOLDERS = (Path("/home"), Path("/root"))
"""A service sees them only if its unit allows it."""

KIT_VARIABLE, SETTINGS_VARIABLE, AUDIT_VARIABLE = "EDGE_KIT", "EDGE_SETTINGS", "EDGE_AUDIT"


def from_environment(variable: str) -> Path | None:
    """Return the path that an environment variable holds, or None."""
    value = os.environ.get(variable)
    return Path(value) if value else None


def find_kit(given: Path | None, from_settings: Path | None = None) -> Path:
    """Return the kit of the command line, of EDGE_KIT or of the settings; else the first that exists in KIT_SEARCH."""
    if named := given or from_environment(KIT_VARIABLE) or from_settings:
        return named
    for path in KIT_SEARCH:
        if path.exists():
            return path
    raise KitError("No kit was found.", f"Name one, set {KIT_VARIABLE}, or put {KIT.name} into this folder.")


def find_settings(given: Path | None = None) -> Path | None:
    """Return the settings file of the command line or of EDGE_SETTINGS; else the usual one if it exists, or None."""
    return given or from_environment(SETTINGS_VARIABLE) or (SETTINGS if SETTINGS.exists() else None)


def find_kit_store(from_settings: Path | None) -> Path | None:
    """Return the kit store that the settings name, or the one of the systemd service that runs this process, or None."""
    state = _state_folder()
    return from_settings or (state / KIT_STORE.name if state else None)


def find_entry_counts(door_list: Path) -> Path:
    """Return the file for the used entries of visitors: that of the systemd service, else one beside the door list."""
    state = _state_folder()
    return state / ENTRY_COUNTS.name if state else door_list.with_name(f"{door_list.name}.{ENTRY_COUNTS.name}")


def find_fleet_folder(from_settings: Path | None, kit_store: Path) -> Path:
    """Return the folder for what comes from the fleet: the one that the settings name, or one beside the kit store."""
    return from_settings or kit_store.with_name(FLEET.name)


def _state_folder() -> Path | None:
    """Return the folder of the systemd service that runs this process, or None."""
    state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(state) if state else None
