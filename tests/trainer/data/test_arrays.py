"""Galleries in .npz and .mat files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from edge.errors import GalleryError
from tests.fixtures.photos import smooth_image, write_photo
from trainer.data.gallery import Gallery, load_gallery

FACES = np.stack([smooth_image(seed) for seed in range(6)])
PEOPLE = ["carl", "anna", "anna", "ben", "ben", "carl"]
ORDER = [1, 2, 3, 4, 0, 5]
SUFFIXES = pytest.mark.parametrize("suffix", [".npz", ".mat"])


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
def test_arrays_are_read_with_photos_on_the_first_or_last_axis(tmp_path: Path, name: str) -> None:
    for images in (FACES, np.moveaxis(FACES, 0, -1)):
        path = save(tmp_path / name, images=images, labels=PEOPLE, other=[1])
        result = load_gallery(path, cropped=False)
        assert_is_faces(result)
        assert result.sources == tuple(f"{name}[{i}]" for i in ORDER)
        assert result.notes == ()
    assert load_gallery(path, cropped=True, size=(12, 10)).images.shape == (6, 12, 10)


def test_ambiguous_axis_follows_the_convention_of_the_program(tmp_path: Path) -> None:
    faces = np.stack([smooth_image(seed, (5, 6)) for seed in range(6)])  # 6 x 5 x 6: the first or the last axis
    npz = load_gallery(save(tmp_path / "f.npz", images=faces, labels=PEOPLE), cropped=True)
    np.testing.assert_array_equal(npz.images, faces[ORDER])
    mat = load_gallery(save(tmp_path / "f.mat", images=faces, labels=PEOPLE), cropped=True)
    np.testing.assert_array_equal(mat.images, np.moveaxis(faces, -1, 0)[ORDER])


@SUFFIXES
def test_values_are_scaled_to_8_bits(tmp_path: Path, suffix: str) -> None:
    assert FACES.max() > 250  # otherwise the scales could not be distinguished
    for images in (
        FACES / 255.0,
        (FACES / 255.0).astype(np.float32),
        FACES.astype(np.float64) + 0.2 * (FACES < 255),
        FACES.astype(np.int64),
        FACES.astype(np.uint16),
        FACES.astype(np.uint16) * 257,
        FACES.astype(np.int32) * 257,
    ):
        result = load_gallery(save(tmp_path / f"f{suffix}", images=images, labels=PEOPLE), cropped=True)
        assert_is_faces(result)
        assert any("6 photos scaled from 16 to 8 bits" in note for note in result.notes) == (images.max() > 255)


@pytest.mark.parametrize(
    "images",
    [
        FACES - 128.0,
        FACES * 1.2,
        FACES.astype(np.int32) - 128,
        FACES.astype(np.int64) * 1000,
        np.where(FACES == FACES[2, 3, 4], np.nan, FACES / 255.0),
        np.where(FACES == FACES[2, 3, 4], np.inf, FACES / 255.0),
    ],
)
def test_values_of_unknown_scale_are_rejected(tmp_path: Path, images: np.ndarray) -> None:
    with pytest.raises(GalleryError, match=r"values from .* to .*\. Save them"):
        load_gallery(save(tmp_path / "f.npz", images=images, labels=PEOPLE), cropped=True)


def test_rules_of_folders_apply_to_arrays(tmp_path: Path) -> None:
    blank = FACES.copy()
    blank[3] = 7
    labels = [*PEOPLE[:3], "dora", *PEOPLE[4:]]
    for images, people, message in (
        (blank, labels, r"No usable photo of dora: f\.npz\[3\] \(blank\)"),
        (FACES[[0, 1, 2, 1, 4, 5]], PEOPLE, r"two names: f\.npz\[1\] and f\.npz\[3\]"),
        (FACES, ["anna"] * 6, "fewer than two"),
        (FACES[:0], np.zeros(0, int), r"f\.npz holds no photos"),
        (FACES, PEOPLE[:5], r"5 labels for images of 6 x 24 x 20\. Save one label per image"),
    ):
        with pytest.raises(GalleryError, match=message):
            load_gallery(save(tmp_path / "f.npz", images=images, labels=people), cropped=True)
    save(tmp_path / "f.npz", images=blank, labels=PEOPLE)
    assert load_gallery(tmp_path / "f.npz", cropped=True).sources == tuple(f"f.npz[{row}]" for row in (1, 2, 4, 0, 5))


# --- Labels ---

NUMBERS = np.array([10, 2, 2, 3, 3, 10])


@SUFFIXES
def test_labels_become_text(tmp_path: Path, suffix: str) -> None:
    for labels in (
        NUMBERS.astype(np.uint8),
        NUMBERS.astype(float),
        NUMBERS[None],
        NUMBERS[:, None],
        NUMBERS.astype(str),
        np.array(["10 ", " 2", "2", "3", "3", "10"]),
    ):
        result = load_gallery(save(tmp_path / f"f{suffix}", images=FACES, labels=labels), cropped=True)
        assert result.labels.tolist() == ["10", "10", "2", "2", "3", "3"]
        np.testing.assert_array_equal(result.images, FACES[[0, 5, 1, 2, 3, 4]])


def test_labels_may_be_a_matlab_cell_array(tmp_path: Path) -> None:
    cells = np.array(PEOPLE, dtype=object).reshape(-1, 1)
    assert_is_faces(load_gallery(save(tmp_path / "f.mat", images=FACES, labels=cells), cropped=True))


def test_labels_that_are_not_names_are_rejected(tmp_path: Path) -> None:
    for labels in (
        np.array([1, 2, np.nan, 1, 2, 3]),
        np.array([1, 2, np.inf, 1, 2, 3]),
        np.array([1.5, 2, 3, 1, 2, 3]),
        np.array(["a", "", "b", "a", "b", "b"]),
        np.eye(6),
        np.arange(6) * 1j,
    ):
        with pytest.raises(GalleryError, match="not one name or whole number per photo"):
            load_gallery(save(tmp_path / "f.npz", images=FACES, labels=labels), cropped=True)


# --- Unreadable files ---


@SUFFIXES
def test_missing_arrays_are_named(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"f{suffix}", images=FACES, names=PEOPLE)
    with pytest.raises(GalleryError, match=r"lacks the arrays images and labels \(it holds images, names\)"):
        load_gallery(path, cropped=True)


@SUFFIXES
def test_unreadable_file_is_rejected(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"f{suffix}", images=FACES, labels=PEOPLE)
    data = path.read_bytes()
    damaged = data[:700] + bytes(200) + data[900 : len(data) if suffix == ".npz" else len(data) // 2]
    for content in (b"", b"not an archive at all" * 50, b"PK\x03\x04 cut short", damaged):
        path.write_bytes(content)
        with pytest.raises(GalleryError, match=f"f{suffix} is not a readable {suffix} file"):
            load_gallery(path, cropped=True)


def test_pickled_objects_are_not_opened(tmp_path: Path) -> None:
    path = save(tmp_path / "f.npz", images=FACES, labels=np.array(PEOPLE, dtype=object))
    with pytest.raises(GalleryError, match=r"not a readable \.npz file.*dtype=str"):
        load_gallery(path, cropped=True)


def test_matlab_7_3_file_is_rejected_with_a_hint(tmp_path: Path) -> None:
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    with pytest.raises(GalleryError, match=r"f\.mat is not a readable \.mat file\. Save it in MATLAB with the option -v7"):
        load_gallery(write_photo(tmp_path / "f.mat", header + bytes(1000)), cropped=True)


@pytest.mark.parametrize(
    "images",
    [
        np.array([smooth_image(0), smooth_image(1, (5, 5)), *FACES[2:]], dtype=object),
        FACES * 1j,
        FACES[..., None],
        FACES.reshape(6, -1),
        scipy.sparse.csc_matrix(FACES.reshape(6, -1)),
    ],
    ids=["cells", "complex", "colour", "flattened", "sparse"],
)
def test_images_that_are_not_one_array_of_grey_images_are_rejected(tmp_path: Path, images: Any) -> None:
    with pytest.raises(GalleryError, match="not one array of grey images"):
        load_gallery(save(tmp_path / "f.mat", images=images, labels=PEOPLE), cropped=True)
