"""Measures against brute force; and photos, models, kits and strangers as a user hands them in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import EdgeError, GalleryError
from edge.kit.manifest import Thresholds
from edge.vision.confidence import score_confidence
from edge.vision.preprocess import FeatureSpec
from export import graph
from export.graph import Factors
from export.pack import bundle
from tests.fixtures import kits as doors
from tests.fixtures import portraits
from tests.fixtures.data import faces
from tests.trainer.test_model import gallery
from trainer.data.gallery import Gallery, RejectedPhoto
from trainer.evaluation import measures as evaluate
from trainer.evaluation import trials as trying
from trainer.evaluation.measures import FPIRS, Evaluation, Share
from trainer.evaluation.report import page
from trainer.evaluation.trials import REFUSED, Subject, Trials
from trainer.model import Model
from trainer.training import fit

PEOPLE = ("anna", "ben", "çelik", "dora")


def subject(threshold: float | None = 0.6) -> Subject:
    return Subject(
        kind="model",
        file="door.npz",
        labels=PEOPLE,
        size=(2, 2),
        alignment="none",
        threshold=threshold,
        provisional=False,
        features="pixels",
        coding="l1",
        photos="",
        score=lambda crops: (crops, crops),
    )


@st.composite
def some_trials(draw: st.DrawFn) -> Trials:
    """Whole-number scores, so that some tie; strangers or none; one photo of an enrolled person at least."""
    truth = np.array([draw(st.integers(0, 3)), *draw(st.lists(st.integers(-1, 3), max_size=40))])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(-2, 6, (len(truth), len(PEOPLE))).astype(float)
    names = np.array([PEOPLE[who] if who >= 0 else f"stranger {rng.integers(3)}" for who in truth])
    confidence = np.where(rng.random(len(truth)) < 0.1, REFUSED, score_confidence(scores))
    return Trials(
        labels=PEOPLE,
        scores=scores,
        confidence=confidence,
        truth=truth,
        people=names,
        conditions=rng.choice(["clean", "scarf"], len(truth)),
        sources=tuple(f"{i}.png" for i in range(len(truth))),
        crops=np.zeros((len(truth), 2, 2), np.uint8),
        refused=tuple(
            RejectedPhoto(person="anna", source=f"bad {i}.png", condition="scarf", reason="no face found")
            for i in range(rng.integers(3))
        ),
    )


def missed(trials: Trials, i: Any, threshold: float) -> bool:
    """By the words of the definition."""
    own = trials.scores[i, trials.truth[i]]
    first = all(own > score for j, score in enumerate(trials.scores[i]) if j != trials.truth[i])
    return not (first and trials.confidence[i] >= threshold)


# --- Numbers ---


@given(some_trials(), st.one_of(st.none(), st.floats(-0.5, 1.1), st.integers(0, 40)))
def test_every_rate_is_what_a_loop_counts(trials: Trials, threshold: Any) -> None:
    if isinstance(threshold, int):  # exactly the confidence of a photo: that is enough
        threshold = max(float(trials.confidence[threshold % len(trials.truth)]), -1.0)
    found = evaluate.measure(subject(threshold), trials)
    known = [i for i, who in enumerate(trials.truth) if who >= 0]
    strange = [i for i, who in enumerate(trials.truth) if who < 0]
    assert (found.own is None) == (threshold is None)
    for point in (*found.at, *([found.own] if found.own else [])):
        assert point.fnir == Share(sum(missed(trials, i, point.threshold) for i in known), len(known))
        assert point.fpir == Share(sum(trials.confidence[i] >= point.threshold for i in strange), len(strange))
        assert point.wrong == sum(trials.confidence[i] >= point.threshold and missed(trials, i, REFUSED - 1) for i in known)
    if found.own is not None and strange:
        through = {trials.people[i] for i in strange if trials.confidence[i] >= found.own.threshold}
        assert found.strangers_named == Share(len(through), len({trials.people[i] for i in strange}))
    assert len(found.at) == (len(FPIRS) if strange else 0)
    for point, rate in zip(found.at, FPIRS, strict=False):
        assert point.target == rate
        assert point.fpir.count <= rate * len(strange)
        assert point.shown == (3 / len(strange) <= rate)
    assert found.failed == Share(len(trials.refused), len(trials.refused) + len(trials.truth))


@given(some_trials())
def test_cmc_rises_to_one(trials: Trials) -> None:
    found = evaluate.measure(subject(), trials)
    own = trials.scores[np.arange(len(trials.truth)), trials.truth]
    places = [sum(score >= own[i] for score in trials.scores[i]) for i in np.flatnonzero(trials.truth >= 0)]
    assert found.cmc == tuple(np.mean([place <= r for place in places]) for r in range(1, len(PEOPLE) + 1))
    assert list(found.cmc) == sorted(found.cmc)
    assert found.cmc[-1] == 1
    assert found.cmc[0] == found.rank1.value


@given(some_trials())
def test_det_falls_and_each_point_is_a_count(trials: Trials) -> None:
    curve = evaluate.measure(subject(), trials).det
    known, strange = trials.truth >= 0, trials.truth < 0
    assert bool(curve) == strange.any()
    for threshold, fpir, fnir in curve:
        assert fpir == np.mean(trials.confidence[strange] >= threshold)
        assert fnir == np.mean([missed(trials, i, threshold) for i in np.flatnonzero(known)])
    for one, other in pairwise(curve):
        assert one[0] >= other[0]
        assert one[1] <= other[1]
        assert one[2] >= other[2]
    if curve:
        assert curve[0][1] == 0
        assert curve[-1][1] == np.mean(trials.confidence[strange] > REFUSED)


def test_det_of_many_strangers_stays_short() -> None:
    rng = np.random.default_rng(0)
    genuine, strangers = rng.random(300), rng.random(20_000)
    curve = evaluate.det(genuine, strangers)
    assert 100 < len(curve) <= evaluate.DET_POINTS + 1
    assert all(fnir == np.mean(genuine < threshold) for threshold, _, fnir in curve)


@given(some_trials())
def test_conditions_and_people_add_up(trials: Trials) -> None:
    found = evaluate.measure(subject(), trials)
    assert found.own is not None
    for splits in (found.conditions, found.each):
        sums: list[tuple[Share, Sequence[Share | None]]] = [
            (found.rank1, [split.rank1 for split in splits]),
            (found.own.fnir, [split.fnir for split in splits]),
            *((point.fnir, [split.fnir_at[k] for split in splits]) for k, point in enumerate(found.at)),
        ]
        for whole, parts in sums:
            assert whole.count == sum(part.count for part in parts if part)
            assert whole.of == sum(part.of for part in parts if part)
    assert found.own.fpir.count == sum(split.fpir.count for split in found.conditions if split.fpir)
    assert found.failed.count == sum(split.failed.count for split in found.conditions)
    assert sum(found.reasons.values()) == found.failed.count


@given(some_trials())
def test_pairs_and_photos_are_the_worst(trials: Trials) -> None:
    found = evaluate.measure(subject(), trials)
    lost = {(PEOPLE[trials.truth[i]], PEOPLE[trials.named[i]]) for i in np.flatnonzero(trials.rank > 1)}
    shown = {(pair.person, pair.taken_for) for pair in found.confusions}
    assert shown == {pair for pair in lost if pair[0] != pair[1]} or len(shown) == evaluate.SHOWN
    assert all(pair.surest.nearest == pair.taken_for and pair.surest.person == pair.person for pair in found.confusions)
    for photo in found.misses:
        assert missed(trials, photo.index, 0.6)
        assert photo.named == (trials.confidence[photo.index] >= 0.6)
    wrong = [photo.named for photo in found.misses]
    assert wrong == sorted(wrong, reverse=True), "a wrong name is worse than none"
    if found.intruders:
        strangers = trials.confidence[trials.truth < 0]
        assert found.intruders[0].surest.confidence == (strangers.max() if strangers.max() > REFUSED else None)


@given(some_trials())
def test_facts_are_plain_and_complete(trials: Trials) -> None:
    found = evaluate.measure(subject(), trials)
    facts = json.loads(json.dumps(found.facts(), allow_nan=False))
    assert facts["rank1"]["share"] == found.rank1.value
    assert [point["fnir"]["count"] for point in facts["at"]] == [point.fnir.count for point in found.at]
    assert {"own", "cmc", "det", "conditions", "each", "confusions", "misses", "intruders", "failed", "reasons"} <= set(facts)
    low, high = facts["rank1"]["low"], facts["rank1"]["high"]
    assert low <= facts["rank1"]["share"] <= high


def test_a_part_that_is_covered_knows_nobody_and_is_outvoted() -> None:
    model = doors.model("both", "l21", parts=(2, 2))
    images, people = doors.held_out()
    covered = images.copy()
    covered[:, : images.shape[1] // 2] = np.random.default_rng(0).integers(0, 256, covered[:, : images.shape[1] // 2].shape)
    known = Gallery(
        images=np.concatenate([images, covered]),
        labels=np.concatenate([people, people]),
        sources=tuple(f"{i}.png" for i in range(2 * len(images))),
        conditions=("clean",) * len(images) + ("covered",) * len(images),
    )
    tested = trying.of_model(model)
    found = evaluate.measure(tested, trying.try_out(tested, known)[0], model=model)
    clean, spoiled = found.part_splits
    assert (clean.name, spoiled.name) == ("clean", "covered")
    shares = [[share.value or 0 for share in split.parts] for split in found.part_splits]
    assert max(shares[1][:2]) < 0.6 < min(*shares[0], *shares[1][2:]), "the upper two are covered"
    assert (spoiled.together.value or 0) > 0.8
    truth = found.trials.truth
    votes = [vote.argmax(axis=0) == truth for vote in model.part_scores(found.trials.crops)]
    assert [split.whole for split in found.part_splits] == [Share.among(half) for half in np.split(votes[0], 2)]
    for example in found.examples:
        assert [vote.right for vote in example.parts] == [bool(vote[example.photo.index]) for vote in votes[1:]]


def test_codes_are_compared_two_by_two() -> None:
    rng = np.random.default_rng(0)
    codes, truth = rng.standard_normal((7, 9)), np.array([0, 0, 2, 2, 2, 5, 5, 7, 7])
    unit = codes / np.linalg.norm(codes, axis=0)
    unit -= unit.mean(axis=1, keepdims=True)
    unit /= np.linalg.norm(unit, axis=0)
    found = evaluate.likeness(codes, truth)
    for a, one in enumerate((0, 2, 5, 7)):
        for b, other in enumerate((0, 2, 5, 7)):
            pairs = [(i, j) for i in range(9) for j in range(9) if truth[i] == one and truth[j] == other and i != j]
            assert found[a, b] == pytest.approx(np.mean([unit[:, i] @ unit[:, j] for i, j in pairs]))
    assert np.isnan(evaluate.likeness(codes[:, :3], np.array([0, 0, 1]))[1, 1])


@pytest.mark.parametrize("kind", ["pixels", "both", "gradient"])
def test_features_are_shown_as_the_face_they_are_of(kind: str) -> None:
    images, _ = faces()
    spec = FeatureSpec(height=24, width=20, kind=kind, cell=2)
    shown = evaluate.as_images(spec.vectors(images).T, spec)
    assert shown is not None
    assert shown.shape == (len(images), 12, 10)
    if kind != "gradient":
        small = images.reshape(-1, 12, 2, 10, 2).mean(axis=(2, 4))
        alike = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(shown, small, strict=True)]
        assert min(alike) > 0.999


# --- Photos, models and kits ---


def thresholds() -> Thresholds:
    return Thresholds(confidence=0.55, residual=10.0, provisional=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a kit of four people; photos that they have not seen, of these and of four others, in two conditions."""
    folder = tmp_path_factory.mktemp("evaluate")
    model = doors.model("pixels", "l21", 4)
    model.save(folder / "door.npz")
    built = graph.build(Factors.of(model), model.spec, model.coding, "fp32")
    packed = {"coding": model.coding, "precision": "fp32", "calibration": {}, "detector": None}
    (folder / "door.kit").write_bytes(bundle(model, built, thresholds=thresholds(), **packed))
    images, names = doors.held_out()
    others, _ = doors.crops(seed=9)
    conditions = np.array(["clean", "scarf"])[np.arange(len(images)) % 2]
    np.savez(folder / "seen.npz", images=images, labels=names, conditions=conditions)
    np.savez(folder / "plain.npz", images=images, labels=names)
    np.savez(folder / "strangers.npz", images=others, labels=np.repeat(["x", "y", "z", "anna"], 12))
    np.savez(folder / "trained.npz", images=model.crops, labels=np.array(model.labels)[model.crop_people])
    np.savez(folder / "nobody.npz", images=others, labels=np.repeat(["x", "y", "z", "w"], 12))
    np.savez(
        folder / "mixed.npz",
        images=np.concatenate([images, others, model.crops[:3]]),
        labels=np.concatenate([names, np.repeat(["x", "y", "z", "w"], 12), ["anna"] * 3]),
    )
    for i, (image, name, condition) in enumerate(zip(images, names, conditions, strict=True)):
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "photos" / name / f"{i}_{condition}.png"), image)
    cv2.imwrite(str(folder / "photos" / "anna" / "blank_scarf.png"), np.full((24, 20), 7, np.uint8))
    for name, image in (("anna/1", images[0]), ("ben/1", images[0] * 0), ("ben/2", images[0] * 0 + 9)):
        (folder / "bad" / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "bad" / f"{name}.png"), image)
    (folder / "flat").mkdir()
    for i, image in enumerate(others):
        cv2.imwrite(str(folder / "flat" / f"{i}.png"), image)
    (folder / "empty").mkdir()
    return folder


