"""The doors of a site: what doors.toml may contain, and what happens to lists and secrets when doors change."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from edge.credentials import read_secret
from edge.errors import EdgeError, UsageError
from trainer.site import doors, trail
from trainer.site.doors import Door
from trainer.site.folder import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


def actions(site: Site) -> list[tuple[str, str, str]]:
    with site.database() as database:
        return [(change.who, change.action, change.subject) for change in reversed(trail.changes(database))]


def test_new_site_has_no_doors(site: Site) -> None:
    assert doors.load(site) == ()


def test_doors_are_read_as_they_were_written(site: Site) -> None:
    saved = (
        Door(name="north entrance", status_url="http://192.168.1.20:8080", drop=Path("/srv/north/door.kit")),
        Door(name='Zoë\'s "door"', status_url="https://[::1]:8080/terminals/2"),
        Door(name="store", secret_file=site.path / "secrets" / "store.secret", drop=site.path / "drop" / "store.kit"),
    )
    doors.save(site, saved, "anna")
    assert doors.load(site) == saved
    assert doors.load(Site(site.path)) == saved
    text = site.doors_file.read_text()
    assert text.startswith("#")
    assert str(site.path) not in text, "a site can be moved"
    assert stat.S_IMODE(site.doors_file.stat().st_mode) == 0o600


def test_moved_site_keeps_its_secrets(site: Site, tmp_path: Path) -> None:
    doors.add(site, Door(name="north"), "anna")
    doors.make_secret(site, "north", "anna")
    moved = Site(site.path.rename(tmp_path / "moved"))
    (door,) = doors.load(moved)
    assert door.secret_file is not None
    assert door.secret_file.is_file()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", " a", "a ", "a\nb", "a\x00", ".hidden", "x" * 61])
def test_name_that_is_no_file_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="name of a door") as caught:
        Door(name=name)
    assert caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://a", "javascript:alert(1)", "//host", "192.168.1.20:8080", "http://", "http://a b"),
        *("http://a:99999", "http://[::1", "http://user:secret@host", "http://host/?a=1", "http://host/#x", "http://hö.de"),
        *("http://host/\r\nX: 1", "http://host/" + "x" * 300),
    ],
)
def test_address_that_is_no_preview_is_rejected(url: str) -> None:
    with pytest.raises(UsageError, match="address of a preview"):
        Door(name="a", status_url=url)


def test_slash_at_the_end_of_an_address_is_removed() -> None:
    assert Door(name="a", status_url="http://host:8080/").status_url == "http://host:8080"


@pytest.mark.parametrize("drop", ["door.kit", "/etc/passwd", "/srv/../etc/door.kit", "/srv/door\n.kit"])
def test_place_that_is_no_kit_is_rejected(drop: str) -> None:
    with pytest.raises(UsageError, match="place for kits"):
        Door(name="a", drop=Path(drop))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[door]\n", "not valid TOML"),
        ("\xff".encode("latin-1"), "not valid TOML"),
        ("x = " + "[" * 9999, "not valid TOML"),
        ("[door]\nname = 'a'", r"\[\[door\]\]"),
        ("door = [1]", r"\[\[door\]\]"),
        ("size = 1", r"\[\[door\]\]"),
        ("[[door]]\nname = 'a'\n[[door]]\nstatus_url = 'http://b'", "number 2: name is missing"),
        ("[[door]]\nname = 3", "not text"),
        ("[[door]]\nname = 'a'\nurl = 'http://b'", "number 1: url is not a known key.*status_url"),
        ("[[door]]\nname = 'a'\nstatus_url = 'b'", "number 1: 'b' is not an address"),
        ("[[door]]\nname = 'a'\n[[door]]\nname = 'A'", "two doors with the name A"),
        ("#" + "x" * doors.MAX_BYTES, "larger than 1 MB"),
    ],
)
def test_invalid_file_is_an_error_with_a_next_step(site: Site, text: str | bytes, message: str) -> None:
    site.doors_file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message) as caught:
        doors.load(site)
    assert caught.value.hint
    with pytest.raises(UsageError, match=message):
        doors.add(site, Door(name="new"), "anna")
    written = site.doors_file.read_bytes()
    assert written == (text if isinstance(text, bytes) else text.encode()), "a change does not replace a damaged file"


def test_name_is_used_once(site: Site) -> None:
    doors.add(site, Door(name="north"), "anna")
    with pytest.raises(UsageError, match="two doors"):
        doors.add(site, Door(name="North"), "anna")
    doors.add(site, Door(name="south"), "anna")
    with pytest.raises(UsageError, match="two doors"):
        doors.change(site, "south", Door(name="NORTH"), "anna")
    assert [door.name for door in doors.load(site)] == ["north", "south"]


def test_unknown_door_is_an_error(site: Site) -> None:
    for action in (lambda: doors.find(site, "x"), lambda: doors.remove(site, "x", "anna")):
        with pytest.raises(EdgeError, match="There is no door 'x'"):
            action()


def test_changes_are_on_the_trail(site: Site) -> None:
    doors.add(site, Door(name="north"), "anna")
    doors.change(site, "north", Door(name="north", status_url="http://host"), "ben")
    doors.remove(site, "north", "cara")
    assert actions(site) == [("anna", "add door", "north"), ("ben", "change door", "north"), ("cara", "remove door", "north")]


def test_new_name_is_a_change_on_the_trail(site: Site) -> None:
    doors.add(site, Door(name="north"), "anna")
    doors.change(site, "north", Door(name="gate"), "ben")
    doors.make_secret(site, "gate", "ben")
    with site.database() as database:
        last, change, *_ = trail.changes(database)
    assert (change.action, change.subject, change.details) == ("change door", "north", "name: gate")
    assert (last.action, last.subject, last.details.split(":")[0]) == ("change door", "gate", "secret_file")


def test_renamed_door_keeps_list_and_secret(site: Site) -> None:
    doors.add(site, Door(name="north"), "anna")
    secret = doors.make_secret(site, "north", "anna")
    (site.lists / "north.toml").write_text("[[allow]]\npeople = []\n")
    doors.change(site, "north", Door(name="gate"), "anna")
    (door,) = doors.load(site)
    assert (door.name, door.secret_file) == ("gate", secret)
    assert doors.list_file(site, door).read_text() == "[[allow]]\npeople = []\n"
    assert not (site.lists / "north.toml").exists()
    doors.add(site, Door(name="north"), "anna")
    doors.make_secret(site, "north", "anna")
    assert secret.is_file(), "a new door with the old name does not take the secret"


def test_renamed_door_takes_no_list_of_another(site: Site) -> None:
    doors.add(site, Door(name="north"), "anna")
    (site.lists / "gate.toml").write_text("x")
    with pytest.raises(UsageError, match=r"door list .*gate\.toml already"):
        doors.change(site, "north", Door(name="gate"), "anna")
    assert [door.name for door in doors.load(site)] == ["north"]


def test_secret_is_private_and_new_each_time(site: Site) -> None:
    doors.add(site, Door(name="north"), "anna")
    first = doors.make_secret(site, "north", "anna")
    text = read_secret("webhook", first, None)
    assert text is not None
    assert len(text) == 64
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    second = doors.make_secret(site, "north", "anna")
    assert read_secret("webhook", second, None) != text
    assert not first.exists()
    assert doors.find(site, "north").secret_file == second
    with site.database() as database:
        assert text not in str([vars(change) for change in trail.changes(database)])
    doors.remove(site, "north", "anna")
    assert not second.exists()
