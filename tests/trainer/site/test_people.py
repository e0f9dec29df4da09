"""People of a site: the table follows the folders, and each change leaves a site that a training accepts."""

from __future__ import annotations

import errno
import io
import json
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.errors import UsageError
from tests.fixtures.site import blank_photo, orl_file, site_of_orl, two_faces
from trainer.data.gallery import load_gallery
from trainer.site import people, person_export, trail
from trainer.site.folder import Site
from trainer.site.photos import Checker, checker

WHO = "tester"


@pytest.fixture(scope="module")
def using() -> Checker:
    orl_file(1, 1)
    return checker()


def folders(site: Site) -> dict[str, int]:
    return {folder.name: len(list(folder.iterdir())) for folder in sorted(site.photos.iterdir())}


def test_table_follows_the_folders(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 4), "s2": range(1, 3)})
    with site.database() as database:
        assert people.sync(site, database) == ()
        assert people.names(database) == ["s1", "s2"]
        (site.photos / "s1" / "3.pgm").unlink()
        (site.photos / "s2").rename(site.photos / "Björn")
        people.sync(site, database)
        found = {person.name: person.photos for person in people.search(database).people}
        assert found == {"Björn": 2, "s1": 2}


def test_folders_that_cannot_be_shown_are_reported(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    (site.photos / " space").mkdir()
    (site.photos / "link").symlink_to(tmp_path)
    (site.photos / ".hidden").mkdir()
    with site.database() as database:
        assert people.sync(site, database) == (" space", "link")
        assert people.names(database) == []


def test_photo_that_cannot_be_written_leaves_no_empty_person(
    tmp_path: Path, using: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 2)})

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(people, "write_file", full)
    with site.database() as database:
        for name in ("s1", "Anna"):
            with pytest.raises(OSError, match="No space"):
                people.add_photo(site, database, name, orl_file(2, 1), who=WHO, using=using)
    assert folders(site) == {"s1": 1}


def test_consent_stays_when_the_folder_goes(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 2), "s2": range(1, 2)})
    with site.database() as database:
        people.sync(site, database)
        people.set_consent(site, database, "s1", "2026-01-31", "by letter", who=WHO)
        for name in ("s1", "s2"):
            (site.photos / name / "1.pgm").unlink()
            (site.photos / name).rmdir()
        people.sync(site, database)
        (left,) = people.search(database).people
        assert (left.name, left.photos, left.consent_date, left.note) == ("s1", 0, "2026-01-31", "by letter")
        with pytest.raises(UsageError):
            people.set_consent(site, database, "s1", "31.1.2026", "", who=WHO)


def test_search_ignores_case_and_accents_and_has_pages(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        for name in ["Müller, Änne", "muller", *(f"p{number:03}" for number in range(130))]:
            (site.photos / name).mkdir()
        people.sync(site, database)
        assert [person.name for person in people.search(database, "MULLER").people] == ["muller", "Müller, Änne"]
        pages = [people.search(database, "p", page) for page in (1, 2, 3)]
        assert [len(page.people) for page in pages] == [60, 60, 10]
        assert (pages[0].total, pages[0].pages) == (130, 3)
        assert people.search(database, "p", 99).page == 3
        assert people.search(database, "100%").total == 0
        assert people.search(database, only="problems").total == 132, "without photos"


def test_added_photo_is_written_once(tmp_path: Path, using: Checker) -> None:
    site = site_of_orl(tmp_path, {"s2": range(1, 2)})
    with site.database() as database:
        found = people.add_photo(site, database, "Anna", orl_file(1, 1), who=WHO, using=using)
        assert (site.photos / "Anna" / found.file).read_bytes() == orl_file(1, 1)
        assert (site.photos / "Anna" / found.file).stat().st_mode & 0o077 == 0
        with pytest.raises(UsageError, match="already"):
            people.add_photo(site, database, "Anna", orl_file(1, 1), who=WHO, using=using)
        with pytest.raises(UsageError, match="Anna"):
            people.add_photo(site, database, "Berta", orl_file(1, 1), who=WHO, using=using)
        with pytest.raises(UsageError):
            people.add_photo(site, database, "Berta", b"GIF89a", who=WHO, using=using)
        assert folders(site) == {"Anna": 1, "s2": 1}
        assert [change.subject for change in trail.changes(database)] == ["Anna"]


@pytest.mark.parametrize("name", ["..", "../x", "a/b", ".hidden", "", " x", "a\0b", "x" * 101])
def test_unsafe_names_are_refused(name: str, tmp_path: Path, using: Checker) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        with pytest.raises(UsageError):
            people.add_photo(site, database, name, orl_file(1, 1), who=WHO, using=using)
        with pytest.raises(UsageError):
            people.set_consent(site, database, name, "", "", who=WHO)
    assert folders(site) == {}


@pytest.mark.parametrize("file", ["../s2/1.pgm", "..", "nothing.pgm", ".x.png", "a\0.png", "/etc/passwd"])
def test_unsafe_files_are_refused(file: str, tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 2), "s2": range(1, 2)})
    with site.database() as database, pytest.raises(UsageError):
        people.delete_photo(site, database, "s1", file, who=WHO)
    assert folders(site) == {"s1": 1, "s2": 1}


