"""Read files, write them atomically, and lock a folder."""

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from edge.errors import EdgeError, UsageError

MAX_NAMES = 100  # to try for a temporary file


def read_bytes(path: str | Path, limit: int = -1, failure: type[EdgeError] = UsageError) -> bytes:
    """Return the content of a file that the user named, or its first `limit` bytes."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a file name"
        raise failure(f"{path} cannot be read ({why}). Check the path.") from None


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever a file is replaced or written, or its owner changes; None: there is no such file."""
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return None


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


def write_atomically(
    path: str | Path, data: bytes, *, mode: int = 0o600, keep_owner: bool = False, folder: int | None = None
) -> None:
    """Replace a file in one step: a reader, a crash or a power loss sees the old file or the new one."""
    with open_atomically(path, mode=mode, keep_owner=keep_owner, folder=folder) as file:
        file.write(data)


@contextmanager
def open_atomically(
    path: str | Path, *, mode: int = 0o600, keep_owner: bool = False, folder: int | None = None
) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` in one step at the end of the block.

    By default only the owner can read it, because most files of this project describe faces. With `keep_owner`, owner, group
    and mode of a replaced file stay. With the descriptor of a `folder`, `path` is a name in it. What a killed writer of the
    same path left is removed.
    """
    path = Path(path)
    if folder is None:
        with ExitStack() as stack:
            found = stack.enter_context(opened_folder(path.parent))
            yield stack.enter_context(open_atomically(path.name, mode=mode, keep_owner=keep_owner, folder=found))
        return
    remove_abandoned(folder, path.name)
    handle, temporary = _open_temporary(folder, path.name)
    with os.fdopen(handle, "wb") as file:  # closed, and with it unlocked, after the file has its name
        try:
            os.fchmod(handle, (keep_owner and _take_owner(handle, path.name, folder)) or mode)
            yield file
            file.flush()
            os.fsync(handle)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):  # it was renamed already
                os.unlink(temporary, dir_fd=folder)
            raise
    os.fsync(folder)  # the new name is on the disk, too


def _open_temporary(folder: int, name: str) -> tuple[int, str]:
    """Return descriptor and name of a new file that is locked while its writer lives."""
    for _ in range(MAX_NAMES):
        temporary = f".{name}.{secrets.token_hex(4)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(temporary, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            continue
        with suppress(OSError):  # a file system without locks: then no writer removes such files
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)  # another writer removed it before it was locked
    raise FileExistsError(errno.EEXIST, "no free name for a temporary file")


def _take_owner(handle: int, name: str, folder: int) -> int | None:
    """Give a new file the owner and group of the file that it replaces. Return the mode of that file; None: there is none."""
    try:
        found = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    with suppress(PermissionError):  # without root's rights, a new file has the right owner, and maybe another group
        os.fchown(handle, found.st_uid if os.geteuid() == 0 else -1, found.st_gid)
    return found.st_mode & 0o777


def remove_abandoned(folder: int, name: str | None = None) -> None:
    """Remove the unfinished files of killed writers of `name`, or of any name, in a folder given by its descriptor."""
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[a-z0-9_]{{8}}\.part", re.DOTALL)
    for found in filter(pattern.fullmatch, os.listdir(folder)):
        with suppress(OSError):  # locked by its writer, gone meanwhile, or not ours
            handle = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(found, dir_fd=folder)
            finally:
                os.close(handle)


@contextmanager
def opened_folder(path: str | Path, *, inside: int | None = None) -> Iterator[int]:
    """Yield the descriptor of a folder. With `inside`, the path is a name in that folder, and must not be a symbolic link."""
    link = 0 if inside is None else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link, dir_fd=inside)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder. Other threads and processes that lock it wait. The lock ends with the process."""
    with opened_folder(folder) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
