"""Photos to arrays: the one door through which training data comes in.

A gallery is a folder per person, or an `.npz` or `.mat` file with the arrays `images` and `labels`. Every
photo ends as an 8-bit grey image of one common size: in ordinary photographs the face is found and aligned as
on the device, cropped ones are taken as they are. Nothing is passed over in silence: what cannot be used
is an error that names the photo, and what was changed or left out on purpose is a line in `Gallery.notes`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import SUFFIXES, PhotoError, decode, to_8_bit
from edge.errors import GalleryError
from edge.kit.manifest import ALIGNMENT, NO_ALIGNMENT
from edge.text import count, hxw, same_spelling, some
from edge.vision.detect import FaceDetector, YuNetDetector, photo_min_face
from edge.vision.preprocess import SIZE, align, resize_crop
from edge.vision.quality import QualityLimits, assess
from trainer.data import arrays, detector

_LITTER = {"thumbs.db", "desktop.ini", "__macosx"}
_MAX_STRETCH = 1.2
# Of several faces the first is meant if it is this many times as large as the next.
_DOMINANT = 4.0
# A training photo may be dark, turned or soft, as the person at the door may be: only what shows too little is refused.
_USABLE = QualityLimits(
    min_size=12,
    min_sharpness=0,
    min_brightness=12,
    max_glare=0.9,
    min_contrast=8,
    max_yaw=90,
    max_pitch=90,
    max_roll=90,
    max_outside=0.35,
)
_STRETCHED = f"of another shape, stretched by more than {_MAX_STRETCH - 1:.0%}"
_CROWDED = "with smaller faces beside the one that was taken"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A photo that was left out because it cannot be used."""

    person: str
    source: str
    condition: str
    reason: str


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
    alignment: str = NO_ALIGNMENT
    """How the faces were brought into place: one of edge.kit.manifest's ALIGNMENTS."""
    conditions: tuple[str, ...] = ()
    """What each photo was taken under, where the file says so: clean, sunglasses... Empty where it does not."""
    refused: tuple[Refused, ...] = ()
    """What was left out because it cannot be used."""

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
    finder: FaceDetector | None = None,
    say: Callable[[str], None] = lambda _: None,
    testing: bool = False,
    alignment: str = ALIGNMENT,
) -> Gallery:
    """Read the gallery at `path`.

    `cropped` says that the photos of a folder show faces only; arrays always count as cropped. `size` is
    (height, width); without it cropped photos must share one size, and others get the usual one. `skip_bad` leaves
    unusable photos out, with a note, instead of refusing the gallery. `progress` is called with (photos read, photos
    in all). `finder` finds the faces, YuNet unless told otherwise; `say` hears if it has to be fetched. `alignment` says
    where in its crop a found face is put.

    `testing` reads photos to measure on, not to train on: unusable ones are left out, one person is enough, not all need
    a usable photo, and a folder of photos is one person.
    """
    path = Path(path)
    notes: list[str] = []
    if size is not None and min(size) < 1:
        raise GalleryError(f"A face cannot be {hxw(size)} pixels.", "Pass --size HxW, for example --size 112x92.")
    crop, aligned = partial(_resized, size=size), NO_ALIGNMENT
    if path.is_dir():
        people, entries = _folder_entries(path, notes, colour=not cropped, flat=testing)
        if not cropped:
            finder = finder or YuNetDetector(detector.yunet(say))
            crop, aligned = partial(_aligned, finder=finder, size=size or SIZE, alignment=alignment), alignment
    elif not path.exists():
        raise GalleryError(f"There is no {path}.", "Check the path.")
    elif path.suffix.lower() in arrays.SUFFIXES:
        found = arrays.photos(path, size, notes)
        people = {person for person, _, _ in found}
        entries = [_Entry(person, f"{path.name}[{i}]", read, condition) for i, (person, condition, read) in enumerate(found)]
    else:
        raise GalleryError(f"{path} is not a gallery.", "Pass a folder with a folder per person, an .npz or a .mat file.")
    return _assemble(
        people, entries, crop, aligned, skip_bad=skip_bad or testing, testing=testing, progress=progress, notes=notes
    )


