"""The gallery: every way in which photos can be wrong is refused or noted by name, none in silence."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from edge.camera.photo import read_grey
from edge.errors import GalleryError
from edge.kit.manifest import ALIGNMENT, NO_ALIGNMENT
from edge.vision.detect import photo_min_face
from edge.vision.preprocess import SIZE, align
from tests.fixtures import portraits
from trainer.data.gallery import Gallery, load

HEIGHT, WIDTH = 24, 20


def face(seed: int, shape: tuple[int, ...] = (HEIGHT, WIDTH)) -> np.ndarray:
    """A smooth grey picture, so that lossy formats keep it recognisable."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4)).astype(np.uint8)
    return cv2.resize(coarse, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR)


def encode(image: np.ndarray, suffix: str, *options: int) -> bytes:
    # A WebP quality above 100 means lossless.
    options = options or ((cv2.IMWRITE_WEBP_QUALITY, 101) if suffix == ".webp" else ())
    done, data = cv2.imencode(suffix, image, options)
    assert done
    return data.tobytes()


def put(path: Path, content: np.ndarray | bytes) -> Path:
    """Write a photo (as the suffix says) or plain bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else encode(content, path.suffix.lower()))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two people, two photos each."""
    root = tmp_path / "photos"
    for seed, name in enumerate(["anna/1.png", "anna/2.png", "ben/1.png", "ben/2.png"]):
        put(root / name, face(seed))
    return root


def noted(result: Gallery, *words: str) -> bool:
    return any(all(word in note for word in words) for note in result.notes)


# --- Folders ---


def test_a_folder_per_person_becomes_sorted_arrays(photos: Path) -> None:
    put(photos / "Ben2" / "z.pgm", face(9))
    put(photos / "Ben2" / "a.pgm", face(8))

    result = load(photos, cropped=True)

    assert result.sources == (
        "Ben2/a.pgm",
        "Ben2/z.pgm",
        "anna/1.png",
        "anna/2.png",
        "ben/1.png",
        "ben/2.png",
    )
    assert result.labels.tolist() == ["Ben2", "Ben2", "anna", "anna", "ben", "ben"]
    assert result.labels.dtype.kind == "U"
    assert result.people == ("Ben2", "anna", "ben")
    assert result.images.dtype == np.uint8
    assert result.notes == ()
    for image, seed in zip(result.images, [8, 9, 0, 1, 2, 3], strict=True):
        np.testing.assert_array_equal(image, face(seed))


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp", ".JPG", ".Png", ".WEBP"])
def test_every_kind_of_photo_is_read(photos: Path, suffix: str) -> None:
    put(photos / "anna" / f"3{suffix}", face(7))
    result = load(photos, cropped=True)
    image = result.images[result.sources.index(f"anna/3{suffix}")]
    assert np.abs(image.astype(int) - face(7)).mean() < 4


