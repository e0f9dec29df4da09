"""Photos to arrays: the one door through which training data comes in.

A gallery is a folder per person, or an `.npz` or `.mat` file with the arrays `images` and `labels`. Every
photo ends as an 8-bit grey image of one common size. Nothing is passed over in silence: what cannot be used
is an error that names the photo, and what was changed or left out on purpose is a line in `Gallery.notes`.
"""

from __future__ import annotations

import hashlib
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import GalleryError
from edge.preprocess import resize_crop

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp")
ARRAY_SUFFIXES = (".npz", ".mat")

# Pairs of names under which public face data sets keep their arrays; the first pair is ours.
_ARRAY_NAMES = (("images", "labels"), ("fea", "gnd"), ("X", "y"))
_CHANNELS = (1, 3, 4)
_LITTER = {"thumbs.db", "desktop.ini", "__macosx"}
_MAX_STRETCH = 1.2
_NAMED = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Photos of known people, ready for training; sorted by person, then by file name or array index."""

    images: NDArray[np.uint8]
    """(N, H, W), grey."""
    labels: NDArray[np.str_]
    """(N,), the person in each photo."""
    sources: tuple[str, ...]
    """Where each photo came from: `anna/1.jpg`, or `faces.npz[17]`."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was changed, left out or looks doubtful."""

    def __post_init__(self) -> None:
        if self.images.ndim != 3 or self.images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 (N, H, W), not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != (len(self.images),) or len(self.sources) != len(self.images):
            raise ValueError("images, labels and sources must have the same length")

    @cached_property
    def people(self) -> tuple[str, ...]:
        """The people, sorted."""
        return tuple(str(person) for person in np.unique(self.labels))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of size, labels and pixels: the same for the same photos in any order, under any name."""
        photos = sorted(
            hashlib.sha256(str(label).encode() + b"\0" + image.tobytes()).digest()
            for label, image in zip(self.labels, self.images, strict=True)
        )
        height, width = self.images.shape[1:]
        return hashlib.sha256(f"{height}x{width}\n".encode() + b"".join(photos)).hexdigest()


def load(
    path: str | Path,
    *,
    cropped: bool,
    size: tuple[int, int] | None = None,
    skip_bad: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Gallery:
    """Read the gallery at `path`.

    `cropped` says that the photos of a folder show faces only; arrays always count as cropped. `size` is
    (height, width); without it all photos must share one size. `skip_bad` leaves unusable photos out, with a
    note, instead of refusing the gallery. `progress` is called with (photos read, photos in all).
    """
    path = Path(path)
    notes: list[str] = []
    if size is not None and min(size) < 1:
        raise GalleryError(f"A face cannot be {_hxw(size)} pixels.", "Pass --size HxW, for example --size 112x92.")
    if path.is_dir():
        if not cropped:
            raise GalleryError(
                "Finding faces in ordinary photographs comes with a later version.",
                "Crop the photos to the faces and pass --cropped.",
            )
        people, entries = _folder_entries(path, notes)
    elif not path.exists():
        raise GalleryError(f"There is no {path}.", "Check the path.")
    elif path.suffix.lower() in ARRAY_SUFFIXES:
        people, entries = _array_entries(path, size, notes)
    else:
        raise GalleryError(f"{path} is not a gallery.", "Pass a folder with a folder per person, an .npz or a .mat file.")
    return _assemble(people, entries, size=size, skip_bad=skip_bad, progress=progress, notes=notes)


def read_grey(path: str | Path) -> NDArray[np.uint8]:
    """One photo file as uint8 (H, W): upright by its EXIF data, grey by OpenCV's weights, alpha dropped."""
    try:
        return _to_8_bit(_decode(Path(path)))
    except _PhotoError as bad:
        raise GalleryError(f"{path} cannot be used: {bad}.", "Replace it.") from None


# --- Assembling ---


class _PhotoError(Exception):
    """A photo that cannot be used; the text says why in two or three words."""


@dataclass(frozen=True)
class _Entry:
    """One photo of the gallery, not yet read: files are decoded one at a time to keep memory low."""

    person: str
    source: str
    read: Callable[[], NDArray[Any]]
    """Gives uint8 or uint16 (H, W), or raises _PhotoError."""


