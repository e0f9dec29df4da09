"""Fuzz tests: damaged input of any kind is accepted, or rejected with an EdgeError. No other exception may occur.

In CI the examples are the same each time. `FUZZ=20 ./scripts/test tests/edge/test_fuzz.py` runs twenty times as many.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import cv2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge import settings as configuration
from edge.audit import log as audit
from edge.audit import report
from edge.audit.log import AuditLog
from edge.camera import mjpeg, photo
from edge.camera.photo import MAX_PIXELS, read_photo
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
from tests.fixtures import kits as doors
from tests.fixtures.damage import (
    ANSWERS,
    EXTREME_WORDS,
    HUGE,
    KIND,
    LIST,
    OK,
    WAYS,
    Changes,
    HostileCamera,
    damage,
    forged,
    insert,
    overwrite,
    photos,
    read_all,
    settings_file,
)
from tests.fixtures.events import NOON, make_event

pytestmark = pytest.mark.slow


def budget(examples: int) -> settings:
    return settings(
        max_examples=examples * int(os.environ.get("FUZZ", "1")),
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=list(HealthCheck),
    )


# Ways to damage bytes.

OFFSETS = st.integers(0, 1 << 24)  # modulo the length; small numbers, where headers are, are most frequent
WORDS = st.sampled_from(EXTREME_WORDS) | st.binary(min_size=1, max_size=12)


CHANGES = st.lists(st.tuples(st.sampled_from(WAYS), OFFSETS, WORDS, OFFSETS), max_size=5)
# Kits.


@budget(150)
@given(CHANGES)
def test_damaged_kit_is_rejected(changes: Changes) -> None:
    data = damage(doors.kit(), changes)
    with suppress(KitError):
        assert kits.parse(data).sha256 == kits.parse(doors.kit()).sha256


@budget(80)
@given(CHANGES, st.sampled_from([kits.RECOGNIZER, kits.DETECTOR, kits.LICENSE]))
def test_forged_part_is_loaded_or_rejected(changes: Changes, name: str) -> None:
    parts = kits.unpack(doors.kit())
    data = forged(name, damage(parts.get(name, parts[kits.RECOGNIZER]), changes))
    with suppress(KitError):
        Recognizer(kits.parse(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([1e308, 2**70, "none"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@budget(100)
@given(st.data())
def test_forged_manifest_is_accepted_or_rejected(data: st.DataObject) -> None:
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


@budget(100)
@given(st.binary(max_size=60) | CHANGES.map(lambda changes: damage(kits.unpack(doors.kit())[kits.MANIFEST], changes)))
@example(b'{"kind": "lclrr-edge kit", "format": 1, "x": ' + 900 * b"[" + 900 * b"]" + b"}")
@example(b'{"kind": "lclrr-edge kit", "format": ' + 900 * b"[" + 900 * b"]" + b"}")
@example(b'{"kind": "lclrr-edge kit", "format": 1' + 5000 * b"0" + b"}")
def test_any_manifest_is_accepted_or_rejected(data: bytes) -> None:
    with suppress(KitError):
        assert Manifest.from_bytes(data).to_bytes() == data


@budget(120)
@given(CHANGES)
def test_damaged_graph_is_accepted_or_rejected(changes: Changes) -> None:
    graph = damage(kits.parse(doors.kit()).recognizer[-4000:], changes) + kits.parse(doors.kit()).recognizer[:-4000]
    for data in (graph, damage(kits.parse(doors.kit()).recognizer, changes)):
        with suppress(KitUnsafeError):
            onnx_guard.check(data, onnx_guard.RECOGNIZER_OPERATORS, "recognizer.onnx")


# Settings and door lists.


@budget(150)
@given(CHANGES)
@example([(overwrite, 0, b"[kit]\nthreads = " + HUGE + b"\n#", 0)])
@example([(overwrite, 0, b"[camera]\nmax_fps = " + HUGE + b"\n#", 0)])
@example([(overwrite, 0, b"[kit]\npath = " + HUGE + b"\n#", 0)])
@example([(overwrite, 0, b"kit" + 3000 * b".a" + b" = 1\n#", 0)])
@example([(overwrite, 0, b"kit = " + 3000 * b"[" + b"\n#", 0)])
def test_damaged_settings_are_accepted_or_rejected(changes: Changes) -> None:
    with suppress(SettingsError):
        configuration.parse(damage(settings_file(), changes))


@budget(150)
@given(CHANGES)
@example([(overwrite, 0, b"[door]\ntimezone = " + HUGE + b"\n#", 0)])
@example([(overwrite, 0, b"[door]\nname = " + HUGE + b"\n#", 0)])
@example([(overwrite, 0, b"[[allow]]\npeople = [" + HUGE + b"]\n#", 0)])
@example([(overwrite, 0, b"door" + 3000 * b".a" + b" = 1\n#", 0)])
def test_damaged_door_list_is_accepted_or_rejected(changes: Changes) -> None:
    with suppress(DoorListError):
        DoorList.parse(damage(LIST, changes)).refusal("anna", NOON)


# Photos.


def test_number_of_pixels_is_known_before_decoding(photo_path: Path) -> None:
    for name, data in photos().items():
        photo_path.write_bytes(data)
        assert photo.measure(data) == (read_photo(photo_path).size, True) == (30 * 40, True), name


@budget(300)
@given(st.sampled_from(sorted(photos())), CHANGES)
def test_damaged_photo_is_read_or_rejected(photo_path: Path, name: str, changes: Changes) -> None:
    photo_path.write_bytes(damage(photos()[name], changes))
    with suppress(GalleryError):
        assert read_photo(photo_path).size <= MAX_PIXELS
        assert read_photo(photo_path, colour=True).ndim == 3


@budget(150)
@given(st.sampled_from([".jpg", ".png", ".bmp", ".ppm", ".webp"]), CHANGES)
def test_damaged_frame_is_decoded_or_none(suffix: str, changes: Changes) -> None:
    image = mjpeg.decode(damage(photos()[f"colour {suffix}" if suffix != ".webp" else "lossy .webp"], changes))
    assert image is None or image.size <= 3 * MAX_PIXELS


@pytest.fixture(scope="module")
def photo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photos") / "photo"


# Headers that claim sides of 30000 pixels: OpenCV would allocate 2.7 GB.
BOMBS = {
    ".jpg": (b"\x00\x1e\x00\x28", struct.pack(">HH", 30000, 30000)),
    ".png": (struct.pack(">II", 40, 30), struct.pack(">II", 30000, 30000)),
    ".bmp": (struct.pack("<ii", 40, 30), struct.pack("<ii", 30000, -30000)),
    ".ppm": (b"40 30", b"30000 30000"),
}


@pytest.mark.parametrize("suffix", BOMBS)
def test_photo_larger_than_memory_is_rejected_before_decoding(
    suffix: str, photo_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = photos()[f"colour {suffix}"]
    bomb = honest.replace(*BOMBS[suffix], 1)
    assert bomb != honest
    monkeypatch.setattr(cv2, "imdecode", None)
    photo_path.write_bytes(bomb)
    with pytest.raises(GalleryError, match="too large"):
        read_photo(photo_path, colour=True)
    assert mjpeg.decode(bomb) is None


# A hostile camera.


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileCamera]:
    with closing(HostileCamera()) as server:
        yield server


@budget(120)
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
def test_any_response_is_a_stream_or_a_camera_error(hostile: HostileCamera, answer: bytes, changes: Changes) -> None:
    hostile.answer = damage(answer, changes)
    with suppress(CameraError):
        read_all(hostile.url)


# Audit logs.


@pytest.fixture(scope="module")
def good_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("audit") / "audit.db"
    with closing(AuditLog(path)) as log:
        for i in range(20):
            log.append(make_event(label=f"person {i}"))
        log.append_picture("a", b"box", NOON)
    return path.read_bytes()


def read_log(path: Path) -> None:
    with closing(AuditLog(path, read_only=True)) as log:
        log.verify()
        list(report.export(log.entries(), "csv"))
        [report.entry_line(entry) for entry in log.entries()]


@budget(100)
@given(CHANGES)
@example([(insert, 4084, bytes(9), 0), (overwrite, 1413538, b"\x80\0\0\0", 0)])  # the message of SQLite is not UTF-8
def test_damaged_log_is_read_or_rejected(good_log: bytes, photo_path: Path, changes: Changes) -> None:
    path = photo_path.with_name("audit.db")
    path.write_bytes(damage(good_log, changes))
    with suppress(AuditError):
        read_log(path)


ENTRIES = st.fixed_dictionaries(
    {"kind": st.sampled_from(["picture", "pruned", "decision"])},
    optional=dict.fromkeys(["of", "sha256", "until", "hash", "utc", "label"], JSON),
)


@budget(100)
@given(st.lists((JSON | ENTRIES).map(json.dumps), max_size=4))
def test_forged_log_is_read_or_rejected(good_log: bytes, photo_path: Path, texts: list[str]) -> None:
    path = photo_path.with_name("forged.db")
    path.write_bytes(good_log)
    with closing(sqlite3.connect(path)) as db, suppress(sqlite3.Error):
        db.execute("PRAGMA synchronous=OFF")
        db.execute("DELETE FROM entries")
        db.execute("DELETE FROM pictures")
        before = audit.FIRST_HASH
        for seq, text in enumerate(texts, 1):
            before = audit.entry_hash(before, seq, text)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, text, before))
        db.commit()
    with suppress(AuditError):
        read_log(path)


def test_errors_are_edge_errors() -> None:
    for error in (AuditError, CameraError, DoorListError, GalleryError, KitError, SettingsError):
        assert issubclass(error, EdgeError)