def test_the_content_decides_not_the_suffix(photos: Path) -> None:
    put(photos / "anna" / "3.jpg", encode(face(7), ".png"))
    result = load(photos, cropped=True)
    np.testing.assert_array_equal(result.images[result.sources.index("anna/3.jpg")], face(7))


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Photographs of two people, in which their faces have to be found."""
    for name in ("s1", "s2"):
        for i, portrait in enumerate(portraits.people()[name][:2]):
            put(tmp_path / name / f"{i}.png", portraits.in_a_room(portrait, width=140 + 60 * i, at=(300 * i, 30)))
    return tmp_path


def test_faces_are_found_and_aligned_as_on_the_device(album: Path) -> None:
    result = load(album, cropped=False, finder=portraits.finder())
    assert result.images.shape == (4, *SIZE)
    assert result.alignment == ALIGNMENT
    assert load(album, cropped=True, size=(40, 40)).alignment == NO_ALIGNMENT
    photo: Any = cv2.imread(str(album / "s2" / "1.png"))
    (found,) = portraits.finder().detect(photo, photo_min_face(photo))
    wanted = align(portraits.grey(photo), found.landmarks, SIZE)
    np.testing.assert_array_equal(result.images[result.sources.index("s2/1.png")], wanted)
    assert load(album, cropped=False, size=(64, 52), finder=portraits.finder()).images.shape == (4, 64, 52)


def test_a_photo_without_a_face_or_with_several_is_named(album: Path) -> None:
    put(album / "s1" / "empty.png", np.random.default_rng(0).integers(0, 256, (300, 400), dtype=np.uint8))
    crowd: Any = cv2.imread(str(album / "s1" / "0.png"))
    crowd[30:249, 400:580] = cv2.resize(portraits.people()["s3"][0], (180, 219))
    put(album / "s2" / "crowd.png", crowd)
    put(album / "s2" / "half.png", portraits.in_a_room(portraits.people()["s2"][0], width=220, at=(100, 30))[:, 190:])
    with pytest.raises(GalleryError, match=r"3 photos.*empty\.png \(no face found\)") as caught:
        load(album, cropped=False, finder=portraits.finder())
    assert "s2/crowd.png (2 faces found)" in str(caught.value)
    assert "s2/half.png (face cut off)" in str(caught.value)
    result = load(album, cropped=False, skip_bad=True, finder=portraits.finder())
    assert len(result.images) == 4
    assert noted(result, "left out", "no face found", "2 faces found")


def test_a_small_face_in_the_background_does_not_spoil_a_photo(album: Path) -> None:
    photo = portraits.in_a_room(portraits.people()["s1"][3], width=220, at=(20, 20))
    photo[300:422, 500:600] = cv2.resize(portraits.people()["s3"][0], (100, 122))
    put(album / "s1" / "more.png", photo)
    result = load(album, cropped=False, finder=portraits.finder())
    assert noted(result, "smaller faces beside", "s1/more.png")
    alone = portraits.in_a_room(portraits.people()["s1"][3], width=220, at=(20, 20))
    put(album / "s1" / "more.png", alone)
    again = load(album, cropped=False, finder=portraits.finder())
    where = result.sources.index("s1/more.png")
    assert np.abs(result.images[where].astype(int) - again.images[where]).mean() < 1, "the same face was taken"


def test_training_photos_may_be_dark_and_soft(album: Path) -> None:
    photo: Any = cv2.imread(str(album / "s1" / "0.png"))
    put(album / "s1" / "dark.png", photo // 6)
    put(album / "s1" / "soft.png", cv2.GaussianBlur(photo, (0, 0), 3))
    assert len(load(album, cropped=False, finder=portraits.finder()).images) == 6


def test_progress_counts_every_photo(photos: Path) -> None:
    calls: list[tuple[int, int]] = []
    load(photos, cropped=True, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_names_in_any_script(photos: Path) -> None:
    put(photos / "Zoë Ålund" / "снимок 1.png", face(7))
    put(photos / "李雷" / "照片.png", face(8))
    result = load(photos, cropped=True)
    assert result.people == ("Zoë Ålund", "anna", "ben", "李雷")
    assert "李雷/照片.png" in result.sources


def test_one_name_in_two_spellings_is_one_person(photos: Path) -> None:
    put(photos / "Zoe\N{COMBINING DIAERESIS}" / "1.png", face(7))
    put(photos / "Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}" / "1.png", face(8))
    result = load(photos, cropped=True)
    assert result.people == ("Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}", "anna", "ben")


def test_a_name_that_is_not_text_is_refused(photos: Path) -> None:
    try:
        put(photos / "zo\udceb" / "1.png", face(7))
    except OSError:
        pytest.skip("this file system takes valid names only")
    with pytest.raises(GalleryError, match=r"zo\? is not valid UTF-8. Rename"):
        load(photos, cropped=True)


def test_a_file_name_that_is_not_text_can_be_printed(photos: Path) -> None:
    try:
        put(photos / "anna" / "zo\udceb.png", face(7))
    except OSError:
        pytest.skip("this file system takes valid names only")
    assert "anna/zo?.png" in load(photos, cropped=True).sources


# --- Photos that cannot be used ---


def cut(suffix: str) -> bytes:
    data = encode(face(7, (120, 100)), suffix)
    return data[: len(data) // 2]


def thumbnail_then_cut() -> bytes:
    """A JPEG cut short whose embedded thumbnail is whole, and has the end mark that the photo lacks."""
    thumbnail = encode(face(6), ".jpg")
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    return b"\xff\xd8" + segment + cut(".jpg")[2:]


UNUSABLE = {
    "zero bytes": (b"", "empty file"),
    "text": (b"this is not a photo, whatever its name says" * 20, "not a readable image"),
    "cut jpeg": (cut(".jpg"), "truncated file"),
    "cut jpeg with thumbnail": (thumbnail_then_cut(), "truncated file"),
    "cut png": (cut(".png"), "truncated file"),
    "cut webp": (cut(".webp"), "not a readable image"),
    "another format": (encode(face(7), ".tiff"), "not a readable image"),
    "black": (np.zeros((HEIGHT, WIDTH), np.uint8), "blank"),
    "all one grey": (np.full((HEIGHT, WIDTH), 128, np.uint8), "blank"),
    "one colour": (np.full((HEIGHT, WIDTH, 3), (10, 20, 30), np.uint8), "blank"),
    "one pixel": (np.ones((1, 1), np.uint8), "blank"),
}


@pytest.mark.parametrize(("content", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_photo_is_named_and_may_be_skipped(photos: Path, content: np.ndarray | bytes, reason: str) -> None:
    put(photos / "anna" / "3.png", content)
    with pytest.raises(GalleryError, match=re.escape(f"1 photo cannot be used: anna/3.png ({reason}).")) as caught:
        load(photos, cropped=True)
    assert "--skip-bad" in caught.value.hint

    result = load(photos, cropped=True, skip_bad=True)
    assert len(result.images) == 4
    assert noted(result, "left out", f"anna/3.png ({reason})")


def test_a_photo_that_goes_blank_in_resizing_is_unusable(photos: Path) -> None:
    speck = np.zeros((HEIGHT * 16, WIDTH * 16), np.uint8)
    speck[0, 0] = 9
    put(photos / "anna" / "3.png", speck)
    with pytest.raises(GalleryError, match=r"anna/3.png \(blank\)"):
        load(photos, cropped=True, size=(HEIGHT, WIDTH))


def test_a_link_to_nowhere_is_unusable(photos: Path) -> None:
    (photos / "anna" / "3.png").symlink_to(photos / "gone.png")
    with pytest.raises(GalleryError, match=r"anna/3.png \(No such file"):
        load(photos, cropped=True)


def test_of_many_unusable_photos_some_are_named_and_all_counted(photos: Path) -> None:
    for number in range(10, 18):
        put(photos / "anna" / f"{number}.png", b"")
    with pytest.raises(GalleryError, match=r"8 photos cannot be used: anna/10.png .*anna/14.png \(.*and 3 more") as caught:
        load(photos, cropped=True)
    assert "anna/15.png" not in str(caught.value)


def test_a_jpeg_with_filler_and_trailing_bytes_is_whole(tmp_path: Path) -> None:
    data = encode(face(7), ".jpg")
    odd = data[:2] + b"\xff\xff" + data[2:] + b"\xff\xda trailing bytes of a moving picture"
    np.testing.assert_array_equal(read_grey(put(tmp_path / "1.jpg", odd)), read_grey(put(tmp_path / "2.jpg", data)))


# --- People and repeated photos ---


def test_a_person_without_photos_is_named(photos: Path) -> None:
    (photos / "carl").mkdir()
    with pytest.raises(GalleryError, match=r"No usable photo of carl\. Add photos \(jpg, .*webp\)"):
        load(photos, cropped=True)


@pytest.mark.parametrize("content", [b"", np.zeros((HEIGHT, WIDTH), np.uint8)], ids=["empty", "blank"])
def test_a_person_left_without_photos_is_named(photos: Path, content: np.ndarray | bytes) -> None:
    put(photos / "carl" / "1.png", content)
    with pytest.raises(GalleryError, match="No usable photo of carl"):
        load(photos, cropped=True, skip_bad=True)


def test_a_person_with_one_photo_is_noted(photos: Path) -> None:
    put(photos / "carl" / "1.png", face(7))
    result = load(photos, cropped=True)
    assert noted(result, "Only one photo of carl")
    assert not noted(result, "anna")


def test_one_person_is_not_enough(tmp_path: Path) -> None:
    put(tmp_path / "anna" / "1.png", face(1))
    with pytest.raises(GalleryError, match="fewer than two people"):
        load(tmp_path, cropped=True)


def test_no_person_at_all(tmp_path: Path) -> None:
    put(tmp_path / "1.png", face(1))
    with pytest.raises(GalleryError, match="holds no folder of a person"):
        load(tmp_path, cropped=True)


def test_the_same_photo_under_two_people_is_refused(photos: Path) -> None:
    # The same pixels in another file format.
    put(photos / "ben" / "copy.bmp", face(0))
    for skip_bad in (False, True):
        with pytest.raises(GalleryError, match=r"two names: anna/1.png and ben/copy.bmp"):
            load(photos, cropped=True, skip_bad=skip_bad)


def test_the_same_photo_twice_under_one_person_is_kept_once(photos: Path) -> None:
    put(photos / "anna" / "copy.bmp", face(0))
    result = load(photos, cropped=True)
    assert result.sources == ("anna/1.png", "anna/2.png", "ben/1.png", "ben/2.png")
    assert noted(result, "1 photo left out", "anna/copy.bmp (as anna/1.png)")


def test_photos_of_the_same_bytes_but_other_shape_are_different(photos: Path) -> None:
    put(photos / "ben" / "3.png", face(0).reshape(WIDTH, HEIGHT))
    assert len(load(photos, cropped=True, size=(HEIGHT, WIDTH)).images) == 5


# --- Other things in the folder ---


def test_what_is_not_read_is_noted(photos: Path) -> None:
    put(photos / "readme.txt", b"hello")
    put(photos / "anna" / "notes.doc", b"hello")
    put(photos / "stray.png", face(7))
    put(photos / "anna" / "more" / "1.png", face(8))
    result = load(photos, cropped=True)
    assert len(result.images) == 4
    assert noted(result, "not photos", "anna/more, anna/notes.doc, readme.txt, stray.png")


def test_litter_is_ignored(photos: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "anna/.1.png.swp", "anna/THUMBS.DB", "anna/desktop.ini"):
        put(photos / name, b"litter")
    (photos / ".cache").mkdir()
    (photos / "__MACOSX").mkdir()
    assert load(photos, cropped=True).notes == ()


def test_a_folder_that_cannot_be_opened(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)  # permissions do not bind root
    with pytest.raises(GalleryError, match=r"cannot be opened \(Permission denied\)"):
        load(photos, cropped=True)


@pytest.mark.parametrize("name", ["missing", "missing.npz", "missing.mat"])
def test_a_path_that_does_not_exist(tmp_path: Path, name: str) -> None:
    with pytest.raises(GalleryError, match=r"There is no .*missing"):
        load(tmp_path / name, cropped=True)


def test_a_file_that_is_not_a_gallery(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match=r"is not a gallery\. Pass a folder"):
        load(put(tmp_path / "1.png", face(1)), cropped=True)


# --- Depth, colour, orientation ---


def test_16_bits_are_scaled_and_noted(photos: Path) -> None:
    deep = face(7).astype(np.uint16) * 257
    put(photos / "anna" / "3.png", deep)
    put(photos / "anna" / "4.pgm", np.flipud(deep))
    result = load(photos, cropped=True)
    np.testing.assert_array_equal(result.images[result.sources.index("anna/3.png")], face(7))
    np.testing.assert_array_equal(result.images[result.sources.index("anna/4.pgm")], np.flipud(face(7)))
    assert noted(result, "2 photos scaled from 16 to 8 bits", "anna/3.png", "anna/4.pgm")


def test_16_bits_are_rounded(tmp_path: Path) -> None:
    values = np.array([[0, 128, 129, 256, 257, 65535, 65406]], np.uint16)
    grey = read_grey(put(tmp_path / "1.png", values))
    assert grey.tolist() == [[0, 0, 1, 1, 1, 255, 254]]


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_colour_becomes_grey_by_opencvs_weights(tmp_path: Path, depth: type) -> None:
    colour = np.dstack([face(1), face(2), face(3)])
    scale = 257 if depth == np.uint16 else 1
    grey = read_grey(put(tmp_path / "1.png", colour.astype(depth) * depth(scale)))
    blue, green, red = colour.astype(float).transpose(2, 0, 1)
    assert np.abs(grey - (0.114 * blue + 0.587 * green + 0.299 * red)).max() <= 1


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_alpha_is_dropped(tmp_path: Path, suffix: str) -> None:
    colour = np.dstack([face(1), face(2), face(3)])
    alpha = np.full((HEIGHT, WIDTH), 200, np.uint8)
    with_alpha = read_grey(put(tmp_path / f"1{suffix}", np.dstack([colour, alpha])))
    np.testing.assert_array_equal(with_alpha, read_grey(put(tmp_path / f"2{suffix}", colour)))


def exif(orientation: int, order: str) -> bytes:
    """A TIFF header and one directory of two entries: a resolution unit, and the orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entries = [(0x0128, 2), (0x0112, orientation)]
    directory = b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    return mark + struct.pack(f"{order}IH", 8, len(entries)) + directory + bytes(4)


