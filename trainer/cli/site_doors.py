"""`trainer site doors` and its family: the doors of a site, their live status, secrets and door lists."""

import json
import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import common as console
from edge.credentials import read_secret
from edge.decision import doorlist
from edge.errors import UsageError
from edge.files import read_bytes
from edge.sinks.webhook import WebhookSettings
from edge.text import plural
from trainer.site import door_lists, door_status, doors
from trainer.site.door_status import Status
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.users import login_name

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="The folder of the site.")]
DoorName = Annotated[str, typer.Argument(metavar="DOOR", help="Name of the door.")]
StatusUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Where its preview answers, for the live status. Empty: none.")
]
Drop = Annotated[str | None, typer.Option(metavar="FILE", help="The kit file that the terminal watches. Empty: none.")]
STDIN = "-"


def list_doors(
    site: SiteFolder,
    status: Annotated[bool, typer.Option("--status", help="Ask the terminals for their status now.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the doors of a site."""
    opened = Site.open(site)
    found = doors.load(opened)
    answers: list[Status | None] = [None] * len(found)
    if status:
        with opened.database() as database:
            answers = [*door_status.overview(opened, database, door_status.ask_all(found))]
    for door, answer in zip(found, answers, strict=True):
        if as_json:
            typer.echo(json.dumps(_facts(opened, door) | ({} if answer is None else vars(answer))))
        else:
            typer.echo(_line(door) if answer is None else _status_line(answer))
    if not found:
        console.say(f"No doors yet. Add one: trainer site add-door {site} NAME")


def _facts(site: Site, door: Door) -> dict[str, Any]:
    return {
        "door": door.name,
        "status_url": door.status_url,
        "drop": None if door.drop is None else str(door.drop),
        "has_secret": door.secret_file is not None,
        "has_list": doors.list_file(site, door).exists(),
    }


def _line(door: Door) -> str:
    return f"{door.name:24}  {door.status_url or '-':32}  {door.drop or '-'}"


def _status_line(status: Status) -> str:
    who = status.label or status.reason
    parts = [
        f"camera {status.camera}" if status.camera else "",
        f"kit {status.kit_name or status.kit}" if status.kit else "",
        "" if status.temperature_celsius is None else f"{status.temperature_celsius} C",
        "" if status.frames_per_second is None else f"{status.frames_per_second} frames/s",
        f"{status.outcome} {who} {status.decided}" if status.decided else "",
        status.problem,
        f"failing: {', '.join(status.failing)}" if status.failing else "",
    ]
    return f"{status.door:24}  {status.state:10}  {'; '.join(filter(None, parts))}".rstrip()


def add_door(site: SiteFolder, name: DoorName, status_url: StatusUrl = None, drop: Drop = None) -> None:
    """Add a door."""
    door = Door(name=name, status_url=status_url or "", drop=_path(drop))
    doors.add(Site.open(site), door, login_name())
    console.say(f"Added {door.name}.")


def change_door(
    site: SiteFolder,
    name: DoorName,
    new_name: Annotated[str | None, typer.Option("--name", help="New name. The door list gets it, too.")] = None,
    status_url: StatusUrl = None,
    drop: Drop = None,
) -> None:
    """Change a door. What is not given stays."""
    opened = Site.open(site)
    old = doors.find(opened, name)
    door = Door(
        name=old.name if new_name is None else new_name,
        status_url=old.status_url if status_url is None else status_url,
        drop=old.drop if drop is None else _path(drop),
    )
    doors.change(opened, old.name, door, login_name())
    console.say(f"Changed {door.name}.")


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def remove_door(site: SiteFolder, name: DoorName) -> None:
    """Remove a door and its secret. Its list stays in lists/."""
    doors.remove(Site.open(site), name, login_name())
    console.say(f"Removed {name}.")


def door_secret(site: SiteFolder, name: DoorName) -> None:
    """Make a new secret for the events of a door, and print it. The old one is not valid any more."""
    file = doors.make_secret(Site.open(site), name, login_name())
    typer.echo(read_secret(f"door {name}", file, None))
    console.say(f"Write it to the file {doors.SECRET_NAME} on the terminal, beside settings.toml, with mode 0600.")


def door_webhook(
    site: SiteFolder,
    name: DoorName,
    address: Annotated[str, typer.Option("--console", metavar="URL", help="Address of the console, as the terminal sees it.")],
) -> None:
    """Print the lines for settings.toml of the terminal, so that it sends its events to the console."""
    door = doors.find(Site.open(site), name)
    url = doors.events_url(address, door.name)
    WebhookSettings(url=url, secret_file=Path(doors.SECRET_NAME))  # raises what the terminal would
    typer.echo(doors.webhook_settings(url), nl=False)


def door_list(
    site: SiteFolder,
    name: DoorName,
    save: Annotated[
        str | None, typer.Option(metavar="FILE", help="Replace the list by this file, if it is valid; - is stdin.")
    ] = None,
    check: Annotated[str | None, typer.Option(metavar="FILE", help="Check this file, and change nothing; - is stdin.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the list: everyone in the kit may pass.")] = False,
) -> None:
    """Print the door list of a door, or replace it."""
    opened = Site.open(site)
    door = doors.find(opened, name)
    if (save is not None) + (check is not None) + remove > 1:
        raise UsageError("--save, --check and --remove exclude each other.", "Give one of them.")
    if remove:
        door_lists.remove(opened, door.name, login_name())
        console.say(f"Removed the list of {door.name}. A terminal without a list lets everyone in the kit pass.")
    elif save is not None or check is not None:
        text = _read(save or check or "")
        found = door_lists.check(text)
        if save is not None:
            door_lists.save(opened, door.name, text, login_name())
        for doubt in door_lists.doubts(opened, text, date.today()):
            console.say(f"note: {doubt}")
        console.say(f"{'Valid' if save is None else 'Saved'}: {plural(len(found.entries), 'entry', 'entries')}.")
    else:
        _print_list(opened, door)


def _print_list(site: Site, door: Door) -> None:
    saved = door_lists.load(site, door.name)
    typer.echo(saved.text, nl=False)
    if not saved.text:
        console.say(f"{door.name} has no list: everyone in the kit may pass.")
    if saved.problem:
        raise UsageError(f"The list is not valid. {saved.problem}", "Replace it with --save FILE.")


def _read(file: str) -> str:
    """Return the text of a file, or of stdin."""
    most = doorlist.MAX_BYTES + 1
    data = sys.stdin.buffer.read(most) if file == STDIN else read_bytes(file, most)
    try:
        return data.decode()
    except UnicodeError:
        raise UsageError("The list is not UTF-8 text.", "Save it in UTF-8.") from None


COMMANDS = {
    "doors": list_doors,
    "add-door": add_door,
    "change-door": change_door,
    "remove-door": remove_door,
    "door-secret": door_secret,
    "door-webhook": door_webhook,
    "door-list": door_list,
}
