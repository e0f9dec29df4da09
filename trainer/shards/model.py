"""The model of many people (trainer.shards.gram): the dictionaries of its shards, and what recognition needs of their sum.

The file is a NumPy archive without pickles, like that of trainer.model, but with format 2. Its arrays are mapped, not read: a
model of 10,000 people may have gigabytes of crops, and most commands need few of them.
"""

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np

from edge.errors import ModelError
from edge.files import replaced_file
from trainer.data.archives import array_header
from trainer.method.blocks import Block
from trainer.method.coding import Coding
from trainer.method.experts import expert_rows
from trainer.method.parts import part_rows
from trainer.model import (
    NETWORK,
    TEMPLATES,
    InconsistentError,
    Model,
    are_finite,
    are_people,
    header_array,
    header_fields,
)
from trainer.shards import gram
from trainer.shards.samples import CHUNK, Samples
from trainer.types import Array, release

_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: the lengths of name and extra field


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardedModel(Model):
    """A model whose people are split into shards, each with its own dictionary. Arrays of a loaded model are np.memmap."""

    FORMAT: ClassVar[int] = 2
    coding: Coding
    of_blocks: tuple[Block, ...]
    """What recognition needs of all dictionaries: of the whole face and its parts, or of the experts."""
    dictionaries: tuple[Array, ...]
    """(d, m_g) float32 of each shard."""
    atom_people: tuple[Array, ...]
    """(m_g,) of each shard: the person of the photo that an atom started from, an index into labels."""
    shard_of_person: Array
    """(C,) index into dictionaries."""
    embeddings: Array | None
    """(N, 1 + k, d) float32: the network's vectors of the crops and their k covered copies (Samples). None: no network."""

    @property
    def sharded(self) -> "ShardedModel":
        return self

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.of_blocks

    def computing_arrays(self) -> list[Array]:
        nothing = np.zeros(0, np.int64)  # in the place of the rows of the whole face
        rows = (nothing if block.rows is None else block.rows for block in self.blocks)
        arrays = [array for own, block in zip(rows, self.blocks, strict=True) for array in (own, block.U, block.s, block.B)]
        return [*arrays, *([] if self.templates is None else [self.templates])]

    @property
    def samples(self) -> Samples:
        return Samples(crops=self.crops, people=self.crop_people, embeddings=self.embeddings)

    def scores(self, crops: Array) -> Array:
        """Return (N, C) scores of crops (N, *spec.crop_shape)."""
        found = []
        for start in range(0, len(crops), CHUNK):
            X = self.spec.vectors(np.asarray(crops[start : start + CHUNK])).T
            columns = gram.in_columns(X.shape[1], len(self.labels))
            found += [gram.scores(self.blocks, self.templates, X[:, some], self.coding).T for some in columns]
        return np.concatenate(found)

    def summary(self) -> str:
        atoms = sum(D.shape[1] for D in self.dictionaries)
        return f"{atoms} atoms of {len(self.dictionaries[0])} values in {len(self.dictionaries)} shards"

    def facts(self) -> dict[str, Any]:
        return super().facts() | {
            "shards": len(self.dictionaries),
            "D": (len(self.dictionaries[0]), sum(D.shape[1] for D in self.dictionaries)),
            "B": self.blocks[0].B.shape,
        }

    def save(self, path: str | Path) -> None:
        arrays: dict[str, Any] = {
            "crops": self.crops,
            "crop_people": self.crop_people,
            "shard_of_person": self.shard_of_person,
        }
        for number, block in enumerate(self.blocks):
            arrays |= {f"U_{number}": block.U, f"s_{number}": block.s, f"B_{number}": block.B}
        for number, (D, atoms) in enumerate(zip(self.dictionaries, self.atom_people, strict=True)):
            arrays |= {f"D_{number}": D, f"atoms_{number}": atoms}
        if self.templates is not None:
            arrays[TEMPLATES] = self.templates
        if self.embeddings is not None:
            arrays["embeddings"] = self.embeddings
        if self.spec.network is not None:
            arrays[NETWORK] = np.frombuffer(self.spec.network.model, np.uint8)
        header = {"format": self.FORMAT, **self.header(), "shards": len(self.dictionaries)}
        with replaced_file(path, failure=ModelError) as file:
            _write(file, {"header": header_array(header), **arrays})

    @classmethod
    def read(cls, header: dict[str, Any], archive: Any, path: Path) -> "ShardedModel":
        """Return the model of a header and an open archive. Raise ValueError if they do not fit together."""
        mapped = mapped_arrays(path)
        fields = header_fields(header, archive[NETWORK].tobytes() if NETWORK in archive else None)
        templates = archive.get(TEMPLATES)
        rows: list[Array | None] = [None, *part_rows(fields["spec"], fields["parts"])]
        if templates is not None:
            rows = list(expert_rows(fields["spec"]))
        model = cls(
            **fields,
            templates=templates,
            crops=mapped["crops"],
            crop_people=archive["crop_people"],
            embeddings=mapped.get("embeddings"),
            shard_of_person=archive["shard_of_person"],
            of_blocks=tuple(Block(own, *(archive[f"{name}_{i}"] for name in "UsB")) for i, own in enumerate(rows)),
            dictionaries=tuple(mapped[f"D_{number}"] for number in range(header["shards"])),
            atom_people=tuple(archive[f"atoms_{number}"] for number in range(header["shards"])),
        )
        if not model._is_consistent():
            raise InconsistentError
        return model

    def _is_consistent(self) -> bool:
        people, photos, shards = len(self.labels), len(self.crops), len(self.dictionaries)
        d, of_blocks = self.spec.length, [d for block in self.blocks for d in (block.U, block.s, block.B)]
        return bool(
            self.has_consistent_photos()
            and shards >= 1
            and all(D.ndim == 2 and len(D) == d and D.dtype == np.float32 for D in self.dictionaries)
            and [atoms.shape for atoms in self.atom_people] == [D.shape[1:] for D in self.dictionaries]
            and all(are_people(atoms, people) for atoms in self.atom_people)
            and self.shard_of_person.shape == (people,)
            and are_people(self.shard_of_person, shards)
            and all(_fits(block, d, people) for block in self.blocks)
            and are_finite([*of_blocks, *([] if self.templates is None else [self.templates])])
            and (self.embeddings is None) == (self.spec.network is None)
            and (self.embeddings is None or (len(self.embeddings) == photos and self.embeddings.ndim == 3))
        )


