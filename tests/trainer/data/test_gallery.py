"""Galleries from folders: unusable photos are left out, and notes name them."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from edge.errors import GalleryError
from edge.kit.manifest import ALIGNMENT, NO_ALIGNMENT
from edge.vision.detect import photo_min_face
from edge.vision.preprocess import SIZE, align
from tests.fixtures import portraits
from tests.fixtures.data import small_gallery
from tests.fixtures.photos import HEIGHT, WIDTH, encode, smooth_image, write_photo
from trainer.data.gallery import Gallery, load_gallery, load_like


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two people, two photos each."""
    root = tmp_path / "photos"
    for seed, name in enumerate(["anna/1.png", "anna/2.png", "ben/1.png", "ben/2.png"]):
        write_photo(root / name, smooth_image(seed))
    return root


def noted(result: Gallery, *words: str) -> bool:
    return any(all(word in note for word in words) for note in result.notes)


# --- Folders ---


def test_folder_per_person_becomes_sorted_arrays(photos: Path) -> None:
    write_photo(photos / "Ben2" / "z.pgm", smooth_image(9))
    write_photo(photos / "Ben2" / "a.pgm", smooth_image(8))
    calls: list[tuple[int, int]] = []

    result = load_gallery(photos, cropped=True, progress=lambda done, total: calls.append((done, total)))

    assert result.sources == ("Ben2/a.pgm", "Ben2/z.pgm", "anna/1.png", "anna/2.png", "ben/1.png", "ben/2.png")
    assert result.labels.tolist() == ["Ben2", "Ben2", "anna", "anna", "ben", "ben"]
    assert result.people == ("Ben2", "anna", "ben")
    assert result.images.dtype == np.uint8
    assert (result.alignment, result.notes) == (NO_ALIGNMENT, ())
    for image, seed in zip(result.images, [8, 9, 0, 1, 2, 3], strict=True):
        np.testing.assert_array_equal(image, smooth_image(seed))
    assert calls == [(done, 6) for done in range(1, 7)]


def test_all_photo_formats_are_read_by_content(photos: Path) -> None:
    suffixes = (".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp", ".JPG", ".Png")
    for seed, suffix in enumerate(suffixes, start=20):
        write_photo(photos / "anna" / f"3{suffix}", smooth_image(seed))
    write_photo(photos / "anna" / "4.jpg", encode(smooth_image(19), ".png"))  # the suffix is wrong
    result = load_gallery(photos, cropped=True)
    for seed, name in enumerate(["4.jpg", *(f"3{suffix}" for suffix in suffixes)], start=19):
        image = result.images[result.sources.index(f"anna/{name}")]
        assert np.abs(image.astype(int) - smooth_image(seed)).mean() < 4


def test_names_of_any_script_are_kept(photos: Path) -> None:
    write_photo(photos / "Zoë Ålund" / "снимок 1.png", smooth_image(7))
    write_photo(photos / "李雷" / "照片.png", smooth_image(8))
    result = load_gallery(photos, cropped=True)
    assert result.people == ("Zoë Ålund", "anna", "ben", "李雷")
    assert "李雷/照片.png" in result.sources


def test_one_name_in_two_unicode_forms_is_one_person(photos: Path) -> None:
    write_photo(photos / "Zoe\N{COMBINING DIAERESIS}" / "1.png", smooth_image(7))
    write_photo(photos / "Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}" / "1.png", smooth_image(8))
    assert load_gallery(photos, cropped=True).people == ("Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}", "anna", "ben")


def test_names_that_are_not_utf8_are_printable_or_rejected(photos: Path) -> None:
    try:
        write_photo(photos / "anna" / "zo\udceb.png", smooth_image(6))
        assert "anna/zo?.png" in load_gallery(photos, cropped=True).sources
        write_photo(photos / "zo\udceb" / "1.png", smooth_image(7))
    except OSError:
        pytest.skip("this file system takes valid names only")
    with pytest.raises(GalleryError, match=r"zo\? is not valid UTF-8. Rename"):
        load_gallery(photos, cropped=True)


