"""A JSON file of results. Each measurement is saved when it is made, so that an interrupted run can continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.errors import UsageError
from edge.files import write_atomically


class ResultsFile(dict[str, Any]):
    """Results by name: those in the file and those that are saved later. Without a file they are kept in memory."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        if file is not None and file.exists():
            try:
                super().__init__(json.loads(file.read_text()))
            except (OSError, ValueError, TypeError):
                raise UsageError(f"{file} is not a file of results.", "Name another file.") from None

    def save(self, name: str, value: Any) -> None:
        self[name] = value
        if self.file is not None:
            write_atomically(self.file, (json.dumps(self, indent=1) + "\n").encode(), mode=0o644)

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the result `name`; measure and save it if it is missing."""
        if name not in self:
            self.save(name, measure())
        return self[name]