def _assemble(
    people: Iterable[str],
    entries: list[_Entry],
    *,
    size: tuple[int, int] | None,
    skip_bad: bool,
    progress: Callable[[int, int], None] | None,
    notes: list[str],
) -> Gallery:
    kept: list[_Entry] = []
    images: list[NDArray[np.uint8]] = []
    first: dict[bytes, _Entry] = {}
    bad: list[str] = []
    deep: list[str] = []
    stretched: list[str] = []
    repeated: list[str] = []
    clashes: list[str] = []

    # Stable: within a person, files stay in the order of their names and arrays in the order of their rows.
    for done, entry in enumerate(sorted(entries, key=lambda entry: entry.person), start=1):
        try:
            photo = entry.read()
            grey = _to_8_bit(photo)
            # Of the photo as it was taken: two different photos may look the same once they are small.
            digest = hashlib.sha256(repr(grey.shape).encode() + grey.tobytes()).digest()
            stretch = 1.0
            if size is not None and grey.shape != size:
                stretch = _stretch(grey.shape, size)
                grey = resize_crop(grey, size)
            if grey.min() == grey.max():
                raise _PhotoError("blank")
        except _PhotoError as reason:
            bad.append(f"{entry.source} ({reason})")
        else:
            other = first.setdefault(digest, entry)
            if other is entry:
                kept.append(entry)
                images.append(grey)
                if photo.dtype == np.uint16:
                    deep.append(entry.source)
                if stretch > _MAX_STRETCH:
                    stretched.append(entry.source)
            elif other.person == entry.person:
                repeated.append(f"{entry.source} (as {other.source})")
            else:
                clashes.append(f"{other.source} and {entry.source}")
        if progress is not None:
            progress(done, len(entries))

    if bad and not skip_bad:
        raise GalleryError(
            f"{_count(bad, 'photo')} cannot be used: {_some(bad)}.",
            "Replace them, or pass --skip-bad to leave them out.",
        )
    if clashes:
        raise GalleryError(
            f"The same photo stands for two people: {_some(clashes, '; ')}.",
            "Remove it where it does not belong.",
        )
    photos_of = Counter(entry.person for entry in kept)
    empty = sorted(set(people) - set(photos_of))
    if empty:
        raise GalleryError(
            f"No usable photo of {_some(empty)}.",
            f"Add photos ({', '.join(suffix[1:] for suffix in PHOTO_SUFFIXES)}), or remove the person.",
        )
    if len(photos_of) < 2:
        raise GalleryError("The gallery holds fewer than two people.", "Add photos of at least one more person.")
    sizes = Counter(image.shape for image in images)
    if len(sizes) > 1:
        usual = [_hxw(shape) for shape, _ in sizes.most_common()]
        raise GalleryError(f"The photos differ in size: {_some(usual)}.", f"Pass --size HxW, for example --size {usual[0]}.")

    lonely = [person for person, count in sorted(photos_of.items()) if count == 1]
    for found, note in (
        (bad, "left out, as they cannot be used"),
        (repeated, "left out, as the same photo is there already"),
        (deep, "scaled from 16 to 8 bits"),
        (stretched, f"of another shape, stretched by more than {_MAX_STRETCH - 1:.0%}"),
    ):
        if found:
            notes.append(f"{_count(found, 'photo')} {note}: {_some(found)}.")
    if lonely:
        notes.append(f"Only one photo of {_some(lonely)}: expect poor recognition of a person seen once.")
    return Gallery(
        images=np.stack(images),
        labels=np.array([entry.person for entry in kept]),
        sources=tuple(entry.source for entry in kept),
        notes=tuple(notes),
    )


def _stretch(shape: tuple[int, ...], size: tuple[int, int]) -> float:
    ratio = (shape[1] * size[0]) / (shape[0] * size[1])
    return max(ratio, 1 / ratio)


def _to_8_bit(grey: NDArray[Any]) -> NDArray[np.uint8]:
    if grey.dtype == np.uint16:
        grey = (grey.astype(np.uint32) + 128) // 257  # 65535 = 255 * 257, rounded
    return np.ascontiguousarray(grey, dtype=np.uint8)


