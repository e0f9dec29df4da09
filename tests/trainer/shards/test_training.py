"""Training in shards: as the plain method with one shard, the same in any number of processes, continued after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

from edge.errors import ClusterError
from edge.vision.confidence import score_confidence
from tests.fixtures.crowd import SIZE, SPEC, TINY, crowd
from tests.fixtures.data import ROOT
from tests.fixtures.embedding import EXPERTS, network_crops, network_model
from tests.fixtures.trainer_command import TrainerCommand
from trainer import training
from trainer.data.gallery import Gallery
from trainer.features.network import Network
from trainer.method.base import FaceClassifier
from trainer.method.estimator import LCLRRDL
from trainer.model import Model, PlainModel
from trainer.presets import ONE_SHARD
from trainer.shards import fit as sharded
from trainer.shards import gram
from trainer.shards import training as steps
from trainer.shards.chunks import learn_dictionary
from trainer.shards.fit import embedded
from trainer.shards.model import ShardedModel
from trainer.shards.samples import Samples
from trainer.shards.training import FOLDS, Training, shards_of, stranger_confidences
from trainer.shards.work import WorkFolder

pytestmark = pytest.mark.slow

MANY = crowd(60)
SHARDS = shards_of(60, size=6)


def same_arrays(one: ShardedModel, other: ShardedModel) -> bool:
    """Whether everything that was learned is equal, bit by bit."""
    pairs = [
        *zip(one.dictionaries, other.dictionaries, strict=True),
        *((getattr(a, name), getattr(b, name)) for a, b in zip(one.blocks, other.blocks, strict=True) for name in "UsB"),
    ]
    if one.templates is not None and other.templates is not None:
        pairs.append((one.templates, other.templates))
    return all(np.array_equal(a, b) for a, b in pairs) and one.calibration == other.calibration


def test_shards_have_about_fifty_people_and_folds_are_whole_shards() -> None:
    for people in (201, 250, 999, 1000, 10_000):
        sizes = np.bincount(shards_of(people))
        assert len(sizes) % FOLDS == 0
        assert sizes.max() - sizes.min() <= 1
        assert 40 <= sizes.mean() <= 75
    assert not np.array_equal(shards_of(1000, 0), shards_of(1000, 1))


@pytest.mark.parametrize("parameters", [TINY, TINY | {"parts": None, "coding": "l1"}, TINY | {"doubt": False}])
def test_one_shard_gives_the_scores_of_the_plain_method(parameters: dict[str, object]) -> None:
    plain = LCLRRDL(features=SPEC, **parameters).fit(MANY.images, MANY.labels)  # type: ignore[arg-type]
    one = sharded.fit(MANY, SPEC, parameters, shard_of_person=np.zeros(60, np.int32), as_plain=True)
    others = crowd(60, seed=1).images
    expected, found = plain.decision_function(others), one.scores(others)
    assert np.abs(expected - found).max() < 1e-5
    assert np.array_equal(expected.argmax(axis=1), found.argmax(axis=1))


@pytest.mark.parametrize("own", ["", "pixels"])
def test_one_shard_gives_the_scores_of_plain_experts(own: str) -> None:
    plain = network_model(own, experts=True)
    parameters = {"atoms_per_class": 4, "coding": "l21", **EXPERTS}
    gallery = plain.gallery()
    one = sharded.fit(gallery, plain.spec, parameters, shard_of_person=np.zeros(5, np.int32), as_plain=True)
    images, _ = network_crops()
    assert one.confidence == plain.confidence
    assert np.abs(plain.scores(images) - one.scores(images)).max() < 1e-5


def test_shards_recognise_people_and_separate_strangers() -> None:
    model = sharded.fit(MANY, SPEC, TINY, fpir=0.05, shard_of_person=SHARDS)
    assert np.mean(model.predict(crowd(60, seed=0).images) == MANY.labels) == 1
    assert model.calibration is not None
    strangers = crowd(40, seed=7).images
    plain = training.fit(MANY, SPEC, TINY, fpir=0.05)
    assert plain.calibration is not None
    assert abs(model.calibration.confidence - plain.calibration.confidence) < 0.15
    confidence = model.scores(strangers).max(axis=1) / np.linalg.norm(model.scores(strangers), axis=1)
    assert np.mean(confidence >= model.calibration.confidence) < 0.2


def test_model_needs_no_array_of_people_x_atoms() -> None:
    photos = crowd(120)
    model = sharded.fit(photos, SPEC, TINY | {"atoms_per_class": 3}, shard_of_person=shards_of(120, size=12))
    atoms = sum(D.shape[1] for D in model.dictionaries)
    assert atoms == 360
    for block in model.blocks:  # at most as many directions as features
        assert block.B.shape == (120, len(block.s))
        assert len(block.s) <= (SPEC.length if block.rows is None else len(block.rows)) < atoms


def test_processes_and_one_process_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sharded.fit(MANY, SPEC, TINY, fpir=0.05, shard_of_person=SHARDS, jobs=1)
    monkeypatch.setattr(steps, "SMALL", 0)  # small problems use no processes otherwise
    assert same_arrays(here, sharded.fit(MANY, SPEC, TINY, fpir=0.05, shard_of_person=SHARDS, jobs=2))


def test_cluster_gives_the_same_bits_although_a_worker_is_killed() -> None:
    here = sharded.fit(MANY, SPEC, TINY, fpir=0.05, shard_of_person=SHARDS, jobs=1)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        victim = next(iter(cluster.workers.values())).pid
        seen: list[str] = []

        def stage(name: str, done: int, total: int) -> None:
            seen.append(name)
            if name == "dictionaries of shards" and done == 2:  # in the middle of the run
                os.kill(victim, signal.SIGKILL)

        options = {"shard_of_person": SHARDS, "scheduler": cluster.scheduler_address}
        there = sharded.fit(MANY, SPEC, TINY, fpir=0.05, stage=stage, **options)
        assert victim not in {worker.pid for worker in cluster.workers.values()}
    assert same_arrays(here, there)
    assert {"dictionaries of shards", "factors", "codes of photos", "check of names"} <= set(seen)


def test_experts_of_a_network_are_the_same_on_a_cluster(cluster: str) -> None:
    plain = network_model("pixels", experts=True)
    parameters = {"atoms_per_class": 4, "coding": "l21", **EXPERTS}
    options = {"shard_of_person": np.arange(5, dtype=np.int32)}
    here, there = (
        sharded.fit(plain.gallery(), plain.spec, parameters, **options, **where)
        for where in ({"jobs": 1}, {"scheduler": cluster})
    )
    assert same_arrays(here, there)
    assert np.array_equal(here.embeddings, there.embeddings)


def test_calibration_has_not_seen_its_strangers() -> None:
    """Strangers of a fold are scored as by a model that was trained on the people of the other folds alone."""
    people = np.unique(MANY.labels, return_inverse=True)[1].astype(np.int32)
    run = Training.of(Samples(crops=MANY.images, people=people), SPEC, TINY)
    learned = sharded.Shards.learned(run, SHARDS)
    confidences = stranger_confidences(run, learned.dictionaries, SHARDS, np.ones(len(people), bool))
    fold = (SHARDS % FOLDS)[people]
    for k in (0, FOLDS - 1):
        known = MANY.selected(fold != k)
        shards = np.unique(SHARDS[SHARDS % FOLDS != k], return_inverse=True)[1].astype(np.int32)
        without = sharded.fit(known, SPEC, TINY | {"doubt": False}, shard_of_person=shards)
        scores = without.scores(MANY.images[fold == k])
        found = np.split(confidences, np.cumsum(np.bincount(fold)))[k]
        assert np.abs(found - score_confidence(scores)).max() < 1e-4


def test_wrong_names_are_found_and_left_out() -> None:
    photos = crowd(60, photos=6)
    wrong = [0, 61, 122, 183]
    labels = photos.labels.copy()
    labels[wrong] = photos.labels[[200, 250, 300, 350]]
    order = np.argsort(labels, kind="stable")
    gallery = Gallery(images=photos.images[order], labels=labels[order], sources=tuple(map(str, order)))
    model = sharded.fit(gallery, SPEC, TINY, shard_of_person=SHARDS)
    found = {int(gallery.sources[crop]): model.labels[person] for crop, person in model.training["doubted"]}
    assert found == {i: photos.labels[i] for i in wrong}
    trusted = sharded.fit(gallery, SPEC, TINY | {"doubt": False}, shard_of_person=SHARDS)
    assert not trusted.training["doubted"]
    clean = np.setdiff1d(np.arange(len(labels)), [int(np.flatnonzero(order == i)[0]) for i in wrong])
    again = sharded.fit(gallery.selected(np.isin(np.arange(len(labels)), clean)), SPEC, TINY, shard_of_person=SHARDS)
    others = crowd(60, seed=3).images
    assert (
        np.abs(model.scores(others) - again.scores(others)).max() < np.abs(trusted.scores(others) - again.scores(others)).max()
    )


def test_augmented_copies_are_learned() -> None:
    once = sharded.fit(MANY, SPEC, TINY, shard_of_person=SHARDS)
    copies = sharded.fit(MANY, SPEC, TINY | {"copies": 4}, shard_of_person=SHARDS)
    assert np.array_equal(once.dictionaries[0], copies.dictionaries[0])
    assert not np.array_equal(once.blocks[0].B, copies.blocks[0].B)
    assert np.mean(copies.predict(MANY.images) == MANY.labels) == 1


def test_train_chooses_shards_by_the_number_of_people() -> None:
    assert not training.needs_shards(ONE_SHARD, LCLRRDL, TINY)
    assert training.needs_shards(ONE_SHARD + 1, LCLRRDL, TINY)
    assert not training.needs_shards(1000, LCLRRDL, TINY | {"classifier_codes": "training"})
    assert not training.needs_shards(1000, LCLRRDL, {"coding": "batch"})
    assert not training.needs_shards(1000, FaceClassifier, {})
    assert isinstance(training.train(crowd(8), SPEC, TINY), PlainModel)
    assert isinstance(training.train(crowd(ONE_SHARD + 1, photos=2), SPEC, TINY), ShardedModel)


def test_finished_dictionaries_and_vectors_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = WorkFolder(tmp_path / "door.npz.work")
    first = sharded.fit(MANY, SPEC, TINY, shard_of_person=SHARDS, work=work)
    assert (tmp_path / "door.npz.work").stat().st_mode & 0o777 == 0o700

    def fail(*_: object) -> None:
        raise AssertionError("computed again")

    with monkeypatch.context() as patched:
        patched.setattr(steps, "learn_dictionary", fail)
        assert same_arrays(first, sharded.fit(MANY, SPEC, TINY, shard_of_person=SHARDS, work=work))
    other = replace(MANY, images=MANY.images[::-1].copy())
    assert not same_arrays(first, sharded.fit(other, SPEC, TINY, shard_of_person=SHARDS, work=work))

    plain = network_model(experts=True)
    vectors = embedded(plain.crops, plain.spec, True, work, jobs=1)
    file = next(work.path.glob("vectors-*.bin"))
    whole = file.stat().st_size
    with file.open("r+b") as cut:
        cut.truncate(whole - 100)  # as after a crash: the last record is incomplete
    calls: list[int] = []
    original = Network.embed

    def counted(self: Network, crops: np.ndarray) -> np.ndarray:
        calls.append(len(crops))
        return original(self, crops)

    monkeypatch.setattr(Network, "embed", counted)
    assert np.array_equal(vectors, embedded(plain.crops, plain.spec, True, work, jobs=1))
    assert calls == [1]  # one crop
    assert file.stat().st_size == whole


CUT_SHORT = """
import os, signal, sys
from trainer.shards import work
saved, original = [], work.WorkFolder.save_dictionary
def save(self, *arguments):
    original(self, *arguments)
    saved.append(1)
    if len(saved) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