def exif_jpeg(image: np.ndarray, tiff: bytes) -> bytes:
    segment = b"Exif\0\0" + tiff
    data = encode(image, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 100)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]


def exif_png(image: np.ndarray, tiff: bytes) -> bytes:
    data = encode(image, ".png")
    chunk = b"eXIf" + tiff
    header = 8 + 25  # signature and IHDR
    return data[:header] + struct.pack(">I", len(tiff)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[header:]


def exif_webp(image: np.ndarray, tiff: bytes) -> bytes:
    height, width = image.shape
    features = b"\x08\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    pixels = encode(image, ".webp")[12:]
    body = b"WEBPVP8X" + struct.pack("<I", len(features)) + features + pixels
    body += b"EXIF" + struct.pack("<I", len(tiff)) + tiff + bytes(len(tiff) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


# What a viewer does with a stored picture, by EXIF's definition of where its row 0 and column 0 lie.
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).T,
    8: np.rot90,
}


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("write", [exif_jpeg, exif_png])
def test_exif_rotation_is_honoured(
    tmp_path: Path, write: Callable[[np.ndarray, bytes], bytes], orientation: int, order: str
) -> None:
    stored = face(7)
    suffix = "." + write.__name__.removeprefix("exif_")
    grey = read_grey(put(tmp_path / f"1{suffix}", write(stored, exif(orientation, order))))
    expected = UPRIGHT[orientation](stored)
    assert grey.shape == expected.shape
    assert np.abs(grey.astype(int) - expected).max() <= 4


