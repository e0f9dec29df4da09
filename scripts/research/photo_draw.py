"""Who is enrolled, who is a stranger, and with which photos: a random draw from a folder per person.

- A person can be enrolled with at least K bare photos and one more photo. N of these people are drawn, and K bare photos of
  each; all people if there are fewer than N. Their other photos are the test.
- Strangers are M of the other people, with all their photos: first people with a single photo, then the rest.
- Photos whose file name starts with the prefix are occluded, all others are bare. Only bare photos are enrolled.
- A photo that repeats another one is left out; if it has another name there, both are. A bare test photo that nearly repeats
  an enrolled one of the same person is left out, because some sets contain bursts.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import SUFFIXES, PhotoError, decode, to_8_bit
from edge.errors import GalleryError, UsageError
from edge.text import plural, same_spelling, some
from edge.vision.confidence import score_norm
from trainer.types import Say

TRIPLES = 30
NEAR = 0.98  # correlation of two photos of 32x32 grey pixels: those of a burst have more, other photos of LFW less
Visit = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """The photos of a run. Rows are indices into `files`."""

    files: tuple[Path, ...]
    people: NDArray[np.str_]
    """(n,), the person in each photo; of misnamed photos, the name that they are enrolled with."""
    occluded: NDArray[np.bool_]
    """(n,), by the prefix of the file name."""
    enrolled: tuple[int, ...]
    tests: tuple[int, ...]
    strangers: tuple[int, ...]
    visits: dict[str, list[Visit]]
    """Rows of three photos: `bare` and `occluded` of enrolled people, and `strangers`."""
    misnamed: tuple[int, ...] = ()
    """Enrolled photos with the name of another enrolled person."""

    @property
    def used(self) -> tuple[int, ...]:
        return self.enrolled + self.tests + self.strangers

    def kind(self, occluded: bool) -> list[int]:
        """Return the test photos of one kind."""
        return [row for row in self.tests if self.occluded[row] == occluded]

    def summary(self) -> str:
        people, strangers = (len(set(self.people[list(rows)])) for rows in (self.enrolled, self.strangers))
        photos = f"{len(self.kind(False))} bare and {len(self.kind(True))} occluded photos"
        wrong = f" ({len(self.misnamed)} with a wrong name)" if self.misnamed else ""
        return (
            f"{people} people enrolled with {plural(len(self.enrolled), 'photo')}{wrong}, tested with {photos}; "
            f"{plural(strangers, 'stranger')} with {plural(len(self.strangers), 'photo')}."
        )


def draw(folder: Path, *, people: int, photos: int, strangers: int, seed: int, prefix: str | None, say: Say) -> Draw:
    """Draw `people` with `photos` each, and `strangers`, from a folder per person."""
    found, thumbnails = _photos(folder, say)
    files = tuple(file for own in found.values() for file in own)
    rows = {file: row for row, file in enumerate(files)}
    occluded = np.array([prefix is not None and file.name.startswith(prefix) for file in files], bool)
    own = {person: [rows[file] for file in listed] for person, listed in found.items()}
    bare = {person: [row for row in listed if not occluded[row]] for person, listed in own.items()}
    rng = np.random.default_rng(seed)
    able = [person for person in own if len(bare[person]) >= photos and len(own[person]) > photos]
    chosen = sorted(rng.permutation(able)[:people].tolist())
    if len(chosen) < 2:
        raise GalleryError(
            f"{folder} has fewer than two people with {photos} bare photos and one more.",
            "Lower --photos, or check the folder.",
        )
    if len(chosen) < people:
        say(f"Only {len(chosen)} people have {plural(photos, 'bare photo')} and one more: all are enrolled.")
    enrolled: list[int] = []
    tests: dict[str, list[int]] = {}
    for person in chosen:
        drawn = rng.permutation(bare[person])[:photos].tolist()
        known = np.stack([thumbnails[files[row]] for row in drawn])
        rest = [row for row in own[person] if row not in drawn]
        tests[person] = [row for row in rest if occluded[row] or (known @ thumbnails[files[row]]).max() <= NEAR]
        enrolled += drawn
    repeated = sum(len(own[person]) - photos - len(tests[person]) for person in chosen)
    if repeated:
        say(f"Left out, as near copies of enrolled photos: {plural(repeated, 'test photo')}.")
    others = [person for person in own if person not in tests]
    single = [person for person in others if len(own[person]) == 1]
    more = [person for person in others if len(own[person]) > 1]
    unknown = sorted([*rng.permutation(single).tolist(), *rng.permutation(more).tolist()][:strangers])
    if not unknown:
        raise UsageError("No person is left as a stranger.", "Lower --people.")
    if len(unknown) < strangers:
        say(f"Only {plural(len(unknown), 'stranger')}: all other people are enrolled.")
    return Draw(
        files=files,
        people=np.array([person for person, listed in own.items() for _ in listed]),
        occluded=occluded,
        enrolled=tuple(enrolled),
        tests=tuple(row for person in chosen for row in tests[person]),
        strangers=tuple(row for person in unknown for row in own[person]),
        visits=_visits(tests, {person: own[person] for person in unknown}, occluded, rng),
    )


def with_wrong_names(drawn: Draw, share: float, seed: int) -> Draw:
    """Give a share of the enrolled photos, drawn at random, the name of another enrolled person."""
    rng, names = np.random.default_rng([seed, 1]), np.unique(drawn.people[list(drawn.enrolled)])
    misnamed = sorted(rng.permutation(drawn.enrolled)[: round(share * len(drawn.enrolled))].tolist())
    people = drawn.people.copy()
    for row in misnamed:
        people[row] = rng.choice(names[names != drawn.people[row]])
    return replace(drawn, people=people, misnamed=tuple(misnamed))


def _visits(
    tests: dict[str, list[int]], strangers: dict[str, list[int]], occluded: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, list[Visit]]:
    """Return the field `visits` of a draw."""
    visits: dict[str, list[Visit]] = {"bare": [], "occluded": [], "strangers": []}
    for kind, covered in (("bare", False), ("occluded", True)):
        for rows in tests.values():
            same = [row for row in rows if occluded[row] == covered]
            visits[kind] += triples(same, rng) if len(same) >= 3 else []
        for rows in strangers.values():
            visits["strangers"] += triples([row for row in rows if occluded[row] == covered], rng)
    return visits


def triples(rows: Sequence[int], rng: np.random.Generator) -> list[Visit]:
    """Return up to 30 different triples of rows. Fewer than three rows are one visit."""
    if len(rows) <= 3:
        return [tuple(rows)] if rows else []
    if comb(len(rows), 3) <= TRIPLES:
        return list(combinations(rows, 3))
    drawn: set[Visit] = set()
    while len(drawn) < TRIPLES:
        drawn.add(tuple(sorted(rng.choice(rows, 3, replace=False).tolist())))
    return sorted(drawn)


def _photos(folder: Path, say: Say) -> tuple[dict[str, list[Path]], dict[Path, NDArray[np.float32]]]:
    """Return the photos of each person without repeated ones, and a small grey image of each photo at unit length."""
    if not folder.is_dir():
        raise GalleryError(f"There is no folder {folder}.", "Check --data.")
    first: dict[bytes, tuple[str, Path]] = {}
    found: dict[str, list[Path]] = defaultdict(list)
    small: dict[Path, NDArray[np.float32]] = {}
    wrong: set[Path] = set()
    repeated = []
    for own in sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")):
        for file in sorted(item for item in own.iterdir() if item.suffix.lower() in SUFFIXES and item.is_file()):
            person = same_spelling(own.name)
            digest, small[file] = _fingerprint(file)
            other, earlier = first.setdefault(digest, (person, file))
            if earlier != file:
                repeated.append(f"{person}/{file.name} (as {other}/{earlier.name})")
                wrong |= {earlier} if other != person else set()
            else:
                found[person].append(file)
    if repeated:
        say(f"Left out, as copies of other photos: {some(repeated)}.")
    kept = {person: [file for file in files if file not in wrong] for person, files in found.items()}
    return {person: files for person, files in sorted(kept.items()) if files}, small


def _fingerprint(file: Path) -> tuple[bytes, NDArray[np.float32]]:
    """Return a digest of the pixels, and a small grey image at unit length. Files that cannot be read are all different."""
    try:
        image = to_8_bit(decode(file, colour=True))
    except PhotoError:
        return str(file).encode(), np.zeros(32 * 32, np.float32)
    small = cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    small -= small.mean()
    return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest(), small.ravel() / score_norm(small.ravel())
