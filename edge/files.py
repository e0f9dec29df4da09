"""Writing a file so that a reader, a crash or a pulled plug sees the old one or the new one, never half of either."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge.errors import UsageError


def read_bytes(path: Path) -> bytes:
    """A file that a person has named."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None


def write_atomically(path: str | Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` by `data` in one step. The default mode is private: what this project writes describes faces."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):  # interrupted when it had its name already
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on the disk too
    finally:
        os.close(folder)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Whoever else asks for this, of any process, waits meanwhile. The end of a process lets go, too."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