def test_webp_photos_are_read_as_stored(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_grey(put(tmp_path / "1.webp", exif_webp(face(7), exif(6, "<")))), face(7))


def test_read_grey_names_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match=r"1\.png cannot be used: empty file\. Replace it"):
        read_grey(put(tmp_path / "1.png", b""))


# --- Size ---


def test_photos_of_different_sizes_ask_for_a_size(photos: Path) -> None:
    put(photos / "anna" / "3.png", face(7, (30, 25)))
    with pytest.raises(GalleryError, match=r"differ in size: 24x20, 30x25\. Pass --size HxW, for example --size 24x20"):
        load(photos, cropped=True)


def test_a_size_resizes_every_photo(photos: Path) -> None:
    put(photos / "anna" / "3.png", face(7, (48, 40)))
    result = load(photos, cropped=True, size=(12, 10))
    assert result.images.shape == (5, 12, 10)
    assert result.notes == ()


def test_photos_of_the_wanted_size_stay_as_they_are(photos: Path) -> None:
    result = load(photos, cropped=True, size=(HEIGHT, WIDTH))
    np.testing.assert_array_equal(result.images[0], face(0))


@pytest.mark.parametrize(("shape", "is_noted"), [((24, 23), False), ((24, 25), True), ((30, 20), True)])
def test_a_stretched_photo_is_noted(photos: Path, shape: tuple[int, int], is_noted: bool) -> None:
    put(photos / "anna" / "3.png", face(7, shape))
    result = load(photos, cropped=True, size=(HEIGHT, WIDTH))
    assert noted(result, "stretched", "20%", "anna/3.png") == is_noted


