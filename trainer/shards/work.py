"""The folder of a training in progress, beside its output: a killed run continues with the dictionaries and vectors in it.

It describes faces, so only its owner can read it, and it is deleted when the model is saved.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import UsageError
from edge.files import replaced_file
from trainer.types import Array

SUFFIX = ".work"
DIGEST = 32  # bytes


class WorkFolder:
    """Finished dictionaries and vectors, by digests of everything that they depend on."""

    def __init__(self, path: Path) -> None:
        """The folder is made when something is written."""
        self.path = path

    def dictionary(self, key: str) -> tuple[Array, Array] | None:
        """Return the dictionary (d,m) and the people of its atoms (m,) that were saved with this key, mapped."""
        files = [self.path / f"{name}-{key}.npy" for name in ("dictionary", "atoms")]
        if not all(file.exists() for file in files):
            return None
        dictionary, atoms = (np.load(file, mmap_mode="r") for file in files)
        return dictionary, atoms

    def save_dictionary(self, key: str, dictionary: Array, atoms: Array) -> None:
        self._make()
        for name, array in (("atoms", atoms), ("dictionary", dictionary)):
            with replaced_file(self.path / f"{name}-{key}.npy") as file:
                np.save(file, array)

    def vectors(self, key: str, width: int) -> "VectorFile":
        """Return the file of vectors with this key: of one network and its settings."""
        self._make()
        return VectorFile(self.path / f"vectors-{key}.bin", width)

    def crops_file(self) -> Path:
        """Return the file for the crops of a gallery that is being read."""
        self._make()
        return self.path / "crops.bin"

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be made ({error.strerror}).", "Name another output.") from None

    def delete(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class VectorFile:
    """Vectors (width,) in float32 by the digest of their crop. Records are appended; one that was cut off is ignored."""

    def __init__(self, path: Path, width: int) -> None:
        self.path = path
        self.record = np.dtype([("digest", f"V{DIGEST}"), ("vector", np.float32, (width,))])

    def read(self) -> dict[bytes, Array]:
        """Return the vectors by digest, mapped."""
        if not self.path.exists() or self.path.stat().st_size < self.record.itemsize:
            return {}
        records = np.memmap(self.path, self.record, "r", shape=(self.path.stat().st_size // self.record.itemsize,))
        return {record["digest"].tobytes(): record["vector"] for record in records}

    def append(self, digests: list[bytes], vectors: Array) -> None:
        records = np.empty(len(digests), self.record)
        records["digest"] = np.frombuffer(b"".join(digests), f"V{DIGEST}")
        records["vector"] = vectors
        try:
            with os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                whole = os.fstat(file.fileno()).st_size // self.record.itemsize * self.record.itemsize
                file.seek(whole)  # a record that was cut off is overwritten
                file.write(records.tobytes())
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written ({error.strerror}).", "Make space on the disk.") from None


@contextmanager
def work_folder(path: Path) -> Iterator[WorkFolder]:
    """Open the folder of a training whose output is `path`. It is deleted after success, and stays after an interruption."""
    folder = WorkFolder(path.with_name(path.name + SUFFIX))
    yield folder
    folder.delete()


def key_of(settings: Any, photos: Iterable[bytes] = ()) -> str:
    """Return a file name for what is learned with these settings from these photos, by this version."""
    text = json.dumps([version("lclrr-edge"), settings], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode() + b"".join(photos)).hexdigest()[:32]
