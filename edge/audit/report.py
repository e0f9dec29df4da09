"""Read an audit log: entries as text, JSON Lines or CSV, and decrypted pictures."""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge.audit.crypto import open_box
from edge.audit.log import DO_NOT_TRUST, AuditLog, LogEntry
from edge.errors import AuditChainError, UsageError
from edge.events.event import FROM_LOG, Event
from edge.files import write_atomically
from edge.text import escaped, printable, strict_json

# What a spreadsheet takes for a formula: at the beginning of a cell, or after a semicolon, which separates cells in some
# countries. Spaces and quotation marks before it do not matter, and neither does the full width of East Asian characters.
_FORMULA = re.compile(r"""(^|;)(?=[\s"'\u201c\u201d]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])""")


def entry_line(entry: LogEntry) -> str:
    """Return one line of text about an entry."""
    facts = entry.facts
    kind, outcome, label, reason = (printable(str(facts.get(key) or "")) for key in ("kind", "outcome", "label", "reason"))
    return f"{entry.seq:>6}  {printable(str(facts.get('utc')))}  {kind:<9} {outcome:<8} {label:<12}  {reason}".rstrip()


def export(entries: Iterable[LogEntry], form: str) -> Iterator[str]:
    """Yield lines of JSON, or of CSV with the fields of events as columns and all other facts in the last column.

    In CSV, text shows unprintable characters as escapes, and an apostrophe stands before text that looks like a formula.
    """
    if form == "jsonl":
        for entry in entries:
            yield f'{{"seq": {entry.seq}, "hash": "{entry.hash}", "entry": {entry.json}}}'
        return
    columns = [field.name for field in fields(Event) if field.name not in FROM_LOG]  # seq and hash are the head
    echo: Any = SimpleNamespace(write=str)  # writerow returns the result of write
    csv_line = csv.writer(echo, lineterminator="").writerow
    yield csv_line(["seq", "hash", *columns, "more"])
    for entry in entries:
        facts = entry.facts
        values = [facts.pop(name, None) for name in columns]
        yield csv_line(map(csv_cell, [entry.seq, entry.hash, *values, strict_json(facts) if facts else None]))


def csv_cell(value: Any) -> Any:
    """Return text that a spreadsheet shows and does not run. Numbers stay numbers."""
    if value is None or isinstance(value, int | float):
        return value
    return escaped(_FORMULA.sub(r"\1'", str(value)))


def decrypt_pictures(audit: AuditLog, private_key: bytes, folder: Path, event_id: str | None = None) -> list[Path]:
    """Write the pictures of all events, or of one event, into `folder`. Return the files."""
    written = []
    for entry in audit.entries():
        facts = entry.facts
        of = str(facts.get("of"))
        if facts.get("kind") != "picture" or (event_id is not None and of != event_id):
            continue
        box = audit.picture(of)
        if box is None or not of.isalnum():  # the id becomes a file name
            raise AuditChainError(f"The picture of entry {entry.seq} is missing.", DO_NOT_TRUST)
        picture = open_box(box, of.encode(), private_key)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / f"{of}.jpg", picture)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written ({error.strerror}).", "Choose another folder.") from None
        written.append(folder / f"{of}.jpg")
    return written
