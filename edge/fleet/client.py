"""The client of a fleet's repository: the package `tuf` checks everything, over our connection, into files that survive a
power failure. This module needs `tuf`; it is loaded when a pull begins.
"""

import http.client
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import urlsplit

from tuf.api.exceptions import (
    DownloadError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
)
from tuf.api.metadata import Metadata, TargetFile, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from edge.addresses import web_address
from edge.errors import EdgeError
from edge.files import write_atomically
from edge.fleet.connection import Connection
from edge.fleet.documents import MAX_BYTES
from edge.fleet.problems import PullError, PullPausedError
from edge.kit import format as kits
from edge.text import printable

METADATA, TARGETS, PARTIAL, FILES = "metadata", "targets", "partial", "files"
SECONDS = 20.0  # for one answer, except a kit
CHUNK = 1 << 16
MAX_ETAG = 200
CONFIG = UpdaterConfig(max_root_rotations=64, max_delegations=2, snapshot_max_length=MAX_BYTES, targets_max_length=MAX_BYTES)


class Client:
    """The repository as this terminal sees it. One pull is `refresh`, then `small_target` and `kit`. Only for one thread."""

    def __init__(self, url: str, root: bytes, folder: Path, connection: Connection, *, kit_seconds: float) -> None:
        """`root` is the content of the trusted root.json. `folder` keeps what was verified. A kit is downloaded for at most
        `kit_seconds` at a time, so that revocations do not wait for it."""
        self._url, self._root, self._folder = web_address(url).geturl().rstrip("/"), root, folder
        for name in (METADATA, PARTIAL, FILES):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fetcher = _Fetcher(connection, folder / PARTIAL, kit_seconds)
        self._updater: Updater | None = None

    def refresh(self, when: datetime) -> int:
        """Fetch and verify the metadata, as of this time. Return the version of the timestamp. Raises PullError."""
        with _problems():
            self._updater = _Updater(
                str(self._folder / METADATA), f"{self._url}/{METADATA}/", self._fetcher, self._root, when=when
            )
            try:
                self._updater.refresh()
            except Exception:
                self._fetcher.forget_timestamp()
                raise
            timestamp = Metadata[Timestamp].from_file(str(self._folder / METADATA / "timestamp.json"))
            return int(timestamp.signed.version)

    def require_delegated(self, path: str) -> None:
        """Raise PullError if the repository has no group for a target: then nothing says that there is no such target."""
        assert self._updater is not None, "refresh comes first"
        delegations = self._updater._trusted_set.targets.delegations
        if delegations is None or not any(delegations.get_roles_for_target(path)):
            raise PullError("invalid", f"The repository has no group {path.partition('/')[0]}.")

    def small_target(self, path: str, name: str, check: Callable[[bytes], object]) -> bytes | None:
        """Return the content of a target, or None if there is none. It stays in the folder as `name`. Raises PullError.

        `check` raises an error if the content cannot be used. The file before then stays.
        """
        file = self._folder / FILES / name
        with _problems():
            found = self._info(path)
            if found is None:
                self.require_delegated(path)
                file.unlink(missing_ok=True)
                return None
            if found.length > MAX_BYTES:
                raise PullError("invalid", f"{path} of the fleet has {found.length} bytes, more than {MAX_BYTES}.")
            with suppress(OSError, LengthOrHashMismatchError):
                data = file.read_bytes()
                found.verify_length_and_hashes(data)
                return data
            data = self._download(found)
            try:
                check(data)
            except EdgeError as error:
                raise PullError("invalid", error.message) from None
            write_atomically(file, data)
            return data

    def kit(self, path: str) -> bytes:
        """Download a kit, or continue its download. PullPausedError if it is not complete yet. Raises PullError."""
        with _problems():
            found = self._info(path)
            if found is None:
                raise PullError("invalid", f"The repository has no {path}.")
            if found.length > kits.MAX_BYTES:
                raise PullError("invalid", f"{path} is larger than {kits.MAX_BYTES >> 20} MB.")
            return self._download(found)

    def _info(self, path: str) -> TargetFile | None:
        assert self._updater is not None, "refresh comes first"
        return self._updater.get_targetinfo(path)

    def _download(self, found: TargetFile) -> bytes:
        assert self._updater is not None
        file = self._folder / "download"
        try:
            self._updater.download_target(found, str(file), f"{self._url}/{TARGETS}/")
            data = file.read_bytes()
            self._fetcher.forget_partial()
            return data
        except LengthOrHashMismatchError:
            self._fetcher.forget_partial()
            raise PullError("untrusted", f"The server has another {_name(found.path)} than the one that was signed.") from None
        finally:
            file.unlink(missing_ok=True)


class _Updater(Updater):
    """The updater of `tuf` with our clock. It writes metadata to the disk safely, and only if they changed."""

    def __init__(self, folder: str, url: str, fetcher: "_Fetcher", root: bytes, *, when: datetime) -> None:
        super().__init__(folder, url, fetcher=fetcher, config=CONFIG, bootstrap=root)
        self._trusted_set.reference_time = when

    def _persist_file(self, filename: str, data: bytes) -> None:
        with suppress(OSError):
            if Path(filename).read_bytes() == data:
                return
        write_atomically(filename, data)

    def _update_root_symlink(self) -> None:
        """Make no link: each update starts from the root.json of the settings, and follows the stored versions from there."""