def load_like(
    path: Path,
    *,
    size: tuple[int, int],
    alignment: str,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Gallery:
    """Photos to measure on (`testing`), cropped like others of this size and alignment."""
    cropped = alignment == NO_ALIGNMENT
    found = load(path, cropped=cropped, size=size, alignment=alignment, progress=progress, say=say, testing=True)
    if found.alignment != alignment:
        raise GalleryError(
            f"{path} holds cropped faces, and those of training were found and aligned.", "Pass a folder of photographs."
        )
    return found


def refuse_enrolled(strangers: Gallery, images: Iterable[NDArray[np.uint8]], people: Collection[str] = ()) -> None:
    """A stranger who is enrolled, by one of these images or names, is kept out only at the price of keeping everybody out."""
    known = {image.tobytes() for image in images}
    pairs = zip(strangers.images, strangers.labels, strangers.sources, strict=True)
    enrolled = [source for image, label, source in pairs if label in people or image.tobytes() in known]
    if enrolled:
        raise GalleryError(
            f"Among the strangers is somebody who is enrolled, by name or by photo: {some(enrolled)}.",
            "Remove their photos, or rename a stranger who only has the same name.",
        )


def _resized(grey: NDArray[np.uint8], *, size: tuple[int, int] | None) -> tuple[NDArray[np.uint8], str]:
    """A cropped photo at the size asked for, and a remark."""
    if size is None or grey.shape == size:
        return grey, ""
    return resize_crop(grey, size), _STRETCHED if _stretch(grey.shape, size) > _MAX_STRETCH else ""


def _aligned(
    image: NDArray[np.uint8], *, finder: FaceDetector, size: tuple[int, int], alignment: str
) -> tuple[NDArray[np.uint8], str]:
    """The canonical crop of the one face in a photo (BGR), and a remark."""
    faces = finder.detect(image, photo_min_face(image))
    if not faces:
        raise PhotoError("no face found")
    if len(faces) > 1 and faces[0].area < _DOMINANT * faces[1].area:
        raise PhotoError(f"{len(faces)} faces found")
    grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    reason = assess(grey, faces[0], _USABLE).reason
    if reason is not None:
        raise PhotoError(reason)
    return align(grey, faces[0].landmarks, size, alignment), _CROWDED if len(faces) > 1 else ""


# --- Assembling ---


@dataclass(frozen=True)
class _Entry:
    """One photo of the gallery, not yet read: files are decoded one at a time to keep memory low."""

    person: str
    source: str
    read: Callable[[], NDArray[Any]]
    """Gives uint8 or uint16, (H, W) or BGR (H, W, 3), or raises PhotoError."""
    condition: str = ""


def _assemble(
    people: Iterable[str],
    entries: list[_Entry],
    crop: Callable[[NDArray[np.uint8]], tuple[NDArray[np.uint8], str]],
    alignment: str,
    *,
    skip_bad: bool,
    testing: bool,
    progress: Callable[[int, int], None] | None,
    notes: list[str],
) -> Gallery:
    kept: list[_Entry] = []
    images: list[NDArray[np.uint8]] = []
    first: dict[bytes, _Entry] = {}
    refused: list[Refused] = []
    deep: list[str] = []
    remarked: dict[str, list[str]] = {_STRETCHED: [], _CROWDED: []}
    repeated: list[str] = []
    clashes: list[str] = []

    # Stable: within a person, files stay in the order of their names and arrays in the order of their rows.
    for done, entry in enumerate(sorted(entries, key=lambda entry: entry.person), start=1):
        try:
            photo = entry.read()
            image = to_8_bit(photo)
            # Of the photo as it was taken: two different photos may look the same once they are small.
            digest = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()
            grey, remark = crop(image)
            if grey.min() == grey.max():
                raise PhotoError("blank")
        except PhotoError as reason:
            refused.append(Refused(person=entry.person, source=entry.source, condition=entry.condition, reason=str(reason)))
        else:
            other = first.setdefault(digest, entry)
            if other is entry:
                kept.append(entry)
                images.append(grey)
                if photo.dtype == np.uint16:
                    deep.append(entry.source)
                if remark:
                    remarked[remark].append(entry.source)
            elif other.person == entry.person:
                repeated.append(f"{entry.source} (as {other.source})")
            else:
                clashes.append(f"{other.source} and {entry.source}")
        if progress is not None:
            progress(done, len(entries))

    bad = [f"{photo.source} ({photo.reason})" for photo in refused]
    if bad and not skip_bad:
        raise GalleryError(
            f"{count(bad, 'photo')} cannot be used: {some(bad)}.",
            "Replace them, or pass --skip-bad to leave them out."
            + (" Photos that show nothing but a face may need --cropped." if alignment != NO_ALIGNMENT else ""),
        )
    if clashes:
        raise GalleryError(
            f"The same photo stands for two people: {some(clashes, '; ')}.",
            "Remove it where it does not belong.",
        )
    photos_of = Counter(entry.person for entry in kept)
    empty = sorted(set(people) - set(photos_of))
    if empty and not (testing and kept):
        raise GalleryError(
            f"No usable photo of {some(empty)}.",
            f"Add photos ({', '.join(suffix[1:] for suffix in SUFFIXES)}), or remove the person.",
        )
    if len(photos_of) < 2 and not testing:
        raise GalleryError("The gallery holds fewer than two people.", "Add photos of at least one more person.")
    sizes = Counter(image.shape for image in images)
    if len(sizes) > 1:
        usual = [hxw(shape) for shape, _ in sizes.most_common()]
        raise GalleryError(f"The photos differ in size: {some(usual)}.", f"Pass --size HxW, for example --size {usual[0]}.")

    lonely = [] if testing else [person for person, count in sorted(photos_of.items()) if count == 1]
    for found, note in (
        (bad, "left out, as they cannot be used"),
        (repeated, "left out, as the same photo is there already"),
        (deep, "scaled from 16 to 8 bits"),
        *((sources, remark) for remark, sources in remarked.items()),
    ):
        if found:
            notes.append(f"{count(found, 'photo')} {note}: {some(found)}.")
    if lonely:
        notes.append(f"Only one photo of {some(lonely)}: expect poor recognition of a person seen once.")
    return Gallery(
        images=np.stack(images),
        labels=np.array([entry.person for entry in kept]),
        sources=tuple(entry.source for entry in kept),
        notes=tuple(notes),
        alignment=alignment,
        conditions=tuple(entry.condition for entry in kept) if any(entry.condition for entry in kept) else (),
        refused=tuple(refused),
    )


def _stretch(shape: tuple[int, ...], size: tuple[int, int]) -> float:
    ratio = (shape[1] * size[0]) / (shape[0] * size[1])
    return max(ratio, 1 / ratio)


# --- A folder per person ---


def _folder_entries(root: Path, notes: list[str], *, colour: bool, flat: bool) -> tuple[set[str], list[_Entry]]:
    people: set[str] = set()
    entries: list[_Entry] = []
    outside: list[str] = []
    nested: list[str] = []
    strange: list[str] = []
    items = _visible(root)
    if flat and any(map(_is_photo, items)) and not any(item.is_dir() for item in items):
        person = _person(root.resolve().name)
        photos = [item for item in items if _is_photo(item)]
        return {person}, [_Entry(person, _printable(photo.name), partial(decode, photo, colour=colour)) for photo in photos]
    for folder in items:
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
                entries.append(_Entry(person, source, partial(decode, file, colour=colour)))
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
            notes.append(f"{note}: {some(names)}.")
    return people, entries


def _visible(folder: Path) -> list[Path]:
    try:
        items = sorted(folder.iterdir())
    except OSError as error:
        raise GalleryError(f"{folder} cannot be opened ({error.strerror}).", "Check its permissions.") from None
    return [item for item in items if not item.name.startswith(".") and item.name.lower() not in _LITTER]


def _is_photo(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _printable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


def _person(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise GalleryError(f"The folder name {_printable(name)} is not valid UTF-8.", "Rename the folder.") from None
    # One spelling per name: macOS hands out decomposed accents, other systems composed ones.
    return same_spelling(name)
