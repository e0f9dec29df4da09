"""Root works with the rights of the user who controls a path, so that a symbolic link of that user leads nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from edge.audit.log import AuditLog
from edge.cli import audit
from edge.enrol import storage
from edge.errors import AuditError, UsageError
from edge.privileges import Rights, controlling_user, rights_over
from tests.fixtures.service_user import SERVICE, Place, needs_root, service_place


@pytest.fixture
def place() -> Iterator[Place]:
    with service_place() as found:
        yield found


def test_without_root_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    before = Rights.now()
    with rights_over(tmp_path):
        assert Rights.now() == before


@needs_root
def test_first_part_that_root_does_not_own_decides(place: Place) -> None:
    def user(path: Path, **options: bool) -> int:
        return controlling_user(path, **options)[0]

    assert user(place.root / "missing" / "file") == 0
    assert user(place.secret) == 0
    assert user(place.own) == SERVICE
    assert user(place.own / "missing" / "file") == SERVICE
    assert user(place.root / ".." / "own") == SERVICE
    (place.root / "link").symlink_to(place.own)
    assert user(place.root / "link" / "file") == SERVICE, "a link of root is followed"
    (place.root / "relative").symlink_to("../own")
    assert controlling_user(place.root / "relative" / "file") == (SERVICE, place.own / "file")
    (place.own / "back").symlink_to(place.root)
    os.chown(place.own / "back", 0, 0, follow_symlinks=False)
    assert user(place.own / "back" / "secret") == SERVICE, "whatever is below the user's folder"
    (place.root / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="too many symbolic links"):
        user(place.root / "loop")
    place.root.chmod(0o777)
    with pytest.raises(UsageError, match="Every user can change"):
        user(place.secret)
    place.root.chmod(0o1777)
    assert user(place.secret) == 0


@needs_root
def test_folder_of_a_replaced_file_decides(place: Place) -> None:
    file, link = place.root / "door.kit", place.root / "link"
    file.write_bytes(b"")
    os.chown(file, SERVICE, SERVICE)
    link.symlink_to(file)
    assert [controlling_user(path)[0] for path in (file, link)] == [SERVICE, SERVICE]
    assert [controlling_user(path, replaced=True) for path in (file, link)] == [(0, file), (0, file)]
    os.chown(link, SERVICE, SERVICE, follow_symlinks=False)
    assert controlling_user(link, replaced=True) == (SERVICE, link), "a link of the user decides"


@needs_root
def test_rights_change_and_come_back(place: Place) -> None:
    before = Rights.now()
    with rights_over(place.own):
        assert (os.geteuid(), os.getgroups()) == (SERVICE, [])
        (place.own / "file").write_text("")
        with pytest.raises(PermissionError):
            place.secret.read_text()
        with rights_over(place.root):
            assert place.secret.read_text() == "secret"
        assert os.geteuid() == SERVICE
    assert Rights.now() == before
    assert (place.own / "file").stat().st_uid == SERVICE
    with pytest.raises(ZeroDivisionError), rights_over(place.own):
        raise ZeroDivisionError
    assert Rights.now() == before


@needs_root
def test_audit_commands_of_root_follow_no_link_of_the_service_user(place: Place) -> None:
    with closing(AuditLog(place.root / "audit.db")):
        pass
    before = (place.root / "audit.db").read_bytes()
    (place.own / "audit.db").symlink_to(place.root / "audit.db")
    place.give()
    for command in (
        lambda: audit.prune(days=1, path=place.own / "audit.db"),
        lambda: audit.verify(path=place.own / "audit.db"),
    ):
        with pytest.raises(AuditError):
            command()
    assert (place.root / "audit.db").read_bytes() == before
    assert {path.name for path in place.root.iterdir()} == {"secret", "audit.db"}


@needs_root
def test_audit_commands_of_root_leave_files_of_the_service_user(place: Place) -> None:
    with closing(AuditLog(place.own / "audit.db")):
        pass
    place.give()
    audit.prune(days=1, path=place.own / "audit.db")
    audit.export(path=place.own / "audit.db", output=place.own / "export.jsonl")
    assert {path.stat().st_uid for path in place.own.iterdir()} == {SERVICE}


@needs_root
def test_photos_of_root_in_a_folder_of_another_user_belong_to_that_user(place: Place) -> None:
    photo = np.zeros((4, 4, 3), np.uint8)
    with rights_over(place.own):
        files = storage.write(place.own / "anna", [photo], datetime(2026, 11, 16))
    assert {path.stat().st_uid for path in (*files, place.own / "anna")} == {SERVICE}
