"""The folder of a training in progress, beside its output: a killed run continues with the dictionaries and vectors in it.

It describes faces, so only its owner can read it, and it is deleted when the model is saved.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import UsageError
from edge.files import replaced_file
from trainer.features.network import Network
from trainer.features.vector_file import VectorFile
from trainer.types import Array

SUFFIX = ".work"


class WorkFolder:
    """Finished dictionaries and vectors, by digests of everything that they depend on."""

    def __init__(self, path: Path, vectors_path: Path | None = None) -> None:
        """The folder is made when something is written. With `vectors_path`, vectors are kept there, and stay."""
        self.path, self.vectors_path = path, vectors_path or path

    def dictionary(self, key: str) -> tuple[Array, Array] | None:
        """Return the dictionary (d,m) and the people of its atoms (m,) that were saved with this key, mapped."""
        files = [self.path / f"{name}-{key}.npy" for name in ("dictionary", "atoms")]
        if not all(file.exists() for file in files):
            return None
        dictionary, atoms = (np.load(file, mmap_mode="r") for file in files)
        return dictionary, atoms

    def save_dictionary(self, key: str, dictionary: Array, atoms: Array) -> None:
        _make(self.path)
        for name, array in (("atoms", atoms), ("dictionary", dictionary)):
            with replaced_file(self.path / f"{name}-{key}.npy") as file:
                np.save(file, array)

    def vectors(self, network: Network, covered: bool, width: int) -> VectorFile:
        """Return the file of the vectors of a network: of crops, or of crops and their covered copies."""
        _make(self.vectors_path)
        settings = {"mean": network.mean, "scale": network.scale, "channels": network.channels}
        key = key_of([settings, network.sha256, covered])
        return VectorFile(self.vectors_path, key, width)

    def crops_file(self) -> Path:
        """Return the file for the crops of a gallery that is being read."""
        _make(self.path)
        return self.path / "crops.bin"

    def delete(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made ({error.strerror}).", "Name another output.") from None


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
