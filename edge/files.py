"""Read files, write them atomically, and lock a folder."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from edge.errors import EdgeError, UsageError


def read_bytes(path: str | Path, limit: int = -1, failure: type[EdgeError] = UsageError) -> bytes:
    """Return the content of a file that the user named, or its first `limit` bytes."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a file name"
        raise failure(f"{path} cannot be read ({why}). Check the path.") from None


def write_file(path: str | Path, data: bytes, *, mode: int = 0o600, failure: type[EdgeError] = UsageError) -> None:
    """Write a file that the user named, as `write_atomically` does."""
    with replaced_file(path, mode=mode, failure=failure) as file:
        file.write(data)


@contextmanager
def replaced_file(path: str | Path, *, mode: int = 0o600, failure: type[EdgeError] = UsageError) -> Iterator[BinaryIO]:
    """Open a file that the user named for writing, as `open_atomically` does."""
    try:
        with open_atomically(path, mode=mode) as file:
            yield file
    except OSError as error:
        hint = "Choose another path, or check free space and permissions."
        raise failure(f"{path} cannot be written ({error.strerror}).", hint) from None


def write_atomically(path: str | Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file in one step: a reader, a crash or a power loss sees the old file or the new one."""
    with open_atomically(path, mode=mode) as file:
        file.write(data)


@contextmanager
def open_atomically(path: str | Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` in one step at the end of the block.

    By default only the owner can read it, because most files of this project describe faces.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):  # it was renamed already
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on the disk, too
    finally:
        os.close(folder)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder. Other threads and processes that lock it wait. The lock ends with the process."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
