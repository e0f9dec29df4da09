"""The network's vectors of a training: the same bits from a file, and computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.embedding import EXPERTS, embedding_model, network_crops
from trainer import training
from trainer.data import augment
from trainer.data.gallery import Gallery, crop_digests
from trainer.features.network import Network, checked
from trainer.features.vector_file import VectorFile
from trainer.model import PlainModel
from trainer.shards.work import WorkFolder
from trainer.vectors import recall_vectors, remember_vectors

PARAMETERS = {"coding": "l21", "atoms_per_class": 3, **EXPERTS}


def gallery() -> Gallery:
    images, names = network_crops()
    return Gallery(images=images, labels=names, sources=tuple(map(str, range(len(images)))))


def fresh(mean: float) -> Network:
    """A network that has seen nothing."""
    network = checked(embedding_model(), mean=mean)
    network.known.clear()
    network.known_copies.clear()
    assert network.length  # runs the network once
    return network


def same(one: PlainModel, other: PlainModel) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.computing_arrays(), other.computing_arrays(), strict=True))


def test_model_is_the_same_with_and_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, photos = WorkFolder(tmp_path / "work", tmp_path / "kept"), gallery()
    computed = training.train(photos, fresh(5), PARAMETERS)
    stored = training.train(photos, fresh(5), PARAMETERS, work=work)
    network = fresh(5)
    monkeypatch.setattr(Network, "embedding", lambda *_: pytest.fail("the network was run"))
    monkeypatch.setattr(augment, "covered", lambda *_: pytest.fail("a crop was painted"))
    read = training.train(photos, network, PARAMETERS, work=work)
    assert computed.plain is not None
    assert stored.plain is not None
    assert read.plain is not None
    assert same(computed.plain, stored.plain)
    assert same(computed.plain, read.plain)
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_only_new_crops_go_through_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crops = gallery().images[:6]
    work = WorkFolder(tmp_path / "work")
    remember_vectors(crops[:4], fresh(6), covered=True, work=work)
    network, runs = fresh(6), []
    original = Network.embedding

    def counted(self: Network, crop: np.ndarray) -> np.ndarray:
        runs.append(crop.shape)
        return original(self, crop)

    monkeypatch.setattr(Network, "embedding", counted)
    progress: list[tuple[int, int]] = []
    remember_vectors(crops, network, covered=True, work=work, progress=lambda *done: progress.append(done))
    assert len(runs) == 2 * (1 + augment.COVERED)
    assert progress == [(4, 6), (6, 6)]


def test_other_settings_of_a_network_have_another_file(tmp_path: Path) -> None:
    work, crops = WorkFolder(tmp_path), gallery().images[:2]
    for network, covered in ((fresh(7), True), (fresh(8), True), (fresh(7), False)):
        remember_vectors(crops, network, covered=covered, work=work)
    files = VectorFile.all_in(tmp_path)
    assert len(files) == 3
    digests = list(crop_digests(crops))
    for file in files:
        file.keep_only(digests[:1])
        assert list(file.read()) == digests[:1]
        before = file.path.stat().st_ino
        file.keep_only(digests)
        assert file.path.stat().st_ino == before, "nothing to remove, nothing written"


def test_kept_vectors_are_recalled_and_none_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crops, work, network = gallery().images[:3], WorkFolder(tmp_path), fresh(9)
    remember_vectors(crops[:2], fresh(9), covered=True, work=work)
    network.known.clear()
    monkeypatch.setattr(Network, "embedding", lambda *_: pytest.fail("the network was run"))
    recall_vectors(crops, network, covered=True, work=work)
    assert network.known.keys() == set(crop_digests(crops[:2]))
    assert network.known_copies.keys() == network.known.keys()
