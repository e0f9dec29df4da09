"""What a terminal remembers about its fleet over restarts: when data were verified, and which kits it was offered."""

import json
import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edge.files import write_atomically
from edge.fleet.freshness import Freshness

SCHEMA = 1
NAME = "state.json"
MAX_BYTES = 1 << 16
MAX_OFFERED = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The contents of state.json."""

    freshness: Freshness = field(default_factory=Freshness)
    offered: tuple[str, ...] = ()
    """SHA-256 of the kits that were put in place, the newest last. None of them is put in place again."""
    problem: str = ""
    """The last one that was announced; empty: the data were fresh."""

    def with_offered(self, sha256: str) -> "Memory":
        return replace(self, offered=(*self.offered, sha256)[-MAX_OFFERED:])

    def save(self, folder: Path) -> None:
        contents = {"schema": SCHEMA, "freshness": asdict(self.freshness), "offered": self.offered, "problem": self.problem}
        write_atomically(folder / NAME, json.dumps(contents).encode())

    @classmethod
    def load(cls, folder: Path) -> "Memory":
        """Read state.json. If it is missing or damaged, nothing was ever verified."""
        try:
            with open(folder / NAME, "rb") as file:
                return _parsed(json.loads(file.read(MAX_BYTES)))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("%s of the fleet cannot be used (%s): the data count as never verified", NAME, type(error).__name__)
            return cls()


def _parsed(contents: Any) -> Memory:
    """Return the memory, or raise ValueError, TypeError or KeyError."""
    if not isinstance(contents, dict) or contents["schema"] != SCHEMA:
        raise ValueError("another version")
    found, offered, problem = Freshness(**contents["freshness"]), contents["offered"], contents["problem"]
    numbers = [found.ran, found.running, found.restarts, found.timestamp, 0 if found.utc is None else found.utc]
    are_numbers = all(type(number) in (int, float) and 0 <= number < 1e15 for number in numbers)
    texts = [found.boot, problem, *offered]
    if not are_numbers or not all(type(text) is str for text in texts):
        raise ValueError("wrong types")
    return Memory(freshness=found, offered=tuple(offered), problem=problem)