@pytest.mark.parametrize("size", [(0, 10), (10, -1)])
def test_a_size_of_nothing_is_refused(photos: Path, size: tuple[int, int]) -> None:
    with pytest.raises(GalleryError, match="cannot be"):
        load(photos, cropped=True, size=size)


# --- Arrays ---

FACES = np.stack([face(seed) for seed in range(6)])
PEOPLE = ["carl", "anna", "anna", "ben", "ben", "carl"]
ORDER = [1, 2, 3, 4, 0, 5]


def save(path: Path, **arrays: Any) -> Path:
    if path.suffix.lower() == ".mat":
        scipy.io.savemat(path, arrays, appendmat=False)
    else:
        with path.open("wb") as file:
            np.savez(file, **arrays)
    return path


def assert_is_faces(result: Gallery) -> None:
    assert result.labels.tolist() == [PEOPLE[i] for i in ORDER]
    np.testing.assert_array_equal(result.images, FACES[ORDER])


@pytest.mark.parametrize("name", ["f.npz", "f.NPZ", "f.mat", "f.MAT"])
@pytest.mark.parametrize("layout", ["NHW", "HWN"])
def test_arrays_are_read_and_count_as_cropped(tmp_path: Path, name: str, layout: str) -> None:
    images = FACES if layout == "NHW" else np.moveaxis(FACES, 0, -1)
    result = load(save(tmp_path / name, images=images, labels=PEOPLE), cropped=False)
    assert_is_faces(result)
    assert result.sources == tuple(f"{name}[{i}]" for i in ORDER)
    assert result.notes == ()