def test_files_that_are_not_photos_are_noted_or_ignored(photos: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "anna/.1.png.swp", "anna/THUMBS.DB", "anna/desktop.ini"):
        write_photo(photos / name, b"system file")
    (photos / ".cache").mkdir()
    (photos / "__MACOSX").mkdir()
    assert load_gallery(photos, cropped=True).notes == ()
    write_photo(photos / "readme.txt", b"hello")
    write_photo(photos / "anna" / "notes.doc", b"hello")
    write_photo(photos / "stray.png", smooth_image(7))
    write_photo(photos / "anna" / "more" / "1.png", smooth_image(8))
    result = load_gallery(photos, cropped=True)
    assert len(result.images) == 4
    assert noted(result, "not photos", "anna/more, anna/notes.doc, readme.txt, stray.png")


def test_path_without_gallery_is_rejected(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("missing", "missing.npz", "missing.mat"):
        with pytest.raises(GalleryError, match=r"There is no .*missing"):
            load_gallery(tmp_path / name, cropped=True)
    with pytest.raises(GalleryError, match=r"is not a gallery\. Pass a folder"):
        load_gallery(photos / "anna" / "1.png", cropped=True)
    with pytest.raises(GalleryError, match="holds no folder of a person"):
        load_gallery(photos / "anna", cropped=True)

    def deny(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)  # root may open every folder
    with pytest.raises(GalleryError, match=r"cannot be opened \(Permission denied\)"):
        load_gallery(photos, cropped=True)


# --- Faces in photographs ---


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Photographs of two people."""
    for name in ("s1", "s2"):
        for i, portrait in enumerate(portraits.people()[name][:2]):
            write_photo(tmp_path / name / f"{i}.png", portraits.in_a_room(portrait, width=140 + 60 * i, at=(300 * i, 30)))
    return tmp_path


def test_faces_are_detected_and_aligned_as_on_the_device(album: Path) -> None:
    photo: Any = cv2.imread(str(album / "s1" / "0.png"))
    write_photo(album / "s1" / "dark.png", photo // 6)  # training photos may be dark or soft
    write_photo(album / "s1" / "soft.png", cv2.GaussianBlur(photo, (0, 0), 3))
    result = load_gallery(album, cropped=False, finder=portraits.finder())
    assert (result.images.shape, result.alignment) == ((6, *SIZE), ALIGNMENT)
    photo = cv2.imread(str(album / "s2" / "1.png"))
    (found,) = portraits.finder().detect(photo, photo_min_face(photo))
    wanted = align(portraits.grey(photo), found.landmarks, SIZE)
    np.testing.assert_array_equal(result.images[result.sources.index("s2/1.png")], wanted)
    assert load_gallery(album, cropped=False, size=(64, 52), finder=portraits.finder()).images.shape == (6, 64, 52)


def test_faces_can_be_loaded_in_colour(album: Path) -> None:
    photo: Any = cv2.imread(str(album / "s1" / "0.png"))
    tinted = (photo * (0.5, 0.8, 1.0)).astype(np.uint8)
    write_photo(album / "s1" / "tinted.png", tinted)
    result = load_gallery(album, cropped=False, finder=portraits.finder(), colour=True)
    assert result.images.shape == (5, *SIZE, 3)
    (found,) = portraits.finder().detect(tinted, photo_min_face(tinted))
    wanted = align(tinted, found.landmarks, SIZE)
    crop = result.images[result.sources.index("s1/tinted.png")]
    np.testing.assert_array_equal(crop, wanted)
    assert crop[..., 0].mean() < 0.6 * crop[..., 2].mean()


def test_photo_without_one_usable_face_is_named(album: Path) -> None:
    write_photo(album / "s1" / "empty.png", np.random.default_rng(0).integers(0, 256, (300, 400), dtype=np.uint8))
    crowd: Any = cv2.imread(str(album / "s1" / "0.png"))
    crowd[30:201, 500:640] = cv2.resize(portraits.people()["s3"][0], (140, 171))
    write_photo(album / "s2" / "crowd.png", crowd)
    half = portraits.in_a_room(portraits.people()["s2"][0], width=220, at=(100, 30))[:, 190:]
    write_photo(album / "s2" / "half.png", half)
    result = load_gallery(album, cropped=False, finder=portraits.finder())
    assert len(result.images) == 4
    assert noted(result, "3 photos left out", "s1/empty.png (no face found)", "s2/crowd.png (2 faces, unclear")
    assert noted(result, "s2/half.png (face cut off)")
    assert not noted(result, "--cropped")


def test_crop_may_reach_outside_the_photo_if_the_landmarks_do_not(album: Path) -> None:
    narrow = portraits.in_a_room(portraits.people()["s2"][0], width=220, at=(100, 30))[130:250, 150:280]
    write_photo(album / "s2" / "narrow.png", narrow)
    assert "s2/narrow.png" in load_gallery(album, cropped=False, finder=portraits.finder()).sources


def test_photos_of_faces_only_need_cropped(album: Path) -> None:
    """A note if most photos are unusable, an error if no person has a usable one: both name the option that is missing."""
    for name in ("s1", "s2"):
        for number in range(3):
            write_photo(album / name / f"small {number}.png", smooth_image(number + 10 * (name == "s1")))
    assert noted(load_gallery(album, cropped=False, finder=portraits.finder()), "6 photos left out", "may need --cropped")
    for name in ("s1", "s2"):
        (album / name / "0.png").unlink()
        (album / name / "1.png").unlink()
    with pytest.raises(GalleryError, match=r"No usable photo of s1, s2: s1/small 0\.png .*may need --cropped"):
        load_gallery(album, cropped=False, finder=portraits.finder())


def test_other_faces_are_noted_and_ignored(album: Path) -> None:
    photo = portraits.in_a_room(portraits.people()["s1"][3], width=220, at=(20, 20))
    write_photo(album / "s1" / "more.png", photo)
    alone = load_gallery(album, cropped=False, finder=portraits.finder())
    photo[300:422, 500:600] = cv2.resize(portraits.people()["s3"][0], (100, 122))
    write_photo(album / "s1" / "more.png", photo)
    result = load_gallery(album, cropped=False, finder=portraits.finder())
    assert noted(result, "1 photo with other faces beside the one that was used", "s1/more.png")
    where = result.sources.index("s1/more.png")
    assert np.abs(result.images[where].astype(int) - alone.images[where]).mean() < 1


# --- Unusable photos ---


def cut(suffix: str) -> bytes:
    data = encode(smooth_image(7, (120, 100)), suffix)
    return data[: len(data) // 2]


def cut_after_thumbnail() -> bytes:
    """A JPEG that is cut short; its embedded thumbnail has the end mark that the photo lacks."""
    thumbnail = encode(smooth_image(6), ".jpg")
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail + cut(".jpg")[2:]


UNUSABLE = {
    "zero bytes": (b"", "empty file"),
    "text": (b"this is not a photo" * 40, "not a readable image"),
    "cut jpeg": (cut(".jpg"), "truncated file"),
    "cut jpeg with thumbnail": (cut_after_thumbnail(), "truncated file"),
    "cut png": (cut(".png"), "truncated file"),
    "cut webp": (cut(".webp"), "not a readable image"),
    "another format": (encode(smooth_image(7), ".tiff"), "not a readable image"),
    "black": (np.zeros((HEIGHT, WIDTH), np.uint8), "blank"),
    "one colour": (np.full((HEIGHT, WIDTH, 3), (10, 20, 30), np.uint8), "blank"),
    "one pixel": (np.ones((1, 1), np.uint8), "blank"),
}


@pytest.mark.parametrize(("content", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_photo_is_left_out_and_named(photos: Path, content: np.ndarray | bytes, reason: str) -> None:
    write_photo(photos / "anna" / "3.png", content)
    result = load_gallery(photos, cropped=True)
    assert len(result.images) == 4
    assert noted(result, "1 photo left out", f"anna/3.png ({reason})")
    assert [(photo.person, photo.source, photo.reason) for photo in result.rejected] == [("anna", "anna/3.png", reason)]


def test_photo_that_is_blank_after_resizing_is_unusable(photos: Path) -> None:
    speck = np.zeros((HEIGHT * 16, WIDTH * 16), np.uint8)
    speck[0, 0] = 9
    write_photo(photos / "anna" / "3.png", speck)
    assert noted(load_gallery(photos, cropped=True, size=(HEIGHT, WIDTH)), "left out", "anna/3.png (blank)")


def test_many_unusable_photos_are_counted_and_some_named(photos: Path) -> None:
    (photos / "anna" / "10.png").symlink_to(photos / "gone.png")
    for number in range(11, 33):
        write_photo(photos / "anna" / f"{number}.png", b"")
    result = load_gallery(photos, cropped=True)
    assert noted(result, "23 photos left out", "anna/10.png (No such file", "anna/29.png (empty file), and 3 more")
    assert not noted(result, "anna/30.png")
    assert len(result.rejected) == 23


# --- People and repeated photos ---


def test_person_without_usable_photo_is_named(photos: Path) -> None:
    (photos / "carl").mkdir()
    with pytest.raises(GalleryError, match=r"No usable photo of carl\. Add photos \(jpg, .*webp\)"):
        load_gallery(photos, cropped=True)
    write_photo(photos / "carl" / "1.png", b"")
    write_photo(photos / "anna" / "3.png", b"")
    with pytest.raises(GalleryError, match=r"No usable photo of carl: carl/1\.png \(empty file\)\."):
        load_gallery(photos, cropped=True)


def test_person_with_one_photo_is_noted(photos: Path) -> None:
    write_photo(photos / "carl" / "1.png", smooth_image(7))
    result = load_gallery(photos, cropped=True)
    assert noted(result, "Only one photo of carl")
    assert not noted(result, "anna")


def test_one_person_is_rejected(tmp_path: Path) -> None:
    write_photo(tmp_path / "anna" / "1.png", smooth_image(1))
    with pytest.raises(GalleryError, match="fewer than two people"):
        load_gallery(tmp_path, cropped=True)


def test_same_photo_of_two_people_is_rejected(photos: Path) -> None:
    write_photo(photos / "ben" / "copy.bmp", smooth_image(0))  # same pixels, other format
    with pytest.raises(GalleryError, match=r"two names: anna/1.png and ben/copy.bmp"):
        load_gallery(photos, cropped=True)


def test_repeated_photo_of_one_person_is_used_once(photos: Path) -> None:
    write_photo(photos / "anna" / "copy.bmp", smooth_image(0))
    write_photo(photos / "ben" / "3.png", smooth_image(0).reshape(WIDTH, HEIGHT))  # same bytes, other shape
    result = load_gallery(photos, cropped=True, size=(HEIGHT, WIDTH))
    assert result.sources == ("anna/1.png", "anna/2.png", "ben/1.png", "ben/2.png", "ben/3.png")
    assert noted(result, "1 photo left out", "anna/copy.bmp (as anna/1.png)")


def test_16_bit_photos_are_scaled_and_noted(photos: Path) -> None:
    deep = smooth_image(7).astype(np.uint16) * 257
    write_photo(photos / "anna" / "3.png", deep)
    write_photo(photos / "anna" / "4.pgm", np.flipud(deep))
    result = load_gallery(photos, cropped=True)
    np.testing.assert_array_equal(result.images[2:4], [smooth_image(7), np.flipud(smooth_image(7))])
    assert noted(result, "2 photos scaled from 16 to 8 bits", "anna/3.png", "anna/4.pgm")


# --- Size ---


def test_photos_of_different_sizes_need_a_size(photos: Path) -> None:
    write_photo(photos / "anna" / "3.png", smooth_image(7, (48, 40)))
    with pytest.raises(GalleryError, match=r"differ in size: 24x20, 48x40\. Pass --size HxW, for example --size 24x20"):
        load_gallery(photos, cropped=True)
    result = load_gallery(photos, cropped=True, size=(HEIGHT, WIDTH))
    assert (result.images.shape, result.notes) == ((5, HEIGHT, WIDTH), ())
    np.testing.assert_array_equal(result.images[0], smooth_image(0))  # this one had the size already


@pytest.mark.parametrize(("shape", "is_noted"), [((24, 23), False), ((24, 25), True), ((30, 20), True)])
def test_stretched_photo_is_noted(photos: Path, shape: tuple[int, int], is_noted: bool) -> None:
    write_photo(photos / "anna" / "3.png", smooth_image(7, shape))
    result = load_gallery(photos, cropped=True, size=(HEIGHT, WIDTH))
    assert noted(result, "stretched", "20%", "anna/3.png") == is_noted


def test_photos_can_be_cropped_like_others(photos: Path) -> None:
    (photos / "anna" / "torn.png").write_bytes(b"no photo")
    found = load_like(photos / "anna", (12, 10), NO_ALIGNMENT)
    assert (found.people, found.images.shape) == (("anna",), (2, 12, 10))
    assert noted(found, "1 photo left out", "torn.png (not a readable image)")
    np.savez(photos / "faces.npz", images=found.images, labels=["anna", "anna"])
    with pytest.raises(GalleryError, match="holds cropped faces"):
        load_like(photos / "faces.npz", SIZE, ALIGNMENT)


def test_grey_photos_get_three_equal_channels(photos: Path) -> None:
    colour = np.stack([smooth_image(seed) for seed in (5, 6, 7)], axis=2)
    write_photo(photos / "anna" / "3.png", colour)
    write_photo(photos / "ben" / "red.png", np.full((HEIGHT, WIDTH, 3), (0, 0, 200), np.uint8))
    result = load_gallery(photos, cropped=True, colour=True)
    assert result.images.shape == (5, *result.crop_shape) == (5, HEIGHT, WIDTH, 3)
    assert [str(photo) for photo in result.rejected] == ["ben/red.png (blank)"]
    np.testing.assert_array_equal(result.images[2], colour)
    grey = load_gallery(photos, cropped=True)
    np.testing.assert_array_equal(result.images[0], grey.images[0][..., None].repeat(3, axis=2))
    assert grey.fingerprint != result.fingerprint
    np.savez(photos / "faces.npz", images=grey.images, labels=grey.labels)
    savemat(photos / "faces.mat", {"images": np.moveaxis(grey.images, 0, -1), "labels": np.arange(5)})
    for name in ("faces.npz", "faces.mat"):
        arrays = load_like(photos / name, (12, 10, 3), NO_ALIGNMENT)
        wanted = load_like(photos / name, (12, 10), NO_ALIGNMENT).images
        np.testing.assert_array_equal(arrays.images, wanted[..., None].repeat(3, axis=3))


# --- The gallery itself ---


def test_fingerprint_depends_on_photos_and_people_only() -> None:
    gallery = small_gallery()
    images, people = gallery.images, gallery.labels

    def fingerprint(images: np.ndarray, labels: np.ndarray) -> str:
        return Gallery(images=images, labels=labels, sources=tuple(map(str, range(len(labels))))).fingerprint

    base = fingerprint(images, people)
    assert re.fullmatch("[0-9a-f]{64}", base)
    order = np.random.default_rng(0).permutation(len(people))
    assert fingerprint(images[order], people[order]) == gallery.fingerprint == base
    touched = images.copy()
    touched[4, 5, 6] ^= 1
    swapped = np.concatenate([images[5:6], images[1:5], images[:1], images[6:]])
    others = [
        fingerprint(touched, people),
        fingerprint(images, np.where(people == "ben", "dora", people)),
        fingerprint(images[:9], people[:9]),
        fingerprint(swapped, people),
        fingerprint(images.reshape(len(images), 8, 10), people),
        fingerprint(np.pad(images, ((0, 0), (0, 2), (0, 1))).reshape(len(images), 6, 6, 3), people),
        fingerprint(np.pad(images, ((0, 0), (0, 2), (0, 1))), people),
        base,
    ]
    assert len(set(others)) == len(others)


def test_parts_of_different_length_are_rejected() -> None:
    gallery = small_gallery()
    right: dict[str, Any] = {"images": gallery.images, "labels": gallery.labels, "sources": gallery.sources}
    for wrong in (
        {"images": gallery.images.astype(float)},
        {"images": gallery.images[0]},
        {"images": gallery.images[..., None]},
        {"labels": gallery.labels[:5]},
        {"sources": ("one",)},
    ):
        with pytest.raises(ValueError, match="must"):
            Gallery(**(right | wrong))
