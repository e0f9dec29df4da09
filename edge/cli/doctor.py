"""`edge doctor` checks this device; `edge bench` measures its speed."""

from dataclasses import asdict
from typing import Annotated

import typer

from edge import paths
from edge import settings as configuration
from edge.camera.sources import open_camera
from edge.cli import common as console
from edge.cli import options
from edge.cli.fleet import open_fleet
from edge.doctor import bench as benches
from edge.doctor import checks, report
from edge.errors import UnfitError
from edge.files import read_bytes
from edge.vision.detect import MIN_FACE


def doctor(
    kit: options.KitArgument = None,
    settings: options.SettingsOption = None,
    camera: Annotated[str | None, options.CAMERA] = None,
    public_key: options.PublicKeyOption = None,
    threads: Annotated[int | None, options.THREADS] = None,
    no_camera: Annotated[bool, typer.Option("--no-camera", help="Do not open the camera.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Check this device and advise what to do.

    Checks packages, CPU, temperature, power, memory, disk, clock, kit and camera.
    Options not given here come from the settings file.
    """
    stored = configuration.load(paths.find_settings(settings))
    chosen = stored.override(kit={"public_key": public_key, "threads": threads}, camera={"source": camera})
    found = checks.check_device(
        lambda: paths.find_kit(kit, stored.kit.path),
        camera=None if no_camera else chosen.camera.address,
        public_key=None if chosen.kit.public_key is None else read_bytes(chosen.kit.public_key),
        threads=chosen.kit.threads,
        open_fleet=None if stored.fleet is None else lambda: open_fleet(kit, settings),
    )
    if as_json:
        console.print_json({"state": report.worst(found), "checks": [asdict(check) for check in found]})
    else:
        typer.echo(report.table(found))
    if report.worst(found) == "fail":
        raise UnfitError("This device is not ready to run a terminal.", "Follow the advice of the failed checks.")


def bench(
    kit: options.KitArgument = None,
    camera: Annotated[str, options.CAMERA] = "0",
    public_key: options.PublicKeyOption = None,
    frames: Annotated[int, typer.Option(min=1, help="Number of frames, at most.")] = 200,
    min_face: Annotated[int, options.MIN_FACE_WIDTH] = MIN_FACE,
    threads: Annotated[int, options.THREADS] = 1,
    as_json: options.JsonOption = False,
) -> None:
    """Measure the time of each stage. Uses frames of a camera or recording."""
    recognizer = options.load_recognizer(kit, public_key, threads=threads, min_face=min_face)
    with open_camera(camera) as source, console.progress("frames") as line:
        measured = benches.measure(recognizer, source, frames=frames, report=line.count)
    if as_json:
        console.print_json(asdict(measured))
    else:
        typer.echo(benches.table(measured))
