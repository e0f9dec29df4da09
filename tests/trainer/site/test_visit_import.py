"""Imports of visits: a real audit log with sealed pictures, JSON lines, and files that are something else."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from edge.audit.crypto import open_box, write_keys
from edge.audit.log import AuditLog
from edge.audit.report import export
from edge.errors import AuditChainError, EdgeError, UsageError
from edge.events.event import Event, notice
from tests.fixtures.events import NOON, make_event
from tests.fixtures.visits import write_audit_log
from trainer.site import doors, trail, visit_import, visit_retention, visits
from trainer.site.doors import Door
from trainer.site.folder import Site
from trainer.site.visit_import import Imported
from trainer.site.visits import Search, Visit

WHO = "tester"
DOOR = "north"
FRAME = np.full((90, 160, 3), 90, np.uint8)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site.create(tmp_path / "site")
    doors.add(made, Door(name=DOOR), WHO)
    return made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    write_keys(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def events() -> list[Event]:
    return [
        notice("start", now=1.0, utc=NOON),
        make_event(label="Zoë", utc=NOON),
        make_event(label=None, outcome="denied", reason="unknown person", utc=NOON + timedelta(minutes=1)),
    ]


def audit_log(tmp_path: Path, key: Path, of: list[Event]) -> Path:
    """A log with a picture of each decision."""
    rows = [(event, FRAME if event.kind == "decision" else None) for event in of]
    return write_audit_log(tmp_path / "audit.db", rows, public_key=Path(f"{key}.pub"))


def load(site: Site, file: Path, name: str = "") -> Imported:
    return visit_import.import_file(site, DOOR, file, who=WHO, now=NOON, name=name)


def stored(site: Site) -> list[Visit]:
    with site.database() as database:
        return list(visits.search(database, Search()).visits)


def test_audit_log_brings_visits_with_sealed_pictures(site: Site, key: Path, tmp_path: Path) -> None:
    own = events()
    found = load(site, audit_log(tmp_path, key, own))
    assert (found.new, found.other, found.is_verified) == (2, 3, True), "the start and two pictures are no visits"
    newest, oldest = stored(site)
    assert (newest.label, newest.has_picture, oldest.label, oldest.has_picture) == (None, True, "Zoë", True)
    with site.database() as database:
        (box,) = database.execute("SELECT picture FROM visits WHERE id = ?", (oldest.id,)).fetchone()
        assert open_box(box, own[1].event_id.encode(), key.read_bytes())[:2] == b"\xff\xd8"
        (change,) = trail.changes(database, search="import visits")
    assert (change.who, change.subject, "2 new visits" in change.details) == (WHO, DOOR, True)


def test_second_import_adds_only_what_is_new(site: Site, key: Path, tmp_path: Path) -> None:
    own = events()
    load(site, audit_log(tmp_path, key, own))
    found = load(site, audit_log(tmp_path, key, [make_event(utc=NOON)]))
    assert (found.new, found.completed, found.known) == (1, 0, 2)


def test_audit_log_completes_what_the_webhook_sent(site: Site, key: Path, tmp_path: Path) -> None:
    own = events()
    with site.database() as database:
        visits.store(database, DOOR, asdict(replace(own[1], label=None)))
    found = load(site, audit_log(tmp_path, key, own))
    assert (found.new, found.completed) == (1, 1)
    assert [(visit.label, visit.has_picture) for visit in stored(site)] == [(None, True), ("Zoë", True)]


def test_grant_that_was_withheld_is_a_denial(site: Site, tmp_path: Path) -> None:
    late = make_event()
    with closing(AuditLog(tmp_path / "audit.db")) as log:
        log.append(late)
        log.withhold(late, "audit log too slow", NOON)
        lines = list(export(log.entries(), "jsonl"))
    load(site, tmp_path / "audit.db")
    assert [(visit.outcome, visit.reason) for visit in stored(site)] == [("denied", "audit log too slow")]
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    assert load(site, tmp_path / "lines").known == 1


def test_lines_of_edge_audit_export_and_of_edge_recognize(site: Site, key: Path, tmp_path: Path) -> None:
    own = events()
    with closing(AuditLog(audit_log(tmp_path, key, own[:2]), read_only=True)) as log:
        exported = list(export(log.entries(), "jsonl"))
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join([*exported, own[2].to_json(), "not JSON", "[1]", ""]))
    found = load(site, file)
    assert (found.new, found.unreadable, found.is_verified) == (2, 2, False)


def test_changed_log_is_refused_and_nothing_is_stored(site: Site, key: Path, tmp_path: Path) -> None:
    file = audit_log(tmp_path, key, events())
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE entries SET json = replace(json, 'denied', 'granted')")
        database.commit()
    with pytest.raises(AuditChainError, match="was changed"):
        load(site, file)
    assert stored(site) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n" + bytes(1000),
        b"x" * 70_000,
        b"\xff\xfe\x00" * 100,
        b'{"kind": 5}\n',
        b"[" * 60_000,
        b"SQLite format 3\0" + bytes(2000),
    ],
    ids=["empty", "picture", "long line", "binary", "other JSON", "deep", "broken database"],
)
def test_other_files_are_refused_with_the_name_that_the_person_knows(data: bytes, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "upload"
    file.write_bytes(data)
    with pytest.raises(EdgeError) as caught:
        load(site, file, name="my file\n.db")
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.hint
    assert stored(site) == []


def test_other_database_is_refused(site: Site, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE entries (seq, json, hash)")
    with pytest.raises(EdgeError, match=r"mine\.db is not an audit log"):
        load(site, tmp_path / "other.db", name="mine.db")


def test_unknown_door_and_missing_file_are_sentences(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no door"):
        visit_import.import_file(site, "west", tmp_path / "x", who=WHO, now=NOON)
    with pytest.raises(UsageError, match="cannot be read"):
        load(site, tmp_path / "x")


def test_visits_that_are_too_old_do_not_come_back_by_an_import(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(make_event(utc=NOON - timedelta(days=days)).to_json() + "\n" for days in (1, 40)))
    with site.database() as database:
        visit_retention.set_keep_days(database, 30, who=WHO, now=NOON)
    found = load(site, file)
    assert (found.new, found.deleted, len(stored(site))) == (2, 1, 1)
    assert json.loads(file.read_text().splitlines()[0])["utc"] == stored(site)[0].utc
