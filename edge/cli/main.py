"""The `edge` command: all commands of the device in one app."""

import sys

from edge.cli import audit, doctor, fleet, kit, recognize, setup
from edge.cli import common as console

app = console.new_app("Recognise people with a kit that `edge-export build` made.")
for command in (recognize.recognize, recognize.image, doctor.doctor, doctor.bench, setup.capture, setup.install_service):
    app.command()(command)
for name, group in {"config": setup.config, "kit": kit.app, "fleet": fleet.app, "audit": audit.app}.items():
    app.add_typer(group, name=name)


def with_camera_values(arguments: list[str]) -> list[str]:
    """Insert 0 after a `--camera` without a value: typer has no option whose value may be missing."""
    complete: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=False):
        complete.append(argument)
        if argument == "--camera" and (following.startswith("-") or following.endswith(".kit")):
            complete.append("0")
    return complete


def main() -> None:
    """Run the command with the arguments of this process."""
    sys.argv[1:] = with_camera_values(sys.argv[1:])
    with console.log_to_stderr():
        console.run(app)
