"""Attacks with files and processes: pictures that ask for memory, a command's environment, links, and archives."""

from __future__ import annotations

import json
import os
import shlex
import struct
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock
from zipfile import ZIP_DEFLATED, ZipFile

import cv2
import numpy as np

from edge.enrol.storage import enrol
from edge.errors import EdgeError
from edge.sinks.command import CommandSink
from scripts.qa.attacks.attack import MEMORY_BYTES, Range, Score, Tally, attack, measured
from tests.fakes.scene_camera import SceneCamera
from tests.fixtures import kits as doors
from tests.fixtures import orl_door
from tests.fixtures.events import make_event
from tests.fixtures.portraits import finder

# 11: a small JPEG that is huge.


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def small_jpeg(height: int, width: int, cover: bytes) -> bytes:
    """A lossless JPEG of some 80 bytes. `cover` stands in a comment directly before the header of the frame."""
    table = segment(0xC4, b"\0\1" + bytes(15) + b"\0")
    frame = segment(0xC3, struct.pack(">BHHB", 4, height, width, 1) + b"\1\x11\0")
    scan = segment(0xDA, b"\1\1\0\1\0\0")
    return b"\xff\xd8" + table + segment(0xFE, cover) + frame + scan + bytes(8) + b"\xff\xd9"


DECODE = """
from pathlib import Path
from edge.camera import mjpeg, photo
from edge.errors import GalleryError
import cv2, numpy
data = Path(sys.argv[1]).read_bytes()
mjpeg.decode(cv2.imencode(".jpg", numpy.zeros((480, 640, 3), numpy.uint8))[1].tobytes())
before, pixels = peak_memory(), 0
image = mjpeg.decode(data)
pixels = 0 if image is None else image.shape[0] * image.shape[1]
try:
    pixels = max(pixels, photo.read_photo(sys.argv[1]).size)
except GalleryError:
    pass
finish(before, pixels=int(pixels), limit=photo.MAX_PIXELS)
"""


@attack("11", "small JPEG with a huge picture")
def huge_jpeg(where: Range) -> Score:
    """A header inside a comment overlaps the real one, so that a search for headers does not see it."""
    sizes = [(9000, 9000), (65500, 1100)] + ([] if where.quick else [(30000, 30000), (20000, 20000)])
    covers = [b"\xff\xc0\x00\x0b\x08", b"\xff\xc3\x00\x11\x08"][: where.tries(1, 2)]
    tally = Tally(where, len(sizes) * len(covers))
    for height, width in sizes:
        for cover in covers:
            path = where.folder / "small.jpg"
            path.write_bytes(small_jpeg(height, width, cover))
            found = measured(DECODE, path)
            is_breach = "crash" in found or found["pixels"] > found["limit"] or found["bytes"] > MEMORY_BYTES
            size = f"{path.stat().st_size} bytes became {width}x{height}"
            tally.add(is_breach, found.get("crash") or f"{size}, {found['bytes'] >> 20} MB")
    return tally.score()


# 13: a stream with huge frames.

READ_STREAM = """
from edge.camera.photo import MAX_PIXELS
from edge.camera.sources import open_camera
from edge.errors import EdgeError
before, pixels = peak_memory(), 0
try:
    with open_camera(sys.argv[1]) as camera:
        for _ in range(20):
            frame = camera.frame(1.0)
            if frame is not None:
                pixels = frame.image.shape[0] * frame.image.shape[1]
                break
except EdgeError:
    pass
finish(before, pixels=int(pixels), limit=MAX_PIXELS)
"""


