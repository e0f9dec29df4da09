"""Photos to arrays: all training data enters here.

A gallery is a folder per person, or an `.npz` or `.mat` file with the arrays `images` and `labels`. Every photo becomes an
8-bit image of one common size, grey, or BGR for a network. In photographs the face is detected and aligned as on the device. A
photo that cannot be used is left out; a person without a usable photo is an error. Everything that was changed or left out is
in `Gallery.notes`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import SUFFIXES, PhotoError, decode_bytes, read_file, to_8_bit
from edge.errors import GalleryError
from edge.kit.manifest import ALIGNMENT, NO_ALIGNMENT
from edge.text import hxw, plural, printable, same_spelling, some
from edge.vision.detect import Face, FaceDetector, YuNetDetector, photo_min_face
from edge.vision.preprocess import SIZE, align, resize_crop
from edge.vision.quality import CUT_OFF, QualityLimits, assess
from trainer.data import detector
from trainer.data.arrays import HINTS, read_arrays
from trainer.data.crop_cache import CropCache, MadeCrop
from trainer.data.meant_face import meant_face
from trainer.presets import ONE_SHARD
from trainer.types import Progress, Say, release, silent

_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "__macosx"}
_MAX_STRETCH = 1.2
_RELEASED = 256  # crops of a file that are in memory at once
_LISTED = 20  # rejected photos that a note names
# A training photo may be dark, turned or soft, like the person at the door. Only faces that show too little are rejected. The
# crop may reach outside the photo, as long as the landmarks are inside.
_LIMITS = QualityLimits(
    min_size=12,
    min_sharpness=0,
    min_brightness=12,
    max_glare=0.9,
    min_contrast=8,
    max_yaw=90,
    max_pitch=90,
    max_roll=90,
    max_outside=1,
)
_STRETCHED = f"of another shape, stretched by more than {_MAX_STRETCH - 1:.0%}"
NO_FACE = "no face found"
_SEVERAL_FACES = "with other faces beside the one that was used"

Crop = Callable[[NDArray[np.uint8]], tuple[NDArray[np.uint8], str]]


@dataclass(frozen=True)
class RejectedPhoto:
    """A photo that was left out because it cannot be used."""

    person: str
    source: str
    condition: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source} ({self.reason})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Labelled photos; `load_gallery` sorts them by person, then by file name or array index."""

    images: NDArray[np.uint8]
    """(N, H, W), grey, or (N, H, W, 3), BGR."""
    labels: NDArray[np.str_]
    """(N,), the person in each photo."""
    sources: tuple[str, ...]
    """`anna/1.jpg`, or `faces.npz[17]`."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was changed or left out."""
    alignment: str = NO_ALIGNMENT
    """How the faces were aligned: one of edge.kit.manifest's ALIGNMENTS."""
    conditions: tuple[str, ...] = ()
    """The condition of each photo (clean, sunglasses...), if the file has them; otherwise empty."""
    rejected: tuple[RejectedPhoto, ...] = ()
    """Photos that were left out because they cannot be used."""
    files: tuple[str, ...] = ()
    """SHA-256 of the file of each photo, if the photos are files; otherwise empty."""
    confirmed: frozenset[int] = frozenset()
    """Photos, by index, whose person was confirmed: training does not suspect that the name is wrong."""

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or not (self.images.ndim == 3 or self.images.shape[3:] == (3,)):
            raise ValueError(f"images must be uint8 (N, H, W) or (N, H, W, 3), not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != (len(self.images),) or len(self.sources) != len(self.images):
            raise ValueError("images, labels and sources must have the same length")

    @cached_property
    def people(self) -> tuple[str, ...]:
        """The people, sorted."""
        return tuple(str(person) for person in np.unique(self.labels))

    @property
    def crop_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[1], self.images.shape[2]

    @property
    def crop_shape(self) -> tuple[int, ...]:
        """(height, width), or (height, width, 3) in colour."""
        return self.images.shape[1:]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of shape, labels and pixels. Order and file names do not change it."""
        photos = sorted(
            hashlib.sha256(str(label).encode() + b"\0" + image.tobytes()).digest()
            for label, image in zip(self.labels, _each_crop(self.images), strict=True)
        )
        shape = "x".join(map(str, self.crop_shape))
        return hashlib.sha256(f"{shape}\n".encode() + b"".join(photos)).hexdigest()

    def certain(self, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.bool_] | None:
        """Return the mask of `confirmed`, of all photos or of the chosen ones (N,); None if there are none."""
        if not self.confirmed:
            return None
        mask = np.isin(np.arange(len(self.labels)), list(self.confirmed))
        return mask if chosen is None else mask[chosen]

    def selected(self, mask: NDArray[np.bool_]) -> "Gallery":
        """Return the photos where the mask (N,) is true."""
        sources = tuple(source for source, chosen in zip(self.sources, mask, strict=True) if chosen)
        return Gallery(images=self.images[mask], labels=self.labels[mask], sources=sources, alignment=self.alignment)

    def joined(self, other: "Gallery") -> "Gallery":
        """Return the photos of both galleries."""
        return Gallery(
            images=np.concatenate([self.images, other.images]),
            labels=np.concatenate([self.labels, other.labels]),
            sources=self.sources + other.sources,
            alignment=self.alignment,
        )


def load_gallery(
    path: str | Path,
    *,
    cropped: bool,
    size: tuple[int, int] | None = None,
    progress: Progress = silent,
    finder: FaceDetector | None = None,
    say: Say = silent,
    testing: bool = False,
    alignment: str = ALIGNMENT,
    colour: bool = False,
    spool: Callable[[], Path] | None = None,
    cache: CropCache | None = None,
) -> Gallery:
    """Read the gallery at `path`.

    cropped : the photos of a folder show faces only. Arrays are always cropped.
    size : (height, width). Without it, cropped photos must have one size, and others get the usual one.
    finder : detects the faces (default: YuNet). `say` receives a message if it must be downloaded.
    alignment : where the crop shows a detected face.
    colour : the images are BGR, for a network. A grey photo gets three equal channels.
    spool : returns a file for the crops of more than ONE_SHARD people, which may not fit into memory.
    cache : keeps the crops of files. It is not used with a `finder`, for cropped photos, or for more than ONE_SHARD people.
    testing : the photos are not for a training. One person is enough, a person may have no usable photo, and a folder of
        photos is one person.
    """
    path = Path(path)
    notes: list[str] = []
    crop: Crop = partial(_resized, size=size)
    if path.is_dir():
        people, entries = _folder_entries(path, notes, flat=testing)
    elif not path.exists():
        raise GalleryError(f"There is no {path}.", "Check the path.")
    elif path.suffix.lower() in HINTS:
        cropped = True
        photos = enumerate(zip(*read_arrays(path), strict=True))
        read = partial(cv2.cvtColor, code=cv2.COLOR_GRAY2BGR) if colour else np.asarray
        entries = [_Entry(person, f"{path.name}[{i}]", partial(read, image), how) for i, (image, person, how) in photos]
        people = {entry.person for entry in entries}
    else:
        raise GalleryError(f"{path} is not a gallery.", "Pass a folder with a folder per person, an .npz or a .mat file.")
    if cropped or finder is not None or len(people) > ONE_SHARD:
        cache = None
    if not cropped:
        found_by = (lambda: finder) if finder is not None else lru_cache(1)(lambda: YuNetDetector(detector.yunet(say)))
        crop = partial(_aligned, finder=found_by, size=size or SIZE, alignment=alignment, colour=colour)
    make = partial(_made, crop=crop, colour=colour or not cropped)
    if cache is not None:
        make = partial(cache.made, settings=repr((size or SIZE, alignment, colour)), make=make)
    crops = _Crops(spool() if spool is not None and len(people) > ONE_SHARD else None)
    found, files, rejected, remarks = _read_all(entries, make, progress, crops)
    hint = " Photos that show only a face may need --cropped."
    if cropped or testing or 2 * len(rejected) <= len(entries):
        hint = ""
    if not (testing and found):
        check_usable(people, [entry.person for entry in found], rejected, hint)
    if len(people) < 2 and not testing:
        raise GalleryError("The gallery has fewer than two people.", "Add photos of at least one more person.")
    sizes = [hxw(shape) for shape, _ in crops.shapes.most_common()]
    if len(sizes) > 1:
        raise GalleryError(f"The photos differ in size: {some(sizes)}.", f"Pass --size HxW, for example --size {sizes[0]}.")
    if rejected:
        listed = some(list(map(str, rejected)), most=_LISTED)
        notes.append(f"{plural(len(rejected), 'photo')} left out, because they cannot be used: {listed}." + hint)
    notes += [f"{plural(len(sources), 'photo')} {remark}: {some(sources)}." for remark, sources in remarks.items()]
    single = sorted(person for person, photos in Counter(entry.person for entry in found).items() if photos == 1)
    if single and not testing:
        notes.append(f"Only one photo of {some(single)}: expect poor recognition.")
    return Gallery(
        images=crops.together(),
        labels=np.array([entry.person for entry in found]),
        sources=tuple(entry.source for entry in found),
        notes=tuple(notes),
        alignment=NO_ALIGNMENT if cropped else alignment,
        conditions=tuple(entry.condition for entry in found) if any(entry.condition for entry in found) else (),
        rejected=tuple(rejected),
        files=tuple(files) if path.is_dir() else (),
    )


def load_like(path: Path, crop_shape: tuple[int, ...], alignment: str, **options: Any) -> Gallery:
    """Read photos that are not for a training, cropped like training photos. `options` are those of load_gallery."""
    cropped, (height, width, *channels) = alignment == NO_ALIGNMENT, crop_shape
    options |= {"size": (height, width), "colour": bool(channels), "testing": True}
    photos = load_gallery(path, cropped=cropped, alignment=alignment, **options)
    if photos.alignment != alignment:
        raise GalleryError(
            f"{path} holds cropped faces, but the training photos were detected and aligned.", "Pass a folder of photographs."
        )
    return photos


def crop_digests(crops: Iterable[NDArray[np.uint8]]) -> Iterator[bytes]:
    """Yield the SHA-256 of each crop."""
    return (hashlib.sha256(np.ascontiguousarray(crop).data).digest() for crop in _each_crop(crops))


def _each_crop(crops: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    """Yield crops, without keeping those of a file in memory."""
    for number, crop in enumerate(crops):
        yield crop
        if number % _RELEASED == 0 and isinstance(crops, np.ndarray):
            release(crops)


def check_usable(people: Iterable[str], used: Collection[str], rejected: Iterable[RejectedPhoto], hint: str = "") -> None:
    """Raise GalleryError if one of the people is not in `used`, the people of the usable photos."""
    empty = sorted(set(people) - set(used))
    if empty:
        reasons = [str(photo) for photo in rejected if photo.person in empty]
        why = f": {some(reasons)}" if reasons else ""
        formats = ", ".join(suffix[1:] for suffix in SUFFIXES)
        raise GalleryError(f"No usable photo of {some(empty)}{why}.", f"Add photos ({formats}), or remove the person." + hint)


def check_not_enrolled(strangers: Gallery, images: Iterable[NDArray[np.uint8]], people: Collection[str] = ()) -> None:
    """Raise GalleryError if a stranger is enrolled, by one of these images or names: the threshold would reject everyone."""
    known = set(crop_digests(images))
    pairs = zip(crop_digests(strangers.images), strangers.labels, strangers.sources, strict=True)
    enrolled = [source for digest, label, source in pairs if label in people or digest in known]
    if enrolled:
        raise GalleryError(
            f"Some strangers are enrolled, by name or by photo: {some(enrolled)}.",
            "Remove their photos, or rename a stranger who only has the same name.",
        )


def _resized(image: NDArray[np.uint8], *, size: tuple[int, int] | None) -> tuple[NDArray[np.uint8], str]:
    """Return a cropped photo at the wanted size, and a remark."""
    if size is None or image.shape[:2] == size:
        return image, ""
    ratio = (image.shape[1] * size[0]) / (image.shape[0] * size[1])
    return resize_crop(image, size), _STRETCHED if max(ratio, 1 / ratio) > _MAX_STRETCH else ""


def _aligned(
    image: NDArray[np.uint8], *, finder: Callable[[], FaceDetector], size: tuple[int, int], alignment: str, colour: bool
) -> tuple[NDArray[np.uint8], str]:
    """Return the crop of the face that a photo (BGR) is meant to show, and a remark."""
    faces = finder().detect(image, photo_min_face(image))
    face = usable_face(faces, image)
    shown: NDArray[Any] = image if colour else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    return align(shown, face.landmarks, size, alignment), _SEVERAL_FACES if len(faces) > 1 else ""


def usable_face(faces: Sequence[Face], image: NDArray[np.uint8]) -> Face:
    """Return the detected face that a photo (BGR) is meant to show. PhotoError: a training leaves the photo out."""
    if not faces:
        raise PhotoError(NO_FACE)
    face = meant_face(faces, image.shape[:2])
    if face is None:
        raise PhotoError(f"{len(faces)} faces, unclear which one is meant")
    grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    is_inside = ((face.landmarks >= 0) & (face.landmarks <= grey.shape[::-1])).all()
    reason = assess(grey, face, _LIMITS).reason if is_inside else CUT_OFF
    if reason is not None:
        raise PhotoError(reason)
    return face


def photo_digest(image: NDArray[np.uint8]) -> bytes:
    """Return the SHA-256 of a decoded photo. Photos with the same digest are one photo, whatever their files are called."""
    return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()


@dataclass(frozen=True)
class _Entry:
    """One photo that is not decoded yet. Files are read one at a time to save memory."""

    person: str
    source: str
    content: Path | Callable[[], NDArray[Any]]
    """A file, or what returns an image, uint8 or uint16, (H, W) or BGR (H, W, 3)."""
    condition: str = ""


def _made(data: bytes | NDArray[Any], *, crop: Crop, colour: bool) -> MadeCrop:
    """Return the crop of a photo: the content of a file, or an image."""
    photo = decode_bytes(data, colour=colour) if isinstance(data, bytes) else data
    image = to_8_bit(photo)
    # Digest of the original photo: two different photos may look the same at a small size.
    digest = photo_digest(image)
    made, remark = crop(image)
    if not np.ptp(made, axis=(0, 1)).any():
        raise PhotoError("blank")
    remarks = ("scaled from 16 to 8 bits" if photo.dtype == np.uint16 else "", remark)
    return MadeCrop(made, digest, tuple(filter(None, remarks)))


class _Crops:
    """Crops in memory or, one after the other, in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.shapes = path, Counter[tuple[int, ...]]()
        self._images: list[NDArray[np.uint8]] = []
        if path is not None:
            with open(path, "wb"):  # empty
                path.chmod(0o600)

    def append(self, image: NDArray[np.uint8]) -> None:
        self.shapes[image.shape] += 1
        if self.path is None:
            self._images.append(image)
            return
        try:
            with self.path.open("ab") as file:
                file.write(image.tobytes())
        except OSError as error:
            raise GalleryError(f"{self.path} cannot be written ({error.strerror}).", "Make space on the disk.") from None

    def together(self) -> NDArray[np.uint8]:
        """Return all crops (N, H, W), or (N, H, W, 3), which have one shape."""
        if self.path is None:
            return np.stack(self._images)
        ((shape, number),) = self.shapes.items()
        return np.memmap(self.path, np.uint8, "r", shape=(number, *shape))


def _read_all(
    entries: list[_Entry], make: Callable[[Any], MadeCrop], progress: Progress, crops: _Crops
) -> tuple[list[_Entry], list[str], list[RejectedPhoto], dict[str, list[str]]]:
    """Read all photos into `crops`. Return the entries that can be used, the digests of their files, and the rejected photos.

    The last result has the sources of photos by remark.
    """
    used: list[_Entry] = []
    files: list[str] = []
    rejected: list[RejectedPhoto] = []
    remarks: dict[str, list[str]] = {}
    first: dict[bytes, _Entry] = {}
    conflicts: list[str] = []
    # sorted() is stable: the photos of a person stay in the order of file names or array rows.
    for done, entry in enumerate(sorted(entries, key=lambda entry: entry.person), start=1):
        try:
            content = read_file(entry.content) if isinstance(entry.content, Path) else entry.content()
            made = make(content)
        except PhotoError as error:
            rejected.append(RejectedPhoto(entry.person, entry.source, entry.condition, str(error)))
        else:
            other = first.setdefault(made.digest, entry)
            if other is entry:
                used.append(entry)
                files.append(hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else "")
                crops.append(made.crop)
                for text in made.remarks:
                    remarks.setdefault(text, []).append(entry.source)
            elif other.person == entry.person:
                repeated = remarks.setdefault("left out, because they are repeated", [])
                repeated.append(f"{entry.source} (as {other.source})")
            else:
                conflicts.append(f"{other.source} and {entry.source}")
        progress(done, len(entries))
    if conflicts:
        raise GalleryError(f"The same photo has two names: {some(conflicts, '; ')}.", "Remove it from the wrong person.")
    return used, files, rejected, remarks


def _folder_entries(root: Path, notes: list[str], *, flat: bool) -> tuple[set[str], list[_Entry]]:
    """Return people and photos of a folder per person. With `flat`, a folder of photos alone is one person."""
    items = _visible(root)
    folders = [item for item in items if item.is_dir()]
    ignored = [printable(item.name) for item in items if item not in folders]
    flat = flat and not folders and any(map(_is_photo, items))
    if flat:
        folders, ignored = [root.resolve()], []
    elif not folders:
        raise GalleryError(f"{root} holds no folder of a person.", "Make a folder for each person: PHOTOS/anna/1.jpg.")
    people: set[str] = set()
    entries: list[_Entry] = []
    for folder in folders:
        try:
            folder.name.encode()
        except UnicodeEncodeError:
            name = printable(folder.name)
            raise GalleryError(f"The folder name {name} is not valid UTF-8.", "Rename the folder.") from None
        person = same_spelling(folder.name)  # macOS decomposes accents, other systems do not
        people.add(person)
        for file in _visible(folder):
            source = printable(file.name if flat else f"{folder.name}/{file.name}")
            if _is_photo(file):
                entries.append(_Entry(person, source, file))
            else:
                ignored.append(source)
    if ignored:
        notes.append(f"Ignored, because they are not photos in a person's folder: {some(sorted(ignored))}.")
    return people, entries


def _visible(folder: Path) -> list[Path]:
    try:
        items = sorted(folder.iterdir())
    except OSError as error:
        raise GalleryError(f"{folder} cannot be opened ({error.strerror}).", "Check its permissions.") from None
    return [item for item in items if not item.name.startswith(".") and item.name.lower() not in _SYSTEM_FILES]


def _is_photo(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.is_dir()
