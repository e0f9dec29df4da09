"""scripts/research/wild: the draw of people and photos, the rates by hand, and the whole command on ORL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from edge.decision.visit import Sighting, Visit, VisitRules
from edge.errors import GalleryError, UsageError
from edge.kit.manifest import ABSOLUTE, RELATIVE
from scripts.research import photo_draw, wild
from scripts.research.photo_draw import Draw, triples
from scripts.research.sface_cosine import to_means, to_nearest
from tests.fixtures.portraits import find_orl, yunet
from trainer.downloads import SFACE
from trainer.presets import DEFAULT
from trainer.types import silent


def write(folder: Path, photos: dict[str, list[str]], seed: int = 0) -> Path:
    """Write noise as photos of these file names."""
    rng = np.random.default_rng(seed)
    for person, names in photos.items():
        (folder / person).mkdir(parents=True)
        for name in names:
            assert cv2.imwrite(str(folder / person / name), rng.integers(0, 256, (40, 40, 3), np.uint8))
    return folder


def drawn(folder: Path, **options: Any) -> Draw:
    usual: dict[str, Any] = {"people": 3, "photos": 2, "strangers": 3, "seed": 0, "prefix": "mask_", "say": silent}
    return photo_draw.draw(folder, **usual | options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six people with five bare and four occluded photos, one with occluded photos only, and two with a single photo."""
    many = [*(f"{i}.png" for i in range(5)), *(f"mask_{i}.png" for i in range(4))]
    people = {f"p{i}": many for i in range(6)} | {"q": ["mask_0.png", "mask_1.png", "mask_2.png"]}
    return write(tmp_path, people | {"alone 1": ["1.png"], "alone 2": ["1.png"]})


def test_draw_enrols_bare_photos_and_tests_on_the_rest(folder: Path) -> None:
    found = drawn(folder)
    enrolled = set(found.people[list(found.enrolled)])
    assert len(enrolled) == 3
    assert len(found.enrolled) == 6
    assert not found.occluded[list(found.enrolled)].any()
    assert (len(found.kind(False)), len(found.kind(True))) == (9, 12)
    assert set(found.people[list(found.tests)]) == enrolled
    assert len({*found.enrolled, *found.tests, *found.strangers}) == len(found.used)
    assert enrolled.isdisjoint(found.people[list(found.strangers)])


def test_people_with_a_single_photo_are_strangers_first(folder: Path) -> None:
    for seed in range(4):
        strangers = set(drawn(folder, seed=seed).people[list(drawn(folder, seed=seed).strangers)])
        assert strangers >= {"alone 1", "alone 2"}
        assert len(strangers) == 3


def test_draw_depends_on_the_seed_alone(folder: Path) -> None:
    def rows(seed: int) -> Any:
        found = drawn(folder, seed=seed)
        return found.enrolled, found.tests, found.strangers, found.visits

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)


def test_visits_have_three_photos_of_one_person_and_kind(folder: Path) -> None:
    found = drawn(folder, strangers=4)
    for kind, occluded in (("bare", False), ("occluded", True)):
        for visit in found.visits[kind]:
            assert len(set(visit)) == 3
            assert len(set(found.people[list(visit)])) == 1
            assert set(visit) <= set(found.kind(occluded))
    assert len(found.visits["bare"]) == 3
    assert len(found.visits["occluded"]) == 3 * 4
    assert {len(visit) for visit in found.visits["strangers"]} == {1, 3}


def test_too_few_people_or_strangers(folder: Path) -> None:
    messages: list[str] = []
    found = drawn(folder, people=100, strangers=100, say=messages.append)
    assert set(found.people[list(found.enrolled)]) == {f"p{i}" for i in range(6)}
    assert set(found.people[list(found.strangers)]) == {"q", "alone 1", "alone 2"}
    assert len(messages) == 2
    with pytest.raises(GalleryError, match="fewer than two people with 6 bare photos"):
        drawn(folder, photos=6)
    for name in ("q", "alone 1", "alone 2"):
        for file in (folder / name).iterdir():
            file.unlink()
    with pytest.raises(UsageError, match="stranger"):
        drawn(folder, people=100)


def test_repeated_photos_are_left_out(folder: Path) -> None:
    (folder / "p0" / "9.png").write_bytes((folder / "p0" / "3.png").read_bytes())
    (folder / "alone 1" / "1.png").write_bytes((folder / "alone 2" / "1.png").read_bytes())
    found = drawn(folder)
    assert sum(found.people == "p0") == 9
    assert not {"alone 1", "alone 2"} & set(found.people)