class _Fetcher(FetcherInterface):
    """Downloads for `tuf`, which checks what arrives. A kit is continued where its last download ended."""

    def __init__(self, connection: Connection, partial: Path, kit_seconds: float) -> None:
        self._connection, self._partial, self._kit_seconds = connection, partial, kit_seconds
        self._known = "", b""
        """The timestamp: its ETag at the server, and its content."""

    def _fetch(self, url: str) -> Iterator[bytes]:
        path = urlsplit(url).path
        is_timestamp = path.endswith("/timestamp.json")
        etag, known = self._known if is_timestamp else ("", b"")
        with self._get(path, {"If-None-Match": etag} if etag else {}, SECONDS) as response:
            if response.status == 304 and etag:
                response.read()
                yield known
                return
            _require_status(response, path, 200)
            received = []
            while chunk := response.read(CHUNK):
                received.append(chunk)
                yield chunk
            if response.length:
                raise DownloadError(f"the connection ended within {_name(path)}")
        if is_timestamp:
            self._known = _strong_etag(response), b"".join(received)

    def forget_timestamp(self) -> None:
        """Ask for the timestamp without its ETag. After one that was refused, the right one may have the same ETag."""
        self._known = "", b""

    @contextmanager
    def download_file(self, url: str, max_length: int) -> Iterator[IO[bytes]]:
        """Yield a file with the content of an address, which is at most `max_length` bytes long."""
        if not url.endswith(".kit"):
            # For metadata, `max_length` is the signed length, if there is one: a thief of an online key chooses it.
            with super().download_file(url, min(max_length, MAX_BYTES)) as file:
                yield file
            return
        path = urlsplit(url).path
        partial = self._partial / _name(path)
        self.forget_partial(keep=partial)
        with open(partial, "ab") as file:
            self._continue(path, file, max_length)
        with open(partial, "rb") as complete:
            yield complete

    def forget_partial(self, keep: Path | None = None) -> None:
        """Remove the unfinished kits, except one."""
        for file in self._partial.iterdir():
            if file != keep:
                file.unlink()

    def _continue(self, path: str, file: BinaryIO, length: int) -> None:
        """Append what is missing of a file. PullPausedError if there was progress, but something is still missing."""
        begun = file.tell()
        if begun > length:
            begun = file.truncate(0)
        if begun == length:
            return
        problem = "the server ended the connection"
        try:
            with self._get(path, {"Range": f"bytes={begun}-"} if begun else {}, self._kit_seconds) as response:
                if begun and not _is_rest(response, begun):
                    begun = file.truncate(0)  # all of it follows, or nothing that is useful
                _require_status(response, path, 206 if begun else 200)
                _append(response, file, length - begun)
        except _ConnectionLostError as error:
            problem = str(error)
        except DownloadLengthMismatchError:
            file.truncate(0)
            raise
        file.flush()
        if begun < (arrived := os.fstat(file.fileno()).st_size) < length:
            raise PullPausedError(arrived, length)
        if arrived < length:
            raise DownloadError(problem)

    @contextmanager
    def _get(self, path: str, headers: dict[str, str], seconds: float) -> Iterator[http.client.HTTPResponse]:
        try:
            with self._connection.get(path, headers, seconds) as response:
                yield response
        except (OSError, http.client.HTTPException) as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
            raise _ConnectionLostError(str(why or type(error).__name__)) from error


class _ConnectionLostError(DownloadError):
    """There is no connection, or it ended before the answer was complete."""


def _append(response: http.client.HTTPResponse, file: BinaryIO, missing: int) -> None:
    """Write the body of an answer, which is at most `missing` bytes long."""
    while chunk := response.read1(CHUNK):
        missing -= len(chunk)
        if missing < 0:
            raise DownloadLengthMismatchError("a kit is longer than its metadata say")
        try:
            file.write(chunk)
            file.flush()
        except OSError as error:
            raise PullError("device", f"A kit cannot be stored ({error.strerror}).") from None


def _is_rest(response: http.client.HTTPResponse, begun: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {begun}-")


def _require_status(response: http.client.HTTPResponse, path: str, expected: int) -> None:
    if response.status != expected:
        response.read(CHUNK)
        raise DownloadHTTPError(f"the server answered {response.status} for {_name(path)}", response.status)


def _strong_etag(response: http.client.HTTPResponse) -> str:
    """Return the ETag of an answer, if another content would have another one: nginx makes it of size and second."""
    try:
        dates = [parsedate_to_datetime(response.headers.get(name, "")) for name in ("Date", "Last-Modified")]
        is_strong = dates[0] - dates[1] >= timedelta(seconds=2)
    except (TypeError, ValueError):
        is_strong = False
    etag = response.headers.get("ETag", "")
    return etag if is_strong and len(etag) <= MAX_ETAG and etag.isprintable() else ""


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@contextmanager
def _problems() -> Iterator[None]:
    """Turn the errors of `tuf` into ours."""
    try:
        yield
    except ExpiredMetadataError as error:
        raise PullError("expired", f"The data of the fleet have expired ({_short(error)}).") from None
    except DownloadLengthMismatchError as error:
        raise PullError("untrusted", f"The server sent too much ({_short(error)}).") from None
    except DownloadError as error:
        raise PullError("network", f"The repository cannot be read ({_short(error)}).") from None
    except (RepositoryError, ValueError) as error:
        raise PullError("untrusted", f"The server sent data that are not accepted ({_short(error)}).") from None
    except OSError as error:
        raise PullError("device", f"The data of the fleet cannot be stored ({error.strerror}).") from None


def _short(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)[:200]
