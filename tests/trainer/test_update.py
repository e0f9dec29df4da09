"""People who come and go: who is enrolled is recognised, and who is forgotten leaves nothing behind."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.errors import GalleryError, UsageError
from tests.trainer.conftest import Call
from tests.trainer.features import test_network as embedded
from tests.trainer.test_model import SPEC, gallery
from trainer import update as enrolling
from trainer.data.gallery import Gallery
from trainer.method.solver import Schedule, locality_weights, solve
from trainer.model import ARRAYS, Model
from trainer.thresholds import FPIR, StrangerCalibration
from trainer.training import fit
from trainer.update import enrol, forget, load_photos, one_step_dictionary

PEOPLE = ("anna", "ben", "dora", "emil", "fay", "gus", "çelik")
NAME = "dora".encode("utf-32-le")  # as NumPy keeps text
KEPT = StrangerCalibration(confidence=0.7, target=0.01, passed=0, trials=35)


def of(photos: Gallery, *people: str, but: bool = False) -> Gallery:
    chosen = np.flatnonzero(np.isin(photos.labels, people) != but)
    return replace(
        photos,
        images=photos.images[chosen],
        labels=photos.labels[chosen],
        sources=tuple(photos.sources[i] for i in chosen),
    )


@pytest.fixture(scope="module")
def everybody() -> Gallery:
    return gallery(people=PEOPLE)


@pytest.fixture(scope="module")
def trained(everybody: Gallery) -> Model:
    return replace(fit(everybody, SPEC, {"atoms_per_class": 3}), calibration=KEPT)


def seen_again(photos: Gallery, seed: int = 5) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 10, photos.images.shape)
    return np.clip(photos.images + noise, 0, 255).astype(np.uint8)


# --- Enrol ---


@pytest.mark.parametrize(
    "parameters", [{}, {"coding": "l21"}, {"copies": 2}, {"parts": (2, 2)}, {"classifier_codes": "training"}]
)
def test_who_is_enrolled_is_recognised_and_so_are_the_others(parameters: dict[str, Any], everybody: Gallery) -> None:
    model = fit(of(everybody, "dora", but=True), SPEC, {"atoms_per_class": 3, **parameters})
    more = enrol(model, of(everybody, "dora"))
    assert more.labels == PEOPLE
    assert np.array_equal(more.predict(seen_again(everybody)), everybody.labels)
    assert more.fingerprint == everybody.fingerprint
    assert more.parameters == model.parameters
    assert more.coding == model.coding
    assert "accuracy" not in more.training, "that of another W"
    assert more.training["iterations"] == model.training["iterations"]


def test_enrolling_keeps_the_atoms_and_adds_some(everybody: Gallery) -> None:
    model = fit(of(everybody, "dora", but=True), SPEC, {"atoms_per_class": 3})
    more = enrol(model, of(everybody, "dora"))
    m = model.D.shape[1]
    assert np.array_equal(more.D[:, :m], model.D)
    assert [more.labels[i] for i in more.atom_people[:m]] == [model.labels[i] for i in model.atom_people]
    assert [more.labels[i] for i in more.atom_people[m:]] == ["dora"] * 3


def test_photos_of_somebody_known_join_the_others(everybody: Gallery) -> None:
    few = np.array([i % 5 < 2 or label != "ben" for i, label in enumerate(everybody.labels)])
    start = replace(
        everybody, images=everybody.images[few], labels=everybody.labels[few], sources=tuple("x" for _ in range(few.sum()))
    )
    model = fit(start, SPEC, {"atoms_per_class": 3})
    more = enrol(model, of(everybody, "ben"))  # two of the five are there already
    assert more.labels == PEOPLE
    assert len(more.crops) == len(everybody.images)
    assert np.sum(more.atom_people == PEOPLE.index("ben")) == 3
    assert more.fingerprint == everybody.fingerprint
    with pytest.raises(GalleryError, match="in the model already"):
        enrol(more, of(everybody, "ben"))


def test_several_people_may_come_at_once(everybody: Gallery) -> None:
    more = enrol(fit(of(everybody, "dora", "gus", but=True), SPEC, {}), of(everybody, "gus", "dora"))
    assert more.labels == PEOPLE
    assert np.array_equal(more.predict(everybody.images), everybody.labels)


def test_the_photo_of_another_person_is_refused(trained: Model, everybody: Gallery) -> None:
    stolen = replace(of(everybody, "ben"), labels=np.array(["zoe"] * 5))
    with pytest.raises(GalleryError, match=r"two names: .*\(of ben\)"):
        enrol(trained, stolen)


def test_photos_of_another_size_are_no_photos_for_the_model(trained: Model) -> None:
    wrong = Gallery(images=np.zeros((1, 9, 8), np.uint8), labels=np.array(["zoe"]), sources=("1.png",))
    with pytest.raises(ValueError, match="cropped like"):
        enrol(trained, wrong)


# --- Forget ---


def test_who_is_forgotten_is_in_no_part_of_the_model(trained: Model, everybody: Gallery) -> None:
    less = forget(trained, "dora")
    others = of(everybody, "dora", but=True)
    assert less.labels == tuple(name for name in PEOPLE if name != "dora")
    assert np.array_equal(less.crops, others.images)
    assert np.array_equal(np.array(less.labels)[less.crop_people], others.labels)
    assert less.fingerprint == others.fingerprint
    assert less.W.shape == (6, 18)
    assert less.D.shape == (SPEC.length, 18)
    assert np.array_equal(less.predict(seen_again(others)), others.labels)


@pytest.mark.parametrize("parameters", [{}, {"copies": 2}, {"coding": "l21", "parts": (2, 2)}])
def test_what_remains_would_be_the_same_had_it_been_somebody_else(parameters: dict[str, Any], everybody: Gallery) -> None:
    """The proof: no number of the model depends on the photos of the person who was forgotten."""
    dora = everybody.labels == "dora"
    noise = np.random.default_rng(8).integers(0, 256, everybody.images.shape).astype(np.uint8)
    another = replace(everybody, images=np.where(dora[:, None, None], noise, everybody.images))
    one, other = (fit(photos, SPEC, parameters) for photos in (everybody, another))
    assert not np.array_equal(one.D[:, one.atom_people == 0], other.D[:, other.atom_people == 0])  # anna's atoms do depend
    one, other = (forget(model, "dora") for model in (one, other))
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert one.facts() == other.facts()
    assert one.training == other.training


def test_somebody_enrolled_later_is_forgotten_as_well(everybody: Gallery) -> None:
    without = fit(of(everybody, "dora", but=True), SPEC, {})
    forgotten = forget(enrol(without, of(everybody, "dora")), "dora")
    again = forget(enrol(without, of(everybody, "dora")), "gus")
    direct = forget(fit(everybody, SPEC, {}), "dora")
    for name in ARRAYS:
        assert np.array_equal(getattr(forgotten, name), getattr(direct, name))
    assert "dora" in again.labels


def test_nothing_of_them_is_in_the_file(trained: Model, tmp_path: Path) -> None:
    path = tmp_path / "door.npz"
    trained.save(path)
    dora = PEOPLE.index("dora")
    atoms, photos = trained.atom_people == dora, trained.crop_people == dora
    pieces = [*trained.crops[photos], *trained.D.T[atoms], *trained.D[:, atoms], trained.W[dora], *trained.W.T[atoms]]
    needles = [np.ascontiguousarray(piece).tobytes()[:32] for piece in pieces if piece.nbytes > 8]
    before = path.read_bytes()
    assert sum(needle in before for needle in needles) > photos.sum() + atoms.sum()  # D lies in the file by rows or by columns
    assert NAME in before
    forget(Model.load(path), "dora").save(path)
    after = path.read_bytes()
    assert not [needle for needle in needles if needle in after]
    assert NAME not in after
    assert [file.name for file in tmp_path.iterdir()] == ["door.npz"]


def test_the_dictionary_is_that_of_the_first_step_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30, 12)) + 1
    X /= np.linalg.norm(X, axis=0)
    D0 = X[:, [0, 3, 5, 8]]
    once = Schedule(mu0=1.0, max_iterations=1)
    step = solve(X, D0, locality_weights(X, D0), lam=25, alpha=0.5, gamma=0.05, schedule=once)
    monkeypatch.setattr(enrolling, "CODE_RIDGE", 2.0)
    np.testing.assert_allclose(one_step_dictionary(X, np.array([0, 3, 5, 8]), 0.05), step.D, atol=1e-10)


def test_a_name_may_be_typed_as_another_system_spells_it(trained: Model) -> None:
    assert forget(trained, "c\N{COMBINING CEDILLA}elik").labels == PEOPLE[:-1]


def test_nobody_is_forgotten_by_mistake(trained: Model, everybody: Gallery) -> None:
    with pytest.raises(UsageError, match=r"no dorra in the model. Did you mean dora\?"):
        forget(trained, "dorra")
    with pytest.raises(UsageError, match="Check the name"):
        forget(trained, "xxxxxx")
    with pytest.raises(UsageError, match="Delete the file"):
        forget(fit(of(everybody, "anna", "ben"), SPEC, {}), "ben")


@pytest.mark.parametrize("beside", ["", "both"])
def test_with_an_embedding_model_people_come_and_go_as_well(beside: str) -> None:
    (images, names), model = embedded.crops(), embedded.model(beside)
    own = np.flatnonzero(names == "person 2")[:5]
    less = forget(model, "person 2")
    assert "person 2" not in less.labels
    photos = Gallery(images=images[own], labels=names[own], sources=tuple(map(str, own)), alignment=less.alignment)
    assert np.mean(enrol(less, photos).predict(images) == names) > np.mean(model.predict(images) == names) - 0.05


# --- The threshold ---


def test_the_threshold_is_kept_or_measured_again(trained: Model, everybody: Gallery) -> None:
    assert forget(trained, "dora").calibration == KEPT
    again = forget(trained, "dora", calibrate=True).calibration
    assert again is not None
    assert (again.trials, again.target) == (30, KEPT.target)
    more = enrol(forget(trained, "dora"), of(everybody, "dora"), calibrate=True).calibration
    assert more is not None
    assert more.trials == 35


def test_a_model_without_a_threshold_gets_one_if_asked_to_and_if_there_are_enough_people(everybody: Gallery) -> None:
    model = fit(of(everybody, "dora", "gus", but=True), SPEC, {})
    assert enrol(model, of(everybody, "dora")).calibration is None
    six = enrol(model, of(everybody, "dora"), calibrate=True)
    assert six.calibration is not None
    assert (six.calibration.trials, six.calibration.target) == (30, FPIR)
    assert forget(replace(six, calibration=None), "dora", calibrate=True).calibration is None


# --- The commands ---


@pytest.fixture
def folders(everybody: Gallery, tmp_path: Path) -> Path:
    for i, (image, label) in enumerate(zip(everybody.images, everybody.labels, strict=True)):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(folder / f"{i}.png"), image)
    return tmp_path / "photos"


def test_the_commands_enrol_and_forget(trainer: Call, folders: Path, tmp_path: Path) -> None:
    aside = tmp_path / "dora"
    shutil.move(folders / "dora", aside)
    model = tmp_path / "door.npz"
    assert trainer("fit", folders, "--cropped", "-o", model, "--parts", "none", "--augment", "--copies", "2")[0] == 0
    first = Model.load(model)
    assert first.parameters["copies"] == 2
    code, out, said = trainer("enrol", model, aside)
    assert (code, out) == (0, "")
    assert "7 people from 35 photos, 5 of them new (dora)" in said
    assert "--calibrate" in said
    assert Model.load(model).labels == PEOPLE
    code, out, said = trainer("forget", model, "dora")
    assert (code, out) == (0, "")
    assert "6 people from 30 photos, without dora" in said
    assert "Kits on devices" in said
    assert Model.load(model).labels == first.labels
    assert Model.load(model).calibration == first.calibration is not None
    assert "accuracy" not in trainer("show", model)[1]
    code, _, said = trainer("forget", model, "ana")
    assert code == 2
    assert "Did you mean anna?" in said
    (aside / "torn.png").write_bytes(b"no photo")
    code, _, said = trainer("enrol", model, aside)
    assert code == 2
    assert "--skip-bad" in said
    assert trainer("enrol", model, aside, "--skip-bad", "--calibrate")[0] == 0
    assert Model.load(model).labels == PEOPLE


def test_what_is_taken_for_granted_or_doubted_is_said(trainer: Call, folders: Path, tmp_path: Path) -> None:
    five, again, wrong = (tmp_path / name for name in ("five", "again", "wrong"))
    shutil.copytree(folders, five, ignore=shutil.ignore_patterns("dora", "gus"))
    model = tmp_path / "door.npz"
    code, _, said = trainer("fit", five, "--cropped", "-o", model, "--parts", "none")
    assert (code, "the measurement needs 6 people or --strangers" in said) == (0, True)
    said = trainer("enrol", model, folders / "gus", "--calibrate")[2]
    assert "photos of people who were left out of training get a name" in said
    for folder, person, owner in ((again, "anna", "anna"), (wrong, "ben", "anna")):
        (folder / person).mkdir(parents=True)
        for photo in sorted((folders / owner).iterdir())[:2]:
            image = cv2.imread(str(photo), cv2.IMREAD_GRAYSCALE)
            assert image is not None
            shift = 2 if owner == person else 4
            assert cv2.imwrite(str(folder / person / photo.name), np.clip(image.astype(int) + shift, 0, 255).astype(np.uint8))
    said = trainer("enrol", model, again / "anna")[2]
    assert "Already in the model, so the photos were added to theirs: anna." in said
    assert "Not used" not in said
    said = trainer("enrol", model, wrong / "ben")[2]
    assert "Not used, because the names may be wrong: 0.png (looks like anna), 1.png (looks like anna)." in said


def test_strangers_who_were_handed_in_are_not_asked_again(trainer: Call, everybody: Gallery, tmp_path: Path) -> None:
    handed_in = replace(KEPT, public=True, confidence=0.9)
    model = tmp_path / "door.npz"
    replace(fit(everybody, SPEC, {"atoms_per_class": 3}), calibration=handed_in).save(model)
    assert "stays 0.9; --calibrate" in trainer("forget", model, "dora")[2]
    said = trainer("forget", model, "anna", "--calibrate")[2]  # five are left
    assert "stays 0.9; measuring it needs 6 people" in said
    replace(fit(everybody, SPEC, {"atoms_per_class": 3}), calibration=handed_in).save(model)
    said = trainer("forget", model, "dora", "--calibrate")[2]
    assert "photos of people who were left out" in said
    assert "It was 0.9, measured with given strangers" in said


def test_photos_are_cropped_like_those_of_the_model(trained: Model, folders: Path) -> None:
    large = np.random.default_rng(0).integers(0, 256, (20, 16)).astype(np.uint8)
    (folders / "zoe").mkdir()
    cv2.imwrite(str(folders / "zoe" / "1.png"), large)
    found = load_photos(trained, folders / "zoe")
    assert found.people == ("zoe",)
    assert found.images.shape == (1, 10, 8)
