"""The family of errors that a user may meet: one sentence, a next step, an exit code.

Everything that a person can cause (a missing file, a blank photo, a wrong option) is raised as one of these; the
command-line tools print the sentence and leave with the code. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_INTERRUPTED = 130


class EdgeError(Exception):
    """Base of the family. `message` says what is wrong, `hint` what to do about it."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(EdgeError):
    """An option or a combination of options that cannot work."""


class ParameterError(UsageError, ValueError):
    """A value outside the range in which it means something."""


class GalleryError(EdgeError):
    """Photos that cannot be trained on."""


class ModelError(EdgeError):
    """A model file that cannot be read, written or trusted."""


class TrainingError(EdgeError, ValueError):
    """Training that did not give a usable model (collapsed, diverged, one class...)."""
