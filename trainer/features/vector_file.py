"""Vectors of a network in a file, by the digest of their crop, so that no crop goes through the network twice.

The vectors describe faces: only the owner can read the file.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from edge.errors import UsageError
from edge.files import replaced_file
from trainer.types import Array

DIGEST = 32  # bytes
NAME = re.compile(r"vectors-([0-9a-f]+)-(\d+)\.bin")


class VectorFile:
    """Vectors (width,) in float32 by the digest of their crop. Records are appended; one that was cut off is ignored.

    The name of the file says the width.
    """

    def __init__(self, folder: Path, key: str, width: int) -> None:
        """`key` stands for the network and all else that the vectors depend on."""
        self.path = folder / f"vectors-{key}-{width}.bin"
        self.record = np.dtype([("digest", f"V{DIGEST}"), ("vector", np.float32, (width,))])

    @classmethod
    def all_in(cls, folder: Path) -> list["VectorFile"]:
        """Return all files of vectors in a folder."""
        named = ((path, NAME.fullmatch(path.name)) for path in sorted(folder.iterdir()))
        return [cls(folder, found[1], int(found[2])) for _, found in named if found is not None]

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

    def keep_only(self, digests: Collection[bytes]) -> None:
        """Remove the vectors of all other crops."""
        known = self.read()
        kept = [digest for digest in known if digest in digests]
        if len(kept) == len(known):
            return
        records = np.empty(len(kept), self.record)
        for record, digest in zip(records, kept, strict=True):
            record["digest"], record["vector"] = np.void(digest), known[digest]
        with replaced_file(self.path) as file:
            file.write(records.tobytes())
