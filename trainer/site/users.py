"""Users of a site: names, roles and passwords. A site without users is used by the owner of its files only.

Passwords are stored as argon2id. A new password or role, and the removal of a user, end the sessions of that user.
"""

import os
import pwd
import re
import sqlite3
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from edge.errors import UsageError
from edge.text import same_spelling
from trainer.site import trail
from trainer.site.folder import transaction, utc_now

if TYPE_CHECKING:
    from argon2 import PasswordHasher

Role = Literal["viewer", "operator", "administrator"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "administrator")
"""Each role may do all that those before it may."""
ADMINISTRATOR: Role = "administrator"
MIN_LENGTH, MAX_LENGTH = 10, 200  # characters of a password
AT_ONCE = 2
"""Passwords that are checked at the same time: each one needs 64 MiB."""
_AT_ONCE = threading.BoundedSemaphore(AT_ONCE)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._@-]{0,63}")


@dataclass(frozen=True)
class User:
    """A user of the console."""

    name: str
    role: Role
    created: str


def login_name() -> str:
    """Return the operating system's name of the user who runs this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container
        return f"uid {os.geteuid()}"


def all_users(database: sqlite3.Connection) -> list[User]:
    return [User(*row) for row in database.execute("SELECT name, role, created FROM users ORDER BY name")]


def exist(database: sqlite3.Connection) -> bool:
    """Return whether the site has users, so that a login is needed."""
    return database.execute("SELECT 1 FROM users").fetchone() is not None


def has_administrator(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM users WHERE role = ?", (ADMINISTRATOR,)).fetchone() is not None


def add(database: sqlite3.Connection, name: str, role: str, password: str, *, who: str) -> None:
    """Add a user. The first one must be an administrator, and ends the sessions that needed no login."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} is not a valid user name.", "Use letters, digits and . _ @ - (at most 64).")
    checked = check_role(role)
    _check_is_new(database, name)
    hashed = _hash(password)
    with transaction(database):
        _check_is_new(database, name)
        if not has_administrator(database):
            if checked != ADMINISTRATOR:
                raise UsageError("The first user must be an administrator.", "Add an administrator first.")
            database.execute("DELETE FROM sessions")
        database.execute("INSERT INTO users VALUES (?, ?, ?, ?)", (name, checked, hashed, utc_now()))
        trail.record(database, who, "add user", name, checked)


def remove(database: sqlite3.Connection, name: str, *, who: str) -> None:
    with transaction(database):
        _existing(database, name)
        database.execute("DELETE FROM users WHERE name = ?", (name,))
        _keep_an_administrator(database)
        _end_sessions(database, name)
        trail.record(database, who, "remove user", name)


def set_role(database: sqlite3.Connection, name: str, role: str, *, who: str) -> None:
    checked = check_role(role)
    with transaction(database):
        before = _existing(database, name)
        database.execute("UPDATE users SET role = ? WHERE name = ?", (checked, name))
        _keep_an_administrator(database)
        _end_sessions(database, name)
        trail.record(database, who, "change role", name, f"{before.role} to {checked}")


def set_password(database: sqlite3.Connection, name: str, password: str, *, who: str) -> None:
    hashed = _hash(password)
    with transaction(database):
        _existing(database, name)
        database.execute("UPDATE users SET password = ? WHERE name = ?", (hashed, name))
        _end_sessions(database, name)
        trail.record(database, who, "change password", name)


def verify(database: sqlite3.Connection, name: str, password: str) -> User | None:
    """Return the user if the password is right. An unknown name costs as much time as a wrong password."""
    from argon2.exceptions import InvalidHashError, VerificationError

    row = database.execute("SELECT name, role, created, password FROM users WHERE name = ?", (name,)).fetchone()
    hashed = _nobody() if row is None else row["password"]
    try:
        with _AT_ONCE:
            _hasher().verify(hashed, same_spelling(password) if len(password) <= MAX_LENGTH else "")
    except (VerificationError, InvalidHashError):
        return None
    return None if row is None else User(row["name"], row["role"], row["created"])


def check_role(role: str) -> Role:
    for known in ROLES:
        if role == known:
            return known
    raise UsageError(f"{role!r} is not a role.", f"Choose one of {', '.join(ROLES)}.")


def _check_is_new(database: sqlite3.Connection, name: str) -> None:
    if database.execute("SELECT 1 FROM users WHERE name = ? COLLATE NOCASE", (name,)).fetchone():
        raise UsageError(f"There is a user {name} already.", "Choose another name, or change the role or the password.")


def _existing(database: sqlite3.Connection, name: str) -> User:
    row = database.execute("SELECT name, role, created FROM users WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise UsageError(f"There is no user {name}.", "Look at the list of users.")
    return User(*row)


def _keep_an_administrator(database: sqlite3.Connection) -> None:
    if not has_administrator(database):
        raise UsageError("The last administrator must stay.", "Add another administrator first.")


def _end_sessions(database: sqlite3.Connection, name: str) -> None:
    database.execute("DELETE FROM sessions WHERE user = ?", (name,))


def _hash(password: str) -> str:
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise UsageError(f"A password has {MIN_LENGTH} to {MAX_LENGTH} characters.", "Choose another one.")
    with _AT_ONCE:
        return str(_hasher().hash(same_spelling(password)))


@cache
def _hasher() -> "PasswordHasher":
    try:
        from argon2 import PasswordHasher, Type
    except ModuleNotFoundError:
        raise UsageError("Passwords need the package argon2-cffi.", "Run: pip install 'lclrr-edge[console]'") from None
    return PasswordHasher(time_cost=3, memory_cost=1 << 16, parallelism=1, type=Type.ID)  # 64 MiB


@cache
def _nobody() -> str:
    """A hash that no password fits, for names that are not known."""
    return str(_hasher().hash(os.urandom(32)))