def run(files: Path, file: str, data: str, **options: Any) -> Evaluation:
    paths = {name: files / value if name in ("strangers", "model_file") else value for name, value in options.items()}
    return evaluate.run(files / file, files / data, **paths)


def numbers(found: Evaluation) -> dict[str, Any]:
    told = ("people", "strangers", "failed", "rank1", "cmc", "at", "conditions", "each")
    return {name: value for name, value in found.facts().items() if name in told}


def test_a_kit_measures_as_its_model_does(files: Path) -> None:
    model, kit = (run(files, name, "seen.npz", strangers="strangers.npz") for name in ("door.npz", "door.kit"))
    assert np.abs(model.trials.confidence - kit.trials.confidence).max() < 1e-4
    assert model.rank1 == kit.rank1
    assert model.rank1.value is not None
    assert model.rank1.value > 0.8
    assert model.cmc == kit.cmc
    assert [point.fnir for point in model.at] == [point.fnir for point in kit.at]
    assert [split.rank1 for split in model.each] == [split.rank1 for split in kit.each]
    assert (model.subject.threshold, kit.subject.threshold) == (None, 0.55)
    assert kit.subject.provisional
    assert kit.own is not None
    assert kit.own.fpir == Share(int((kit.trials.confidence[24:] >= 0.55).sum()), 48)
    assert kit.own_atoms is None
    assert model.own_atoms is not None


