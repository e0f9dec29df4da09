"""Galleries in `.npz` and `.mat` files: grey images and labels."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import GalleryError
from edge.text import same_spelling, some
from trainer.data.archives import TooLargeError, check_mat, open_npz

HINTS = {
    ".npz": "Save it with numpy.savez, the images as one numeric array and the labels as np.array(labels, dtype=str).",
    ".mat": "Save it in MATLAB with the option -v7.",
}
"""By suffix: how to write a file that can be read."""
_NAMES = ("images", "labels", "conditions")
_ROUNDING = 1e-4  # for example of a conversion to float32


def read_arrays(path: Path) -> tuple[NDArray[Any], list[str], list[str]]:
    """Return images (N, H, W) as uint8 or uint16, and for each its person and condition ("" if the file has none)."""
    contents = _contents(path)
    if not contents.keys() >= {"images", "labels"}:
        raise GalleryError(
            f"{path.name} lacks the arrays images and labels (it holds {some(sorted(contents)) or 'nothing'}).",
            "Save images as N x H x W and labels as N values under these names.",
        )
    people = _texts(contents["labels"], "labels", path)
    if not people:
        raise GalleryError(f"{path.name} holds no photos.", "Check how it was written.")
    conditions = _texts(contents["conditions"], "conditions", path) if "conditions" in contents else [""] * len(people)
    if len(conditions) != len(people):
        raise GalleryError(f"{path.name} has {len(people)} labels and {len(conditions)} conditions.", "Save one per photo.")
    return _to_integers(_photos_first(np.asarray(contents["images"]), len(people), path), path), people, conditions


def _contents(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    try:
        if suffix == ".mat":
            from scipy.io import loadmat  # slow to load

            check_mat(path)
            return {name: value for name, value in loadmat(path).items() if not name.startswith("__")}
        with open_npz(path) as archive:
            return {name: archive[name] if name in _NAMES else None for name in archive.files}
    except TooLargeError as error:
        raise GalleryError(f"{path.name} {error}.", "Save it without compression.") from None
    except Exception:  # the readers raise many kinds of errors on damaged files, pickles and MATLAB 7.3 files
        raise GalleryError(f"{path.name} is not a readable {suffix} file.", HINTS[suffix]) from None


def _texts(values: Any, what: str, path: Path) -> list[str]:
    """Return names or whole numbers as text."""
    values, texts = np.atleast_1d(values), []
    for value in values.ravel():
        cell = np.ravel(value)  # a MATLAB cell array holds each name in an array
        if cell.size == 1 and (cell.dtype.kind in "iuU" or (cell.dtype.kind == "f" and float(cell[0]).is_integer())):
            text = str(cell[0] if cell.dtype.kind == "U" else int(cell[0]))
            texts.append(same_spelling(text.strip()))  # MATLAB pads the names of a character matrix with blanks
    if values.size not in values.shape or len(texts) < values.size or not all(texts):
        raise GalleryError(
            f"The {what} in {path.name} are not one name or whole number per photo.", "Save them as numbers or text."
        )
    return texts


def _photos_first(images: NDArray[Any], n: int, path: Path) -> NDArray[Any]:
    """Return (N, H, W); the n photos may be on the first or last axis.

    If both axes have the length n, the convention of the program that wrote the file decides.
    """
    if images.dtype.kind not in "iuf" or images.ndim != 3 or 0 in images.shape:
        raise GalleryError(
            f"The images in {path.name} are not one array of grey images.", "Save them as N x H x W numbers, all of one size."
        )
    first, last = images.shape[0] == n, images.shape[2] == n
    if not first and not last:
        shape = " x ".join(str(length) for length in images.shape)
        raise GalleryError(f"{path.name} has {n} labels for images of {shape}.", "Save one label per image.")
    return images if first and (not last or path.suffix.lower() == ".npz") else np.moveaxis(images, -1, 0)


def _to_integers(images: NDArray[Any], path: Path) -> NDArray[Any]:
    """Return uint8, or uint16 if whole numbers need it. Floats from 0 to 1 are scaled to 0 to 255."""
    is_float = images.dtype.kind == "f"
    low, high = float(images.min()), float(images.max())
    # Floats a little above 255 may be sharpened 8 bits or dark 16 bits: an error is safer than a guess.
    if not (low >= -_ROUNDING and high <= (255 + _ROUNDING if is_float else 65535)):  # also if a value is NaN
        raise GalleryError(
            f"The images in {path.name} have values from {low:g} to {high:g}.",
            "Save them as floats from 0 to 1 or whole numbers from 0 to 255.",
        )
    if is_float:
        return np.rint(np.clip(images * (255.0 if high <= 1 + _ROUNDING else 1.0), 0, 255)).astype(np.uint8)
    return images.astype(np.uint16 if high > 255 else np.uint8)
