"""A site: its folders, its database, and the trail of changes."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from edge.errors import UsageError
from trainer.site import trail
from trainer.site.folder import FOLDERS, Site, transaction


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_site_has_its_folders_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    assert {path.name for path in site.path.iterdir() if path.is_dir()} == set(FOLDERS)
    assert mode(site.path) == 0o700
    assert mode(site.database_file) == 0o600


def test_folder_with_photos_becomes_a_site(tmp_path: Path) -> None:
    (tmp_path / "photos" / "anna").mkdir(parents=True)
    assert Site.create(tmp_path).database_file.is_file()


def test_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        Site.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_open_needs_a_site(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a site"):
        Site.open(tmp_path)


def test_two_processes_may_make_the_same_database(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    site.database_file.unlink()
    with site.database() as one, site.database() as two:
        trail.record(one, "anna", "add photos", "ben")
        assert [change.subject for change in trail.changes(two)] == ["ben"]


@pytest.mark.parametrize("statement", ["PRAGMA application_id=1", "PRAGMA user_version=99"])
def test_database_of_another_program_is_refused(tmp_path: Path, statement: str) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        database.execute(statement)
    with pytest.raises(UsageError, match="another program or version"), site.database():
        pass


def test_damaged_database_is_one_sentence(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    site.database_file.write_bytes(b"this is not a database" * 100)
    with pytest.raises(UsageError, match="cannot be used"), site.database():
        pass


def add_and_fail(database: sqlite3.Connection) -> None:
    with transaction(database):
        trail.record(database, "anna", "add photos", "ben")
        database.execute("INSERT INTO people (name) VALUES (NULL)")


def test_transaction_writes_all_or_nothing(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        with pytest.raises(sqlite3.IntegrityError):
            add_and_fail(database)
        assert trail.changes(database) == []


def test_trail_is_searched_and_paged(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        for number in range(5):
            trail.record(database, "anna", "add photos", f"person {number}")
        trail.record(database, "ben", "delete person", "100%_sure")
        newest, *_ = trail.changes(database, most=1)
        assert (newest.who, newest.subject) == ("ben", "100%_sure")
        assert [change.subject for change in trail.changes(database, before=newest.id, most=2)] == ["person 4", "person 3"]
        assert [change.subject for change in trail.changes(database, search="delete")] == ["100%_sure"]
        assert len(trail.changes(database, search="%")) == 1, "a search for a percent sign finds it"