def test_a_kit_may_have_its_model_beside_it(files: Path) -> None:
    found = run(files, "door.kit", "seen.npz", model_file="door.npz")
    assert found.subject.kind == "kit"
    assert found.codes is not None
    assert found.residuals


def test_what_the_kit_refuses_gets_no_name(files: Path, tmp_path: Path) -> None:
    """By its residual, whatever the confidence."""
    model = doors.model("pixels", "l21", 4)
    built = graph.build(Factors.of(model), model.spec, model.coding, "fp32")
    strict = Thresholds(confidence=0.1, residual=1e-6, provisional=True)
    packed = {"coding": model.coding, "precision": "fp32", "calibration": {}, "detector": None}
    (tmp_path / "door.kit").write_bytes(bundle(model, built, thresholds=strict, **packed))
    found = evaluate.run(tmp_path / "door.kit", files / "seen.npz", strangers=files / "strangers.npz")
    assert found.own is not None
    assert (found.own.fnir.value, found.own.fpir.value, found.unlike) == (1, 0, 72)
    assert "unlike a face" in page(found, date(2026, 3, 1))
    assert found.rank1 == run(files, "door.kit", "seen.npz").rank1


@pytest.mark.parametrize("overlap", ["trained.npz", "seen.npz"])
def test_a_photo_of_somebody_enrolled_is_no_strangers(overlap: str, files: Path, tmp_path: Path) -> None:
    """Whatever name it has: a false alarm that is none, and no threshold would keep it out."""
    with np.load(files / "strangers.npz") as others, np.load(files / overlap) as own:
        images = np.concatenate([others["images"], own["images"][:1]])
        labels = np.array([*others["labels"], "somebody"])
    np.savez(tmp_path / "others.npz", images=images, labels=labels)
    with pytest.raises(GalleryError, match=r"enrolled, by name or by photo: others.npz\[48\]"):
        evaluate.run(files / "door.npz", files / "seen.npz", strangers=tmp_path / "others.npz")


