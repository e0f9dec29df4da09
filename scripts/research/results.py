"""Measurements that take long: each is kept in a JSON file as soon as it is made, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.errors import UsageError
from edge.files import write_atomically

HELP = "Keep results here, and go on from those found there."


class Kept(dict[str, Any]):
    """Results by name: those in the file, and those that are kept from now on. Without a file they live as long as this."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        if file is not None and file.exists():
            try:
                super().__init__(json.loads(file.read_text()))
            except (OSError, ValueError, TypeError):
                raise UsageError(f"{file} holds no results.", "Name another file with --json.") from None

    def keep(self, name: str, value: Any) -> None:
        self[name] = value
        if self.file is not None:
            write_atomically(self.file, (json.dumps(self, indent=1) + "\n").encode(), mode=0o644)

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """The result of that name, measured if it is not there yet."""
        if name not in self:
            self.keep(name, measure())
        return self[name]
