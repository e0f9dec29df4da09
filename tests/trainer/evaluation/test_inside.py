"""What is inside a model: similarity of codes, features as images, and the votes of parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge.vision.preprocess import FeatureSpec
from tests.fixtures import kits as doors
from tests.fixtures.data import faces
from tests.fixtures.embedding import network_crops, network_model
from tests.fixtures.evaluation import two_people
from trainer.data.gallery import Gallery
from trainer.evaluation.evaluate import measure
from trainer.evaluation.inside import as_images, code_similarity
from trainer.evaluation.measures import Share
from trainer.evaluation.trials import run_trials, system_of_model
from trainer.model import PlainModel

pytestmark = pytest.mark.slow


def test_covered_part_is_wrong_and_outvoted() -> None:
    model = doors.model("both", "l21", parts=(2, 2))
    images, people = doors.held_out()
    covered, half = images.copy(), images.shape[1] // 2
    covered[:, :half] = np.random.default_rng(0).integers(0, 256, covered[:, :half].shape)
    gallery = Gallery(
        images=np.concatenate([images, covered]),
        labels=np.concatenate([people, people]),
        sources=tuple(f"{i}.png" for i in range(2 * len(images))),
        conditions=("clean",) * len(images) + ("covered",) * len(images),
    )
    system = system_of_model(model)
    found = measure(system, run_trials(system, gallery)[0])
    assert found.inside is not None
    splits = found.inside.part_splits
    assert [split.name for split in splits] == ["clean", "covered"]
    clean, spoiled = ([share.value or 0 for share in split.parts] for split in splits)
    assert max(spoiled[:2]) < 0.6 < min(*clean, *spoiled[2:]), "the upper two are covered"
    assert (splits[1].together.value or 0) > 0.8
    votes = [vote.argmax(axis=0) == found.trials.truth for vote in model.part_scores(found.trials.crops)]
    assert [split.whole for split in splits] == [Share.among(half) for half in np.split(votes[0], 2)]
    for example in found.inside.examples:
        assert [vote.right for vote in example.parts] == [bool(vote[example.photo.index]) for vote in votes[1:]]


def test_code_similarity_is_the_mean_cosine_of_pairs() -> None:
    rng = np.random.default_rng(0)
    codes, truth = rng.standard_normal((7, 9)), np.array([0, 0, 2, 2, 2, 5, 5, 7, 7])
    unit = codes / np.linalg.norm(codes, axis=0)
    unit -= unit.mean(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=0)
    found = code_similarity(codes, truth)
    for a, one in enumerate((0, 2, 5, 7)):
        for b, other in enumerate((0, 2, 5, 7)):
            pairs = [(i, j) for i in range(9) for j in range(9) if truth[i] == one and truth[j] == other and i != j]
            assert found[a, b] == pytest.approx(np.mean([unit[:, i] @ unit[:, j] for i, j in pairs]))
    assert np.isnan(code_similarity(codes[:, :3], np.array([0, 0, 1]))[1, 1])


@pytest.mark.parametrize("kind", ["pixels", "both", "gradient"])
def test_features_as_images_resemble_the_faces(kind: str) -> None:
    images, _ = faces()
    spec = FeatureSpec(height=24, width=20, kind=kind, cell=2)
    shown = as_images(spec.vectors(images).T, spec)
    assert shown is not None
    assert shown.shape == (len(images), 12, 10)
    if kind != "gradient":
        small = images.reshape(-1, 12, 2, 10, 2).mean(axis=(2, 4))
        assert min(np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(shown, small, strict=True)) > 0.999


def test_two_people_with_one_photo_each_are_enough(tmp_path: Path) -> None:
    photos, model = two_people()
    model.save(tmp_path / "door.npz")
    residuals = PlainModel.load(tmp_path / "door.npz").training["residuals"]
    assert np.shape(residuals) == (model.training["iterations"], 3)
    assert max(residuals[-1]) < max(residuals[0])
    assert "residuals" not in model.facts()["training"]
    new = Gallery(images=255 - photos.images[[0, 5]], labels=np.array(["anna", "ben"]), sources=("1", "2"))
    system = system_of_model(model)
    found = measure(system, run_trials(system, new)[0])
    assert found.rank1.of == 2
    assert found.inside is not None
    assert found.inside.alike is None
    assert found.residuals == residuals
    assert json.dumps(found.facts(), allow_nan=False)


@pytest.mark.parametrize("own", ["", "both"])
def test_experts_show_the_codes_of_the_network_and_our_own_features(own: str) -> None:
    model, (images, names) = network_model(own, experts=True), network_crops()
    system = system_of_model(model)
    found = measure(system, run_trials(system, Gallery(images=images, labels=names, sources=tuple(map(str, names))))[0])
    assert found.inside is not None
    assert found.inside.codes.shape == (model.D.shape[1], 15), "the photos that are not in the model"
    assert found.inside.own_atoms > 0.3, "of five people"
    assert found.inside.part_splits == ()
    assert bool(found.inside.examples) == (own != "")
    for example in found.inside.examples:
        assert example.parts == ()
        assert example.taken_off < 0.5, "the dictionary of our own features recovers the face"
        assert np.corrcoef(example.x.ravel(), example.recovered.ravel())[0, 1] > 0.9
    assert found.rank1.count > 0.9 * found.rank1.of