@pytest.mark.parametrize("names", [("images", "labels"), ("fea", "gnd"), ("X", "y")])
@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_common_names_of_arrays(tmp_path: Path, names: tuple[str, str], suffix: str) -> None:
    path = save(tmp_path / f"f{suffix}", **{names[0]: FACES, names[1]: PEOPLE, "other": [1]})
    assert_is_faces(load(path, cropped=False))


def test_as_many_photos_as_pixels_follows_the_custom_and_is_noted(tmp_path: Path) -> None:
    faces = np.stack([face(seed, (5, 6)) for seed in range(6)])  # 6 x 5 x 6: either end may count the photos
    npz = load(save(tmp_path / "f.npz", images=faces, labels=PEOPLE), cropped=True)
    np.testing.assert_array_equal(npz.images, faces[ORDER])
    mat = load(save(tmp_path / "f.mat", images=faces, labels=PEOPLE), cropped=True)
    np.testing.assert_array_equal(mat.images, np.moveaxis(faces, -1, 0)[ORDER])


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1, 2, 3, 0)], ids=["NHWC", "HWCN"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("n", [3, 6])
def test_colour_arrays_hold_red_first(tmp_path: Path, axes: tuple[int, ...], channels: int, n: int) -> None:
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (n, HEIGHT, WIDTH, channels)).astype(np.uint8)
    path = save(tmp_path / "f.mat", images=colour.transpose(axes), labels=PEOPLE[:n])
    order = [i for i in ORDER if i < n]
    weights = [1.0] if channels == 1 else [0.299, 0.587, 0.114, 0.0][:channels]
    assert np.abs(load(path, cropped=True).images - (colour @ weights)[order]).max() <= 1


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_flattened_photos_are_unfolded_in_the_order_of_the_program(tmp_path: Path, suffix: str, transposed: bool) -> None:
    order = "F" if suffix == ".mat" else "C"
    rows = np.stack([image.ravel(order) for image in FACES])
    path = save(tmp_path / f"f{suffix}", fea=rows.T if transposed else rows, gnd=PEOPLE)
    assert_is_faces(load(path, cropped=True, size=(HEIGHT, WIDTH)))
    with pytest.raises(GalleryError, match=r"rows of 480 values\. Pass their original --size HxW"):
        load(path, cropped=True)
    with pytest.raises(GalleryError, match="480 values, but 24x21 makes 504"):
        load(path, cropped=True, size=(24, 21))


def test_arrays_are_resized(tmp_path: Path) -> None:
    path = save(tmp_path / "f.npz", images=FACES, labels=PEOPLE)
    assert load(path, cropped=True, size=(12, 10)).images.shape == (6, 12, 10)


@pytest.mark.parametrize(
    ("images", "is_deep"),
    [
        (FACES / 255.0, False),
        ((FACES / 255.0).astype(np.float32), False),
        (FACES.astype(np.float64) + 0.2 * (FACES < 255), False),
        (FACES.astype(np.int64), False),
        (FACES.astype(np.uint16), False),
        (FACES.astype(np.uint16) * 257, True),
        (FACES.astype(np.int32) * 257, True),
    ],
    ids=["unit", "unit32", "float255", "int64", "uint16 of bytes", "uint16", "int32 of 16 bits"],
)
@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_depths_of_arrays(tmp_path: Path, suffix: str, images: np.ndarray, is_deep: bool) -> None:
    assert FACES.max() > 250  # otherwise the scales could not be told apart
    result = load(save(tmp_path / f"f{suffix}", images=images, labels=PEOPLE), cropped=True)
    assert_is_faces(result)
    assert noted(result, "6 photos scaled from 16 to 8 bits") == is_deep


def test_truth_values_become_black_and_white(tmp_path: Path) -> None:
    result = load(save(tmp_path / "f.npz", images=FACES > 100, labels=PEOPLE), cropped=True)
    np.testing.assert_array_equal(result.images, np.where(FACES[ORDER] > 100, 255, 0))


