"""`edge audit` shows, checks, exports and prunes a log, and decrypts its pictures."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.audit.crypto import Seal
from edge.audit.log import AuditLog
from tests.fixtures.command import run_edge
from tests.fixtures.events import NOON, make_event

Run = Callable[..., str]


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `edge audit` with these arguments. Return its output, or its message if it fails with `code`."""

    def run(*arguments: object, code: int = 0) -> str:
        assert run_edge(monkeypatch, "audit", *arguments) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    return run


def test_command_shows_checks_exports_and_prunes(edge: Run, log: AuditLog, path: Path, tmp_path: Path) -> None:
    denied = make_event(outcome="denied", reason="unknown person", label=None, utc=datetime.now(UTC))
    events = [make_event(label="Zo\x1b[2J", utc=NOON), denied]
    for event in events:
        log.append(event)
    shown = edge("show", path, "--last", 5).splitlines()
    assert len(shown) == 2
    assert "granted" in shown[0]
    assert "\x1b" not in shown[0]
    assert shown[1].split()[:1] == ["2"]
    found = json.loads(edge("verify", path))
    assert found["entries"] == 2
    exported = [json.loads(line) for line in edge("export", path).splitlines()]
    assert [line["entry"] for line in exported] == [json.loads(event.to_json()) for event in events]
    assert f"{exported[-1]['seq']}:{exported[-1]['hash']}" == found["head"]
    edge("export", path, "--format", "csv", "-o", tmp_path / "log.csv")
    assert "cannot be written" in edge("export", path, "-o", tmp_path / "no folder" / "log.csv", code=2)
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["event_id"] for row in rows] == [event.event_id for event in events]
    assert rows[1]["label"] == ""
    assert json.loads(edge("prune", path, "--days", 30))["pruned"] == 1
    assert json.loads(edge("verify", path, "--head", found["head"]))["first"] == 2
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM entries WHERE seq = 2")
    assert "not pruned" in edge("verify", path, code=42)
    assert "no audit log at" in edge("prune", tmp_path / "none", "--days", 1, code=40)
    log.close()
    path.write_bytes(b"text" * 1000)
    assert "damaged" in edge("verify", path, code=41)


def test_command_makes_keys_and_decrypts_pictures(edge: Run, log: AuditLog, path: Path, tmp_path: Path) -> None:
    edge("keygen", "-o", tmp_path / "key.pem")
    event = make_event()
    jpeg = cv2.imencode(".jpg", np.full((48, 64, 3), 90, np.uint8))[1].tobytes()
    log.append_picture(event.event_id, Seal((tmp_path / "key.pem.pub").read_bytes())(jpeg, event.event_id.encode()), NOON)
    out = edge("decrypt", path, "--key", tmp_path / "key.pem", "-o", tmp_path / "out")
    assert cv2.imread(json.loads(out)["file"]) is not None
    assert edge("decrypt", path, "--key", tmp_path / "key.pem", "-o", tmp_path / "out", "--event", "other") == ""
    edge("decrypt", path, "--key", tmp_path / "key.pem.pub", "-o", tmp_path / "out", code=2)
