"""Who is logged in: random cookies, whose digests are in console.db, and one-time links for the owner of the site."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainer.site import users
from trainer.site.folder import Site
from trainer.site.users import ADMINISTRATOR, ROLES, Role

IDLE_SECONDS = 8 * 3600.0
MAX_SECONDS = 7 * 86400.0
USED_SECONDS = 60.0  # how exactly the last use is stored
MAX_TOKENS = 20


@dataclass(frozen=True, kw_only=True)
class Session:
    """Who uses the console."""

    user: str
    role: Role
    csrf: str
    """The value that every form must send back."""

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class SessionStore:
    """The sessions of a site. A session ends after a time without use, and after a week in any case.

    `open_to_owner`: a site without users is used with one-time links, which only the owner of the process sees.
    """

    def __init__(
        self, site: Site, *, open_to_owner: bool = True, https: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._site, self._open_to_owner, self._clock = site, open_to_owner, clock
        self._tokens: list[str] = []
        self._lock = threading.Lock()
        # Browsers send the cookies of one port to all ports: each site has its own name.
        own = f"session_{_digest(str(site.path))[:8]}"
        self.cookie = f"__Host-{own}" if https else own
        self.https = https

    def begin(self, user: str, role: Role) -> str:
        """Return the cookie of a new session."""
        cookie, now = secrets.token_urlsafe(32), self._clock()
        with self._site.database() as database:
            database.execute("DELETE FROM sessions WHERE used < ? OR created < ?", (now - IDLE_SECONDS, now - MAX_SECONDS))
            row = (_digest(cookie), user, role, secrets.token_urlsafe(32), now, now)
            database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row)
        return cookie

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, or None. The role is the one that the user has now."""
        now = self._clock()
        with self._site.database() as database:
            row = database.execute(
                "SELECT s.*, u.role AS role_now FROM sessions s LEFT JOIN users u ON u.name = s.user WHERE s.digest = ?",
                (_digest(cookie),),
            ).fetchone()
            if row is None or row["used"] < now - IDLE_SECONDS or row["created"] < now - MAX_SECONDS:
                return None
            if row["role_now"] is None and (not self._open_to_owner or users.exist(database)):
                return None
            if row["used"] < now - USED_SECONDS:
                database.execute("UPDATE sessions SET used = ? WHERE digest = ?", (now, row["digest"]))
        return Session(user=row["user"], role=row["role_now"] or row["role"], csrf=row["csrf"])

    def end(self, cookie: str) -> None:
        with self._site.database() as database:
            database.execute("DELETE FROM sessions WHERE digest = ?", (_digest(cookie),))

    def needs_login(self) -> bool:
        """Return whether users log in with a password; else the owner of the site uses a one-time link."""
        with self._site.database() as database:
            return not self._open_to_owner or users.exist(database)

    def new_token(self) -> str:
        """Return the secret of a new one-time link."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens = [*self._tokens, _digest(token)][-MAX_TOKENS:]
        return token

    def redeem(self, token: str) -> str | None:
        """Return the cookie of a new session of the owner for a one-time secret; None if it is not valid any more."""
        if self.needs_login():
            return None
        with self._lock:
            if (digest := _digest(token)) not in self._tokens:
                return None
            self._tokens.remove(digest)
        return self.begin(users.login_name(), ADMINISTRATOR)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
