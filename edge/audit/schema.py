"""The tables of an audit log, and the check that an SQLite file has these tables and nothing else.

SQLite runs triggers, views, generated columns, constraints and indexes that a file contains. A trigger that another program
put into the file can delete an entry while it is written, and the chain of the others stays valid.
"""

import sqlite3
from contextlib import closing
from functools import cache

APPLICATION_ID = 0x1C1A0D17  # in the header of the SQLite file
VERSION = 1
TABLES_SQL = """
CREATE TABLE entries (seq INTEGER PRIMARY KEY, json TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX once ON entries (json_extract(json, '$.event_id'));
CREATE TABLE pictures (event_id TEXT PRIMARY KEY, box BLOB NOT NULL) STRICT;
"""

Row = tuple[object, ...]


def protect(db: sqlite3.Connection) -> None:
    """Make SQLite careful with a file that others may have changed. Extensions are off by default."""
    db.execute("PRAGMA cell_size_check=ON")
    if _works_untrusted():
        db.execute("PRAGMA trusted_schema=OFF")


def create(db: sqlite3.Connection) -> None:
    """Create the tables in an empty database, inside the current transaction."""
    for statement in TABLES_SQL.split(";")[:-1]:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={VERSION}")


def difference(db: sqlite3.Connection) -> str:
    """Return the names of the objects that are missing, changed or not ours; empty if there is no difference."""
    different = sorted(_rows(db) ^ _expected(), key=repr)
    return ", ".join(dict.fromkeys(f"{kind} {name}" for kind, name, *_ in different))


@cache
def _works_untrusted() -> bool:
    """Return whether our own index works without trust: older versions of SQLite count json_extract as unsafe."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA trusted_schema=OFF")
        try:
            create(db)
        except sqlite3.OperationalError:
            return False
        return True


@cache
def _expected() -> frozenset[Row]:
    with closing(sqlite3.connect(":memory:")) as db:
        create(db)
        return _rows(db)


def _rows(db: sqlite3.Connection) -> frozenset[Row]:
    return frozenset(db.execute("SELECT type, name, tbl_name, sql FROM main.sqlite_schema"))