@pytest.mark.parametrize("images", [FACES - 128.0, FACES * 1.2, FACES.astype(np.int32) - 128, FACES.astype(np.int64) * 1000])
def test_values_of_no_known_scale_are_refused(tmp_path: Path, images: np.ndarray) -> None:
    with pytest.raises(GalleryError, match=r"values from .* to .*\. Save them"):
        load(save(tmp_path / "f.npz", images=images, labels=PEOPLE), cropped=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_not_a_number_makes_a_photo_unusable(tmp_path: Path, suffix: str, value: float) -> None:
    images = FACES / 255.0
    images[2, 3, 4] = value
    path = save(tmp_path / f"f{suffix}", images=images, labels=PEOPLE)
    with pytest.raises(GalleryError, match=re.escape(f"1 photo cannot be used: f{suffix}[2] (values that are not finite)")):
        load(path, cropped=True)
    result = load(path, cropped=True, skip_bad=True)
    np.testing.assert_array_equal(result.images, FACES[[i for i in ORDER if i != 2]])


def test_rules_for_folders_hold_for_arrays(tmp_path: Path) -> None:
    blank = FACES.copy()
    blank[3] = 7
    with pytest.raises(GalleryError, match=r"f\.npz\[3\] \(blank\)"):
        load(save(tmp_path / "f.npz", images=blank, labels=PEOPLE), cropped=True)
    labels = [*PEOPLE[:3], "dora", *PEOPLE[4:]]
    with pytest.raises(GalleryError, match="No usable photo of dora"):
        load(save(tmp_path / "f.npz", images=blank, labels=labels), cropped=True, skip_bad=True)
    with pytest.raises(GalleryError, match=r"two names: f\.npz\[1\] and f\.npz\[3\]"):
        load(save(tmp_path / "f.npz", images=FACES[[0, 1, 2, 1, 4, 5]], labels=PEOPLE), cropped=True)
    with pytest.raises(GalleryError, match="fewer than two"):
        load(save(tmp_path / "f.npz", images=FACES, labels=["anna"] * 6), cropped=True)
    with pytest.raises(GalleryError, match=r"f\.npz holds no photos"):
        load(save(tmp_path / "f.npz", images=FACES[:0], labels=np.zeros(0, int)), cropped=True)


# --- Labels ---


@pytest.mark.parametrize(
    "labels",
    [
        np.array([10, 2, 2, 3, 3, 10], np.uint8),
        np.array([10, 2, 2, 3, 3, 10], float),
        np.array([[10, 2, 2, 3, 3, 10]]),
        np.array([[10, 2, 2, 3, 3, 10]]).T,
        np.array(["10", "2", "2", "3", "3", "10"]),
        np.array(["10 ", " 2", "2", "3", "3", "10"]),
        np.array([b"10", b"2", b"2", b"3", b"3", b"10"]),
    ],
    ids=["uint8", "float", "row", "column", "text", "padded text", "bytes"],
)
@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_labels_become_text(tmp_path: Path, suffix: str, labels: np.ndarray) -> None:
    result = load(save(tmp_path / f"f{suffix}", images=FACES, labels=labels), cropped=True)
    assert result.labels.tolist() == ["10", "10", "2", "2", "3", "3"]
    np.testing.assert_array_equal(result.images, FACES[[0, 5, 1, 2, 3, 4]])


def test_labels_in_a_matlab_cell_array(tmp_path: Path) -> None:
    cells = np.array(PEOPLE, dtype=object).reshape(-1, 1)
    assert_is_faces(load(save(tmp_path / "f.mat", images=FACES, labels=cells), cropped=True))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 2, np.nan, 1, 2, 3]),
        np.array([1, 2, np.inf, 1, 2, 3]),
        np.array([1.5, 2, 3, 1, 2, 3]),
        np.array(["a", "", "b", "a", "b", "b"]),
        np.eye(6),
        np.arange(6) * 1j,
    ],
    ids=["nan", "inf", "fraction", "empty", "one-hot", "complex"],
)
def test_labels_that_name_nobody_are_refused(tmp_path: Path, labels: np.ndarray) -> None:
    with pytest.raises(GalleryError, match="not one name or whole number per photo"):
        load(save(tmp_path / "f.npz", images=FACES, labels=labels), cropped=True)


