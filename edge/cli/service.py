"""`edge install-service` installs the terminal as a systemd service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge import paths
from edge.cli import common as console
from edge.cli import options
from edge.terminal import service


def install_service(
    kit: options.KitArgument = None,
    settings: options.SettingsOption = None,
    camera: Annotated[str | None, options.CAMERA] = None,
    user: Annotated[str, typer.Option(help="User that runs the service.")] = service.USER,
    watchdog_seconds: Annotated[
        float, typer.Option(help="Restart the service if no frame was processed for this long.")
    ] = service.WATCHDOG_SECONDS,
    output: Annotated[Path, typer.Option(help="Unit file to write.")] = paths.SERVICE_UNIT,
    only_print: Annotated[bool, typer.Option("--print", help="Print the unit file and write nothing.")] = False,
) -> None:
    """Install the terminal as a systemd service.

    The service runs `edge recognize` when the device starts, and restarts it after a failure.
    """
    unit = service.unit_text(kit=kit, settings=settings, camera=camera, user=user, watchdog_seconds=watchdog_seconds)
    if only_print:
        typer.echo(unit, nl=False)
    else:
        service.install(unit, user, output)
        name = output.name.removesuffix(".service")
        console.say(f"Wrote {output}. Now run `sudo systemctl daemon-reload && sudo systemctl enable --now {name}`.")
