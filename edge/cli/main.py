"""The `edge` command, on the device. Each function parses, calls the library, reports."""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from edge import paths
from edge import settings as configuration
from edge.camera.open import open_camera
from edge.camera.photo import read_colour, read_grey
from edge.cli import audit as audit_cli
from edge.cli import common as console
from edge.cli import kit as kit_cli
from edge.doctor import bench as benches
from edge.doctor import checks as doctors
from edge.doctor import findings
from edge.enrol import storage as enrolments
from edge.enrol.session import CaptureSettings
from edge.errors import KitError, SettingsError, UnfitError
from edge.terminal import service as services
from edge.terminal.loop import run_until_signal
from edge.terminal.wiring import open_terminal
from edge.vision.detect import MIN_FACE, photo_min_face
from edge.vision.preprocess import resize_crop
from edge.vision.recognize import Recognizer

SCHEMA = 1


app = console.new_app("Recognise people with a kit that `edge-export build` made.")
app.add_typer(audit_cli.app, name="audit")
app.add_typer(kit_cli.app, name="kit")


KitArgument = Annotated[
    Path | None, typer.Argument(metavar="[KIT]", help="The kit (or EDGE_KIT, ./door.kit, /etc/lclrr-edge/door.kit).")
]
CAMERA = typer.Option(
    metavar="[SOURCE]",
    help="0, /dev/video0, picamera2:0, rtsp://..., http://..., a video file or a folder of images; alone, camera 0.",
)
CameraOption = Annotated[str, CAMERA]
SettingsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings (or EDGE_SETTINGS, /etc/lclrr-edge/settings.toml).")
]
PublicKey = Annotated[Path | None, typer.Option(help="Require the kit to be signed with this key (PEM).")]


@app.command()
def recognize(
    kit: KitArgument = None,
    settings: SettingsOption = None,
    camera: Annotated[str | None, CAMERA] = None,
    public_key: PublicKey = None,
    door: Annotated[Path | None, typer.Option(help="Door list: who may pass, and when (TOML).")] = None,
    on_grant: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run this for each grant, the event on its stdin.")
    ] = None,
    on_grant_seconds: Annotated[float | None, typer.Option(help="How long that command may take.")] = None,
    annotate: Annotated[Path | None, typer.Option(help="Write the video with boxes, names and reasons (.mp4, .avi).")] = None,
    preview: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve a live page, as at 127.0.0.1:8080.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /healthz, as at 127.0.0.1:9109.")
    ] = None,
    challenge: Annotated[
        bool | None, typer.Option("--challenge/--no-challenge", help="Ask whoever would be let in to turn the head or nod.")
    ] = None,
    needed: Annotated[int | None, typer.Option(min=2, help="Frames that must show the same person...")] = None,
    window: Annotated[int | None, typer.Option(min=2, help="...among this many of the latest.")] = None,
    min_face: Annotated[int | None, typer.Option(min=10, help="Width of the smallest face, in pixels.")] = None,
    max_fps: Annotated[float | None, typer.Option(min=0.1, help="Frames looked at in a second, of a live camera.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for finding and recognising.")] = None,
    wait: Annotated[bool | None, typer.Option("--wait/--no-wait", help="Wait for a camera that is not there yet.")] = None,
    json_lines: Annotated[
        bool | None, typer.Option("--json/--no-json", help="Events on stdout (default: if no terminal).")
    ] = None,
) -> None:
    """Watch a camera and decide who may pass: one event per visit, as JSON on stdout and in words on a terminal.

    What is not given here is as the settings say.
    """
    stored = configuration.load(paths.find_settings(settings))
    chosen = stored.override(
        kit={"public_key": public_key, "min_face": min_face, "threads": threads},
        camera={"source": camera, "max_fps": max_fps, "wait": wait},
        door={"list": door},
        visits={"needed": needed, "window": window},
        liveness={"challenge": challenge},
        events={"json_lines": json_lines, "on_grant": on_grant, "on_grant_seconds": on_grant_seconds},
        preview={"address": preview},
        metrics={"address": metrics},
    )
    with open_terminal(chosen, paths.find_kit(kit, stored.kit.path), annotate=annotate, say=console.say) as terminal:
        received = run_until_signal(terminal)
    if received == signal.SIGINT:
        raise KeyboardInterrupt


