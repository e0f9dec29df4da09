"""How many entries the visitors with a limited number have used: a small file that survives restarts and power failures.

It has no names: the keys are digests (`AllowEntry.count_key`). Every error is one for the door, which then denies.
"""

import json
import threading
from pathlib import Path
from typing import Any

from edge.errors import DoorListError
from edge.files import write_file

SCHEMA = 1
MAX_KEYS = 20_000
"""More than a list can name at a time with any use. After that, the keys that were not used for the longest time go first."""
MAX_BYTES = 2 << 20


class EntryCounts:
    """The used entries by count key. The file is read and written at each use, so that no restart forgets an entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def used(self, key: str) -> int:
        """Return the number of used entries. DoorListError if the file cannot be read."""
        return self._load().get(key, 0)

    def add(self, key: str) -> None:
        """Count one more entry. DoorListError if that cannot be stored."""
        with self._lock:
            counts = self._load()
            counts[key] = counts.pop(key, 0) + 1  # the newest is the last
            for old in list(counts)[:-MAX_KEYS]:
                del counts[old]
            self._store(counts)

    def check(self) -> None:
        """Read the file and write it again. DoorListError if that is not possible."""
        with self._lock:
            self._store(self._load())

    def _load(self) -> dict[str, int]:
        try:
            with open(self.path, "rb") as file:
                return _counts(json.loads(file.read(MAX_BYTES)))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DoorListError(f"{self.path} cannot be read ({error.strerror}).", "Check its permissions.") from None
        except (ValueError, RecursionError):
            problem = f"{self.path} is damaged: it is not known how many entries visitors have left."
            raise DoorListError(problem, "Remove it: all visitors then have their full number of entries.") from None

    def _store(self, counts: dict[str, int]) -> None:
        write_file(self.path, json.dumps({"schema": SCHEMA, "used": counts}).encode(), failure=DoorListError)


def _counts(contents: Any) -> dict[str, int]:
    """Return the counts, or raise ValueError."""
    used = contents.get("used") if isinstance(contents, dict) and contents.get("schema") == SCHEMA else None
    if not isinstance(used, dict) or not all(type(number) is int and number >= 0 for number in used.values()):
        raise ValueError("not counts of entries")
    return used
