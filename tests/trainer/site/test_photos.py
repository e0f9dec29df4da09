"""The check of a photo says what a training would do with it, and its index follows the files."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge.errors import UsageError
from edge.vision.quality import TOO_SMALL
from tests.fixtures.site import blank_photo, orl_file, orl_image, png, site_of_orl, two_faces
from trainer.data.gallery import load_gallery
from trainer.site import alike, people, photo_index
from trainer.site.photos import CheckedPhoto, Checker, check, checker, cut_to_face

WHO = "tester"


@pytest.fixture(scope="module")
def using() -> Checker:
    orl_file(1, 1)  # skips without the photos
    return checker()


def test_good_photo_has_a_face_a_crop_and_vectors(using: Checker) -> None:
    found = check(orl_file(1, 1), using)
    assert (found.usable, found.meant, len(found.faces), found.width, found.height) == (True, 0, 1, 92, 112)
    crop = cv2.imdecode(np.frombuffer(found.crop, np.uint8), cv2.IMREAD_COLOR)
    assert crop is not None
    assert crop.shape[2] == 3
    assert found.likeness is not None
    assert np.linalg.norm(found.likeness) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("data", [b"", b"not a photo", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
def test_other_files_have_a_problem_and_no_digest(data: bytes, using: Checker) -> None:
    found = check(data, using)
    assert (found.usable, found.digest, found.crop) == (False, "", b"")


def test_problems_are_those_of_the_training(tmp_path: Path, using: Checker) -> None:
    """The gallery leaves out exactly the photos that have a problem, for the same reason."""
    small = cv2.resize(orl_image(2, 1), None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)
    tiny = np.full((100, 100, 3), 100, np.uint8)
    tiny[30:58, 30:53] = small
    dark = (orl_image(2, 2) * 0.03).astype(np.uint8)
    samples = {
        "s1/good.png": png(orl_image(1, 1)),
        "s1/blank.png": blank_photo(),
        "s1/two.png": two_faces(),
        "s2/good.png": png(orl_image(2, 3)),
        "s2/tiny.png": png(tiny),
        "s2/dark.png": png(dark),
        "s2/broken.jpg": b"\xff\xd8\xff\xe0",
    }
    for name, data in samples.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    rejected = {photo.source: photo.reason for photo in load_gallery(tmp_path, cropped=False).rejected}
    problems = {name: found.problem for name, data in samples.items() if (found := check(data, using)).problem is not None}
    assert problems == rejected
    assert len(problems) >= 4


def test_small_face_is_used_but_advised_against(using: Checker) -> None:
    photo = np.full((200, 200, 3), 100, np.uint8)
    photo[60:132, 60:119] = cv2.resize(orl_image(1, 1), (59, 72), interpolation=cv2.INTER_AREA)
    found = check(png(photo), using)
    assert found.usable
    assert TOO_SMALL in found.warnings


@pytest.mark.parametrize("chosen", [0, 1])
def test_cut_to_one_of_two_faces_is_what_a_training_uses(chosen: int, using: Checker) -> None:
    both = check(two_faces(), using)
    assert (both.meant, both.problem, len(both.faces)) == (None, "2 faces, unclear which one is meant", 2)
    cut = check(cut_to_face(two_faces(), chosen, using), using)
    assert cut.usable
    person = 1 if both.faces[chosen][0] < 210 else 3
    likeness = {other: check(orl_file(other, 1), using).likeness for other in (1, 3)}
    assert cut.likeness is not None
    similarity = {other: float(cut.likeness @ vector) for other, vector in likeness.items() if vector is not None}
    assert max(similarity, key=lambda other: similarity[other]) == person


def test_cut_to_a_face_that_is_not_there_is_refused(using: Checker) -> None:
    with pytest.raises(UsageError):
        cut_to_face(two_faces(), 2, using)
    with pytest.raises(UsageError):
        cut_to_face(b"no photo", 0, using)


def test_index_follows_the_file(tmp_path: Path, using: Checker) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 2)})
    path = site.photos / "s1" / "1.pgm"
    with site.database() as database:
        assert photo_index.stored(database, path.parent) == {"1.pgm": None}
        first = photo_index.checked(database, path, using)
        (again,) = photo_index.stored(database, path.parent).values()
        assert again is not None
        assert (again.digest, again.faces, again.crop) == (first.digest, first.faces, first.crop)
        path.write_bytes(orl_file(1, 2))
        os.utime(path, ns=(1, 1))  # a coarse clock may give both files one time
        assert photo_index.stored(database, path.parent) == {"1.pgm": None}
        assert photo_index.checked(database, path, using).digest != first.digest
        assert photo_index.stored_crop(database, path) != first.crop


def test_near_duplicates_are_found_inside_a_person(using: Checker) -> None:
    moved = np.roll(orl_image(1, 1), 1, axis=1)
    data = {"a": orl_file(1, 1), "b": png(moved), "c": orl_file(1, 5)}
    photos = [CheckedPhoto(**(vars(check(content, using)) | {"file": file})) for file, content in data.items()]
    assert photo_index.near_duplicates(photos) == {"a": ("b",), "b": ("a",)}


def test_second_name_of_a_person_looks_like_the_first(tmp_path: Path, using: Checker) -> None:
    site = site_of_orl(tmp_path, {"s1": range(1, 4), "s2": range(1, 4), "s3": range(1, 4)})
    with site.database() as database:
        for path in sorted(site.photos.glob("*/*.pgm")):
            photo_index.checked(database, path, using)
        same, other = check(orl_file(1, 7), using), check(orl_file(9, 1), using)
        found, none = alike.find_alike(site, database, [same, other], "new")
        if using.network is None:
            pytest.skip("needs the network SFace, which the first use downloads from PyPI")
        assert [one.person for one in found] == ["s1"]
        assert none == ()
        assert alike.find_alike(site, database, [same], "s1") == [()], "not like oneself"
        people.sync(site, database)
        people.rename(site, database, "s1", "Anna", who=WHO)
        assert alike.find_alike(site, database, [same], "new")[0][0].person == "Anna"
        for file in ("1.pgm", "2.pgm", "3.pgm"):
            people.delete_photo(site, database, "Anna", file, who=WHO)
        assert alike.find_alike(site, database, [same], "new") == [()], "the vectors in memory follow the table"
