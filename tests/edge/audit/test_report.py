"""`edge audit` on a log, and sealed pictures."""

from __future__ import annotations

import csv
import json
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.audit.crypto import Seal, open_box, write_keys
from edge.audit.gate import AuditSettings, open_gate
from edge.audit.log import AuditLog
from edge.errors import UsageError
from tests.fixtures.events import NOON, make_event

DAY = timedelta(days=1)


@given(data=st.binary(max_size=300), at=st.integers(0, 10_000), bit=st.integers(0, 7))
@example(data=b"", at=31, bit=7)  # the bit of a public key that X25519 itself ignores
@settings(max_examples=30)
def test_a_box_opens_to_what_was_put_in_or_not_at_all(data: bytes, at: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key.pem"
        seal = Seal(write_keys(key).read_bytes())
        box = seal(data, b"about")
        assert box != seal(data, b"about")
        assert open_box(box, b"about", key.read_bytes()) == data
        changed = bytearray(box)
        changed[at % len(box)] ^= 1 << bit
        with pytest.raises(UsageError):
            open_box(bytes(changed), b"about", key.read_bytes())
        with pytest.raises(UsageError):
            open_box(box[:20], b"about", key.read_bytes())


def test_keys_are_private_and_never_overwritten(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="exists"):
        write_keys(key)
    with pytest.raises(UsageError, match="X25519 public"):
        Seal(key.read_bytes())
    with pytest.raises(UsageError, match="cannot be read"):
        open_gate(AuditSettings(path=key.with_name("a.db"), picture_key=key.with_name("none")), [])


# The command


def edge(*words: object, code: int = 0) -> tuple[str, str]:
    run = subprocess.run([sys.executable, "-m", "edge.cli.main", "audit", *map(str, words)], capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout, run.stderr


def test_the_command_shows_checks_copies_and_prunes(log: AuditLog, path: Path, tmp_path: Path) -> None:
    events = [
        make_event(label="Zo\x1b[2J", utc=NOON),
        make_event(outcome="denied", reason="unknown person", label=None, utc=datetime.now(UTC)),
    ]
    for event in events:
        log.append(event)
    shown = edge("show", path, "--last", 5)[0].splitlines()
    assert len(shown) == 2
    assert "granted" in shown[0]
    assert "\x1b" not in shown[0]
    assert shown[1].split()[:1] == ["2"]
    found = json.loads(edge("verify", path)[0])
    assert found["entries"] == 2
    exported = [json.loads(line) for line in edge("export", path)[0].splitlines()]
    assert [line["entry"] for line in exported] == [json.loads(event.to_json()) for event in events]
    assert f"{exported[-1]['seq']}:{exported[-1]['hash']}" == found["head"]
    edge("export", path, "--format", "csv", "-o", tmp_path / "log.csv")
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["event_id"] for row in rows] == [event.event_id for event in events]
    assert rows[1]["label"] == ""
    assert json.loads(edge("prune", path, "--days", 30)[0])["pruned"] == 1
    assert json.loads(edge("verify", path, "--head", found["head"])[0])["first"] == 2
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM entries WHERE seq = 2")
    assert "not pruned" in edge("verify", path, code=42)[1]
    assert "no audit log at" in edge("prune", tmp_path / "none", "--days", 1, code=40)[1]
    path.write_bytes(b"text" * 1000)
    assert "damaged" in edge("verify", path, code=41)[1]


def test_the_command_makes_keys_and_opens_pictures(log: AuditLog, path: Path, tmp_path: Path) -> None:
    edge("keygen", "-o", tmp_path / "key.pem")
    event = make_event()
    jpeg = cv2.imencode(".jpg", np.full((48, 64, 3), 90, np.uint8))[1].tobytes()
    log.append_picture(event.event_id, Seal((tmp_path / "key.pem.pub").read_bytes())(jpeg, event.event_id.encode()), NOON)
    out, _ = edge("decrypt", path, "--key", tmp_path / "key.pem", "-o", tmp_path / "out")
    assert cv2.imread(json.loads(out)["file"]) is not None
    edge("decrypt", path, "--key", tmp_path / "key.pem.pub", "-o", tmp_path / "out", code=2)