@app.command()
def image(
    files: Annotated[list[Path], typer.Argument(help="Photos: jpg, png, pgm, bmp, webp.")],
    kit: Annotated[Path | None, typer.Option(help="The kit (or EDGE_KIT, ./door.kit, /etc/lclrr-edge/door.kit).")] = None,
    public_key: PublicKey = None,
    cropped: Annotated[bool, typer.Option("--cropped", help="The photos show faces only.")] = False,
    min_face: Annotated[
        int | None, typer.Option(min=10, help="Width of the smallest face, in pixels (default: a 12th of the photo).")
    ] = None,
) -> None:
    """Recognise the faces in each photo; one JSON object a line for each face, or for a photo without any."""
    recognizer = _recognizer(kit, public_key)
    for file in files:
        if cropped:
            crop = resize_crop(read_grey(file), recognizer.kit.manifest.size)
            found = recognizer.recognize_crops(crop[None])
        else:
            photo = read_colour(file)
            found = recognizer.recognize(photo, min_face=min_face or photo_min_face(photo))
        for line in [face.facts() for face in found] or [{"label": None, "reason": "no face"}]:
            typer.echo(json.dumps({"schema": SCHEMA, "file": str(file), **line}))


@app.command()
def doctor(
    kit: KitArgument = None,
    settings: SettingsOption = None,
    camera: Annotated[str | None, CAMERA] = None,
    public_key: PublicKey = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for finding and recognising.")] = None,
    no_camera: Annotated[bool, typer.Option("--no-camera", help="Leave the camera alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Check camera, kit, versions, CPU, temperature, power and clock of this device, and say what to do.

    What is not given here is as the settings say.
    """
    stored = configuration.load(paths.find_settings(settings))
    chosen = stored.override(kit={"public_key": public_key, "threads": threads}, camera={"source": camera})
    checks = doctors.examine(
        lambda: paths.find_kit(kit, stored.kit.path),
        camera=None if no_camera else chosen.camera.address,
        public_key=None if chosen.kit.public_key is None else console.read_bytes(chosen.kit.public_key),
        threads=chosen.kit.threads,
    )
    typer.echo(json.dumps({"schema": SCHEMA, **findings.facts(checks)}) if as_json else findings.table(checks))
    if findings.worst(checks) == "fail":
        raise UnfitError("This device is not ready for a door.", "Do what the checks that failed advise.")


@app.command()
def bench(
    kit: KitArgument = None,
    camera: CameraOption = "0",
    public_key: PublicKey = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames to look at, at most.")] = 200,
    min_face: Annotated[int, typer.Option(min=10, help="Width of the smallest face, in pixels.")] = MIN_FACE,
    threads: Annotated[int, typer.Option(min=1, help="Threads for finding and recognising.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Time each stage on frames of a camera or recording, and how long a start takes."""
    recognizer = _recognizer(kit, public_key, threads=threads, min_face=min_face)
    with open_camera(camera) as source, console.progress("frames") as line:
        report = benches.measure(recognizer, source, frames=frames, kit=paths.find_kit(kit), report=line.count)
    typer.echo(json.dumps({"schema": SCHEMA, **report.facts()}) if as_json else benches.table(report))


@app.command("capture")
def enrol(
    name: Annotated[str, typer.Argument(help="Who stands before the camera.")],
    camera: CameraOption = "0",
    output: Annotated[Path, typer.Option(help="Where the photos go, a folder per person.")] = Path("photos"),
    photos: Annotated[int, typer.Option(min=1, max=1000, help="How many to take.")] = CaptureSettings.photos,
    least: Annotated[int, typer.Option("--min", min=1, help="With fewer nothing is written.")] = CaptureSettings.min_photos,
    kit: Annotated[Path | None, typer.Option(help="A kit, to know who is enrolled (default: the usual one, if any).")] = None,
    public_key: PublicKey = None,
    detector: Annotated[Path | None, typer.Option(help="A face detector, where there is no kit yet (.onnx).")] = None,
    allow_alike: Annotated[bool, typer.Option("--allow-alike", help="Enrol who looks like somebody enrolled.")] = False,
    min_face: Annotated[int, typer.Option(min=10, help="Width of the smallest face, in pixels.")] = MIN_FACE,
) -> None:
    """Photograph a person for training: guided, and only photos that are good and differ. One JSON object on stdout."""
    name, settings = enrolments.checked_name(name), CaptureSettings(photos=photos, min_photos=min(least, photos))
    recognizer = _recognizer(kit, public_key) if _has_kit(kit) else None
    finder = enrolments.find_with(detector, None if recognizer is None else recognizer.kit, min_face=min_face)
    known = None if recognizer is None else enrolments.known_by(recognizer)
    with open_camera(camera, images_per_second=1 / settings.gap_seconds) as source:
        enrolment = enrolments.enrol(
            name,
            source,
            finder,
            output,
            when=datetime.now(),
            settings=settings,
            known=known,
            allow_alike=allow_alike,
            say=console.say,
        )
    typer.echo(json.dumps({"schema": SCHEMA, **enrolment.facts()}))
    for sentence in enrolment.account():
        console.say(sentence)


config = typer.Typer(no_args_is_help=True, help="Check or show the settings.")
app.add_typer(config, name="config")
SettingsArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="Settings (or EDGE_SETTINGS, /etc/lclrr-edge/settings.toml).")
]


@config.command("check")
def check_settings(file: SettingsArgument = None) -> None:
    """Say everything that is wrong with the settings, one line each on stdout."""
    path = paths.find_settings(file)
    problems = configuration.problems(path)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise SettingsError(f"{path} cannot be used: {len(problems)} problem{'s' if len(problems) > 1 else ''}.")
    console.say("There is no settings file: the defaults hold." if path is None else f"{path} is good.")


@config.command("show")
def show_settings(file: SettingsArgument = None) -> None:
    """Print the settings in force, as TOML: those of the file, and the defaults for all else. Passwords are not shown."""
    stored = configuration.load(paths.find_settings(file))
    typer.echo(configuration.as_toml(stored.override(kit={"path": paths.kit_from_environment()})), nl=False)


@config.command("template")
def settings_template() -> None:
    """Print a settings file to begin with: every key, what it means, and its default."""
    typer.echo(configuration.template(), nl=False)


@app.command("install-service")
def install_service(
    kit: KitArgument = None,
    settings: SettingsOption = None,
    camera: Annotated[str | None, CAMERA] = None,
    user: Annotated[str, typer.Option(help="Whose process it is.")] = services.USER,
    watchdog_seconds: Annotated[
        float, typer.Option(help="Start it anew if no frame was processed for so long.")
    ] = services.Unit.watchdog_seconds,
    output: Annotated[Path, typer.Option(help="Where the unit file goes.")] = paths.SERVICE_UNIT,
    only_print: Annotated[bool, typer.Option("--print", help="Print the unit file, and write nothing.")] = False,
) -> None:
    """Write a systemd unit that runs `edge recognize` at each start of this device, and starts it anew when it fails."""
    unit = services.unit(kit=kit, settings=settings, camera=camera, user=user, watchdog_seconds=watchdog_seconds)
    if only_print:
        typer.echo(unit.text(), nl=False)
    else:
        services.install(unit, output)
        console.say(f"{output} is written. {services.next_step(output)}")


def _has_kit(given: Path | None) -> bool:
    try:
        paths.find_kit(given)
    except KitError:
        return False
    return True


def _recognizer(kit: Path | None, public_key: Path | None, **settings: Any) -> Recognizer:
    key = None if public_key is None else console.read_bytes(public_key)
    return Recognizer.load(paths.find_kit(kit), public_key=key, **settings)


def with_camera(words: list[str]) -> list[str]:
    """`--camera` may stand alone, for camera 0: typer knows no option whose value may be missing."""
    full: list[str] = []
    for word, following in zip(words, [*words[1:], "-"], strict=False):
        full.append(word)
        if word == "--camera" and (following.startswith("-") or following.endswith(".kit")):
            full.append("0")
    return full


def main() -> None:
    sys.argv[1:] = with_camera(sys.argv[1:])
    with console.calm_logging():
        console.run(app)


if __name__ == "__main__":
    main()