def test_people_it_does_not_know_are_strangers(files: Path) -> None:
    alone = run(files, "door.npz", "mixed.npz")
    assert (alone.people, alone.strangers, alone.own) == (4, 4, None)
    assert "Left out: 3 photos that the model was trained on" in " ".join(alone.notes), "what it was trained on flatters"
    given = run(files, "door.npz", "mixed.npz", strangers="strangers.npz")
    assert (given.people, given.strangers) == (4, 4)
    assert "Left out: 48 photos of people whom the model does not know" in " ".join(given.notes)
    assert "Strangers with a name that the model knows count as strangers: " in " ".join(given.notes)
    assert given.rank1 == alone.rank1, "anna the stranger is not anna"
    flat = run(files, "door.npz", "plain.npz", strangers="flat")
    assert (flat.strangers, flat.at[0].fpir.of) == (1, 48)
    none = run(files, "door.npz", "plain.npz")
    assert (none.strangers, none.at, none.det) == (0, (), ())


def test_conditions_come_from_the_file_or_from_names(files: Path) -> None:
    from_file = run(files, "door.npz", "seen.npz")
    from_names = run(files, "door.npz", "photos", condition="_(clean|scarf)")
    assert [split.name for split in from_file.conditions] == ["clean", "scarf"]
    assert {s.name: s.rank1 for s in from_file.conditions} == {s.name: s.rank1 for s in from_names.conditions}
    whole = run(files, "door.npz", "photos", condition="clean|scarf")
    assert numbers(whole) == numbers(from_names)
    half = run(files, "door.npz", "photos", condition="_(clean)")
    assert {split.name for split in half.conditions} == {"clean", ""}
    assert run(files, "door.npz", "photos").conditions == ()


