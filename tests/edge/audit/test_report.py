"""`edge audit` shows, checks, exports and prunes a log, and decrypts its pictures."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.audit.crypto import Seal
from edge.audit.log import AuditLog
from edge.events.event import logged_fields
from edge.text import printable, strict_json
from tests.fixtures.events import NOON, make_event

Run = Callable[..., str]


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
    assert [line["entry"] for line in exported] == [json.loads(strict_json(logged_fields(event))) for event in events]
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


@pytest.mark.parametrize("away", [timedelta(days=2), timedelta(hours=-1), timedelta(days=-400)])
def test_command_prunes_with_a_doubtful_clock_only_if_asked(edge: Run, log: AuditLog, path: Path, away: timedelta) -> None:
    now = datetime.now(UTC)
    for time in (now - timedelta(days=90), now - away):
        log.append(make_event(utc=time))
    assert "--trust-clock" in edge("prune", path, "--days", 30, code=40)
    assert log.verify().entries == 2
    assert json.loads(edge("prune", path, "--days", 30, "--trust-clock"))["pruned"] >= 1


# Spreadsheets

HOSTILE = [
    "=HYPERLINK(1)",
    "+1",
    "-1+1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\tx",
    "  =1",
    "\xa0=1",
    '"=1',
    "' =1",
    "\uff1d1",
    "\uff0b1",
    "\uff0d1",
    "\uff201",
    "anna;=1",
    'anna; "=1',
    "a\n=1",
    "a\r\n=1",
    "\ufeff=1",
    "a\u2028=1",
]
CELL_START = re.compile(r"""[\s"']*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r]""")


@pytest.mark.parametrize("label", HOSTILE)
def test_csv_has_no_formula(edge: Run, log: AuditLog, path: Path, label: str) -> None:
    log.append(make_event(label=label, reason=label, margin=-0.25))
    log._append({"kind": "strange", label: label, "utc": label})
    lines = edge("export", path, "--format", "csv").split("\n")
    assert len(lines) == 4, "one line per entry"
    event, other = csv.DictReader(lines)
    assert event["margin"] == "-0.25", "numbers stay numbers"
    cells = [cell for row in (event, other) for name, cell in row.items() if name != "margin"]
    for cell in cells:
        for part in cell.split(";"):  # a spreadsheet may take a semicolon for the end of a cell
            assert not CELL_START.match(part) or part.lstrip().startswith("'"), cell


@pytest.mark.parametrize(
    "character",
    [*"\0\x07\b\x1b\x7f\x9b\x85\u2028\u2029\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u034f\u3164\ufe0f"]
    + [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xE0001, 0xE0100)],
)
def test_csv_and_text_show_characters_that_cannot_be_seen(edge: Run, log: AuditLog, path: Path, character: str) -> None:
    log.append(make_event(label=f"an{character}na"))
    (row,) = csv.DictReader(edge("export", path, "--format", "csv").split("\n"))
    assert row["label"] == f"an{json.dumps(character)[1:-1]}na"
    assert "an?na" in edge("show", path)
    assert printable(character) == "?"
    assert character not in strict_json(character)


def test_csv_keeps_usual_names(edge: Run, log: AuditLog, path: Path) -> None:
    names = ["Zoë", "O'Neil", "Anna-Lena", "李", "a=b", 'Ann "A"', "x, y", "محمد"]
    for name in names:
        log.append(make_event(label=name))
    assert [row["label"] for row in csv.DictReader(edge("export", path, "--format", "csv").split("\n"))] == names
