"""The file of a model of shards: the same scores after loading, mapped arrays, and one sentence for a damaged file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.errors import ModelError
from tests.fixtures.crowd import SPEC, TINY, crowd
from tests.fixtures.embedding import EXPERTS, network_crops, network_model
from trainer.evaluation.trials import open_system
from trainer.model import Model, PlainModel
from trainer.shards import fit as sharded
from trainer.shards.model import ShardedModel
from trainer.shards.training import shards_of


@pytest.fixture(scope="module")
def trained() -> ShardedModel:
    return sharded.fit(crowd(20), SPEC, TINY, fpir=0.05, shard_of_person=shards_of(20, size=4))


def test_loaded_model_has_the_same_scores(trained: ShardedModel, tmp_path: Path) -> None:
    trained.save(tmp_path / "model.npz")
    assert (tmp_path / "model.npz").stat().st_mode & 0o777 == 0o600
    loaded = Model.load(tmp_path / "model.npz")
    assert loaded.sharded is not None
    assert loaded.plain is None
    others = crowd(20, seed=3).images
    assert np.array_equal(loaded.scores(others), trained.scores(others))
    assert loaded.calibration == trained.calibration
    assert (loaded.labels, loaded.parts, loaded.coding) == (trained.labels, trained.parts, trained.coding)
    assert isinstance(loaded.crops, np.memmap)  # gigabytes with many people
    assert isinstance(loaded.sharded.dictionaries[0], np.memmap)
    loaded.save(tmp_path / "model.npz")  # over the file that it is mapped from
    assert np.array_equal(Model.load(tmp_path / "model.npz").crops, trained.crops)
    with pytest.raises(ModelError, match="another kind"):
        PlainModel.load(tmp_path / "model.npz")


def test_experts_are_saved(tmp_path: Path) -> None:
    plain = network_model("pixels", experts=True)
    parameters = {"atoms_per_class": 4, "coding": "l21", **EXPERTS}
    model = sharded.fit(plain.gallery(), plain.spec, parameters, shard_of_person=np.arange(5, dtype=np.int32) % 2)
    model.save(tmp_path / "model.npz")
    loaded = Model.load(tmp_path / "model.npz")
    images, _ = network_crops()
    assert loaded.confidence == "absolute"
    assert np.array_equal(loaded.scores(images[:4]), model.scores(images[:4]))


@pytest.mark.parametrize("damage", ["cut", "flip", "shape", "people", "nan"])
def test_damaged_file_is_one_sentence(trained: ShardedModel, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "model.npz"
    trained.save(file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-2000])
    elif damage == "flip":
        data = bytearray(file.read_bytes())
        position = data.find(trained.blocks[0].B.tobytes())
        assert position > 0
        data[position + 10] ^= 1
        file.write_bytes(data)
    else:
        with np.load(file) as archive:
            arrays = dict(archive)
        if damage == "shape":
            arrays["B_0"] = arrays["B_0"][:-1]
        elif damage == "people":
            arrays["shard_of_person"] = arrays["shard_of_person"] + 99
        else:
            arrays["U_0"] = arrays["U_0"] * np.float32(np.nan)
        np.savez(file, **arrays)
    with pytest.raises(ModelError, match=r"damaged|do not fit together"):
        Model.load(file)


def test_evaluation_accepts_it(trained: ShardedModel, tmp_path: Path) -> None:
    trained.save(tmp_path / "model.npz")
    system = open_system(tmp_path / "model.npz")
    scores, confidence = system.score(crowd(20, seed=3).images)
    assert scores.shape == (60, 20)
    assert (confidence <= 1).all()
    assert system.plain is None