work.WorkFolder.save_dictionary = save
from trainer.cli.main import main
main()
"""


def test_killed_command_continues_with_its_shards(
    trainer: TrainerCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = crowd(ONE_SHARD + 4, photos=2)
    np.savez(tmp_path / "faces.npz", images=photos.images, labels=photos.labels)
    output = tmp_path / "door.npz"
    words = ["fit", str(tmp_path / "faces.npz"), "-o", str(output), "--preset", "tiny", "--parts", "2x1", "--no-calibrate"]
    words += ["--features", "pixels", "--atoms", "2"]
    killed = subprocess.run([sys.executable, "-c", CUT_SHORT, *words], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    work = tmp_path / "door.npz.work"
    assert len(list(work.glob("dictionary-*.npy"))) == 2
    learned: list[int] = []

    def counted(crops: np.ndarray, *rest: Any) -> Any:
        learned.append(len(crops))
        return learn_dictionary(crops, *rest)

    monkeypatch.setattr(steps, "learn_dictionary", counted)
    code, _, err = trainer(*words)
    assert code == 0, err
    assert len(learned) == 3  # of five
    assert "204 people from 408 photos, 408 atoms of 320 values in 5 shards" in err
    assert not work.exists()  # it holds faces
    model = Model.load(output)
    assert model.sharded is not None
    assert np.mean(model.predict(photos.images) == photos.labels) > 0.95


def test_scheduler_that_does_not_answer_is_one_sentence(
    trainer: TrainerCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.parallel.SCHEDULER_SECONDS", 0.2)
    photos = crowd(ONE_SHARD + 4, photos=2)
    np.savez(tmp_path / "faces.npz", images=photos.images, labels=photos.labels)
    words = ["fit", tmp_path / "faces.npz", "-o", tmp_path / "door.npz", "--preset", "tiny", "--parts", "none"]
    code, _, err = trainer(*words, "--features", "pixels", "--scheduler", "tcp://127.0.0.1:1")
    assert code == ClusterError.exit_code
    assert "No Dask scheduler answers at tcp://127.0.0.1:1" in err
    few = crowd(8)
    np.savez(tmp_path / "few.npz", images=few.images, labels=few.labels)
    words[1] = tmp_path / "few.npz"
    code, _, err = trainer(*words, "--features", "pixels", "--scheduler", "tcp://127.0.0.1:1")
    assert code == 0
    assert "--scheduler is not used" in err


def test_gram_matrix_and_factors_equal_those_of_all_atoms_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((30, m)).astype(np.float32) for m in (4, 7, 5)]
    D = np.hstack(parts).astype(np.float64)
    G = gram.gram(parts)
    assert np.allclose(np.tril(G), np.tril(D @ D.T))
    rows = np.array([1, 4, 5, 9, 20, 21])
    for own, rank in ((None, None), (rows, None), (None, 6)):
        U, s = gram.factors(gram.rows_of(G, own), 16, rank)
        _, expected, _ = np.linalg.svd(D if own is None else D[own], full_matrices=False)
        assert np.allclose(s[::-1], expected[: len(s)], rtol=1e-5)
        assert len(s) == (rank or min(16, 30 if own is None else 6))
        assert np.allclose(U.T @ U, np.eye(len(s)), atol=1e-5)


def test_crops_of_many_people_are_kept_in_a_file(trainer: TrainerCommand, tmp_path: Path) -> None:
    from trainer.data.gallery import load_gallery

    photos = crowd(ONE_SHARD + 1, photos=2)
    np.savez(tmp_path / "faces.npz", images=photos.images, labels=photos.labels)
    spooled = load_gallery(tmp_path / "faces.npz", cropped=True, spool=lambda: tmp_path / "crops.bin")
    assert isinstance(spooled.images, np.memmap)
    assert spooled.crop_size == SIZE
    assert (tmp_path / "crops.bin").stat().st_mode & 0o777 == 0o600
    assert spooled.fingerprint == load_gallery(tmp_path / "faces.npz", cropped=True).fingerprint
