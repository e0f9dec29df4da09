"""Work as the user who controls a path, if this process runs as root.

A user who owns a folder can replace anything below it by a symbolic link at any moment. A command of root that writes there
by path could so be led to any file of the system. With the rights of that user, a link leads to nothing that this user could
not write without us, and new files belong to this user from the start.
"""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import NamedTuple

from edge.errors import UsageError

MAX_LINKS = 40  # as in the Linux kernel
NO_GROUP = 65534


class Rights(NamedTuple):
    """User, group and further groups of a process, as the kernel checks them."""

    user: int
    group: int
    groups: tuple[int, ...]

    @classmethod
    def now(cls) -> "Rights":
        return cls(os.geteuid(), os.getegid(), tuple(os.getgroups()))

    @classmethod
    def of(cls, user: int) -> "Rights":
        """Return the rights that a user has after a login. A user without an account has no groups."""
        try:
            account = pwd.getpwuid(user)
        except KeyError:
            return cls(user, NO_GROUP, ())
        return cls(user, account.pw_gid, tuple(os.getgrouplist(account.pw_name, account.pw_gid)))

    def take(self) -> None:
        """Use these rights from now on. The real user must be root."""
        os.seteuid(0)
        os.setgroups(self.groups)
        os.setegid(self.group)
        os.seteuid(self.user)


def controlling_user(path: str | Path, *, replaced: bool = False) -> tuple[int, Path]:
    """Return the owner of the first part of a path that root does not own, else 0: this user controls all that follows.

    Also returns the path without the links before that part: links that root made are followed. Parts that do not exist are
    controlled by the owner of the folder. With `replaced`, the path is a file that will be replaced: its folder decides.
    Members of a group that may write to a folder of root are trusted as root is. A folder of root that everyone can write to
    needs the sticky bit.
    """
    here, links = Path("/"), 0
    todo = list(reversed(Path(path).absolute().parts[1:]))
    while todo:
        name = todo.pop()
        here = here.parent if name == ".." else here / name
        try:
            found = os.lstat(here)
        except (FileNotFoundError, NotADirectoryError):
            break
        is_link = stat.S_ISLNK(found.st_mode)
        if found.st_uid != 0 and not (replaced and not todo and not is_link):
            return found.st_uid, here.joinpath(*reversed(todo))
        if is_link:
            links += 1
            if links > MAX_LINKS:
                raise UsageError(f"{path} has too many symbolic links.", "Name the place itself.")
            target = PurePath(os.readlink(here))
            here = Path("/") if target.is_absolute() else here.parent
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        elif stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise UsageError(f"Every user can change {here}, so root does not write there.", f"Run `chmod o-w {here}`.")
    return 0, here.joinpath(*reversed(todo))


@contextmanager
def rights_over(path: str | Path, *, replaced: bool = False) -> Iterator[Path]:
    """As root, run the block with the rights of the user who controls `path`. Otherwise change nothing.

    Yields the path, without links if it is root's: nothing that follows a link again as root can then be deceived. With
    `replaced`, the path is a file that will be replaced. The rights change for all threads of the process: only commands use
    it, not a running terminal. Blocks can be nested.
    """
    if os.getuid() != 0:
        yield Path(path)
        return
    before = Rights.now()
    if before.user != 0:  # inside another block: the path is looked up as root
        Rights.of(0).take()
    try:
        user, found = controlling_user(path, replaced=replaced)
        if user != 0:
            Rights.of(user).take()
        yield found
    finally:
        if Rights.now() != before:  # a process without changes needs no right to change its groups
            before.take()
