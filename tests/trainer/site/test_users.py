"""Users, roles and passwords of a site."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.errors import UsageError
from trainer.console.sessions import IDLE_SECONDS, MAX_SECONDS, SessionStore
from trainer.site import trail, users
from trainer.site.folder import Site

PASSWORD = "correct horse battery"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


@pytest.fixture(scope="module")
def with_users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with the administrator ada and the viewer vera."""
    site = Site.create(tmp_path_factory.mktemp("users") / "site")
    with site.database() as found:
        users.add(found, "ada", "administrator", PASSWORD, who="test")
        users.add(found, "vera", "viewer", PASSWORD, who="test")
    return site.path


@pytest.fixture
def database(site: Site, with_users: Path) -> Iterator[sqlite3.Connection]:
    """The database of a copy of that site."""
    shutil.copytree(with_users, site.path, dirs_exist_ok=True)
    with site.database() as found:
        yield found


def test_only_the_right_password_fits(database: sqlite3.Connection) -> None:
    found = users.verify(database, "vera", PASSWORD)
    assert found is not None
    assert (found.name, found.role) == ("vera", "viewer")
    for name, password in (("vera", PASSWORD + "!"), ("vera", ""), ("nobody", PASSWORD), ("", ""), ("vera", "x" * 10_000)):
        assert users.verify(database, name, password) is None


def test_password_is_stored_as_argon2id(database: sqlite3.Connection) -> None:
    (stored,) = database.execute("SELECT password FROM users WHERE name = 'ada'").fetchone()
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,")
    (other,) = database.execute("SELECT password FROM users WHERE name = 'vera'").fetchone()
    assert stored != other, "each has its own salt"


def test_password_can_be_typed_on_every_keyboard(database: sqlite3.Connection) -> None:
    users.set_password(database, "vera", "Straße Ko\u0308ln 7", who="test")
    assert users.verify(database, "vera", "Straße K\u00f6ln 7") is not None


@pytest.mark.parametrize("password", ["", "short", "x" * (users.MIN_LENGTH - 1), "x" * (users.MAX_LENGTH + 1)])
def test_password_has_a_length(database: sqlite3.Connection, password: str) -> None:
    with pytest.raises(UsageError, match="A password has"):
        users.add(database, "new", "viewer", password, who="test")
    with pytest.raises(UsageError, match="A password has"):
        users.set_password(database, "vera", password, who="test")
    assert users.verify(database, "vera", PASSWORD) is not None


@pytest.mark.parametrize("name", ["", " ada", "a/b", "../x", "a\nb", "-x", "x" * 65, "ä", "a b"])
def test_name_is_checked(database: sqlite3.Connection, name: str) -> None:
    with pytest.raises(UsageError, match="not a valid user name"):
        users.add(database, name, "viewer", PASSWORD, who="test")


def test_name_is_used_once(database: sqlite3.Connection) -> None:
    for name in ("ada", "ADA"):
        with pytest.raises(UsageError, match="already"):
            users.add(database, name, "viewer", PASSWORD, who="test")


def test_unknown_roles_and_users_are_refused(database: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="not a role"):
        users.set_role(database, "vera", "root", who="test")
    with pytest.raises(UsageError, match="There is no user"):
        users.remove(database, "nobody", who="test")
    with pytest.raises(UsageError, match="There is no user"):
        users.set_role(database, "nobody", "viewer", who="test")
    with pytest.raises(UsageError, match="There is no user"):
        users.set_password(database, "nobody", PASSWORD, who="test")


def test_first_user_is_an_administrator(site: Site) -> None:
    with site.database() as database:
        with pytest.raises(UsageError, match="must be an administrator"):
            users.add(database, "vera", "viewer", PASSWORD, who="test")
        assert not users.exist(database)


def test_last_administrator_stays(database: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="last administrator"):
        users.remove(database, "ada", who="test")
    with pytest.raises(UsageError, match="last administrator"):
        users.set_role(database, "ada", "operator", who="test")
    users.set_role(database, "vera", "administrator", who="test")
    users.remove(database, "ada", who="test")
    assert [user.name for user in users.all_users(database)] == ["vera"]


def test_changes_are_in_the_trail(database: sqlite3.Connection) -> None:
    users.set_role(database, "vera", "operator", who="ada")
    users.set_password(database, "vera", PASSWORD, who="ada")
    users.remove(database, "vera", who="ada")
    found = [(change.who, change.action, change.subject) for change in trail.changes(database)]
    assert found == [
        ("ada", "remove user", "vera"),
        ("ada", "change password", "vera"),
        ("ada", "change role", "vera"),
        ("test", "add user", "vera"),
        ("test", "add user", "ada"),
    ]
    assert not [change for change in trail.changes(database) if PASSWORD in str(change)]


@pytest.mark.parametrize("change", ["role", "password", "removal"])
def test_change_ends_the_sessions_of_the_user(site: Site, database: sqlite3.Connection, change: str) -> None:
    sessions = SessionStore(site)
    vera, ada = sessions.begin("vera", "viewer"), sessions.begin("ada", "administrator")
    if change == "role":
        users.set_role(database, "vera", "operator", who="ada")
    elif change == "password":
        users.set_password(database, "vera", "another password", who="ada")
    else:
        users.remove(database, "vera", who="ada")
    assert sessions.find(vera) is None
    assert sessions.find(ada) is not None


def test_session_ends_with_time(site: Site, database: sqlite3.Connection) -> None:
    now = [1e9]
    sessions = SessionStore(site, clock=lambda: now[0])
    cookie = sessions.begin("vera", "viewer")
    while now[0] < 1e9 + MAX_SECONDS - IDLE_SECONDS:
        now[0] += IDLE_SECONDS - 1
        assert sessions.find(cookie) is not None, "it is in use"
    now[0] = 1e9 + MAX_SECONDS + 1
    assert sessions.find(cookie) is None
    idle = sessions.begin("vera", "viewer")
    now[0] += IDLE_SECONDS + 1
    assert sessions.find(idle) is None


def test_cookie_is_not_in_the_database(site: Site) -> None:
    sessions = SessionStore(site)
    cookie = sessions.begin("root", "administrator")
    assert cookie.encode() not in site.database_file.read_bytes()
    assert sessions.find(cookie) is not None


def test_session_without_a_user_needs_a_site_of_the_owner(site: Site) -> None:
    cookie = SessionStore(site).begin("root", "administrator")
    assert SessionStore(site).find(cookie) is not None
    assert SessionStore(site, open_to_owner=False).find(cookie) is None
    with site.database() as database:
        users.add(database, "ada", "administrator", PASSWORD, who="test")
        database.execute("INSERT INTO sessions VALUES ('x', 'root', 'administrator', 'x', 1e12, 1e12)")
    assert SessionStore(site).find(cookie) is None


def test_one_time_link(site: Site) -> None:
    sessions = SessionStore(site)
    token = sessions.new_token()
    cookie = sessions.redeem(token)
    assert cookie is not None
    found = sessions.find(cookie)
    assert found is not None
    assert (found.user, found.role) == (users.login_name(), "administrator")
    assert sessions.redeem(token) is None
    assert sessions.redeem("") is None
    assert SessionStore(site).redeem(sessions.new_token()) is None, "a restart makes new links"
