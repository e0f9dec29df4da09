"""Photos, models, kits and strangers as a user passes them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.errors import EdgeError, GalleryError
from tests.fixtures import portraits
from tests.fixtures.evaluation import write_kit
from trainer.evaluation.evaluate import Evaluation, evaluate, rate_text, summary
from trainer.evaluation.measures import Share
from trainer.evaluation.report import page
from trainer.model import Model

pytestmark = pytest.mark.slow


def run(files: Path, file: str, data: str, **options: Any) -> Evaluation:
    paths = {name: files / value if name in ("strangers", "model_file") else value for name, value in options.items()}
    return evaluate(files / file, files / data, **paths)


def test_kit_measures_as_its_model_does(files: Path) -> None:
    model, kit = (run(files, name, "seen.npz", strangers="strangers.npz") for name in ("door.npz", "door.kit"))
    assert np.abs(model.trials.confidence - kit.trials.confidence).max() < 1e-4
    assert model.rank1 == kit.rank1
    assert (model.rank1.value or 0) > 0.8
    assert model.cmc == kit.cmc
    assert [point.fnir for point in model.at] == [point.fnir for point in kit.at]
    assert [split.rank1 for split in model.each] == [split.rank1 for split in kit.each]
    assert (model.system.threshold, kit.system.threshold) == (None, 0.55)
    assert kit.system.provisional
    assert kit.own is not None
    assert kit.own.fpir == Share(int((kit.trials.confidence[24:] >= 0.55).sum()), 48)
    assert (kit.inside, model.inside is None) == (None, False)
    with_model = run(files, "door.kit", "seen.npz", model_file="door.npz")
    assert with_model.system.kind == "kit"
    assert with_model.inside is not None
    assert with_model.residuals
    text = summary(kit)
    assert rate_text(kit.rank1) in text
    assert rate_text(kit.own.fpir, 2) in text
    assert "too few strangers, they show 6.25 % at best" in text
    assert "no strangers" in summary(with_model)


def test_photo_unlike_a_face_gets_no_name(files: Path, tmp_path: Path) -> None:
    """The residual rejects it whatever its confidence."""
    write_kit(tmp_path / "door.kit", confidence=0.3, residual=1e-4)
    found = evaluate(tmp_path / "door.kit", files / "seen.npz", strangers=files / "strangers.npz")
    assert found.own is not None
    assert (found.own.fnir.value, found.own.fpir.value, found.unlike) == (1, 0, 72)
    assert "unlike a face" in page(found, date(2026, 3, 1))
    assert found.rank1 == run(files, "door.kit", "seen.npz").rank1


@pytest.mark.parametrize("overlap", ["trained.npz", "seen.npz"])
def test_enrolled_person_among_the_strangers_is_an_error(overlap: str, files: Path, tmp_path: Path) -> None:
    """Under any name: no threshold could reject this photo."""
    with np.load(files / "strangers.npz") as others, np.load(files / overlap) as own:
        images = np.concatenate([others["images"], own["images"][:1]])
        labels = np.array([*others["labels"], "another"])
    np.savez(tmp_path / "others.npz", images=images, labels=labels)
    with pytest.raises(GalleryError, match=r"enrolled, by name or by photo: others.npz\[48\]"):
        evaluate(files / "door.npz", files / "seen.npz", strangers=tmp_path / "others.npz")


def test_people_who_are_not_enrolled_are_strangers(files: Path) -> None:
    alone = run(files, "door.npz", "mixed.npz")
    assert (alone.people, alone.strangers, alone.own) == (4, 4, None)
    assert "Left out: 3 photos that the model was trained on" in " ".join(alone.notes)
    given = run(files, "door.npz", "mixed.npz", strangers="strangers.npz")
    assert (given.people, given.strangers) == (4, 4)
    assert "Left out: 48 photos of people who are not enrolled in the model" in " ".join(given.notes)
    assert "Strangers with the name of an enrolled person count as strangers: anna" in " ".join(given.notes)
    assert given.rank1 == alone.rank1, "the stranger anna is not the enrolled anna"
    flat = run(files, "door.npz", "plain.npz", strangers="flat")
    assert (flat.strangers, flat.at[0].fpir.of) == (1, 48)
    none = run(files, "door.npz", "plain.npz")
    assert (none.strangers, none.at, none.det, none.conditions) == (0, (), (), ())


def test_conditions_come_from_the_file_or_from_names(files: Path) -> None:
    from_file = run(files, "door.npz", "seen.npz")
    from_names = run(files, "door.npz", "photos", condition="_(clean|scarf)")
    assert [split.name for split in from_file.conditions] == ["clean", "scarf"]
    assert {s.name: s.rank1 for s in from_file.conditions} == {s.name: s.rank1 for s in from_names.conditions}
    assert run(files, "door.npz", "photos", condition="clean|scarf").conditions == from_names.conditions
    half = run(files, "door.npz", "photos", condition="_(clean)")
    assert {split.name for split in half.conditions} == {"clean", ""}


def test_photos_without_a_usable_face_are_counted(files: Path) -> None:
    found = run(files, "door.npz", "photos", condition="_(clean|scarf)")
    assert found.failed == Share(1, 25)
    assert found.reasons == {"blank": 1}
    assert {split.name: split.failed.count for split in found.conditions} == {"clean": 0, "scarf": 1}
    assert {split.name: split.failed.count for split in found.each} == {"anna": 1, "ben": 0, "çelik": 0, "dora": 0}
    assert found.rank1.of == 24
    bad = run(files, "door.npz", "bad")
    assert {split.name: split.failed for split in bad.each} == {"anna": Share(0, 1), "ben": Share(2, 2)}
    assert bad.people == 1


def test_photographs_are_aligned_as_in_training(tmp_path: Path) -> None:
    portraits.yunet()  # or skip
    (tmp_path / "door.kit").write_bytes(portraits.kit())
    for name, photos in list(portraits.people().items())[:2]:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i, photo in enumerate(photos[portraits.TRAINING :]):
            cv2.imwrite(str(tmp_path / "photos" / name / f"{i}.png"), photo)
    cv2.imwrite(str(tmp_path / "photos" / "s1" / "empty.png"), np.full((300, 400, 3), 90, np.uint8))
    (tmp_path / "photos" / "s2" / "torn.jpg").write_bytes(b"\xff\xd8torn")
    found = evaluate(tmp_path / "door.kit", tmp_path / "photos")
    assert found.failed == Share(2, 10)
    assert found.reasons["no face found"] == 1
    assert found.rank1.of == 8
    assert found.rank1.count >= 6
    crops = np.random.default_rng(0).integers(0, 256, (2, 80, 64), dtype=np.uint8)
    np.savez(tmp_path / "crops.npz", images=crops, labels=["s1", "s2"])
    with pytest.raises(EdgeError, match="holds cropped faces"):
        evaluate(tmp_path / "door.kit", tmp_path / "crops.npz")


@pytest.mark.parametrize(
    ("file", "data", "options", "says"),
    [
        ("door.npz", "strangers_only.npz", {}, "no person who is enrolled in the model"),
        ("door.npz", "trained.npz", {}, "model was trained on all photos"),
        ("door.kit", "trained.npz", {}, "kit was trained on all photos"),
        ("door.npz", "nowhere", {}, "There is no"),
        ("door.npz", "empty", {}, "holds no folder"),
        ("door.npz", "seen.npz", {"strangers": "empty"}, "holds no folder"),
        ("door.npz", "three.npz", {}, "24 labels and 3 conditions"),
        ("nowhere.npz", "seen.npz", {}, "cannot be read"),
        ("nowhere.kit", "seen.npz", {}, "cannot be opened"),
        ("seen.npz", "seen.npz", {}, "not a model file"),
        ("photos", "seen.npz", {}, "cannot be read"),
        ("door.npz", "seen.npz", {"condition": "("}, "not a regular expression"),
        ("door.npz", "photos", {"condition": "hat"}, "does not match anna/"),
        ("door.npz", "seen.npz", {"model_file": "door.npz"}, "is a model, not a kit"),
        ("door.kit", "seen.npz", {"model_file": "other.npz"}, "not made from"),
    ],
)
def test_bad_input_is_an_error(files: Path, file: str, data: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(EdgeError, match=says):
        run(files, file, data, **options)


def test_model_of_an_older_version_has_no_residuals(files: Path, tmp_path: Path) -> None:
    model = Model.load(files / "door.npz")
    training = {name: value for name, value in model.training.items() if name != "residuals"}
    replace(model, training=training).save(tmp_path / "old.npz")
    found = evaluate(tmp_path / "old.npz", files / "seen.npz")
    assert found.residuals is None
    assert found.facts()["residuals"] is None
