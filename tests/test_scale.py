"""scripts/bench --only scale and scripts/research/shards: people made of others, and the structure of results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from typer.testing import CliRunner

from edge.errors import UsageError
from edge.vision.preprocess import FeatureSpec
from scripts import bench
from scripts.qa import bench_scale, morphs
from scripts.qa.morphs import PHOTOS, Morphs, VectorMorphs
from scripts.research import accuracy, shards
from tests.fixtures.data import faces
from tests.fixtures.embedding import EXPERTS, embedding_model
from trainer.data.gallery import Gallery
from trainer.features.network import checked
from trainer.model import Model
from trainer.types import silent

SIZE = (24, 20)
FIGURES = {"fit_s", "calibrated_s", "fit_cpu_s", "calibrated_cpu_s", "model_mb", "training_accuracy", "doubted"}


@pytest.fixture
def real() -> list[np.ndarray]:
    """Six made-up people, with one to six photos."""
    images, labels = faces(people=6, photos=6, size=SIZE)
    return [images[labels == person][: person + 1] for person in range(6)]


def test_morphs_are_deterministic_and_differ(real: list[np.ndarray]) -> None:
    made, again = ([Morphs(real).crops(number) for number in range(30)] for _ in range(2))
    assert all((one == two).all() for one, two in zip(made, again, strict=True))
    assert {one.shape for one in made} == {(PHOTOS, *SIZE)}
    assert len({crop.tobytes() for one in made for crop in one}) == 30 * PHOTOS, "all photos differ"
    assert (Morphs(real, seed=1).crops(29) != made[29]).any()


def test_real_people_come_first_and_keep_their_photos(real: list[np.ndarray]) -> None:
    made = Morphs(real)
    for number, own in enumerate(real):
        kept = own[:PHOTOS]
        assert (made.crops(number)[: len(kept)] == kept).all()


def test_photos_of_a_morph_are_more_alike_than_those_of_two_morphs(real: list[np.ndarray]) -> None:
    spec = FeatureSpec.for_crop(*SIZE)
    vectors = spec.vectors(np.concatenate([Morphs(real).crops(number) for number in range(6, 26)]))
    people = np.arange(20).repeat(PHOTOS)
    same = people[:, None] == people
    cosines = vectors @ vectors.T
    assert cosines[same & ~np.eye(len(people), dtype=bool)].mean() > cosines[~same].mean() + 0.1


def test_morphs_of_vectors_have_unit_length_and_differ() -> None:
    given = np.random.default_rng(0).standard_normal((6, PHOTOS, 4, 16)).astype(np.float32)
    made, again = (np.stack([VectorMorphs(given).vectors(number) for number in range(20)]) for _ in range(2))
    assert made.shape == (20, PHOTOS, 4, 16)
    assert (made == again).all()
    np.testing.assert_allclose(np.linalg.norm(made, axis=3), 1, atol=1e-5)
    assert len({vector.tobytes() for vector in made[:, :, 0].reshape(-1, 16)}) == 20 * PHOTOS


def test_unpack_takes_the_people_with_the_most_photos(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "lfw.zip", "w") as packed:
        for name, number in {"anna": 2, "ben": 9, "carl": 2, "dora": 1}.items():
            for k in range(number):
                packed.writestr(f"lfw/{name}/{name}_{k}.jpg", b"photo")
    assert morphs.unpack_people(tmp_path / "lfw.zip", tmp_path / "out", people=3, most=4) == ["ben", "anna", "carl"]
    found = {folder.name: len(list(folder.iterdir())) for folder in (tmp_path / "out").iterdir()}
    assert found == {"ben": 4, "anna": 2, "carl": 2}


@pytest.mark.slow
def test_steps_of_tiny_train_with_and_without_shards(
    real: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = FeatureSpec.for_crop(*SIZE)
    monkeypatch.setattr(bench_scale, "spec_of", lambda preset: spec)
    bench_scale.write(spec, real, tmp_path, 210, silent)
    few = bench_scale.train(tmp_path, "tiny", 12, False) | bench_scale.train(tmp_path, "tiny", 12, True)
    assert few.keys() == FIGURES
    assert bench_scale.build(tmp_path, "tiny", 12).keys() == {"kit_mb", "build_s", "face_ms"}
    assert bench_scale.train(tmp_path, "tiny", 210, True).keys() == FIGURES
    assert bench_scale.build(tmp_path, "tiny", 210).keys() == {"kit_mb", "build_s", "face_ms"}
    model = Model.load(tmp_path / "model.npz")
    assert len(model.labels) == 210
    assert (model.crops[: 6 * PHOTOS] == np.concatenate([Morphs(real).crops(number) for number in range(6)])).all()


@pytest.mark.slow
def test_steps_of_network_use_the_given_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = checked(embedding_model())
    images, labels = faces(people=12, photos=3, size=(112, 112))
    crops = np.repeat(images[..., None], 3, axis=3)
    monkeypatch.setattr(bench_scale, "spec_of", lambda preset: network)
    monkeypatch.setitem(bench_scale.PRESETS, "network", EXPERTS | {"features": "sface"})
    bench_scale.write(network, [crops[labels == person] for person in range(12)], tmp_path, 210, silent)
    embeddings = np.load(tmp_path / "embeddings.npy")
    assert embeddings.shape[:2] == (210 * PHOTOS, 4)
    found = bench_scale.train(tmp_path, "network", 210, True)
    assert found.keys() == FIGURES
    assert found["training_accuracy"] > 0.9
    model = Model.load(tmp_path / "model.npz")
    assert (getattr(model, "embeddings", None) == embeddings).all()
    # Few people: the network finds their vectors, and computes nothing.
    network.known.clear()
    monkeypatch.setattr(type(network), "_ordered", lambda *_: pytest.fail("the network was run"))
    few = bench_scale.train(tmp_path, "network", 12, False) | bench_scale.train(tmp_path, "network", 12, True)
    assert few.keys() == FIGURES


def test_usage_counts_this_process() -> None:
    found = bench_scale.usage_of_tree(os.getpid())
    assert 1 < found.private_mb < found.resident_mb
    assert found.cpu_s > 0


@pytest.mark.slow
def test_failure_of_a_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match=r"crops\.npy"):
        bench_scale._in_process(bench_scale.train, tmp_path, "tiny", 12, False)


def test_table_compares_with_goals_and_with_a_thousand_people() -> None:
    small: dict[str, Any] = {"fit_s": 30.0, "calibrated_s": 150.0, "rss_mb": 600.0, "kit_mb": None, "face_ms": None}
    large = small | {"fit_s": 330.0, "calibrated_s": 2100.0, "rss_mb": 2100.0, "kit_mb": 50.0, "face_ms": 6.0}
    lines = bench_scale.table({"tiny": {"100": small, "1000": small, "10000": large}}).splitlines()
    assert {line.count("|") for line in lines[:5]} == {10}
    assert "30 (60) | **150** (120)" in lines[3]
    assert "**2100** (2000)" in lines[4]
    assert "1.1 (1.3) | **1.4** (1.3)" in lines[4]


def test_bench_prints_one_json_object_and_saves_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(data: Path, say: Any, people: tuple[int, ...]) -> dict[str, Any]:
        return {"tiny": {str(number): {"fit_s": 1.0} for number in people}}

    monkeypatch.setitem(bench.PARTS, "scale", bench.Part(measure, bench_scale.table))
    file = tmp_path / "results.json"
    options = ["--only", "scale", "--people", "12,210", "--json", "--save", str(file)]
    run = CliRunner().invoke(bench.app, options)
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout) == json.loads(file.read_text()) == {"scale": measure(tmp_path, silent, (12, 210))}


@pytest.mark.parametrize("people", ["", "many", "100,", "1"])
def test_people_must_be_numbers(people: str) -> None:
    with pytest.raises(UsageError, match="--people"):
        bench.numbers_of(people)


def test_one_shard_gives_the_results_of_the_plain_method() -> None:
    images, labels = faces(people=8, photos=6, size=SIZE)
    known = labels < 6
    train = known & (np.arange(len(labels)) % 6 < 4)
    truth = np.where(known, labels, -1)[~train]
    gallery = Gallery(
        images=images[train],
        labels=np.array([f"{label:03d}" for label in labels[train]]),
        sources=tuple(map(str, np.flatnonzero(train))),
    )

    def rates(model: Model) -> tuple[float, float]:
        rank1, fnir = accuracy.rates(accuracy.answers_of(model, images[~train]), truth)
        return rank1, fnir

    split = shards.Split(
        name="ORL",
        number=0,
        gallery=gallery,
        spec=FeatureSpec.for_crop(*SIZE),
        parameters={"coding": "l21", "eta": 1e-3},
        probes=images[~train],
        rates=rates,
    )
    found = shards.compared(split, size=3)
    assert (found["people"], found["shards"]) == (6, 2)
    assert found["one_shard"]["other_labels"] == 0
    assert found["one_shard"]["largest_difference"] < shards.SAME
    means = shards.summary({"ORL": [found, found]})
    assert means["ORL"]["plain"] == found["plain"]
    lines = shards.table(means).splitlines()
    assert {line.count("|") for line in lines} == {9}


def test_shards_have_about_the_wanted_size() -> None:
    found = np.bincount(shards.shards(70, 14, seed=0))
    assert found.tolist() == [14] * 5
    assert np.bincount(shards.shards(5, 14, seed=0)).tolist() == [5]
