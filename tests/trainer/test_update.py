"""Enrol and forget: an enrolled person is recognised; a forgotten person leaves no trace in the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import GalleryError, UsageError
from edge.kit.manifest import ABSOLUTE
from tests.fixtures.data import SPEC, small_gallery, write_photos
from tests.fixtures.embedding import EXPERTS, LENGTH, network_crops, network_model
from tests.fixtures.trainer_command import TrainerCommand
from trainer import update
from trainer.data.gallery import Gallery
from trainer.method.locality import locality_weights
from trainer.method.prox import column_norms
from trainer.method.solver import Schedule, solve
from trainer.model import ARRAYS, PlainModel
from trainer.thresholds import FPIR, StrangerCalibration
from trainer.training import fit
from trainer.update import enrol, forget, one_step_dictionary

pytestmark = pytest.mark.slow

PEOPLE = ("anna", "ben", "dora", "emil", "fay", "gus", "çelik")
NAME = "dora".encode("utf-32-le")  # NumPy's encoding of text
CALIBRATION = StrangerCalibration(confidence=0.7, target=0.01, passed=0, trials=35)
ALL = small_gallery(people=PEOPLE)


def photos_of(*people: str) -> Gallery:
    return ALL.selected(np.isin(ALL.labels, people))


def photos_without(*people: str) -> Gallery:
    return ALL.selected(~np.isin(ALL.labels, people))


@pytest.fixture(scope="module")
def trained() -> PlainModel:
    return replace(fit(ALL, SPEC, {"atoms_per_class": 3}), calibration=CALIBRATION)


@pytest.fixture(scope="module")
def without_dora() -> PlainModel:
    return fit(photos_without("dora"), SPEC, {"atoms_per_class": 3})


def with_noise(photos: Gallery, seed: int = 5) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 10, photos.images.shape)
    return np.clip(photos.images + noise, 0, 255).astype(np.uint8)


# --- Enrol ---


@pytest.mark.parametrize(
    "parameters", [{}, {"coding": "l21", "parts": (2, 2)}, {"copies": 2}, {"classifier_codes": "training"}]
)
def test_enrolled_person_and_all_others_are_recognised(parameters: dict[str, Any]) -> None:
    model = fit(photos_without("dora"), SPEC, {"atoms_per_class": 3, **parameters})
    more = enrol(model, photos_of("dora"))
    assert more.labels == PEOPLE
    assert np.array_equal(more.predict(with_noise(ALL)), ALL.labels)
    assert more.fingerprint == ALL.fingerprint
    assert (more.parameters, more.coding) == (model.parameters, model.coding)
    assert "accuracy" not in more.training, "it belongs to the old W"
    assert more.training["iterations"] == model.training["iterations"]


def test_enrol_keeps_the_atoms_and_adds_some(without_dora: PlainModel) -> None:
    more = enrol(without_dora, photos_of("dora"))
    m = without_dora.D.shape[1]
    assert np.array_equal(more.D[:, :m], without_dora.D)
    assert [more.labels[i] for i in more.atom_people[:m]] == [without_dora.labels[i] for i in without_dora.atom_people]
    assert [more.labels[i] for i in more.atom_people[m:]] == ["dora"] * 3


def test_new_photos_of_a_known_person_are_added() -> None:
    few = np.array([i % 5 < 2 or label != "ben" for i, label in enumerate(ALL.labels)])
    model = fit(ALL.selected(few), SPEC, {"atoms_per_class": 3})
    more = enrol(model, photos_of("ben"))  # two of the five are in the model already
    assert more.labels == PEOPLE
    assert len(more.crops) == len(ALL.images)
    assert np.sum(more.atom_people == PEOPLE.index("ben")) == 3
    assert more.fingerprint == ALL.fingerprint
    with pytest.raises(GalleryError, match="in the model already"):
        enrol(more, photos_of("ben"))


def test_several_people_can_be_enrolled_at_once() -> None:
    more = enrol(fit(photos_without("dora", "gus"), SPEC, {}), photos_of("gus", "dora"))
    assert more.labels == PEOPLE
    assert np.array_equal(more.predict(ALL.images), ALL.labels)


def test_photos_of_another_person_or_size_are_rejected(trained: PlainModel) -> None:
    with pytest.raises(GalleryError, match=r"two names: .*\(of ben\)"):
        enrol(trained, replace(photos_of("ben"), labels=np.array(["zoe"] * 5)))
    wrong = Gallery(images=np.zeros((1, 9, 8), np.uint8), labels=np.array(["zoe"]), sources=("1.png",))
    with pytest.raises(ValueError, match="cropped like"):
        enrol(trained, wrong)


# --- Forget ---


def test_forgotten_person_is_in_no_part_of_the_model(trained: PlainModel) -> None:
    less, others = forget(trained, "dora"), photos_without("dora")
    assert less.labels == tuple(name for name in PEOPLE if name != "dora")
    assert np.array_equal(less.crops, others.images)
    assert np.array_equal(less.gallery().labels, others.labels)
    assert less.fingerprint == others.fingerprint
    assert (less.W.shape, less.D.shape) == ((6, 18), (SPEC.length, 18))
    assert np.array_equal(less.predict(with_noise(others)), others.labels)


@pytest.mark.parametrize("parameters", [{"copies": 2}, {"coding": "l21", "parts": (2, 2)}])
def test_no_number_depends_on_the_photos_of_the_forgotten_person(parameters: dict[str, Any]) -> None:
    dora = ALL.labels == "dora"
    noise = np.random.default_rng(8).integers(0, 256, ALL.images.shape).astype(np.uint8)
    changed = replace(ALL, images=np.where(dora[:, None, None], noise, ALL.images))
    one, other = (fit(photos, SPEC, parameters) for photos in (ALL, changed))
    assert not np.array_equal(one.D[:, one.atom_people == 0], other.D[:, other.atom_people == 0])  # anna's atoms depend on it
    one, other = (forget(model, "dora") for model in (one, other))
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert one.facts() == other.facts()
    assert one.training == other.training


def test_person_enrolled_later_is_forgotten_as_well(trained: PlainModel, without_dora: PlainModel) -> None:
    more = enrol(without_dora, photos_of("dora"))
    forgotten, direct = forget(more, "dora"), forget(trained, "dora")
    for name in ARRAYS:
        assert np.array_equal(getattr(forgotten, name), getattr(direct, name))
    assert "dora" in forget(more, "gus").labels


def test_file_keeps_no_bytes_of_the_forgotten_person(trained: PlainModel, tmp_path: Path) -> None:
    path = tmp_path / "door.npz"
    trained.save(path)
    dora = PEOPLE.index("dora")
    atoms, photos = trained.atom_people == dora, trained.crop_people == dora
    pieces = [*trained.crops[photos], *trained.D.T[atoms], *trained.D[:, atoms], trained.W[dora], *trained.W.T[atoms]]
    needles = [np.ascontiguousarray(piece).tobytes()[:32] for piece in pieces if piece.nbytes > 8]
    before = path.read_bytes()
    assert sum(needle in before for needle in needles) > photos.sum() + atoms.sum()  # D is stored by rows or by columns
    assert NAME in before
    forget(PlainModel.load(path), "dora").save(path)
    after = path.read_bytes()
    assert not [needle for needle in needles if needle in after]
    assert NAME not in after
    assert [file.name for file in tmp_path.iterdir()] == ["door.npz"]


def test_dictionary_is_that_of_the_first_solver_step(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(3).normal(size=(30, 12)) + 1
    X /= np.linalg.norm(X, axis=0)
    D0 = X[:, [0, 3, 5, 8]]
    once = Schedule(mu0=1.0, max_iterations=1)
    step = solve(X, D0, locality_weights(X, D0), lam=25, alpha=0.5, gamma=0.05, schedule=once)
    monkeypatch.setattr(update, "CODE_RIDGE", 2.0)
    np.testing.assert_allclose(one_step_dictionary(X, np.array([0, 3, 5, 8]), 0.05), step.D, atol=1e-10)


def test_name_is_found_in_any_unicode_form_or_rejected(trained: PlainModel) -> None:
    assert forget(trained, "c\N{COMBINING CEDILLA}elik").labels == PEOPLE[:-1]
    with pytest.raises(UsageError, match=r"no dorra in the model. Did you mean dora\?"):
        forget(trained, "dorra")
    with pytest.raises(UsageError, match="Check the name"):
        forget(trained, "xxxxxx")
    with pytest.raises(UsageError, match="Delete the file"):
        forget(fit(photos_of("anna", "ben"), SPEC, {}), "ben")


def test_people_of_a_network_model_can_change() -> None:
    (images, names), model = network_crops(), network_model("both")
    own = np.flatnonzero(names == "person 2")[:5]
    less = forget(model, "person 2")
    assert "person 2" not in less.labels
    photos = Gallery(images=images[own], labels=names[own], sources=tuple(map(str, own)), alignment=less.alignment)
    assert np.mean(enrol(less, photos).predict(images) == names) > np.mean(model.predict(images) == names) - 0.05


# --- Experts: the cosine and a dictionary for each of two kinds of features ---


def experts_on(gallery: Gallery) -> PlainModel:
    parameters = {"atoms_per_class": 4, "coding": "l21", **EXPERTS}
    return replace(fit(gallery, network_model("both").spec, parameters), calibration=CALIBRATION)


def test_enrol_adds_atoms_to_both_dictionaries() -> None:
    whole = network_model("both", experts=True)
    gallery = whole.gallery()
    new = gallery.labels == "person 2"
    less = experts_on(gallery.selected(~new))
    more = enrol(less, gallery.selected(new))
    m = less.D.shape[1]
    assert np.array_equal(more.D[:, :m], less.D)
    assert [more.labels[i] for i in more.atom_people[m:]] == ["person 2"] * 4
    assert more.network_rows is not None
    X = more.spec.vectors(gallery.images[new][:4]).T
    for rows in (more.network_rows, *more.part_rows):
        added, length = more.D[rows, m:], column_norms(less.D[rows]).mean()
        np.testing.assert_allclose(column_norms(added), length, rtol=1e-4)
        np.testing.assert_allclose(added / length, X[rows] / column_norms(X[rows]), atol=1e-5)
    images, names = network_crops()
    assert np.mean(more.predict(images) == names) > 0.9
    assert (more.confidence, more.parameters, more.calibration) == (ABSOLUTE, less.parameters, CALIBRATION)
    assert more.templates is not None
    assert more.templates.shape == (5, LENGTH)


def test_more_photos_than_atoms_can_be_enrolled() -> None:
    images, names = network_crops()
    own = np.flatnonzero(names == "person 2")[5:]  # the model has 4 atoms of this person
    photos = Gallery(images=images[own], labels=names[own], sources=tuple(map(str, own)))
    model = network_model("both", experts=True)
    more = enrol(model, photos)
    assert np.array_equal(more.D, model.D)
    assert len(more.crops) == len(model.crops) + 3
    assert not np.allclose(more.W, model.W)


def test_no_expert_depends_on_the_photos_of_the_forgotten_person() -> None:
    gallery = network_model("both", experts=True).gallery()
    noise = np.random.default_rng(8).integers(0, 256, gallery.images.shape, np.uint8)
    person = (gallery.labels == "person 2")[:, None, None, None]
    changed = replace(gallery, images=np.where(person, noise, gallery.images))
    one, other = (experts_on(photos) for photos in (gallery, changed))
    assert not np.array_equal(one.D[:, one.atom_people == 0], other.D[:, other.atom_people == 0])
    one, other = (forget(model, "person 2") for model in (one, other))
    for name in (*ARRAYS, "templates"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert one.facts() == other.facts()
    assert one.calibration == CALIBRATION
    assert one.templates is not None
    assert one.templates.shape == (4, LENGTH)
    assert np.mean(one.predict(gallery.images) == gallery.labels) == 0.8, "all but the photos of person 2"


# --- The threshold ---


def test_threshold_is_kept_or_measured_again(trained: PlainModel) -> None:
    less = forget(trained, "dora", calibrate=True)
    assert forget(trained, "dora").calibration == CALIBRATION
    assert less.calibration is not None
    assert (less.calibration.trials, less.calibration.target) == (30, CALIBRATION.target)
    assert "people who were left out of training" in update.threshold_note(trained, less)
    more = enrol(less, photos_of("dora"), calibrate=True).calibration
    assert more is not None
    assert more.trials == 35


def test_threshold_needs_six_people(trained: PlainModel) -> None:
    five = replace(forget(forget(trained, "dora"), "gus"), calibration=None)
    assert enrol(five, photos_of("dora")).calibration is None
    six = enrol(five, photos_of("dora"), calibrate=True)
    assert six.calibration is not None
    assert (six.calibration.trials, six.calibration.target) == (30, FPIR)
    less = forget(replace(six, calibration=None), "dora", calibrate=True)
    assert less.calibration is None
    assert update.threshold_note(six, less).endswith("was not measured; measuring it needs 6 people.")


def test_note_says_that_given_strangers_are_not_used_again(trained: PlainModel) -> None:
    given = replace(trained, calibration=replace(CALIBRATION, public=True, confidence=0.9))
    assert "stays 0.9; --calibrate" in update.threshold_note(given, forget(given, "dora"))
    assert "It was 0.9, measured with given strangers" in update.threshold_note(given, trained)


# --- The commands ---


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", ALL.images, ALL.labels)


def test_commands_enrol_and_forget(trainer: TrainerCommand, without_dora: PlainModel, folders: Path, tmp_path: Path) -> None:
    model = tmp_path / "door.npz"
    replace(without_dora, calibration=CALIBRATION).save(model)
    code, out, err = trainer("enrol", model, folders / "dora")
    assert (code, out) == (0, "")
    assert "7 people from 35 photos, 5 of them new (dora)" in err
    assert "--calibrate" in err
    assert PlainModel.load(model).labels == PEOPLE
    code, out, err = trainer("forget", model, "dora")
    assert (code, out) == (0, "")
    assert "6 people from 30 photos, without dora" in err
    assert "Kits on devices" in err
    assert PlainModel.load(model).labels == without_dora.labels
    assert PlainModel.load(model).calibration == CALIBRATION
    assert "accuracy" not in trainer("show", model)[1]
    code, _, err = trainer("forget", model, "ana")
    assert (code, "Did you mean anna?" in err) == (2, True)
    (folders / "dora" / "torn.png").write_bytes(b"no photo")
    code, _, err = trainer("enrol", model, folders / "dora", "--calibrate")
    assert (code, "torn.png (not a readable image)" in err) == (0, True)
    assert PlainModel.load(model).labels == PEOPLE


def test_enrolling_a_person_without_usable_photo_is_an_error(
    trainer: TrainerCommand, without_dora: PlainModel, folders: Path, tmp_path: Path
) -> None:
    model = tmp_path / "door.npz"
    without_dora.save(model)
    (folders / "zoe").mkdir()
    (folders / "zoe" / "torn.png").write_bytes(b"no photo")
    for photos, source in ((folders / "zoe", "torn.png"), (folders, "zoe/torn.png")):
        code, _, err = trainer("enrol", model, photos)
        assert (code, f"No usable photo of zoe: {source} (not a readable image)." in err) == (2, True), err
    assert PlainModel.load(model).labels == without_dora.labels


def test_enrol_reports_known_people_and_suspected_labels(trainer: TrainerCommand, trained: PlainModel, tmp_path: Path) -> None:
    model = tmp_path / "door.npz"
    trained.save(model)
    for person, shift in (("anna", 2), ("ben", 4)):  # brighter copies of anna's photos
        brighter = np.clip(photos_of("anna").images[:2].astype(int) + shift, 0, 255).astype(np.uint8)
        write_photos(tmp_path / str(shift), brighter, np.array([person] * 2))
    err = trainer("enrol", model, tmp_path / "2" / "anna")[2]
    assert "Already in the model, so the photos were added to theirs: anna." in err
    assert "Not used" not in err
    err = trainer("enrol", model, tmp_path / "4" / "ben")[2]
    assert "Not used, because the names may be wrong: 0.png (looks like anna), 1.png (looks like anna)." in err
