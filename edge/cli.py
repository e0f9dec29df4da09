"""The `edge` command, on the device. Each function parses, calls the library, reports."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer

from edge import bench as benches
from edge import capture, console
from edge import doctor as doctors
from edge.annotate import VideoWriterSink, View
from edge.camera import open_camera
from edge.capture import CaptureSettings
from edge.detect import MIN_FACE, photo_min_face
from edge.doorlist import DoorList
from edge.errors import KitError, UnfitError
from edge.events import Background, Command, ForPeople, JsonLines, Sink, printable
from edge.photo import read_colour, read_grey
from edge.preprocess import resize_crop
from edge.preview import Preview
from edge.recognize import Recognizer
from edge.terminal import Terminal, run_until_signal
from edge.track import VisitRules

SCHEMA = 1
PLACES = (Path("door.kit"), Path("/etc/lclrr-edge/door.kit"))


class _Closable(Protocol):
    def close(self) -> None: ...


Closing = TypeVar("Closing", bound=_Closable)
app = console.new_app("Recognise people with a kit that `edge-export build` made.")


KitArgument = Annotated[
    Path | None, typer.Argument(metavar="[KIT]", help="The kit (or EDGE_KIT, ./door.kit, /etc/lclrr-edge/door.kit).")
]
CameraOption = Annotated[
    str,
    typer.Option(
        metavar="[SOURCE]",
        help="0, /dev/video0, picamera2:0, rtsp://..., http://..., a video file or a folder of images; alone, camera 0.",
    ),
]
PublicKey = Annotated[Path | None, typer.Option(help="Require the kit to be signed with this key (PEM).")]


@app.command()
def recognize(
    kit: KitArgument = None,
    camera: CameraOption = "0",
    public_key: PublicKey = None,
    door: Annotated[Path | None, typer.Option(help="Door list: who may pass, and when (TOML).")] = None,
    on_grant: Annotated[str | None, typer.Option(metavar="CMD", help="Run this for each grant, the event on its stdin.")] = None,
    on_grant_seconds: Annotated[float, typer.Option(help="How long that command may take.")] = 5.0,
    annotate: Annotated[Path | None, typer.Option(help="Write the video with boxes, names and reasons (.mp4, .avi).")] = None,
    preview: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve a live page, as at 127.0.0.1:8080.")] = None,
    needed: Annotated[int, typer.Option(min=2, help="Frames that must show the same person...")] = VisitRules.needed,
    window: Annotated[int, typer.Option(min=2, help="...among this many of the latest.")] = VisitRules.window,
    min_face: Annotated[int, typer.Option(min=10, help="Width of the smallest face, in pixels.")] = MIN_FACE,
    max_fps: Annotated[float, typer.Option(min=0.1, help="Frames looked at in a second, of a live camera.")] = 15.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads for finding and recognising.")] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a camera that is not there yet.")] = False,
    json_lines: Annotated[bool | None, typer.Option("--json/--no-json", help="Events on stdout (default: if no terminal).")] = None,
) -> None:
    """Watch a camera and decide who may pass: one event per visit, as JSON on stdout and in words on a terminal."""
    door_list = None if door is None else DoorList.load(door)
    recognizer = _recognizer(kit, public_key, threads=threads, min_face=min_face)
    recognizer.finder  # noqa: B018 (a kit that finds no faces is refused before the camera is opened)
    _warn(recognizer, door_list)
    with ExitStack() as stack:
        source = stack.enter_context(open_camera(camera, wait=wait))
        sinks: list[Sink] = []
        if sys.stdout is not None and (json_lines or (json_lines is None and not sys.stdout.isatty())):
            sinks.append(_closing(stack, Background(JsonLines(sys.stdout))))
        if sys.stderr is not None and sys.stderr.isatty():
            sinks.append(_closing(stack, Background(ForPeople(sys.stderr))))
        if on_grant is not None:
            sinks.append(_closing(stack, Command(on_grant, on_grant_seconds)))
        viewers: list[Callable[[View], None]] = []
        terminal = Terminal(
            recognizer,
            source,
            door_list=door_list,
            rules=VisitRules(needed=needed, window=window),
            sinks=sinks,
            viewers=viewers,
            max_fps=max_fps,
        )
        if preview is not None:
            page = stack.enter_context(Preview(preview, terminal.health))
            sinks.append(page)
            viewers.append(page.publish)
            console.say(f"Preview at {page.url}")
        if annotate is not None:
            viewers.append(_closing(stack, VideoWriterSink(annotate, max_fps if source.live else None, live=source.live)))
        if run_until_signal(terminal) == signal.SIGINT:
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
    camera: CameraOption = "0",
    public_key: PublicKey = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads for finding and recognising.")] = 1,
    no_camera: Annotated[bool, typer.Option("--no-camera", help="Leave the camera alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Check camera, kit, versions, CPU, temperature, power and clock of this device, and say what to do."""
    key = None if public_key is None else console.read_bytes(public_key)
    checks = doctors.examine(lambda: find_kit(kit), camera=None if no_camera else camera, public_key=key, threads=threads)
    typer.echo(json.dumps({"schema": SCHEMA, **doctors.facts(checks)}) if as_json else doctors.table(checks))
    if doctors.worst(checks) == "fail":
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
        report = benches.measure(recognizer, source, frames=frames, kit=find_kit(kit), report=line.count)
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
    name, settings = capture.checked_name(name), CaptureSettings(photos=photos, min_photos=min(least, photos))
    recognizer = _recognizer(kit, public_key) if _has_kit(kit) else None
    finder = capture.find_with(detector, None if recognizer is None else recognizer.kit, min_face=min_face)
    known = None if recognizer is None else capture.known_by(recognizer)
    with open_camera(camera, images_per_second=1 / settings.gap_seconds) as source:
        enrolment = capture.enrol(
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


def _has_kit(given: Path | None) -> bool:
    try:
        find_kit(given)
    except KitError:
        return False
    return True


def _recognizer(kit: Path | None, public_key: Path | None, **settings: Any) -> Recognizer:
    key = None if public_key is None else console.read_bytes(public_key)
    return Recognizer.load(find_kit(kit), public_key=key, **settings)


def _warn(recognizer: Recognizer, door_list: DoorList | None) -> None:
    manifest = recognizer.kit.manifest
    if manifest.thresholds.provisional:
        console.say("warning: this kit was made without knowing what strangers score; do not trust it with a door.")
    for name in [] if door_list is None else door_list.unknown_people(manifest.labels):
        console.say(f"warning: the door list names {printable(name)}, whom the kit does not know.")


def _closing(stack: ExitStack, sink: Closing) -> Closing:
    stack.callback(sink.close)
    return sink


def find_kit(given: Path | None) -> Path:
    """The kit that was named, or the first that is where kits are looked for."""
    named = given or (Path(os.environ["EDGE_KIT"]) if os.environ.get("EDGE_KIT") else None)
    if named is not None:
        return named
    for place in PLACES:
        if place.exists():
            return place
    raise KitError("There is no kit.", "Name one, set EDGE_KIT, or put door.kit into this folder.")


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
