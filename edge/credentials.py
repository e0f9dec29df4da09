"""Secrets: never in the settings, which are shown and copied, but in a file of their own or in the environment."""

from __future__ import annotations

import os
from pathlib import Path

from edge.errors import SettingsError

MAX_BYTES = 1 << 16


def read_secret(what: str, file: str | Path | None, variable: str | None) -> str | None:
    """The first line of the file, or what the environment's variable holds; None where neither is named."""
    if file is not None:
        try:
            with open(file, "rb") as stream:
                text = stream.read(MAX_BYTES).decode()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8 text"
            raise SettingsError(f"The file of the {what}, {file}, cannot be read ({why}).") from None
        found = text.partition("\n")[0].strip("\r")
        if not found:
            raise SettingsError(f"The file of the {what}, {file}, begins with an empty line.")
        return found
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise SettingsError(f"The {what} is to be in the environment's variable {variable}, which is not set.")
        return value
    return None
