"""The trail: who changed what in a site, and when."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.site.folder import containing, utc_now


@dataclass(frozen=True)
class Change:
    """One entry of the trail."""

    id: int
    utc: str
    who: str
    action: str
    subject: str
    details: str


def record(database: sqlite3.Connection, who: str, action: str, subject: str, details: str = "") -> None:
    """Write an entry, in the transaction of the change if there is one."""
    database.execute(
        "INSERT INTO trail (utc, who, action, subject, details) VALUES (?, ?, ?, ?, ?)",
        (utc_now(), who, action, subject, details),
    )


def changes(
    database: sqlite3.Connection,
    *,
    search: str = "",
    actions: Sequence[str] = (),
    before: int | None = None,
    most: int = 100,
) -> list[Change]:
    """Return the newest entries with the text or one of the actions, newest first; with `before`, those with a lower id."""
    text = containing(search)
    rows = database.execute(
        "SELECT id, utc, who, action, subject, details FROM trail WHERE id < coalesce(?, id + 1)"
        " AND (who LIKE ? ESCAPE '!' OR action LIKE ? ESCAPE '!' OR subject LIKE ? ESCAPE '!'"
        f" OR action IN ({', '.join('?' * len(actions))})) ORDER BY id DESC LIMIT ?",
        (before, text, text, text, *actions, most),
    )
    return [Change(*row) for row in rows]