def test_test_photos_that_nearly_repeat_an_enrolled_one_are_left_out(folder: Path) -> None:
    for person in (f"p{i}" for i in range(6)):
        for i in range(5):
            image = cv2.imread(str(folder / person / f"{i}.png"))
            assert image is not None
            cv2.imwrite(str(folder / person / f"burst_{i}.png"), np.clip(image.astype(int) + 3, 0, 255).astype(np.uint8))
    found = drawn(folder)
    names = {(person, found.files[row].name.removeprefix("burst_")) for row, person in enumerate(found.people)}
    enrolled = {(found.people[row], found.files[row].name.removeprefix("burst_")) for row in found.enrolled}
    tested = {(found.people[row], found.files[row].name.removeprefix("burst_")) for row in found.tests}
    assert enrolled.isdisjoint(tested)
    assert enrolled | tested <= names


def test_wrong_names_are_those_of_other_enrolled_people(folder: Path) -> None:
    right = drawn(folder)
    wrong = photo_draw.with_wrong_names(right, 0.5, 0)
    changed = np.flatnonzero(right.people != wrong.people).tolist()
    assert len(changed) == 3
    assert list(wrong.misnamed) == changed
    assert set(changed) <= set(right.enrolled)
    assert set(wrong.people[changed]) <= set(right.people[list(right.enrolled)])
    assert "3 with a wrong name" in wrong.summary()
    assert photo_draw.with_wrong_names(right, 0, 0).misnamed == ()


def test_triples_are_different() -> None:
    rng = np.random.default_rng(0)
    assert triples([], rng) == []
    assert triples([7, 8], rng) == [(7, 8)]
    assert len(triples(range(5), rng)) == 10
    many = triples(range(40), rng)
    assert len(set(many)) == len(many) == 30
    assert all(len(set(three)) == 3 for three in many)


# --- The rates ---


@pytest.mark.parametrize(
    ("confidences", "fpir", "passing"),
    [
        (np.arange(1000), 0.01, 10),
        (np.arange(1000), 0.003, 3),
        (np.arange(100), 0.29, 29),  # 0.29 * 100 is less than 29
        (np.arange(299), 0.01, 2),
        (np.arange(99), 0.01, 0),
        (np.ones(1000), 0.01, 0),
    ],
)
def test_threshold_lets_exactly_the_allowed_number_of_strangers_pass(
    confidences: np.ndarray, fpir: float, passing: int
) -> None:
    shuffled = np.random.default_rng(0).permutation(confidences)
    bound = wild.bound(shuffled, fpir)
    assert np.sum(shuffled > bound) == passing
    assert np.sum(shuffled >= bound) > fpir * len(shuffled)  # no lower threshold would do


def test_result_by_hand() -> None:
    people = ["a"] * 5 + ["b"] * 2 + ["c"] * 2 + ["x"] * 100
    strangers = range(9, 109)
    found = Draw(
        files=(),
        people=np.array(people),
        occluded=np.array([row in (4, 6) for row in range(109)]),
        enrolled=(0, 5, 7),
        tests=(1, 2, 3, 4, 6, 8),
        strangers=tuple(strangers),
        visits={"bare": [(1, 2, 3)], "occluded": [], "strangers": [(row,) for row in strangers]},
    )
    scores = {row: np.array([(row - 9) / 100, 0.0], np.float32) for row in strangers}  # one of 100 is above 0.98
    scores |= {
        1: np.array([0.985, 0.1]),  # right
        2: np.array([0.97, 0.1]),  # right, but below the threshold
        3: np.array([0.1, 0.999]),  # wrong
        4: np.array([0.0, 1.0]),  # occluded, wrong; 6 is not usable
        8: np.array([0.999, 0.0]),  # c could not be enrolled
    }
    answers = wild.Answers(
        labels=np.array(["a", "b"]), scores=scores, summed=lambda rows: rows.max(axis=0), unusable=2, threshold=0.5, ms=1.0
    )
    none = {"rank1": None, "fnir_0.01": None, "fnir_0.003": None}
    assert wild.result(found, answers) == {
        "bare": {"rank1": 50.0, "fnir_0.01": 75.0, "fnir_0.003": 100.0},
        "occluded": {"rank1": 0.0, "fnir_0.01": 100.0, "fnir_0.003": 100.0},
        "bare_three": {"rank1": 0.0, "fnir_0.01": 100.0, "fnir_0.003": 100.0},
        "occluded_three": none,
        "as_set": {"fpir": 50.0, "fnir": 60.0},
        "failure_to_acquire": round(200 / 109, 4),
        "ms": 1.0,
    }


