"""Galleries in `.npz` and `.mat` files: images and labels, in the usual layouts."""

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

# Names of the two arrays in public face data sets; the first pair is ours.
_ARRAY_NAMES = (("images", "labels"), ("fea", "gnd"), ("X", "y"))
_CONDITIONS = "conditions"  # of each photo: clean, sunglasses... Optional.
_CHANNELS = (1, 3, 4)


def photos(path: Path, size: tuple[int, int] | None) -> list[tuple[str, str, Callable[[], NDArray[Any]]]]:
    """Return for each photo: person, condition, and a function that returns uint8 or uint16 (H, W) or raises PhotoError."""
    contents = _read_mat(path) if path.suffix.lower() == ".mat" else _read_npz(path)
    names = next((pair for pair in _ARRAY_NAMES if contents.keys() >= set(pair)), None)
    if names is None:
        raise GalleryError(
            f"{path.name} lacks the arrays images and labels (it holds {some(sorted(contents)) or 'nothing'}).",
            "Save images as N x H x W and labels as N values under these names.",
        )
    images, people = np.asarray(contents[names[0]]), _texts(contents[names[1]], "labels", path)
    if not people:
        raise GalleryError(f"{path.name} holds no photos.", "Check how it was written.")
    conditions = _texts(contents[_CONDITIONS], _CONDITIONS, path) if _CONDITIONS in contents else [""] * len(people)
    if len(conditions) != len(people):
        raise GalleryError(f"{path.name} has {len(people)} labels and {len(conditions)} conditions.", "Save one per photo.")
    images = _photos_first(images, len(people), path)
    if images.ndim == 2:
        images = _unflatten(images, size, path)
    finite = np.isfinite(images).all(axis=tuple(range(1, images.ndim)))
    images = _to_integers(images, path)

    def read(index: int) -> NDArray[Any]:
        if not finite[index]:
            raise PhotoError("values that are not finite")
        image = images[index]
        if image.ndim == 2:
            return image
        if image.shape[2] == 1:
            return image[:, :, 0]
        # Arrays hold RGB by convention; only OpenCV holds BGR.
        return cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)

    return [(person, conditions[i], partial(read, i)) for i, person in enumerate(people)]


def _read_npz(path: Path) -> dict[str, Any]:
    wanted = {_CONDITIONS} | {name for pair in _ARRAY_NAMES for name in pair}
    unreadable = GalleryError(f"{path.name} is not a readable .npz file.", "Write it again with numpy.savez.")
    try:
        if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
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
    from scipy.io import loadmat  # slow to load

    try:
        contents = loadmat(path)
    except NotImplementedError:
        raise GalleryError(f"{path.name} is a MATLAB 7.3 file.", "Save it in MATLAB with the option -v7.") from None
    except Exception:  # the reader raises many kinds of errors on a damaged file
        raise GalleryError(f"{path.name} is not a readable .mat file.", "Save it again with the option -v7.") from None
    return {name: value for name, value in contents.items() if not name.startswith("__")}


def _texts(values: Any, what: str, path: Path) -> list[str]:
    """Return names or whole numbers as text."""
    values = np.asarray(values)
    wrong = GalleryError(
        f"The {what} in {path.name} are not one name or whole number per photo.", "Save them as numbers or text."
    )
    if values.ndim and values.size != max(values.shape):
        raise wrong
    texts = []
    for each in values.ravel():
        cell = np.ravel(each)  # a MATLAB cell array holds each name in an array
        kind = cell.dtype.kind
        if cell.size != 1 or kind not in "biufUS" or (kind == "f" and not float(cell[0]).is_integer()):
            raise wrong
        value = int(cell[0]) if kind in "biuf" else cell[0]
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        if not text.strip():
            raise wrong
        texts.append(same_spelling(text.strip()))  # MATLAB pads the names of a character matrix with blanks
    return texts


def _photos_first(images: NDArray[Any], n: int, path: Path) -> NDArray[Any]:
    """Return (N, H, W), (N, H, W, channels) or (N, d); the n photos may be on the first or last axis.

    If both axes have the length n, the convention of the program that wrote the file decides.
    """
    if images.dtype.kind not in "biuf" or images.ndim not in (2, 3, 4) or 0 in images.shape:
        raise GalleryError(
            f"The images in {path.name} are not one array of numbers.", "Save them as N x H x W, all of one size."
        )
    first, last = images.shape[0] == n, images.shape[-1] == n
    if images.ndim == 4:
        first = first and images.shape[3] in _CHANNELS
        last = last and images.shape[2] in _CHANNELS
    if not first and not last:
        shape = " x ".join(str(length) for length in images.shape)
        raise GalleryError(f"{path.name} has {n} labels for images of {shape}.", "Save one label per image.")
    if first and (not last or images.ndim == 2 or path.suffix.lower() == ".npz"):
        return images
    return np.moveaxis(images, -1, 0)


def _unflatten(vectors: NDArray[Any], size: tuple[int, int] | None, path: Path) -> NDArray[Any]:
    d = vectors.shape[1]
    if size is None or size[0] * size[1] != d:
        but = "" if size is None else f", but {hxw(size)} makes {size[0] * size[1]}"
        raise GalleryError(f"{path.name} holds photos as rows of {d} values{but}.", "Pass their original --size HxW.")
    if path.suffix.lower() == ".mat":  # MATLAB flattens column by column
        return vectors.reshape(-1, size[1], size[0]).swapaxes(1, 2)
    return vectors.reshape(-1, *size)


def _to_integers(images: NDArray[Any], path: Path) -> NDArray[Any]:
    """Return uint8, or uint16 if whole numbers need it. Floats from 0 to 1 are scaled to 0 to 255."""
    if images.dtype == np.uint8:
        return images
    is_float = images.dtype.kind == "f"
    values = np.where(np.isfinite(images), images, 0)
    low, high = float(values.min()), float(values.max())
    rounding = 1e-4  # for example of a conversion to float32
    # Floats a little above 255 may be sharpened 8 bits or dark 16 bits: an error is safer than a guess.
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