@attack("13", "stream with huge frames")
def huge_stream(where: Range) -> Score:
    """A network camera that FFmpeg reads sends frames of hundreds of megabytes; the same as a video file."""
    side = 9000
    video = where.folder / "huge.avi"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"MJPG"), 10, (side, side))
    image = np.zeros((side, side, 3), np.uint8)
    writer.write(image)
    writer.release()

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = video.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "video/x-msvideo")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Be silent."""

    tally = Tally(where, where.tries(1, 2))
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        for source in (f"http://127.0.0.1:{server.server_port}/huge.avi", str(video))[: where.tries(1, 2)]:
            found = measured(READ_STREAM, source)
            is_breach = "crash" in found or found["pixels"] > found["limit"]
            tally.add(is_breach, found.get("crash") or f"a frame of {found['pixels'] >> 20} megapixels")
        server.shutdown()
    return tally.score()


# 20a: the environment of the command.

REPORT = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
SECRETS = ("WEBHOOK_SECRET", "MQTT_PASSWORD", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "LISTEN_FDS", "AWS_SECRET_ACCESS_KEY")


@attack("20a", "secrets in the command's environment")
def secrets_of_the_command(where: Range) -> Score:
    """Each variable of the service is one try."""
    found = where.folder / "variables.json"
    with mock.patch.dict(os.environ, dict.fromkeys(SECRETS, "a secret")):
        sink = CommandSink(f"{shlex.quote(sys.executable)} -c {shlex.quote(REPORT)} {shlex.quote(str(found))}", 60.0)
        sink.handle(make_event())
        sink.close()
    got = json.loads(found.read_text())
    tally = Tally(where, len(SECRETS))
    for name in SECRETS:
        tally.add(name in got, f"{name} reached the command")
    return tally.score()


# 20c: photos through a link.


@attack("20c", "capture through a link")
def capture_through_link(where: Range) -> Score:
    """The folder of a person is a link, absolute or relative, to a folder or to nothing: photos would be written elsewhere.

    The folder of all people may be a link: its user chose it.
    """
    kinds = [(True, True), (True, False), (False, True), (False, False)]
    tally = Tally(where, len(kinds))
    for number, (is_absolute, exists) in enumerate(kinds):
        base, outside = where.folder / str(number), where.folder / f"outside{number}"
        photos = base / "photos"
        photos.mkdir(parents=True)
        if exists:
            outside.mkdir()
        (photos / "anna").symlink_to(outside if is_absolute else f"../../outside{number}")
        camera = SceneCamera(*(orl_door.frames("s3", 8) for _ in range(12)))
        with suppress(EdgeError):
            enrol("anna", camera, finder(), photos, when=datetime.now(UTC), photos=2, min_photos=1, allow_alike=True)
        written = [file for file in outside.rglob("*") if file.is_file()]
        tally.add(bool(written), f"{len(written)} photos through the link")
    return tally.score()


# 20d: a small archive.

LOAD_MODEL = """
from edge.errors import EdgeError
from trainer.model import Model
before = peak_memory()
try:
    Model.load(sys.argv[1])
    raise SystemExit("accepted")
except EdgeError:
    pass
finish(before)
"""


@attack("20d", "small .npz that asks for gigabytes")
def small_archive(where: Range) -> Score:
    """One array of a model is replaced by half a gigabyte of zeros, which are compressed a thousand times."""
    names = ("header", "D", "crops", "atom_people")[: where.tries(2, 4)]
    tally = Tally(where, len(names))
    length = 500 << 20
    honest = where.folder / "honest.npz"
    doors.model("pixels", "l21", 4).save(honest)
    for name in names:
        path = where.folder / f"{name}.npz"
        with ZipFile(honest) as source, ZipFile(path, "w", ZIP_DEFLATED) as archive:
            for other in source.namelist():
                if other != f"{name}.npy":
                    archive.writestr(other, source.read(other))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, {"shape": (length,), "fortran_order": False, "descr": "|u1"})
                for _ in range(length >> 20):
                    member.write(bytes(1 << 20))
        found = measured(LOAD_MODEL, path)
        is_breach = "crash" in found or found["bytes"] > MEMORY_BYTES
        tally.add(is_breach, found.get("crash") or f"{path.stat().st_size >> 10} KB took {found['bytes'] >> 20} MB")
    return tally.score()
