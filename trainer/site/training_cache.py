"""What a site keeps between two trainings, so that the next one is fast: crops of photo files, and the network's vectors.

    models/.cache/crops.db         crops by the digest of their photo file
    models/.cache/vectors-*.bin    vectors by the digest of their crop
    models/.work/                  finished steps of a training of many people that was interrupted

A training gives the same model with and without them. They describe faces, so only the owner can read them, and what belongs
to photos that are gone is removed after each training and when a person is deleted.
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainer import vectors
from trainer.data.crop_cache import CropCache, opened
from trainer.features.vector_file import VectorFile
from trainer.model import Model
from trainer.shards.work import WorkFolder
from trainer.site.folder import Site

CACHE, WORK, CROPS = ".cache", ".work", "crops.db"


@dataclass(frozen=True, kw_only=True)
class TrainingCache:
    """The open cache of a site."""

    crops: CropCache
    work: WorkFolder

    def keep_only(self, crops: Collection[bytes]) -> None:
        """Remove what this training did not use: photos that it did not read, vectors of other crops than these."""
        self.crops.keep_only_used()
        for file in VectorFile.all_in(self.work.vectors_path):
            file.keep_only(crops)
        self.work.delete()


@contextmanager
def training_cache(site: Site) -> Iterator[TrainingCache]:
    """Open the cache of a site for a training. It is made if it is missing."""
    folder = site.models / CACHE
    folder.mkdir(mode=0o700, exist_ok=True)
    with opened(folder / CROPS) as crops:
        yield TrainingCache(crops=crops, work=WorkFolder(site.models / WORK, folder))


def recall_vectors(site: Site, model: Model) -> None:
    """Let the model's network know its vectors of the training crops, if the site still keeps them."""
    folder = site.models / CACHE
    if model.spec.network is not None and model.sharded is None and folder.is_dir():
        covered = bool(model.parameters.get("covered"))
        vectors.recall_vectors(model.crops, model.spec, covered=covered, work=WorkFolder(site.models / WORK, folder))


def forget(site: Site, files: Collection[str]) -> None:
    """Remove all that is kept about photo files, by the SHA-256 of the files in hexadecimal."""
    folder = site.models / CACHE
    if not folder.is_dir():
        return
    shutil.rmtree(site.models / WORK, ignore_errors=True)
    with opened(folder / CROPS) as crops:
        gone = crops.remove([bytes.fromhex(file) for file in files])
    for file in VectorFile.all_in(folder):
        file.keep_only(file.read().keys() - gone)
