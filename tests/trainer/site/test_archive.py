"""Import of many people: bounded, safe names, and each person in one step."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.errors import UsageError
from tests.fixtures.site import blank_photo, orl_file, site_of_orl
from trainer.site import archive, people
from trainer.site.archive import Imported, import_people
from trainer.site.folder import Site

WHO = "tester"


def zip_of(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, data in files.items():
            target.writestr(name, data)
    return path


def run(site: Site, source: Path, *, add: bool = False) -> Imported:
    with site.database() as database:
        return import_people(site, database, source, who=WHO, add=add)


def there(site: Site) -> set[str]:
    return {path.relative_to(site.photos).as_posix() for path in site.photos.rglob("*") if path.is_file()}


def test_zip_and_folder_give_the_same_people(tmp_path: Path) -> None:
    files = {f"all/s{person}/{number}.pgm": orl_file(person, number) for person in (1, 2) for number in (1, 2)}
    files |= {"__MACOSX/s1/._1.pgm": b"x", "all/s1/.DS_Store": b"x", "all/readme.txt": b"hello"}
    zipped, folder = Site.create(tmp_path / "a"), Site.create(tmp_path / "b")
    with zipfile.ZipFile(zip_of(tmp_path / "people.zip", files)) as packed:
        packed.extractall(tmp_path / "unpacked")
    done = run(zipped, tmp_path / "people.zip")
    assert (done.people, done.photos, done.problems) == (["s1", "s2"], 4, 0)
    assert [text.partition(" ")[0] for text in done.rejected] == ["all/readme.txt"]
    run(folder, tmp_path / "unpacked" / "all")
    assert there(zipped) == there(folder) == {"s1/1.pgm", "s1/2.pgm", "s2/1.pgm", "s2/2.pgm"}


def test_folder_of_one_person(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", {"s1": range(1, 2)})
    (tmp_path / "Anna").mkdir()
    (tmp_path / "Anna" / "1.pgm").write_bytes(orl_file(2, 1))
    assert run(site, tmp_path / "Anna").people == ["Anna"]


def test_name_that_exists_is_listed_and_left_out(tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", {"s1": range(1, 2)})
    files = {"s1/1.pgm": orl_file(1, 2), "s1/2.pgm": orl_file(1, 3), "s2/1.pgm": orl_file(2, 1)}
    source = zip_of(tmp_path / "people.zip", files)
    done = run(site, source)
    assert (done.conflicts, done.people) == (["s1"], ["s2"])
    assert there(site) == {"s1/1.pgm", "s2/1.pgm"}
    done = run(site, source, add=True)
    assert done.conflicts == ["s1", "s2"]
    assert (site.photos / "s1" / "1.pgm").read_bytes() == orl_file(1, 1), "not overwritten"
    assert len([path for path in there(site) if path.startswith("s1/")]) == 3
    assert len([path for path in there(site) if path.startswith("s2/")]) == 1, "the same file is not added twice"


def test_two_folders_of_one_person_lose_no_photo(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    files = {"2025/s1/1.pgm": orl_file(1, 1), "2026/s1/1.pgm": orl_file(1, 2), "copy/s1/1.pgm": orl_file(1, 1)}
    done = run(site, zip_of(tmp_path / "people.zip", files))
    assert (done.people, done.photos) == (["s1"], 2)
    assert {(site.photos / file).read_bytes() for file in there(site)} == {orl_file(1, 1), orl_file(1, 2)}


def test_problems_are_reported(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    files = {"s1/1.pgm": orl_file(1, 1), "s1/2.png": blank_photo(), "s1/3.jpg": b"no photo", "s2/1.pgm": orl_file(1, 1)}
    done = run(site, zip_of(tmp_path / "people.zip", files))
    assert (done.photos, done.problems, len(done.rejected), len(done.same_photos)) == (3, 1, 1, 1)
    with site.database() as database:
        assert [person.name for person in people.search(database, only="problems").people] == ["s1"]


def _bomb(path: Path) -> None:
    zip_of(path, {f"a/{number}.png": bytes(32 << 20) for number in range(10)}, zipfile.ZIP_DEFLATED)


def _link(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as target:
        entry = zipfile.ZipInfo("a/1.png")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        target.writestr(entry, "/etc/passwd")


def _encrypted(path: Path) -> None:
    data = bytearray(zip_of(path, {"a/1.png": b"x"}).read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    path.write_bytes(bytes(data))


def _named(name: str) -> Callable[[Path], object]:
    return lambda path: zip_of(path, {name: orl_file(1, 1), "ok/1.pgm": orl_file(2, 1)})


@pytest.mark.parametrize(
    "make",
    [
        _bomb,
        _link,
        _encrypted,
        _named("../x/1.pgm"),
        _named("/tmp/x/1.pgm"),
        _named("a/../../x/1.pgm"),
        _named("a\\..\\1.pgm/1.pgm"),
        _named("/".join("abcdefghijk") + "/1.pgm"),
        lambda path: path.write_bytes(b"PK\x03\x04 not a zip"),
        lambda path: path.write_bytes(b""),
        lambda path: zip_of(path, {"readme.txt": b"no photos"}),
    ],
)
def test_unsafe_archives_change_nothing(make: Callable[[Path], object], tmp_path: Path) -> None:
    site = site_of_orl(tmp_path / "site", {"s1": range(1, 2)})
    make(tmp_path / "people.zip")
    before = {path for path in tmp_path.rglob("*") if "console.db" not in path.name}
    with pytest.raises(UsageError):
        run(site, tmp_path / "people.zip")
    assert {path for path in tmp_path.rglob("*") if "console.db" not in path.name} == before


def test_number_of_entries_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 2)
    site = Site.create(tmp_path / "site")
    with pytest.raises(UsageError, match="entries"):
        run(site, zip_of(tmp_path / "people.zip", {f"a/{number}.pgm": b"x" for number in range(3)}))


def test_invalid_names_are_left_out_and_listed(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    files = {" bad/1.pgm": orl_file(1, 1), "ok/1.pgm": orl_file(2, 1), "1.pgm": orl_file(3, 1)}
    done = run(site, zip_of(tmp_path / "people.zip", files))
    assert (done.people, len(done.rejected)) == (["ok"], 2)


def test_damaged_entry_leaves_whole_people_only(tmp_path: Path) -> None:
    """The people before the damage are complete, the person with it is not there."""
    site = Site.create(tmp_path / "site")
    files = {"a/1.pgm": orl_file(1, 1), "b/1.pgm": orl_file(2, 1), "b/2.pgm": orl_file(2, 2)}
    data = bytearray(zip_of(tmp_path / "people.zip", files).read_bytes())
    at = data.index(orl_file(2, 2))
    data[at + 5000] ^= 1
    (tmp_path / "people.zip").write_bytes(bytes(data))
    with pytest.raises(UsageError):
        run(site, tmp_path / "people.zip")
    assert there(site) == {"a/1.pgm"}
    assert sorted(os.listdir(site.photos)) == ["a"]


def test_what_a_killed_import_left_is_removed(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    left = site.photos / f"{archive.NEW}0123"
    left.mkdir()
    (left / "1.pgm").write_bytes(b"x")
    run(site, zip_of(tmp_path / "people.zip", {"a/1.pgm": orl_file(1, 1)}))
    assert os.listdir(site.photos) == ["a"]


def test_too_large_photo_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_PHOTO", 11_000)
    site = Site.create(tmp_path / "site")
    big = orl_file(1, 2) + bytes(2000)
    done = run(site, zip_of(tmp_path / "people.zip", {"a/1.pgm": orl_file(1, 1), "a/2.pgm": big}))
    assert (done.photos, done.rejected) == (1, ["a/2.pgm (too large)"])