def test_photos_without_a_usable_face_are_counted(files: Path) -> None:
    found = run(files, "door.npz", "photos", condition="_(clean|scarf)")
    assert found.failed == Share(1, 25)
    assert found.reasons == {"blank": 1}
    assert {split.name: split.failed.count for split in found.conditions} == {"clean": 0, "scarf": 1}
    assert {split.name: split.failed.count for split in found.each} == {"anna": 1, "ben": 0, "çelik": 0, "dora": 0}
    assert found.rank1.of == 24
    nobody = run(files, "door.npz", "bad")
    assert {split.name: split.failed for split in nobody.each} == {"anna": Share(0, 1), "ben": Share(2, 2)}
    assert nobody.people == 1


def test_photographs_are_aligned_as_in_training(tmp_path: Path) -> None:
    portraits.yunet()  # or skip
    (tmp_path / "door.kit").write_bytes(portraits.kit())
    for name, photos in list(portraits.people().items())[:2]:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i, photo in enumerate(photos[portraits.TRAINING :]):
            cv2.imwrite(str(tmp_path / "photos" / name / f"{i}.png"), photo)
    cv2.imwrite(str(tmp_path / "photos" / "s1" / "nobody.png"), np.full((300, 400, 3), 90, np.uint8))
    (tmp_path / "photos" / "s2" / "torn.jpg").write_bytes(b"\xff\xd8torn")
    found = evaluate.run(tmp_path / "door.kit", tmp_path / "photos")
    assert found.failed == Share(2, 10)
    assert found.reasons["no face found"] == 1
    assert found.rank1.of == 8
    assert found.rank1.count >= 6
    crops = np.random.default_rng(0).integers(0, 256, (2, 80, 64), dtype=np.uint8)
    np.savez(tmp_path / "crops.npz", images=crops, labels=["s1", "s2"])
    with pytest.raises(EdgeError, match="holds cropped faces"):
        evaluate.run(tmp_path / "door.kit", tmp_path / "crops.npz")


