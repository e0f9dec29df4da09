"""Commands that set up a terminal: `edge config`, `edge capture` and `edge install-service`."""

from contextlib import suppress
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from edge import paths
from edge import settings as configuration
from edge.camera.sources import open_camera
from edge.cli import common as console
from edge.cli import options
from edge.enrol import attack as attacks
from edge.enrol import storage
from edge.enrol.session import GAP_SECONDS, MIN_PHOTOS, PHOTOS
from edge.errors import KitError, SettingsError
from edge.privileges import rights_over
from edge.terminal import service
from edge.text import plural
from edge.vision.detect import MIN_FACE

config = typer.Typer(no_args_is_help=True, help="Check or show the settings.")


@config.command()
def check(file: options.SettingsArgument = None) -> None:
    """List all problems of the settings."""
    path = paths.find_settings(file)
    problems = configuration.problems(path)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise SettingsError(f"{path} cannot be used: {plural(len(problems), 'problem')}.")
    console.say("There is no settings file. The defaults are used." if path is None else f"{path}: OK")


@config.command()
def show(file: options.SettingsArgument = None) -> None:
    """Print the active settings as TOML. Includes the defaults. Passwords are hidden."""
    stored = configuration.load(paths.find_settings(file))
    typer.echo(configuration.as_toml(stored.override(kit={"path": paths.from_environment(paths.KIT_VARIABLE)})), nl=False)


@config.command()
def template() -> None:
    """Print a settings file to start from. It has every key, its meaning and its default."""
    typer.echo(files("edge").joinpath("settings.template.toml").read_text(encoding="utf-8"), nl=False)


def capture(
    name: Annotated[str, typer.Argument(help="Name of the person in front of the camera.")],
    camera: Annotated[str, options.CAMERA] = "0",
    output: Annotated[
        Path | None, typer.Option(help="Folder for the photos, with one folder per person (default: photos, or attacks).")
    ] = None,
    photos: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help=f"How many photos to take (default: {PHOTOS}, or {attacks.FRAMES} with --attack)."),
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            metavar="print|replay|live", help="Record a print, a screen or a live face instead, to measure the liveness model."
        ),
    ] = None,
    min_photos: Annotated[
        int, typer.Option("--min", min=1, help="Write nothing if there are fewer good photos.")
    ] = MIN_PHOTOS,
    kit: Annotated[
        Path | None, typer.Option(help="A kit, to find people who are enrolled already (default: the usual kit, if any).")
    ] = None,
    public_key: options.PublicKeyOption = None,
    detector: Annotated[Path | None, typer.Option(help="A face detector (.onnx), needed if there is no kit yet.")] = None,
    allow_alike: Annotated[
        bool, typer.Option("--allow-alike", help="Enrol a person who looks like another enrolled person.")
    ] = False,
    min_face: Annotated[int, options.MIN_FACE_WIDTH] = MIN_FACE,
) -> None:
    """Photograph a person for training. Keeps only good photos that differ. Prints one JSON object."""
    name = storage.check_name(name)
    with suppress(KitError):
        kit = paths.find_kit(kit)
    recognizer = None if kit is None else options.load_recognizer(kit, public_key)
    if attack is not None:
        if recognizer is None:
            raise KitError("Measuring the liveness model needs a kit.", "Name one with --kit.")
        with open_camera(camera) as source:
            folder, number = output or Path("attacks"), photos or attacks.FRAMES
            recorded = attacks.record(
                name, attack, source, recognizer, folder, when=datetime.now(), frames=number, say=console.say
            )
        console.print_json(recorded.facts())
        for message in recorded.messages():
            console.say(message)
        return
    photos = photos or PHOTOS
    face_detector = storage.choose_detector(detector, None if recognizer is None else recognizer.kit, min_face=min_face)
    identify = None if recognizer is None else storage.identify_with(recognizer)
    with open_camera(camera, images_per_second=1 / GAP_SECONDS) as source:
        enrolment = storage.enrol(
            name,
            source,
            face_detector,
            output or Path("photos"),
            when=datetime.now(),
            photos=photos,
            min_photos=min(min_photos, photos),
            identify=identify,
            allow_alike=allow_alike,
            say=console.say,
        )
    console.print_json(enrolment.facts())
    for message in enrolment.messages():
        console.say(message)


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
        with rights_over(output.parent):
            service.install(unit, user, output)
        name = output.name.removesuffix(".service")
        console.say(f"Wrote {output}. Now run `sudo systemctl daemon-reload && sudo systemctl enable --now {name}`.")