@pytest.mark.parametrize(("kind", "lengths"), [(RELATIVE, (1.0, 1.0, 1.0)), (ABSOLUTE, (0.4, 0.9, 2.5))])
def test_three_photos_are_summed_as_in_a_visit(kind: str, lengths: tuple[float, ...]) -> None:
    scores = np.random.default_rng(0).standard_normal((3, 6))
    scores /= np.linalg.norm(scores, axis=1, keepdims=True)
    visit = Visit(number=1, first_seen=0.0, last_seen=0.0, kind=kind)
    for second, (row, length) in enumerate(zip(scores, lengths, strict=True)):
        confidence = min(length * float(row.max()), 1)
        sighting = Sighting(captured=float(second), confidence=confidence, scores=row, score_length=length)
        visit = visit.after(sighting, None, VisitRules())
    summed = wild._as_in_a_visit(scores * np.array(lengths)[:, None], kind)
    assert visit.evidence is not None
    assert summed.argmax() == visit.evidence.argmax()
    assert min(summed.max(), 1) == pytest.approx(visit.confidence)
    assert visit.confidence < 1


def test_cosines_to_mean_and_nearest() -> None:
    known = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]], np.float32)
    whose = np.array([0, 1, 0])
    asked = np.array([[0, 1, 0]], np.float32)
    assert to_means(known, whose)(asked)[0] == pytest.approx([np.sqrt(0.5), 0])
    assert to_nearest(known, whose)(asked)[0] == pytest.approx([1, 0])


def test_many_people_are_not_measured_with_the_preset_paper() -> None:
    messages: list[str] = []
    others = {*wild.PRESETS, *wild.COSINES} - {"paper"}
    assert set(wild.chosen_systems([], 301, messages.append)) == others
    assert len(messages) == 1
    assert wild.chosen_systems(["paper"], 301, messages.append) == ["paper"]
    assert set(wild.chosen_systems([], 300, messages.append)) == {*wild.PRESETS, *wild.COSINES}
    with pytest.raises(UsageError, match="nothing"):
        wild.chosen_systems(["nothing"], 10, silent)


@pytest.mark.slow
def test_command_on_real_faces(tmp_path: Path) -> None:
    yunet()
    try:
        SFACE.read()
    except UsageError as error:
        pytest.skip(str(error))
    for person in range(1, 13):
        (tmp_path / f"s{person}").mkdir()
        for photo in range(1, 10):
            image = cv2.imread(str(find_orl() / f"s{person}" / f"{photo}.pgm"))
            assert image is not None
            if photo > 6:
                image[70:] = 240  # a mask
            cv2.imwrite(str(tmp_path / f"s{person}" / f"{'mask_' if photo > 6 else ''}{photo}.png"), image)
    options = ["--data", str(tmp_path), "--people", "8", "--photos", "3", "--strangers", "4", "--occluded-prefix", "mask_"]
    systems = ("minimal", "sface_cosine_mean", "sface_cosine_nearest")
    run = CliRunner().invoke(wild.app, [*options, "--json", *(word for name in systems for word in ("--only", name))])
    assert run.exit_code == 0, run.output
    printed = json.loads(run.stdout)
    assert printed["default"] == DEFAULT
    assert set(printed["results"]) == set(systems)
    rates = {"rank1", "fnir_0.01", "fnir_0.003"}
    for found in printed["results"].values():
        assert all(set(found[group]) == rates for group in ("bare", "occluded", "bare_three", "occluded_three"))
        assert set(found["as_set"]) == {"fpir", "fnir"}
        assert found["bare"]["rank1"] >= 90
        assert 0 <= found["bare"]["fnir_0.01"] <= found["bare"]["fnir_0.003"] <= 100
        assert found["failure_to_acquire"] < 20
        assert found["ms"] > 0
    lines = wild.table(printed["results"]).splitlines()
    assert len(lines) == 2 + len(systems)
    assert len({line.count("|") for line in lines}) == 1