@pytest.mark.parametrize(
    ("file", "data", "options", "says"),
    [
        ("door.npz", "nobody.npz", {}, "nobody whom the model knows"),
        ("door.npz", "trained.npz", {}, "photos it was trained on"),
        ("door.kit", "trained.npz", {}, "photos it was trained on"),
        ("door.npz", "nowhere", {}, "There is no"),
        ("door.npz", "empty", {}, "holds no folder"),
        ("door.npz", "seen.npz", {"strangers": "empty"}, "holds no folder"),
        ("nowhere.npz", "seen.npz", {}, "cannot be opened"),
        ("nowhere.kit", "seen.npz", {}, "cannot be opened"),
        ("seen.npz", "seen.npz", {}, "not a model file"),
        ("photos", "seen.npz", {}, "cannot be opened"),
        ("door.npz", "seen.npz", {"condition": "("}, "not a regular expression"),
        ("door.npz", "photos", {"condition": "hat"}, "finds nothing in anna/"),
        ("door.npz", "seen.npz", {"model_file": "door.npz"}, "is a model itself"),
        ("door.kit", "seen.npz", {"model_file": "other.npz"}, "not made from"),
    ],
)
def test_bad_input_is_a_sentence(files: Path, file: str, data: str, options: dict[str, str], says: str) -> None:
    if "other.npz" in options.values():
        fit(gallery(), FeatureSpec(height=10, width=8), {"atoms_per_class": 3}).save(files / "other.npz")
    with pytest.raises(EdgeError, match=says):
        run(files, file, data, **options)


def test_two_people_with_a_photo_each_are_enough() -> None:
    photos = gallery(people=("anna", "ben"))
    model = fit(photos, FeatureSpec(height=10, width=8), {"atoms_per_class": 2})
    new = Gallery(images=255 - photos.images[[0, 5]], labels=np.array(["anna", "ben"]), sources=("1", "2"))
    trials, _ = trying.try_out(trying.of_model(model), new, model=model)
    found = evaluate.measure(trying.of_model(model), trials, model=model)
    assert found.rank1.of == 2
    assert found.alike is None
    assert json.dumps(found.facts(), allow_nan=False)


def test_the_model_tells_how_training_went(tmp_path: Path) -> None:
    model = fit(gallery(), FeatureSpec(height=10, width=8), {"atoms_per_class": 3})
    model.save(tmp_path / "door.npz")
    told = Model.load(tmp_path / "door.npz").training["residuals"]
    assert np.shape(told) == (model.training["iterations"], 3)
    assert max(told[-1]) < max(told[0])
    assert "residuals" not in model.facts()["training"]


def test_the_wrong_number_of_conditions_is_refused(tmp_path: Path) -> None:
    images, names = doors.held_out()
    np.savez(tmp_path / "seen.npz", images=images, labels=names, conditions=["clean"] * 3)
    doors.model("pixels", "l21", 4).save(tmp_path / "door.npz")
    with pytest.raises(EdgeError, match="24 labels and 3 conditions"):
        evaluate.run(tmp_path / "door.npz", tmp_path / "seen.npz")


def test_table_says_the_rates(files: Path) -> None:
    found = run(files, "door.kit", "seen.npz", strangers="strangers.npz")
    text = evaluate.table(found)
    assert found.own is not None
    assert evaluate.spelled(found.rank1) in text
    assert evaluate.spelled(found.own.fpir, 2) in text
    assert "too few strangers: no better than 6.25 % can be claimed" in text
    assert "no strangers" in evaluate.table(run(files, "door.kit", "seen.npz"))
