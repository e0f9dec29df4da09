"""Galleries that are arrays: `.npz` and `.mat` files with images and labels, in the shapes that people save them in."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import PhotoError
from edge.errors import GalleryError
from edge.text import hxw, same_spelling, some

SUFFIXES = (".npz", ".mat")

# Pairs of names under which public face data sets keep their arrays; the first pair is ours.
_ARRAY_NAMES = (("images", "labels"), ("fea", "gnd"), ("X", "y"))
_CONDITIONS = "conditions"  # what each photo was taken under: clean, sunglasses... May be absent.
_CHANNELS = (1, 3, 4)


def photos(path: Path, size: tuple[int, int] | None, notes: list[str]) -> list[tuple[str, str, Callable[[], NDArray[Any]]]]:
    """The person in each photo of the file, its condition, and how to read it: uint8 or uint16 (H, W), or PhotoError."""
    images, labels, named = _read_arrays(path)
    people = _texts(labels, "labels", path)
    if not people:
        raise GalleryError(f"{path.name} holds no photos.", "Check how it was written.")
    conditions = [""] * len(people) if named is None else _texts(named, _CONDITIONS, path)
    if len(conditions) != len(people):
        raise GalleryError(f"{path.name} has {len(people)} labels and {len(conditions)} conditions.", "Save one per photo.")
    images = _photos_first(images, len(people), path, notes)
    if images.ndim == 2:
        images = _unflatten(images, size, path)
    finite = np.isfinite(images).all(axis=tuple(range(1, images.ndim))) if images.dtype.kind == "f" else None
    images = _to_integers(images, path)

    def read(index: int) -> NDArray[Any]:
        if finite is not None and not finite[index]:
            raise PhotoError("not a number in it")
        image = images[index]
        if image.ndim == 2:
            return image
        if image.shape[2] == 1:
            return image[:, :, 0]
        # Arrays hold red first by custom, where OpenCV's own files hold blue first.
        return cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)

    return [(person, conditions[i], partial(read, i)) for i, person in enumerate(people)]


def _read_arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    contents = _read_mat(path) if path.suffix.lower() == ".mat" else _read_npz(path)
    for images, labels in _ARRAY_NAMES:
        if images in contents and labels in contents:
            conditions = np.asarray(contents[_CONDITIONS]) if _CONDITIONS in contents else None
            return np.asarray(contents[images]), np.asarray(contents[labels]), conditions
    found = some(sorted(contents)) or "nothing"
    raise GalleryError(
        f"{path.name} lacks the arrays images and labels (it holds {found}).",
        "Save images as N x H x W and labels as N values under these names.",
    )


def _read_npz(path: Path) -> dict[str, Any]:
    wanted = {_CONDITIONS} | {name for pair in _ARRAY_NAMES for name in pair}
    unreadable = GalleryError(f"{path.name} is not a readable .npz file.", "Write it again with numpy.savez.")
    # Asked first, because numpy takes any other file for a pickle and then speaks of that.
    try:
        if not zipfile.is_zipfile(path):
            raise unreadable
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] if name in wanted else None for name in archive.files}
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise unreadable from None
        raise GalleryError(
            f"{path.name} holds Python objects, which are not opened for safety.",
            "Save the images as one numeric array and the labels as np.array(labels, dtype=str).",
        ) from None
    except (OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise unreadable from None


def _read_mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # slow to load, and needed for this kind of file only

    try:
        contents = loadmat(path)
    except NotImplementedError:
        raise GalleryError(f"{path.name} is a MATLAB 7.3 file.", "Save it in MATLAB with the option -v7.") from None
    except Exception:  # a damaged file makes the reader fail in almost any way
        raise GalleryError(f"{path.name} is not a readable .mat file.", "Save it again with the option -v7.") from None
    return {name: value for name, value in contents.items() if not name.startswith("__")}


def _texts(values: NDArray[Any], what: str, path: Path) -> list[str]:
    wrong = GalleryError(
        f"The {what} in {path.name} are not one name or whole number per photo.",
        "Save them as numbers or text.",
    )
    if values.ndim and values.size != max(values.shape):
        raise wrong
    texts = []
    for each in values.ravel():
        # A MATLAB cell holds each name as an array of its own.
        cell = np.ravel(each)
        if cell.size != 1 or cell.dtype.kind not in "biufUS":
            raise wrong
        value = cell[0]
        if cell.dtype.kind in "biuf":
            if value != np.floor(value) or not np.isfinite(value):
                raise wrong
            text = str(int(value))
        else:
            # MATLAB pads the names of a character matrix with blanks.
            text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()
        if not text:
            raise wrong
        texts.append(same_spelling(text))
    return texts


def _photos_first(images: NDArray[Any], n: int, path: Path, notes: list[str]) -> NDArray[Any]:
    """(N, H, W), (N, H, W, channels) or (N, d), whichever axis the n photos were on."""
    if images.dtype.kind not in "biuf" or images.ndim not in (2, 3, 4) or 0 in images.shape:
        raise GalleryError(
            f"The images in {path.name} are not one array of numbers.",
            "Save them as N x H x W, all of one size.",
        )
    first, last = images.shape[0] == n, images.shape[-1] == n
    if images.ndim == 4:
        first = first and images.shape[3] in _CHANNELS
        last = last and images.shape[2] in _CHANNELS
    if not first and not last:
        shape = " x ".join(str(length) for length in images.shape)
        raise GalleryError(f"{path.name} has {n} labels for images of {shape}.", "Save one label per image.")
    if first and last:
        # Both readings fit: follow the custom of the program that wrote the file.
        first = images.ndim == 2 or path.suffix.lower() == ".npz"
        axis = "first" if first else "last"
        notes.append(f"{path.name} has as many photos as pixels on a side: its {axis} axis was taken to count photos.")
    return images if first else np.moveaxis(images, -1, 0)


def _unflatten(vectors: NDArray[Any], size: tuple[int, int] | None, path: Path) -> NDArray[Any]:
    d = vectors.shape[1]
    if size is None:
        raise GalleryError(f"{path.name} holds photos as rows of {d} values.", "Pass their --size HxW.")
    height, width = size
    if height * width != d:
        raise GalleryError(
            f"{path.name} holds photos as rows of {d} values, but {hxw(size)} makes {height * width}.",
            "Pass the --size HxW that they were flattened from.",
        )
    if path.suffix.lower() == ".mat":  # MATLAB flattens column by column
        return vectors.reshape(-1, width, height).swapaxes(1, 2)
    return vectors.reshape(-1, height, width)


def _to_integers(images: NDArray[Any], path: Path) -> NDArray[Any]:
    """uint8, or uint16 where whole numbers need it. Floats from 0 to 1 are stretched to 0 to 255."""
    if images.dtype == np.uint8:
        return images
    is_float = images.dtype.kind == "f"
    values = np.where(np.isfinite(images), images, 0) if is_float else images
    low, high = float(values.min()), float(values.max())
    rounding = 1e-4  # of a conversion to float32, say
    # Floats a little above 255 may be 8 bits sharpened or 16 bits in the dark: refused rather than guessed.
    if low < -rounding or high > (255 + rounding if is_float else 65535):
        raise GalleryError(
            f"The images in {path.name} have values from {low:g} to {high:g}.",
            "Save them as floats from 0 to 1 or whole numbers from 0 to 255.",
        )
    if images.dtype.kind == "b" or (is_float and high <= 1 + rounding):
        return np.rint(np.clip(values, 0, 1) * 255.0).astype(np.uint8)
    if is_float:
        return np.rint(np.clip(values, 0, 255)).astype(np.uint8)
    return values.astype(np.uint16 if high > 255 else np.uint8)
