"""Enrol and forget in a model of shards: one shard changes, and a forgotten person is in no array."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.errors import GalleryError, UsageError
from tests.fixtures.crowd import SPEC, TINY, crowd
from tests.fixtures.data import write_photos
from tests.fixtures.embedding import EXPERTS, network_crops, network_model
from tests.fixtures.trainer_command import TrainerCommand
from trainer.data.gallery import Gallery
from trainer.features.network import Network
from trainer.model import Model
from trainer.shards import fit as sharded
from trainer.shards.model import ShardedModel
from trainer.shards.training import shards_of
from trainer.update import enrol, forget

pytestmark = pytest.mark.slow

ALL = crowd(40, photos=4)
SHARDS = shards_of(40, size=4)
NAME = "p0007"


@pytest.fixture(scope="module")
def trained() -> ShardedModel:
    return sharded.fit(ALL, SPEC, TINY, fpir=0.05, shard_of_person=SHARDS)


def learned_arrays(model: ShardedModel) -> dict[str, np.ndarray]:
    """All arrays that were computed from photos, and the photos."""
    arrays = {f"D_{i}": D for i, D in enumerate(model.dictionaries)}
    arrays |= {f"{name}_{i}": getattr(block, name) for i, block in enumerate(model.blocks) for name in "UsB"}
    arrays |= {f"atoms_{i}": atoms for i, atoms in enumerate(model.atom_people)}
    arrays |= {"crops": model.crops, "crop_people": model.crop_people, "shard_of_person": model.shard_of_person}
    if model.templates is not None:
        arrays["templates"] = model.templates
    if model.embeddings is not None:
        arrays["embeddings"] = model.embeddings
    return arrays


def test_forgotten_person_is_in_no_array(trained: ShardedModel, tmp_path: Path) -> None:
    """The model equals one that was trained without the person, in every bit of every array."""
    person = trained.labels.index(NAME)
    without = ALL.selected(ALL.labels != NAME)
    expected = sharded.fit(without, SPEC, TINY, shard_of_person=np.delete(SHARDS, person))
    forgotten = forget(trained, NAME)
    assert isinstance(forgotten, ShardedModel)
    found = learned_arrays(forgotten)
    assert found.keys() == learned_arrays(expected).keys()
    for name, array in learned_arrays(expected).items():
        assert np.array_equal(found[name], array), name
    assert forgotten.labels == expected.labels
    assert forgotten.fingerprint == expected.fingerprint
    assert forgotten.calibration == trained.calibration  # measured with everyone, unless --calibrate
    assert (
        forget(trained, NAME, calibrate=True).calibration
        == sharded.fit(without, SPEC, TINY, fpir=0.05, shard_of_person=np.delete(SHARDS, person)).calibration
    )
    forgotten.save(tmp_path / "model.npz")
    data = (tmp_path / "model.npz").read_bytes()
    assert NAME.encode() not in data
    assert not [crop for crop in ALL.images[ALL.labels == NAME] if crop.tobytes() in data]


def test_only_the_shard_of_the_person_is_learned_again(trained: ShardedModel) -> None:
    own = SHARDS[trained.labels.index(NAME)]
    for changed in (forget(trained, NAME), enrol(trained, renamed(crowd(1, photos=4, seed=5), "zoe"))):
        assert isinstance(changed, ShardedModel)
        pairs = zip(trained.dictionaries, changed.dictionaries, strict=True)
        same = [one is other for one, other in pairs]
        assert same.count(False) == 1
        if NAME not in changed.labels:
            assert not same[own]


def test_last_person_of_a_shard_takes_the_shard_along() -> None:
    lonely = np.array([0, *([1] * 5), *([2] * 6)], np.int32)
    photos = crowd(12, photos=4)
    model = sharded.fit(photos, SPEC, TINY, shard_of_person=lonely)
    forgotten = forget(model, "p0000")
    assert isinstance(forgotten, ShardedModel)
    assert len(forgotten.dictionaries) == 2
    assert np.mean(forgotten.predict(forgotten.crops) == photos.labels[4:]) == 1


def renamed(photos: Gallery, name: str) -> Gallery:
    return replace(photos, labels=np.full(len(photos.labels), name))


def test_enrolled_person_is_recognised_as_after_a_training_from_scratch(trained: ShardedModel) -> None:
    new = crowd(3, photos=6, seed=11)
    new = replace(new, labels=np.array([f"new {name}" for name in new.labels]))
    first = np.arange(len(new.labels)) % 6 < 4
    model: Model = trained
    for name in new.people:
        model = enrol(model, new.selected(first & (new.labels == name)))
    assert len(model.labels) == 43
    scratch = sharded.fit(ALL.joined(new.selected(first)), SPEC, TINY, shard_of_person=shards_of(43, size=4))
    tests = crowd(40, photos=4, seed=0).images
    for other in (model, scratch):
        assert np.mean(other.predict(new.images[~first]) == new.labels[~first]) == 1
        assert np.mean(other.predict(tests) == ALL.labels) == 1


def test_more_photos_of_a_person_go_to_their_shard(trained: ShardedModel) -> None:
    more = renamed(crowd(1, photos=2, seed=21), NAME)
    changed = enrol(trained, more)
    assert isinstance(changed, ShardedModel)
    assert changed.labels == trained.labels
    assert np.array_equal(changed.shard_of_person, trained.shard_of_person)
    assert np.sum(changed.crop_people == changed.labels.index(NAME)) == 6
    with pytest.raises(GalleryError, match="in the model already"):
        enrol(changed, more)
    with pytest.raises(GalleryError, match="two names"):
        enrol(changed, renamed(more, "another name"))


def test_network_vectors_of_known_photos_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = network_model(experts=True)
    parameters = {"atoms_per_class": 4, "coding": "l21", **EXPERTS}
    model = sharded.fit(plain.gallery(), plain.spec, parameters, shard_of_person=np.arange(5, dtype=np.int32) % 2)
    images, names = network_crops()
    later = np.arange(len(names)) % 8 >= 5
    new = Gallery(images=255 - images[later][:3], labels=np.full(3, "zoe"), sources=("1", "2", "3"))
    embedding, runs = Network.embedding, list[Network]()

    def counted(self: Network, crop: np.ndarray) -> np.ndarray:
        runs.append(self)
        return embedding(self, crop)

    with monkeypatch.context() as patched:
        patched.setattr(Network, "embedding", counted)
        enrolled = enrol(model, new)
        forgotten = forget(enrolled, "zoe")
    assert len(runs) == 3 + 9
    assert enrolled.predict(new.images).tolist() == ["zoe"] * 3
    assert isinstance(forgotten, ShardedModel)
    assert forgotten.embeddings is not None
    assert np.array_equal(forgotten.embeddings, model.embeddings)
    for one, other in zip(model.blocks, forgotten.blocks, strict=True):
        assert np.array_equal(one.B, other.B)


def test_commands_change_a_model_of_shards(trainer: TrainerCommand, trained: ShardedModel, tmp_path: Path) -> None:
    file = tmp_path / "door.npz"
    trained.save(file)
    new = crowd(1, photos=4, seed=5)
    write_photos(tmp_path, new.images, np.array(["zoe"] * 4))
    code, _, err = trainer("enrol", file, tmp_path / "zoe")
    assert code == 0, err
    assert "41 people from 164 photos, 4 of them new (zoe)" in err
    code, _, err = trainer("forget", file, NAME)
    assert code == 0, err
    assert "40 people from 160 photos, without p0007" in err
    model = Model.load(file)
    assert model.predict(new.images).tolist() == ["zoe"] * 4
    with pytest.raises(UsageError, match="Did you mean p0006"):
        forget(model, "p00066")
    code, out, _ = trainer("show", file, "--json")
    assert code == 0
    assert '"shards": 10' in out
    assert "zoe" not in out