def _fits(block: Block, d: int, people: int) -> bool:
    rank, rows = len(block.s), d if block.rows is None else len(block.rows)
    return block.s.ndim == 1 and block.U.shape == (rows, rank) and block.B.shape == (people, rank) and rank > 0


def _write(file: BinaryIO, arrays: dict[str, Array]) -> None:
    """Write an archive as np.savez does, but without keeping mapped arrays in memory."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                if not isinstance(array, np.memmap):
                    np.lib.format.write_array(member, array, allow_pickle=False)
                    continue
                layout = np.lib.format.header_data_from_array_1_0(array[:0]) | {"fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(member, layout)
                for start in range(0, len(array), CHUNK):
                    member.write(array[start : start + CHUNK].tobytes())
                    release(array)


def mapped_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an archive that np.savez wrote, mapped read-only."""
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for member in archive.infolist():
            file.seek(member.header_offset)
            name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            file.seek(name_length + extra_length, 1)
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("a member is compressed")
            shape, is_fortran, dtype = array_header(file)
            if not dtype.hasobject and 0 not in (*shape, len(shape)):
                order: Literal["C", "F"] = "F" if is_fortran else "C"
                arrays[member.filename.removesuffix(".npy")] = np.memmap(path, dtype, "r", file.tell(), shape, order)
    return arrays
