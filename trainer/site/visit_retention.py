"""How long visits are kept: a setting of the site, and the deletion of older ones."""

import sqlite3
from datetime import UTC, datetime, timedelta

from edge.errors import UsageError
from edge.events.event import utc_text
from edge.text import plural
from trainer.site import trail
from trainer.site.folder import transaction

MAX_DAYS = 36_500
AT_ONCE = 500  # visits of one transaction: others can write in between
IN_PASSING = 2000  # visits that one request deletes
KEEP_DAYS, PRUNED_ON = "visits.keep_days", "visits.pruned_on"  # names of settings


def keep_days(database: sqlite3.Connection) -> int:
    """Return how many days visits are kept; 0: no limit."""
    return int(_setting(database, KEEP_DAYS) or 0)


def set_keep_days(database: sqlite3.Connection, days: int, *, who: str, now: datetime) -> int:
    """Set how many days visits are kept (0: no limit), delete older ones, and return their number."""
    if not 0 <= days <= MAX_DAYS:
        raise UsageError(f"Visits are kept for 1 to {MAX_DAYS:,} days, or 0: without a limit.", "Write a number of days.")
    with transaction(database):
        _set(database, KEEP_DAYS, str(days))
        trail.record(database, who, "keep visits", plural(days, "day") if days else "without a limit")
    return prune_by_setting(database, who=who, now=now)


def prune_by_setting(database: sqlite3.Connection, *, who: str, now: datetime) -> int:
    """Delete all visits that are older than the setting allows, and return their number."""
    days = keep_days(database)
    return prune(database, days, who=who, now=now) if days else 0


def prune(database: sqlite3.Connection, days: float, *, who: str, now: datetime) -> int:
    """Delete visits older than `days`, and return their number. Photos that were made of them stay."""
    if not 0 < days <= MAX_DAYS:
        raise UsageError(f"{days:g} is not a number of days.", f"Use a number from 1 to {MAX_DAYS:,}.")
    deleted = _delete_before(database, utc_text(now.astimezone(UTC) - timedelta(days=days)))
    if deleted:
        trail.record(database, who, "delete visits", plural(deleted, "visit"), f"older than {days:g} days")
    return deleted


def prune_in_passing(database: sqlite3.Connection, now: datetime) -> int:
    """Delete some of the visits that are older than the setting allows, once a day. Requests call this."""
    days, today = keep_days(database), utc_text(now)[:10]
    if not days or _setting(database, PRUNED_ON) == today:
        return 0
    deleted = _delete_before(database, utc_text(now - timedelta(days=days)), IN_PASSING)
    if deleted < IN_PASSING:
        _set(database, PRUNED_ON, today)
    if deleted:
        trail.record(database, "the console", "delete visits", plural(deleted, "visit"), f"older than {days} days")
    return deleted


def _delete_before(database: sqlite3.Connection, utc: str, most: int | None = None) -> int:
    deleted = 0
    while most is None or deleted < most:
        found = database.execute(
            "DELETE FROM visits WHERE id IN (SELECT id FROM visits WHERE utc < ? ORDER BY utc LIMIT ?)", (utc, AT_ONCE)
        ).rowcount
        deleted += found
        if found < AT_ONCE:
            break
    if deleted:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the write-ahead file still contains the deleted visits
    return deleted


def _setting(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _set(database: sqlite3.Connection, name: str, value: str) -> None:
    database.execute(
        "INSERT INTO settings VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
    )