def test_labels_must_be_as_many_as_images(tmp_path: Path) -> None:
    path = save(tmp_path / "f.npz", images=FACES, labels=PEOPLE[:5])
    with pytest.raises(GalleryError, match=r"5 labels for images of 6 x 24 x 20\. Save one label per image"):
        load(path, cropped=True)


# --- Files of arrays that cannot be read ---


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_missing_arrays_are_named(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"f{suffix}", images=FACES, names=PEOPLE)
    with pytest.raises(GalleryError, match=r"lacks the arrays images and labels \(it holds images, names\)"):
        load(path, cropped=True)


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
@pytest.mark.parametrize("content", [b"", b"not an archive at all" * 50, b"PK\x03\x04 cut short"])
def test_a_file_that_is_not_what_its_suffix_says(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = put(tmp_path / f"f{suffix}", content)
    with pytest.raises(GalleryError, match=f"f{suffix} is not a readable {suffix} file"):
        load(path, cropped=True)


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_a_damaged_file_of_arrays(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"f{suffix}", images=FACES, labels=PEOPLE)
    data = path.read_bytes()
    path.write_bytes(data[:700] + bytes(200) + data[900 : len(data) if suffix == ".npz" else len(data) // 2])
    with pytest.raises(GalleryError, match="not a readable"):
        load(path, cropped=True)


def test_pickled_objects_are_not_opened(tmp_path: Path) -> None:
    path = save(tmp_path / "f.npz", images=FACES, labels=np.array(PEOPLE, dtype=object))
    with pytest.raises(GalleryError, match=r"Python objects.*dtype=str"):
        load(path, cropped=True)


def test_matlab_7_3_files_say_what_to_do(tmp_path: Path) -> None:
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    with pytest.raises(GalleryError, match=r"f\.mat is a MATLAB 7\.3 file\. Save it in MATLAB with the option -v7"):
        load(put(tmp_path / "f.mat", header + bytes(1000)), cropped=True)


@pytest.mark.parametrize(
    "images",
    [
        np.array([face(0), face(1, (5, 5)), *FACES[2:]], dtype=object),
        FACES * 1j,
        FACES[None, None],
        scipy.sparse.csc_matrix(FACES.reshape(6, -1)),
    ],
    ids=["cells", "complex", "five axes", "sparse"],
)
def test_images_that_are_not_one_array_of_numbers(tmp_path: Path, images: Any) -> None:
    with pytest.raises(GalleryError, match="not one array of numbers"):
        load(save(tmp_path / "f.mat", images=images, labels=PEOPLE), cropped=True)


# --- The gallery itself ---


def test_the_fingerprint_knows_photos_and_people_but_not_their_order() -> None:
    def fingerprint(images: np.ndarray, labels: list[str]) -> str:
        sources = tuple(map(str, range(len(labels))))
        return Gallery(images=images, labels=np.array(labels), sources=sources).fingerprint

    base = fingerprint(FACES, PEOPLE)
    assert re.fullmatch("[0-9a-f]{64}", base)
    assert fingerprint(FACES[ORDER], [PEOPLE[i] for i in ORDER]) == base

    touched = FACES.copy()
    touched[4, 5, 6] ^= 1
    others = [
        fingerprint(touched, PEOPLE),
        fingerprint(FACES, [*PEOPLE[:5], "dora"]),
        fingerprint(FACES[:5], PEOPLE[:5]),
        fingerprint(FACES[[1, 0, 2, 3, 4, 5]], PEOPLE),
        fingerprint(FACES.reshape(6, WIDTH, HEIGHT), PEOPLE),
        base,
    ]
    assert len(set(others)) == len(others)


def test_the_fingerprint_does_not_know_file_names(photos: Path) -> None:
    before = load(photos, cropped=True).fingerprint
    (photos / "anna" / "1.png").rename(photos / "anna" / "9.png")
    assert load(photos, cropped=True).fingerprint == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": FACES.astype(float)},
        {"images": FACES[0]},
        {"labels": np.array(PEOPLE[:5])},
        {"sources": ("one",)},
    ],
)
def test_a_gallery_of_unequal_parts_is_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"images": FACES, "labels": np.array(PEOPLE), "sources": tuple(PEOPLE)}
    Gallery(**right)
    with pytest.raises(ValueError, match="must"):
        Gallery(**{**right, **wrong})
