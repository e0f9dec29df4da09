"""Whatever a device is given, whole or spoilt: it is taken, or refused with an error of the family. Nothing else comes out.

In CI the examples are the same each time. FUZZ=20 ./scripts/test tests/edge/test_fuzz.py tries twenty times as many.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge import settings as configuration
from edge.audit import log as audit
from edge.audit import report as audit_desk
from edge.audit.log import AuditLog
from edge.camera import mjpeg, photo
from edge.camera.photo import MAX_PIXELS, read_colour, read_grey
from edge.decision.doorlist import DoorList
from edge.errors import (
    AuditError,
    CameraError,
    DoorListError,
    EdgeError,
    GalleryError,
    KitError,
    KitUnsafeError,
    SettingsError,
)
from edge.kit import format as kits
from edge.kit import guard as onnx_guard
from edge.kit.manifest import Manifest
from edge.vision.recognize import Recognizer
from tests.edge.events.test_event import NOON, told
from tests.fakes.mjpeg_server import grey_jpeg, part
from tests.fixtures import kits as doors

Image = NDArray[Any]


def budget(examples: int) -> settings:
    return settings(
        max_examples=examples * int(os.environ.get("FUZZ", "1")),
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=list(HealthCheck),
    )


# Ways to spoil bytes.

PLACES = st.integers(0, 1 << 24)  # taken modulo the length; small ones, where headers are, come up most
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
WORDS = st.sampled_from([struct.pack(form, n) for n in NUMBERS for form in ("<I", ">I")]) | st.binary(min_size=1, max_size=12)


def overwritten(data: bytes, at: int, word: bytes, _: int) -> bytes:
    return data[:at] + word + data[at + len(word) :]


def inserted(data: bytes, at: int, word: bytes, _: int) -> bytes:
    return data[:at] + word + data[at:]


def left_out(data: bytes, at: int, _: bytes, other: int) -> bytes:
    return data[:at] + data[at + other % 100 :]


def cut(data: bytes, at: int, _: bytes, __: int) -> bytes:
    return data[:at]


def moved(data: bytes, at: int, _: bytes, other: int) -> bytes:
    return data[:at] + data[other % max(1, len(data)) :]


CHANGES = st.lists(
    st.tuples(st.sampled_from([overwritten, overwritten, inserted, left_out, cut, moved]), PLACES, WORDS, PLACES), max_size=5
)
Changes = Sequence[tuple[Callable[[bytes, int, bytes, int], bytes], int, bytes, int]]


def spoilt(data: bytes, changes: Changes) -> bytes:
    for change, at, word, other in changes:
        data = change(data, at % (len(data) + 1), word, other)
    return data


# Kits.


@budget(300)
@given(CHANGES)
def test_a_spoilt_kit_is_refused(changes: Changes) -> None:
    data = spoilt(doors.kit(), changes)
    with suppress(KitError):
        assert kits.parse(data).sha256 == kits.parse(doors.kit()).sha256


def forged(name: str, data: bytes, manifest: dict[str, Any] | None = None) -> bytes:
    """A kit in which one part is another, and all hashes fit."""
    parts = kits.unpack(doors.kit()) | {name: data}
    contents = manifest or json.loads(parts[kits.MANIFEST])
    contents["parts"] |= {name: hashlib.sha256(data).hexdigest()}
    parts[kits.MANIFEST] = (json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
    return kits.pack(parts)


@budget(150)
@given(CHANGES, st.sampled_from([kits.RECOGNIZER, kits.DETECTOR, kits.LICENSE]))
def test_a_forged_part_is_loaded_or_refused(changes: Changes, name: str) -> None:
    parts = kits.unpack(doors.kit())
    data = forged(name, spoilt(parts.get(name, parts[kits.RECOGNIZER]), changes))
    with suppress(KitError):
        Recognizer(kits.parse(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([1e308, 2**70, "none"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@budget(200)
@given(st.data())
def test_a_forged_manifest_is_taken_or_refused(data: st.DataObject) -> None:
    contents = json.loads(kits.unpack(doors.kit())[kits.MANIFEST])
    for _ in range(data.draw(st.integers(1, 3))):
        table = contents
        while True:
            key = data.draw(st.sampled_from(sorted(table)) if table else st.text(max_size=3))
            if not isinstance(table.get(key), dict) or data.draw(st.booleans()):
                break
            table = table[key]
        table[key] = data.draw(JSON)
    try:
        text = (json.dumps(contents, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
    except ValueError:  # a lone surrogate
        return
    parts = kits.unpack(doors.kit()) | {kits.MANIFEST: text}
    with suppress(KitError):
        Recognizer(kits.parse(kits.pack(parts)))


@budget(200)
@given(st.binary(max_size=60) | CHANGES.map(lambda changes: spoilt(kits.unpack(doors.kit())[kits.MANIFEST], changes)))
@example(b'{"kind": "lclrr-edge kit", "format": 1, "x": ' + 900 * b"[" + 900 * b"]" + b"}")
@example(b'{"kind": "lclrr-edge kit", "format": ' + 900 * b"[" + 900 * b"]" + b"}")
@example(b'{"kind": "lclrr-edge kit", "format": 1' + 5000 * b"0" + b"}")
def test_any_manifest_is_taken_or_refused(data: bytes) -> None:
    with suppress(KitError):
        assert Manifest.from_bytes(data).to_bytes() == data


@budget(300)
@given(CHANGES)
def test_a_spoilt_graph_is_harmless_or_refused(changes: Changes) -> None:
    graph = spoilt(kits.parse(doors.kit()).recognizer[-4000:], changes) + kits.parse(doors.kit()).recognizer[:-4000]
    for data in (graph, spoilt(kits.parse(doors.kit()).recognizer, changes)):
        with suppress(KitUnsafeError):
            onnx_guard.check(data, onnx_guard.RECOGNIZER_OPERATORS, "recognizer.onnx")


# Settings and door lists.


@cache
def settings_file() -> bytes:
    return configuration.as_toml(configuration.Settings()).encode()


HUGE = b"0x" + 5000 * b"F"  # more digits than Python likes to write


@budget(300)
@given(CHANGES)
@example([(overwritten, 0, b"[kit]\nthreads = " + HUGE + b"\n#", 0)])
@example([(overwritten, 0, b"[camera]\nmax_fps = " + HUGE + b"\n#", 0)])
@example([(overwritten, 0, b"[kit]\npath = " + HUGE + b"\n#", 0)])
@example([(overwritten, 0, b"kit" + 3000 * b".a" + b" = 1\n#", 0)])
@example([(overwritten, 0, b"kit = " + 3000 * b"[" + b"\n#", 0)])
def test_spoilt_settings_are_settings_or_the_one_error(changes: Changes) -> None:
    with suppress(SettingsError):
        configuration.parse(spoilt(settings_file(), changes))


LIST = (
    b'[door]\nname = "north"\ntimezone = "Europe/Berlin"\n\n[[allow]]\npeople = ["anna", "ben"]\nweekdays = "mon-fri"\n'
    b'hours = ["07:00-12:00", "22:00-06:00"]\nvalid_from = 2026-01-01\nvalid_until = 2026-12-31\n\n'
    b'[[allow]]\npeople = "everyone"\n'
)


@budget(300)
@given(CHANGES)
@example([(overwritten, 0, b"[door]\ntimezone = " + HUGE + b"\n#", 0)])
@example([(overwritten, 0, b"[door]\nname = " + HUGE + b"\n#", 0)])
@example([(overwritten, 0, b"[[allow]]\npeople = [" + HUGE + b"]\n#", 0)])
@example([(overwritten, 0, b"door" + 3000 * b".a" + b" = 1\n#", 0)])
def test_a_spoilt_door_list_is_a_list_or_the_one_error(changes: Changes) -> None:
    with suppress(DoorListError):
        DoorList.parse(spoilt(LIST, changes)).allows("anna", NOON)


# Photos.


def encoded(suffix: str, image: Image, *options: int) -> bytes:
    return cv2.imencode(suffix, image, options)[1].tobytes()


@cache
def photos() -> dict[str, bytes]:
    grey = np.random.default_rng(0).integers(0, 256, (30, 40), np.uint8)
    colour = cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR)
    found = {f"grey {suffix}": encoded(suffix, grey) for suffix in (".jpg", ".png", ".pgm", ".bmp", ".webp")}
    found |= {f"colour {suffix}": encoded(suffix, colour) for suffix in (".jpg", ".png", ".ppm", ".bmp")}
    found["deep .png"] = encoded(".png", grey.astype(np.uint16) * 257)
    found["see-through .png"] = encoded(".png", np.dstack([colour, grey]))
    found["see-through .webp"] = encoded(".webp", np.dstack([colour, grey]))
    found["lossy .webp"] = encoded(".webp", colour, cv2.IMWRITE_WEBP_QUALITY, 50)
    found["progressive .jpg"] = encoded(".jpg", colour, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    found["plain .pgm"] = b"P2 # by hand\n40 30\r255\n" + b"".join(b"%d " % level for level in grey.ravel())
    return found


@pytest.mark.parametrize("name", photos())
def test_the_number_of_pixels_is_known_before_they_are_decoded(name: str, tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(photos()[name])
    assert photo.pixels(photos()[name]) == read_grey(tmp_path / "photo").size == 30 * 40


@budget(600)
@given(st.sampled_from(sorted(photos())), CHANGES)
def test_a_spoilt_photo_is_a_picture_or_refused(photo_path: Path, name: str, changes: Changes) -> None:
    photo_path.write_bytes(spoilt(photos()[name], changes))
    with suppress(GalleryError):
        assert read_grey(photo_path).size <= MAX_PIXELS
        assert read_colour(photo_path).ndim == 3


@budget(300)
@given(st.sampled_from([".jpg", ".png", ".bmp", ".ppm", ".webp"]), CHANGES)
def test_a_spoilt_frame_is_a_picture_or_none(suffix: str, changes: Changes) -> None:
    image = mjpeg.decode(spoilt(photos()[f"colour {suffix}" if suffix != ".webp" else "lossy .webp"], changes))
    assert image is None or image.size <= 3 * MAX_PIXELS


@pytest.fixture(scope="module")
def photo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos") / "photo"


# Each with sides of 30000: 2.7 GB of colours, which OpenCV would make room for.
BOMBS = {
    ".jpg": (b"\x00\x1e\x00\x28", struct.pack(">HH", 30000, 30000)),
    ".png": (struct.pack(">II", 40, 30), struct.pack(">II", 30000, 30000)),
    ".bmp": (struct.pack("<ii", 40, 30), struct.pack("<ii", 30000, -30000)),
    ".ppm": (b"40 30", b"30000 30000"),
}


@pytest.mark.parametrize("suffix", BOMBS)
def test_a_photo_larger_than_memory_is_refused_undecoded(
    suffix: str, photo_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = photos()[f"colour {suffix}"]
    bomb = honest.replace(*BOMBS[suffix], 1)
    assert bomb != honest
    monkeypatch.setattr(cv2, "imdecode", None)
    photo_path.write_bytes(bomb)
    with pytest.raises(GalleryError, match="too large"):
        read_colour(photo_path)
    assert mjpeg.decode(bomb) is None


# A camera that means harm.


class Hostile:
    """Answers each connection with the bytes that it was told, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:password@127.0.0.1:{self._server.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._server.accept()[0]
                threading.Thread(target=self._reply, args=[client, self.answer], daemon=True).start()

    def _reply(self, client: socket.socket, answer: bytes) -> None:
        with suppress(OSError), client:
            client.recv(65536)
            client.sendall(answer)
            client.shutdown(socket.SHUT_WR)
            client.recv(65536)

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with closing(Hostile()) as server:
        yield server


OK = b"HTTP/1.1 200 OK\r\n"
KIND = b"Content-Type: multipart/x-mixed-replace; boundary=frame\r\n"
ANSWERS = [
    OK + KIND + b"\r\n" + part(grey_jpeg(7)) * 2,
    OK + KIND + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(part(grey_jpeg(7))) + part(grey_jpeg(7)) + b"\r\n0\r\n\r\n",
    OK + KIND + b"Content-Encoding: gzip\r\nContent-Length: 999999999999\r\n\r\n\x1f\x8b" + bytes(2000),
    b'HTTP/1.1 401 Go\r\nWWW-Authenticate: Digest realm="a", nonce="b", qop="auth"\r\nContent-Length: 0\r\n\r\n',
    b'HTTP/1.1 401 Go\r\nWWW-Authenticate: Basic realm="a"\r\nContent-Length: 0\r\n\r\n',
    b"HTTP/1.1 302 Away\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
]


def watch(url: str) -> None:
    """As a camera's thread does, to the end of the connection."""
    stream = mjpeg.connect(url, timeout=5.0)
    if stream is not None:
        with closing(stream):
            while True:
                stream.read()


@budget(250)
@given(st.sampled_from(ANSWERS), CHANGES)
@example(OK + KIND + b"Content-Length: 0\r\n\r\n", [])
@example(b"HTTP/1.1 204 None\r\n" + KIND + b"\r\n", [])
@example(OK + b"Content-Type: multipart/x; boundary*0*=%ff''%ff; boundary*1=\xff\r\n\r\n", [])
@example(OK + KIND + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc", [])
@example(OK + 200 * b"a: b\r\n" + b"\r\n", [])
@example(OK + b"a" * 70000, [])
@example(b"HTTP/1.1 302 Away\r\nLocation: ftp://127.0.0.1:1/\r\n\r\n", [])
@example(b"HTTP/1.1 302 Away\r\nLocation: file:///etc/passwd\r\n\r\n", [])
@example(b"HTTP/1.1 302 Away\r\nLocation: http://[::1/\r\n\r\n", [])
@example(b"HTTP/1.1 302 Away\r\nLocation: http://127.0.0.1:99999/\r\n\r\n", [])
@example(b"HTTP/1.1 401 Go\r\nWWW-Authenticate: Digest a\r\n\r\n", [])
@example(b"HTTP/1.1 401 Go\r\nWWW-Authenticate: Digest realm=a, nonce=b, algorithm=X\r\n\r\n", [])
def test_whatever_a_camera_answers_is_a_stream_or_a_lost_camera(hostile: Hostile, answer: bytes, changes: Changes) -> None:
    hostile.answer = spoilt(answer, changes)
    with suppress(CameraError):
        watch(hostile.url)


# Audit logs.


@pytest.fixture(scope="module")
def good_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("audit") / "audit.db"
    with closing(AuditLog(path)) as log:
        for i in range(20):
            log.append(told(label=f"person {i}"))
        log.append_picture("a", b"box", NOON)
    return path.read_bytes()


def read_whole(path: Path) -> None:
    with closing(AuditLog(path, read_only=True)) as log:
        log.verify()
        list(audit_desk.export(log.entries(), "csv"))
        [audit_desk.line(entry) for entry in log.entries()]


@budget(200)
@given(CHANGES)
@example([(inserted, 4084, bytes(9), 0), (overwritten, 1413538, b"\x80\0\0\0", 0)])  # SQLite's complaint is no UTF-8
def test_a_spoilt_log_is_read_or_refused(good_log: bytes, photo_path: Path, changes: Changes) -> None:
    path = photo_path.with_name("audit.db")
    path.write_bytes(spoilt(good_log, changes))
    with suppress(AuditError):
        read_whole(path)


ENTRIES = st.fixed_dictionaries(
    {"kind": st.sampled_from(["picture", "pruned", "decision"])},
    optional=dict.fromkeys(["of", "sha256", "until", "hash", "utc", "label"], JSON),
)


@budget(100)
@given(st.lists((JSON | ENTRIES).map(json.dumps), max_size=4))
def test_a_forged_log_is_read_or_refused(good_log: bytes, photo_path: Path, texts: list[str]) -> None:
    path = photo_path.with_name("forged.db")
    path.write_bytes(good_log)
    with closing(sqlite3.connect(path)) as db, suppress(sqlite3.Error):
        db.execute("PRAGMA synchronous=OFF")
        db.execute("DELETE FROM entries")
        db.execute("DELETE FROM pictures")
        before = audit.START
        for seq, text in enumerate(texts, 1):
            before = audit.chained(before, seq, text)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, text, before))
        db.commit()
    with suppress(AuditError):
        read_whole(path)


def test_the_family_is_what_is_caught() -> None:
    for error in (AuditError, CameraError, DoorListError, GalleryError, KitError, SettingsError):
        assert issubclass(error, EdgeError)