def test_problems_are_counted_and_do_not_become_the_cover(tmp_path: Path, using: Checker) -> None:
    site = Site.create(tmp_path / "site")
    with site.database() as database:
        people.add_photo(site, database, "Anna", blank_photo(), who=WHO, using=using)
        assert people.search(database, only="problems").total == 1
        good = people.add_photo(site, database, "Anna", orl_file(1, 1), who=WHO, using=using)
        found = people.get(database, "Anna")
        assert found is not None
        assert (found.photos, found.problems, found.cover) == (2, 1, good.file)


def test_chosen_face_replaces_the_photo(tmp_path: Path, using: Checker) -> None:
    site = site_of_orl(tmp_path, {"s3": range(1, 2)})
    with site.database() as database:
        both = people.add_photo(site, database, "Anna", two_faces(1, 5), who=WHO, using=using)
        assert not both.usable
        one = people.choose_face(site, database, "Anna", both.file, 0, who=WHO, using=using)
        assert one.usable
        found = people.get(database, "Anna")
        assert found is not None
        assert (found.photos, found.problems) == (1, 0)
    gallery = load_gallery(site.photos, cropped=False)
    assert (gallery.people, gallery.rejected) == (("Anna", "s3"), ())


def test_last_photo_takes_the_folder_with_it(tmp_path: Path) -> None:
    """A training stops at an empty folder."""
    site = site_of_orl(tmp_path, {"s1": range(1, 2), "s2": range(1, 3), "s3": range(1, 2)})
    (site.photos / "s1" / ".DS_Store").write_bytes(b"x")
    with site.database() as database:
        people.sync(site, database)
        people.delete_photo(site, database, "s1", "1.pgm", who=WHO)
        people.move_photo(site, database, "s3", "1.pgm", "s2", who=WHO)
        assert folders(site) == {"s2": 3}
        assert people.names(database) == ["s2"]


def test_rename_keeps_consent_and_refuses_a_name_that_exists(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 3), "s2": range(1, 2)})
    with site.database() as database:
        people.sync(site, database)
        people.set_consent(site, database, "s1", "2026-02-01", "n", who=WHO)
        with pytest.raises(UsageError):
            people.rename(site, database, "s1", "s2", who=WHO)
        people.rename(site, database, "s1", "Anna", who=WHO)
        people.sync(site, database)
        found = people.get(database, "Anna")
        assert found is not None
        assert (found.photos, found.consent_date, people.names(database)) == (2, "2026-02-01", ["Anna", "s2"])
    assert folders(site) == {"Anna": 2, "s2": 1}


def test_merge_moves_all_photos(tmp_path: Path, using: Checker) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 4), "s2": range(1, 3)})
    with site.database() as database:
        people.sync(site, database)
        people.set_consent(site, database, "s2", "2026-03-01", "second", who=WHO)
        assert people.merge(site, database, "s2", "s1", who=WHO) == 2
        found = people.get(database, "s1")
        assert found is not None
        assert (found.photos, found.consent_date, found.note) == (5, "2026-03-01", "second")
        assert people.names(database) == ["s1"]
        with pytest.raises(UsageError):
            people.merge(site, database, "s1", "s1", who=WHO)
    assert folders(site) == {"s1": 5}


def test_export_contains_all_that_is_held(tmp_path: Path, using: Checker) -> None:
    site = site_of_orl(tmp_path, {"s2": range(1, 2)})
    with site.database() as database:
        added = people.add_photo(site, database, "old name", orl_file(1, 1), who=WHO, using=using)
        people.rename(site, database, "old name", "Anna", who=WHO)
        people.set_consent(site, database, "Anna", "2026-04-01", "note", who=WHO)
        for label in ("Anna", "s2"):
            database.execute(
                "INSERT INTO visits (door, event_id, utc, outcome, label, event) VALUES ('front', ?, '2026', 'granted', ?, ?)",
                (label, label, json.dumps({"label": label})),
            )
        file = io.BytesIO()
        person_export.export_person(site, database, "Anna", file, who=WHO)
        with pytest.raises(UsageError):
            person_export.export_person(site, database, "nobody", io.BytesIO(), who=WHO)
    with zipfile.ZipFile(file) as archive:
        about, visits, changes = (json.loads(archive.read(f"{name}.json")) for name in ("person", "visits", "changes"))
        assert archive.read(f"photos/{added.file}") == orl_file(1, 1)
        crop = archive.read(f"crops/{Path(added.file).stem}.jpg")
    assert cv2.imdecode(np.frombuffer(crop, np.uint8), cv2.IMREAD_COLOR) is not None
    assert (about["consent date"], about["note"], about["former names"]) == ("2026-04-01", "note", ["old name"])
    assert [visit["label"] for visit in visits] == ["Anna"]
    assert {change["action"] for change in changes} == {"add photo", "rename person", "set consent"}
