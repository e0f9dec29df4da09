"""Enrolment on disk: the photos of the right person are written completely, or nothing is."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.enrol import storage
from edge.enrol.session import SIMILARITY, Identify
from edge.enrol.storage import Enrolment, check_name, choose_detector, enrol
from edge.errors import AlreadyEnrolledError, DetectorMissingError, EdgeError, KitUnsafeError, TooFewPhotosError, UsageError
from edge.kit import format as kits
from edge.kit.manifest import Thresholds
from edge.vision.preprocess import features
from edge.vision.recognize import Recognizer
from tests.fixtures.enrolment import copies, frames, recording
from tests.fixtures.portraits import finder, kit, yunet
from trainer.data import gallery
from trainer.downloads import YUNET

pytestmark = pytest.mark.slow

WHEN = datetime(2026, 11, 16, 14, 3, 12)


def enrolled(name: str, images: Iterable[Any], output: Path, **options: Any) -> Enrolment:
    return enrol(name, recording(images), finder(80), output, when=WHEN, **options)


@cache
def identify() -> Identify:
    """By a kit with s1 to s8, trained on their first six photos, with the thresholds of a real kit."""
    parsed = kits.parse(kit())
    strict = replace(parsed.manifest, thresholds=Thresholds(confidence=0.9, residual=0.7, provisional=True))
    found = storage.identify_with(Recognizer(replace(parsed, manifest=strict)))
    assert found is not None
    return found


def test_trainer_sees_the_crops_that_were_checked(tmp_path: Path) -> None:
    found = {name: enrolled(name, frames(person), tmp_path) for name, person in (("anna", 1), ("ben", 3))}
    learned = gallery.load_gallery(tmp_path, cropped=False, finder=finder())
    for name, enrolment in found.items():
        assert 5 <= len(enrolment.files) <= 8
        crops = features(learned.images[learned.labels == name], SIMILARITY)
        np.testing.assert_array_equal(crops, [photo.features for photo in enrolment.session.photos])


def test_photos_are_lossless_and_private(tmp_path: Path) -> None:
    output = tmp_path / "photos"
    enrolment = enrolled("anna", frames(1)[:6], output)
    assert [file.name for file in enrolment.files][:2] == ["20261116-140312-01.png", "20261116-140312-02.png"]
    assert sorted((output / "anna").iterdir()) == list(enrolment.files)
    for file, photo in zip(enrolment.files, enrolment.session.photos, strict=True):
        np.testing.assert_array_equal(cv2.imread(str(file)), photo.image)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (output, output / "anna"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_second_session_adds_only_new_photos(tmp_path: Path) -> None:
    first = enrolled("anna", frames(1)[:5], tmp_path)
    with pytest.raises(TooFewPhotosError, match=f"duplicate {len(first.files)}"):
        enrolled("anna", frames(1)[:5], tmp_path)
    second = enrolled("anna", frames(1)[5:], tmp_path)
    assert sorted((tmp_path / "anna").iterdir()) == sorted([*first.files, *second.files])
    assert not set(first.files) & set(second.files), "even in the same second"


def test_person_in_the_kit_under_another_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(AlreadyEnrolledError, match="already enrolled as s2"):
        enrolled("anna", frames(2)[6:], tmp_path, identify=identify())
    assert list(tmp_path.iterdir()) == []
    assert enrolled("s2", frames(2)[6:], tmp_path / "same", identify=identify()).session.alike == {}
    assert enrolled("anna", frames(2)[6:], tmp_path / "alike", identify=identify(), allow_alike=True).files
    for stranger in (10, 20):
        assert enrolled("carla", frames(stranger), tmp_path / str(stranger), identify=identify()).files


def test_person_with_photos_under_another_name_is_rejected(tmp_path: Path) -> None:
    enrolled("anna", frames(1), tmp_path)
    with pytest.raises(AlreadyEnrolledError, match="already enrolled as anna"):
        enrolled("ben", copies(1, 20)[:9], tmp_path)
    assert not (tmp_path / "ben").exists()
    (tmp_path / "anna" / "broken.png").write_bytes(b"not a photo")
    assert enrolled("ben", frames(3), tmp_path / "ben").session.alike == {}
    one_look = enrolled("ben", [*frames(3)[:6], frames(1)[0]], tmp_path, photos=10)
    assert one_look.session.alike == {"anna": 1}, "one frame is only a warning"
    assert "anna" in one_look.messages()[1]


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Any]:
        yield from frames(1)[:6]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        enrolled("anna", interrupted(), tmp_path / "photos", photos=9)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("failure", "seen"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "full"), UsageError)])
def test_failed_write_leaves_the_previous_state(
    failure: BaseException, seen: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = enrolled("anna", frames(1)[:5], tmp_path).files
    write = storage.write_atomically

    def fail_at_the_third(name: str, data: bytes, *, folder: int) -> None:
        if name.endswith((f"{len(before) + 3:02}.png", "-03.png")):
            raise failure
        write(name, data, folder=folder)

    monkeypatch.setattr(storage, "write_atomically", fail_at_the_third)
    for name, person, output in (("anna", frames(1)[5:], tmp_path), ("ben", frames(3), tmp_path / "new")):
        with pytest.raises(seen):
            enrolled(name, person, output)
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == sorted(before)
    assert not (tmp_path / "new").exists()


def test_folder_of_a_person_that_is_a_link_is_an_error_before_the_session(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "photos").mkdir()
    for name, target in (("anna", "../elsewhere"), ("ben", "../missing")):
        (tmp_path / "photos" / name).symlink_to(target)
        camera = recording(frames(1))
        with pytest.raises(UsageError, match=f"{name} is a symbolic link") as error:
            enrol(name, camera, finder(80), tmp_path / "photos", when=WHEN)
        assert (error.value.exit_code, camera.health.frames) == (2, 0)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "missing").exists()


def test_link_that_appears_during_the_session_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = [photo.image for photo in enrolled("anna", frames(1)[:5], tmp_path / "first").session.photos]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "anna").symlink_to("../elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        storage.write(tmp_path / "photos" / "anna", photos, WHEN)
    monkeypatch.setattr(storage, "_refuse_link", lambda folder: None)  # the link appears after the check
    with pytest.raises(UsageError, match="cannot be written"):
        storage.write(tmp_path / "photos" / "anna", photos, WHEN)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_folder_of_all_people_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "photos").symlink_to("disk")
    files = enrolled("anna", frames(1)[:5], tmp_path / "photos").files
    assert sorted((tmp_path / "disk" / "anna").iterdir()) == [tmp_path / "disk" / "anna" / file.name for file in files]


def test_too_few_photos_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(TooFewPhotosError, match=r"Only 0 of 3 .* blurred 4\. Hold still") as error:
        enrolled("anna", (cv2.GaussianBlur(frame, (0, 0), 4) for frame in frames(1)[:4]), tmp_path)
    assert error.value.exit_code == 36
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_an_error_before_the_session(tmp_path: Path) -> None:
    (tmp_path / "photos").write_text("a file")
    camera = recording(frames(1))
    with pytest.raises(UsageError, match="--output"):
        enrol("anna", camera, finder(80), tmp_path / "photos", when=WHEN)
    assert camera.health.frames == 0


@pytest.mark.parametrize("name", ["anna", "Jürgen Groß", "李小龍", "o'neill, 3rd", "re\u0301mi", "نی\u200cکی"])
def test_names_of_people_are_accepted(name: str) -> None:
    assert check_name(name) == check_name(check_name(name))
    assert "\u0301" not in check_name(name), "one spelling"


BAD_NAMES = ["", " ", ".", "..", ".hidden", "../anna", "a/b", "a\\b", "a\0b", "a\nb", "\x1b[31m", "a\u202eb", "\udc80"]


@pytest.mark.parametrize("name", [*BAD_NAMES, " anna", "a" * 101, "李" * 90])
def test_unsafe_names_are_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="The name") as error:
        check_name(name)
    assert str(error.value).isprintable()


def test_missing_detector_is_an_error_with_a_next_step() -> None:
    for given, found in (
        (None, "There is no kit"),
        (replace(kits.parse(kit()), detector=None), "The kit has no face detector"),
    ):
        with pytest.raises(DetectorMissingError, match=rf"{found}.*--kit.*--detector.*edge-export detector -o"):
            choose_detector(None, given)


def test_detector_file_is_checked_before_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "detector.onnx"
    for data, error in (
        (kits.parse(kit()).recognizer, KitUnsafeError),
        (b"", EdgeError),
        (b"not ONNX", KitUnsafeError),
        (re.sub(b"Sigmoid", b"Softmax", yunet()), KitUnsafeError),
        (YUNET.read(), DetectorMissingError),  # fixed input size
    ):
        file.write_bytes(data)
        with pytest.raises(error, match="edge-export detector"):
            choose_detector(file, None)