def _hxw(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"


def _count(things: list[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _some(names: list[str], separator: str = ", ") -> str:
    more = len(names) - _NAMED
    return separator.join(names[:_NAMED]) + (f"{separator}and {more} more" if more > 0 else "")


# --- A folder per person ---


def _folder_entries(root: Path, notes: list[str]) -> tuple[set[str], list[_Entry]]:
    people: set[str] = set()
    entries: list[_Entry] = []
    outside: list[str] = []
    nested: list[str] = []
    strange: list[str] = []
    for folder in _visible(root):
        if not folder.is_dir():
            (outside if _is_photo(folder) else strange).append(_printable(folder.name))
            continue
        person = _person(folder.name)
        people.add(person)
        for file in _visible(folder):
            source = f"{_printable(folder.name)}/{_printable(file.name)}"
            if file.is_dir():
                nested.append(source)
            elif _is_photo(file):
                entries.append(_Entry(person, source, partial(_decode, file)))
            else:
                strange.append(source)
    if not people:
        raise GalleryError(f"{root} holds no folder of a person.", "Give each person a folder: PHOTOS/anna/1.jpg.")
    for names, note in (
        (outside, "Not read, as no person's folder holds them"),
        (nested, "Not read, as they are folders inside a person's folder"),
        (strange, "Not read, as they are not photos of a kind that is known here"),
    ):
        if names:
            notes.append(f"{note}: {_some(names)}.")
    return people, entries


def _visible(folder: Path) -> list[Path]:
    try:
        items = sorted(folder.iterdir())
    except OSError as error:
        raise GalleryError(f"{folder} cannot be opened ({error.strerror}).", "Check its permissions.") from None
    return [item for item in items if not item.name.startswith(".") and item.name.lower() not in _LITTER]


def _is_photo(path: Path) -> bool:
    return path.suffix.lower() in PHOTO_SUFFIXES


def _printable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


def _person(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise GalleryError(f"The folder name {_printable(name)} is not valid UTF-8.", "Rename the folder.") from None
    # One spelling per name: macOS hands out decomposed accents, other systems composed ones.
    return unicodedata.normalize("NFC", name)


# --- One photo file ---


def _decode(path: Path) -> NDArray[Any]:
    """Grey (H, W), uint8 or uint16, upright. The content decides the format, not the suffix."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _PhotoError(error.strerror or "cannot be opened") from None
    if not data:
        raise _PhotoError("empty file")
    # Some versions of OpenCV fill the missing part of a photo with grey, or complain on the terminal.
    if _is_cut_short(data):
        raise _PhotoError("cut short")
    flags = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
    is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    if is_webp:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise _PhotoError("not a readable image")
    if image.dtype not in (np.uint8, np.uint16):
        raise _PhotoError("neither 8 nor 16 bits deep")
    if is_webp:
        image = _upright(image, _webp_orientation(data))
    return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image


def _is_cut_short(data: bytes) -> bool:
    """Whether a JPEG or PNG lacks its end mark."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return b"IEND" not in data
    if not data.startswith(b"\xff\xd8"):
        return False
    # Step over the header's segments: an embedded thumbnail has an end mark of its own.
    at = 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda":
        is_filler = data[at + 1 : at + 2] == b"\xff"
        at += 1 if is_filler else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(b"\xff\xd9", at) < 0


def _webp_orientation(data: bytes) -> int:
    """EXIF orientation (1 to 8). OpenCV turns JPEG and PNG itself, but WebP only in its later versions."""
    at = 12
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF":
            return _exif_orientation(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + length % 2
    return 1


def _exif_orientation(tiff: bytes) -> int:
    def number(at: int, length: int) -> int:
        return int.from_bytes(tiff[at : at + length], "little" if tiff[:2] == b"II" else "big")

    directory = number(4, 4)
    for entry in range(directory + 2, directory + 2 + 12 * number(directory, 2), 12):
        if number(entry, 2) == 0x0112:
            return number(entry + 8, 2)
    return 1


def _upright(image: NDArray[Any], orientation: int) -> NDArray[Any]:
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(image[::rows, ::columns])


# --- Arrays ---


def _array_entries(path: Path, size: tuple[int, int] | None, notes: list[str]) -> tuple[set[str], list[_Entry]]:
    images, labels = _read_arrays(path)
    people = _label_texts(labels, path)
    if not people:
        raise GalleryError(f"{path.name} holds no photos.", "Check how it was written.")
    images = _photos_first(images, len(people), path, notes)
    if images.ndim == 2:
        images = _unflatten(images, size, path)
    finite = np.isfinite(images).all(axis=tuple(range(1, images.ndim))) if images.dtype.kind == "f" else None
    images = _to_integers(images, path)

    def read(index: int) -> NDArray[Any]:
        if finite is not None and not finite[index]:
            raise _PhotoError("not a number in it")
        image = images[index]
        if image.ndim == 2:
            return image
        if image.shape[2] == 1:
            return image[:, :, 0]
        # Arrays hold red first by custom, where OpenCV's own files hold blue first.
        return cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)

    entries = [_Entry(person, f"{path.name}[{i}]", partial(read, i)) for i, person in enumerate(people)]
    return set(people), entries


def _read_arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    contents = _read_mat(path) if path.suffix.lower() == ".mat" else _read_npz(path)
    for images, labels in _ARRAY_NAMES:
        if images in contents and labels in contents:
            return np.asarray(contents[images]), np.asarray(contents[labels])
    found = _some(sorted(contents)) or "nothing"
    raise GalleryError(
        f"{path.name} lacks the arrays images and labels (it holds {found}).",
        "Save images as N x H x W and labels as N values under these names.",
    )


def _read_npz(path: Path) -> dict[str, Any]:
    wanted = {name for pair in _ARRAY_NAMES for name in pair}
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


def _label_texts(labels: NDArray[Any], path: Path) -> list[str]:
    wrong = GalleryError(
        f"The labels in {path.name} are not one name or whole number per photo.",
        "Save them as numbers or text.",
    )
    if labels.ndim and labels.size != max(labels.shape):
        raise wrong
    people = []
    for label in labels.ravel():
        # A MATLAB cell holds each name as an array of its own.
        cell = np.ravel(label)
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
        people.append(unicodedata.normalize("NFC", text))
    return people


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
            f"{path.name} holds photos as rows of {d} values, but {_hxw(size)} makes {height * width}.",
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
