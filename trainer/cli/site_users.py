"""`trainer site add-user` and its family: users of the console, and the trail of changes."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from edge.cli import common as console
from trainer.site import trail, users
from trainer.site.folder import Site

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="The folder of the site.")]
UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
RoleOption = Annotated[Literal["viewer", "operator", "administrator"], typer.Option(help="What the user may do.")]


def add_user(site: SiteFolder, name: UserName, role: RoleOption = "viewer") -> None:
    """Add a user of the console. The password is asked for, or read from the first line of stdin."""
    with Site.create(site).database() as database:
        users.add(database, name, role, _read_password(), who=users.login_name())
    console.say(f"Added {name} ({role}).")


def remove_user(site: SiteFolder, name: UserName) -> None:
    """Remove a user of the console."""
    with Site.open(site).database() as database:
        users.remove(database, name, who=users.login_name())
    console.say(f"Removed {name}.")


def set_role(site: SiteFolder, name: UserName, role: RoleOption) -> None:
    """Change the role of a user."""
    with Site.open(site).database() as database:
        users.set_role(database, name, role, who=users.login_name())
    console.say(f"{name} is {role} now.")


def set_password(site: SiteFolder, name: UserName) -> None:
    """Change the password of a user. It is asked for, or read from the first line of stdin."""
    with Site.open(site).database() as database:
        users.set_password(database, name, _read_password(), who=users.login_name())
    console.say(f"The password of {name} is changed.")


def list_users(site: SiteFolder) -> None:
    """List the users of the console."""
    with Site.open(site).database() as database:
        for user in users.all_users(database):
            typer.echo(f"{user.name:24} {user.role:14} {user.created}")


def show_trail(
    site: SiteFolder,
    search: Annotated[str, typer.Option(help="Only entries with this text in them.")] = "",
    most: Annotated[int, typer.Option(min=1, help="Number of entries.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show who changed what, newest first."""
    with Site.open(site).database() as database:
        for change in trail.changes(database, search=search, most=most):
            if as_json:
                typer.echo(json.dumps(vars(change)))
            else:
                typer.echo(f"{change.utc}  {change.who:16} {change.action:20} {change.subject}  {change.details}".rstrip())


def _read_password() -> str:
    if sys.stdin is not None and not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


COMMANDS = {
    "add-user": add_user,
    "remove-user": remove_user,
    "set-role": set_role,
    "set-password": set_password,
    "users": list_users,
    "trail": show_trail,
}
