"""`edge recognize` runs a terminal; `edge image` recognises people in photos."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from edge import paths
from edge import settings as configuration
from edge.camera.photo import read_photo
from edge.cli import common as console
from edge.cli import options
from edge.terminal.loop import run_until_signal
from edge.terminal.wiring import open_terminal
from edge.vision.detect import photo_min_face
from edge.vision.preprocess import resize_crop


def recognize(
    kit: options.KitArgument = None,
    settings: options.SettingsOption = None,
    camera: Annotated[str | None, options.CAMERA] = None,
    public_key: options.PublicKeyOption = None,
    door: Annotated[Path | None, typer.Option(help="Door list: who may pass, and when (TOML).")] = None,
    on_grant: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run this command for each grant. It gets the event on stdin.")
    ] = None,
    on_grant_seconds: Annotated[float | None, typer.Option(help="Time limit of that command.")] = None,
    annotate: Annotated[Path | None, typer.Option(help="Write a video with boxes, names and reasons (.mp4, .avi).")] = None,
    preview: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Serve a live page, e.g. 127.0.0.1:8080.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /healthz, e.g. 127.0.0.1:9109.")
    ] = None,
    challenge: Annotated[
        bool | None, typer.Option("--challenge/--no-challenge", help="Before a grant, ask the person to turn the head or nod.")
    ] = None,
    needed: Annotated[int | None, typer.Option(min=2, help="Frames that must show the same person...")] = None,
    window: Annotated[int | None, typer.Option(min=2, help="...among this many recent frames.")] = None,
    min_face: Annotated[int | None, options.MIN_FACE_WIDTH] = None,
    max_fps: Annotated[
        float | None, typer.Option(help="Frames per second taken from a live camera, at most (5 or more).")
    ] = None,
    threads: Annotated[int | None, options.THREADS] = None,
    wait: Annotated[bool | None, typer.Option("--wait/--no-wait", help="Wait for a camera that is not connected yet.")] = None,
    json_lines: Annotated[
        bool | None,
        typer.Option("--json/--no-json", help="Write events to stdout (default: only if stdout is not a terminal)."),
    ] = None,
) -> None:
    """Watch a camera and decide who may pass.

    Writes one event per visit: JSON lines to stdout, or readable lines if stdout is a terminal.
    Options not given here come from the settings file.
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


def image(
    files: Annotated[list[Path], typer.Argument(help="Photos: jpg, png, pgm, bmp, webp.")],
    kit: options.KitOption = None,
    public_key: options.PublicKeyOption = None,
    cropped: Annotated[bool, typer.Option("--cropped", help="The photos show faces only: do not search for faces.")] = False,
    min_face: Annotated[
        int | None, typer.Option(min=10, help="Smallest face to look for: its width in pixels (default: 1/12 of the photo).")
    ] = None,
) -> None:
    """Recognise the people in photos. Prints one JSON object per face, and one per photo without a face."""
    recognizer = options.load_recognizer(kit, public_key)
    for file in files:
        if cropped:
            manifest = recognizer.kit.manifest
            crop = resize_crop(read_photo(file, colour=manifest.colour), manifest.size)
            found = recognizer.recognize_crops(crop[None])
        else:
            photo = read_photo(file, colour=True)
            found = recognizer.recognize(photo, min_face=min_face or photo_min_face(photo))
        for line in [face.facts() for face in found] or [{"label": None, "reason": "no face"}]:
            console.print_json({"file": str(file), **line})
