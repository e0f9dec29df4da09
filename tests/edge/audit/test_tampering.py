"""Another program cannot make entries vanish: neither by tables and triggers, nor by removing the file."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edge.audit.log import AuditLog
from edge.errors import AuditChainError, AuditDamagedError, AuditError
from tests.fixtures.databases import alter
from tests.fixtures.events import NOON, make_event

# Tables

VANISH = "AFTER INSERT ON entries WHEN new.json LIKE '%anna%' BEGIN DELETE FROM entries WHERE seq = new.seq; END"
WRITE_SCHEMA = "PRAGMA writable_schema=ON"
CHANGED_TABLES = {
    "a trigger": [f"CREATE TRIGGER quiet {VANISH}"],
    "a trigger with the old version": [f"CREATE TRIGGER quiet {VANISH}", "PRAGMA schema_version=3"],
    "a trigger on pictures": ["CREATE TRIGGER quiet AFTER INSERT ON pictures BEGIN DELETE FROM pictures; END"],
    "a view": ["CREATE VIEW grants AS SELECT * FROM entries"],
    "a view instead of a table": ["DROP TABLE pictures", "CREATE VIEW pictures AS SELECT '' AS event_id, x'' AS box"],
    "another table": ["CREATE TABLE more (a)"],
    "a virtual table": ["CREATE VIRTUAL TABLE more USING fts5(a)"],
    "statistics": ["ANALYZE"],
    "no index": ["DROP INDEX once"],
    "another index": ["DROP INDEX once", "CREATE UNIQUE INDEX once ON entries (json_extract(json, '$.kind'))"],
    "another column": ["ALTER TABLE entries ADD COLUMN more TEXT"],
    "a generated column": ["ALTER TABLE entries ADD COLUMN more TEXT AS (json) VIRTUAL"],
    "a constraint": [
        WRITE_SCHEMA,
        "UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ', CHECK (json NOT LIKE ''%anna%'')) STRICT')"
        " WHERE name = 'entries'",
    ],
}


@pytest.mark.parametrize("change", CHANGED_TABLES.values(), ids=CHANGED_TABLES)
def test_log_with_other_tables_is_neither_written_nor_read_nor_valid(log: AuditLog, path: Path, change: list[str]) -> None:
    log.append(make_event(outcome="denied", label=None))
    with closing(AuditLog(path, read_only=True)) as reader:
        alter(path, *change)
        with pytest.raises(AuditChainError, match="other tables, indexes or triggers"):
            log.append(make_event())
        with pytest.raises(AuditChainError, match="other tables, indexes or triggers"):
            log.append_picture("a", b"box", NOON)
        with pytest.raises(AuditChainError, match="other tables, indexes or triggers"):
            reader.verify()
    before = path.read_bytes()
    for mode in ({}, {"read_only": True}, {"must_exist": True}):
        with pytest.raises(AuditChainError, match="Keep it as evidence"):
            AuditLog(path, **mode)
    with pytest.raises(AuditChainError) as found:  # not damaged: a person changed it, and must look at it
        AuditLog.open(path, now=NOON)
    assert found.value.exit_code == 42
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*damaged*"))


def test_log_whose_tables_were_changed_is_not_written_until_it_is_opened_again(log: AuditLog, path: Path) -> None:
    """SQLite may keep a trigger that it has read, if its removal does not change the version of the tables."""
    alter(path, f"CREATE TRIGGER quiet {VANISH}")
    with pytest.raises(AuditChainError):
        log.append(make_event())
    alter(path, WRITE_SCHEMA, "DELETE FROM sqlite_schema WHERE name = 'quiet'")
    with pytest.raises(AuditChainError):
        log.append(make_event())
    with closing(AuditLog(path)) as again:
        again.append(make_event())
        assert again.verify().entries == 1


@pytest.mark.parametrize(
    "change", ["DELETE FROM entries WHERE seq = new.seq", "UPDATE entries SET hash = 'x' WHERE seq = new.seq"]
)
def test_entry_that_is_not_stored_as_written_is_an_error(log: AuditLog, change: str) -> None:
    log._db.execute(f"CREATE TEMP TRIGGER quiet AFTER INSERT ON main.entries BEGIN {change}; END")
    with pytest.raises(AuditChainError, match="Entry 1 was not stored"):
        log.append(make_event())


def test_picture_that_is_not_stored_as_written_is_an_error(log: AuditLog) -> None:
    log._db.execute("CREATE TEMP TRIGGER quiet AFTER INSERT ON main.pictures BEGIN UPDATE pictures SET box = x'00'; END")
    with pytest.raises(AuditChainError, match="Entry 1 was not stored"):
        log.append_picture("a", b"box", NOON)


def test_id_of_another_event_does_not_count_as_logged(log: AuditLog) -> None:
    event = make_event(outcome="denied")
    log.append(event)
    with pytest.raises(AuditChainError, match="Entry 1 has the id of another event"):
        log.append(replace(event, outcome="granted"))


def test_index_that_does_not_belong_to_the_entries_is_detected(log: AuditLog, path: Path) -> None:
    for _ in range(3):
        log.append(make_event())
    wanted = "CREATE UNIQUE INDEX once ON entries (json_extract(json, ''$.event_id''))"
    alter(
        path,
        "DROP INDEX once",
        "CREATE UNIQUE INDEX once ON entries (json_extract(json, '$.event_id') || 'x')",
        WRITE_SCHEMA,
        f"UPDATE sqlite_schema SET sql = '{wanted}' WHERE name = 'once'",
    )
    with closing(AuditLog(path, read_only=True)) as reader, pytest.raises(AuditDamagedError):
        reader.verify()


def test_extensions_cannot_be_loaded(log: AuditLog) -> None:
    with pytest.raises(sqlite3.OperationalError, match="not authorized"):
        log._db.execute("SELECT load_extension('any')")


# A file that disappears


def remove_file(path: Path) -> None:
    path.unlink()


def rename_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace_folder(path: Path) -> None:
    rename_folder(path)
    shutil.copytree(path.parent.with_name("elsewhere"), path.parent)


def replace_file(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def remove_write_ahead_file(path: Path) -> None:
    path.with_name("audit.db-wal").unlink()


def remove_index_of_write_ahead_file(path: Path) -> None:
    path.with_name("audit.db-shm").unlink()


@pytest.mark.parametrize(
    "change",
    [
        remove_file,
        rename_folder,
        replace_folder,
        replace_file,
        remove_write_ahead_file,
        remove_index_of_write_ahead_file,
    ],
)
def test_log_that_disappeared_is_an_error_and_gets_no_entry(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "door" / "audit.db"
    path.parent.mkdir()
    with closing(AuditLog(path)) as log:
        log.append(make_event())
        change(path)
        for _ in range(2):
            with pytest.raises(AuditError, match="was removed or replaced") as found:
                log.append(make_event())
        assert found.value.exit_code == 40
        assert log._value("SELECT count(*) FROM entries") == 1


def test_log_that_is_put_back_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "door" / "audit.db"
    path.parent.mkdir()
    with closing(AuditLog(path)) as log:
        rename_folder(path)
        with pytest.raises(AuditError, match="was removed or replaced"):
            log.append(make_event())
        (tmp_path / "elsewhere").rename(path.parent)
        log.append(make_event())
        assert log.verify().entries == 1


def test_log_behind_a_link_is_written_until_the_link_changes(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "audit.db"
    link.symlink_to(tmp_path / "disk" / "audit.db")
    AuditLog(tmp_path / "disk" / "audit.db").close()
    with closing(AuditLog(link)) as log:
        log.append(make_event())
        link.unlink()
        link.symlink_to(tmp_path / "disk" / "other.db")
        with pytest.raises(AuditError, match="was removed or replaced"):
            log.append(make_event())
