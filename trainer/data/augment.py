"""Altered copies of faces: moved, relit and covered, as a camera at a door sees them."""

import hashlib
import itertools

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.vision.preprocess import LANDMARKS
from trainer.types import Array

COPIES = 8  # default number of copies of each photo
COVERED = 3  # copies of each photo that `covered` returns
# How much a copy may be moved, turned, scaled and relit. Twice as much recognised fewer held-out photos of Yale B, and as many
# of AR.
MOVE, LIGHT = 0.6, 0.5


def harden(crops: NDArray[np.uint8], rng: np.random.Generator, strength: float = 1.0) -> NDArray[np.uint8]:
    """Return crops, grey or BGR, moved, turned, scaled and relit a little, about every second one covered by a block.

    At strength 1 the crop is off by up to 3 % of the width, 4 degrees and 4 % in scale; light changes by up to half across the
    face. The block does not depend on the strength. This is for measuring; `copies` is for training, with other covers.
    """
    faces = _with_channels(crops)
    n, height, width, channels = faces.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    harder = np.empty_like(faces)
    for i in range(n):
        moved = _moved(faces[i], rng, strength)
        angle = rng.uniform(0, 2 * np.pi)
        light = 1 + strength * rng.uniform(0, 0.5) * (np.cos(angle) * x + np.sin(angle) * y)
        face = moved * light[..., None] * (1 + strength * rng.uniform(-0.2, 0.2))
        if rng.random() < 0.5:
            h, w = int(0.3 * height), int(0.6 * width)
            top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
            face[top : top + h, left : left + w] = rng.uniform(20, 200, channels)
        harder[i] = np.clip(face, 0, 255)
    return harder.reshape(crops.shape)


def copies(crops: NDArray[np.uint8], number: int, rng: np.random.Generator, landmarks: Array = LANDMARKS) -> NDArray[np.uint8]:
    """Return (number N, ...): first copies of all crops (N, H, W), or (N, H, W, 3) in BGR, then second copies, and so on.

    Copies are moved and relit; every second one is mirrored; three in eight are covered by sunglasses, a scarf or a block.
    In colour crops, light is the same on all channels, and a cover has a colour.
    `landmarks` are the positions of eyes, nose and mouth in the crops, as in edge.vision.preprocess.LANDMARK_TEMPLATES.
    """
    made = []
    for k, (i, crop) in itertools.product(range(number), enumerate(_with_channels(crops))):
        face = _relit(_moved(crop, rng, MOVE), rng)
        cover = COVERS[k % len(COVERS)]
        if cover is not None:
            mask = cover(face.shape[:2], rng, landmarks)
            paint = (_lenses if cover is _glasses else _cloth)(face.shape, rng)
            face = np.where(mask[..., None], paint, face)
        face = np.clip(face, 0, 255).astype(np.uint8)
        made.append(face[:, ::-1] if (i + k) % 2 == 0 else face)
    return np.array(made, np.uint8).reshape(-1, *crops.shape[1:])


def covered(crops: NDArray[np.uint8], landmarks: Array) -> NDArray[np.uint8]:
    """Return (3 N, ...): all crops with a painted mask, then all with sunglasses, then all with a scarf.

    The paint of a crop depends on its pixels alone: the same crop always gets the same copies, in every fold of a calibration.
    """
    made = []
    for shape, paint in ((_mask, _mask_cloth), (_glasses, _lenses), (_scarf, _mask_cloth)):
        for crop in _with_channels(crops):
            rng = np.random.default_rng(np.frombuffer(hashlib.sha256(crop.tobytes()).digest(), np.uint32))
            soft = cv2.GaussianBlur(shape(crop.shape[:2], rng, landmarks).astype(np.float32), (0, 0), 0.6)[..., None]
            made.append(np.clip(crop * (1 - soft) + paint(crop.shape, rng) * soft, 0, 255).astype(np.uint8))
    return np.array(made, np.uint8).reshape(-1, *crops.shape[1:])


def _with_channels(crops: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return crops, grey or BGR, as (N, H, W, 1 or 3)."""
    return crops.reshape(*crops.shape[:3], *(crops.shape[3:] or (1,)))


def _moved(crop: NDArray[np.uint8], rng: np.random.Generator, strength: float) -> NDArray[np.uint8]:
    height, width = crop.shape[:2]
    turn = cv2.getRotationMatrix2D(
        ((width - 1) / 2, (height - 1) / 2), strength * rng.uniform(-4, 4), 1 + strength * rng.uniform(-0.04, 0.04)
    )
    turn[:, 2] += strength * rng.uniform(-0.03, 0.03, 2) * width
    moved = cv2.warpAffine(crop, turn, (width, height), borderMode=cv2.BORDER_REPLICATE)  # drops a single channel
    return moved.reshape(crop.shape)  # type: ignore[return-value]


def _relit(face: NDArray[np.uint8], rng: np.random.Generator) -> Array:
    """Change the exposure, add light from a side, and in about every second image a shadow with a soft edge."""
    height, width = face.shape[:2]
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle = rng.uniform(0, 2 * np.pi)
    across = (np.cos(angle) * x + np.sin(angle) * y)[..., None]
    lit = 255 * (face / 255) ** np.exp(LIGHT * rng.uniform(-0.5, 0.5)) * np.exp(LIGHT * rng.uniform(0, 1.2) * across)
    if rng.random() < 0.5:
        shadow = 1 / (1 + np.exp((rng.uniform(-0.6, 0.6) - across) / rng.uniform(0.03, 0.3)))
        lit *= 1 - LIGHT * rng.uniform(0.2, 0.9) * shadow
    return lit * rng.uniform(0.6, 1.3)


def _glasses(shape: tuple[int, ...], rng: np.random.Generator, landmarks: Array) -> Array:
    """Return the mask of sunglasses: two ellipses over the eyes, and the bridge between them."""
    left, right = landmarks[:2] * shape[0] + (shape[1] / 2, 0)
    apart = right[0] - left[0]
    down = rng.uniform(-0.05, 0.12) * apart
    half = rng.uniform(0.36, 0.5) * apart, rng.uniform(0.26, 0.42) * apart
    y, x = np.mgrid[: shape[0], : shape[1]] + 0.5
    lenses = [((x - eye[0]) / half[0]) ** 2 + ((y - eye[1] - down) / half[1]) ** 2 < 1 for eye in (left, right)]
    bridge = (np.abs(y - left[1] - down) < 0.05 * apart) & (x > left[0]) & (x < right[0])
    return lenses[0] | lenses[1] | bridge


def _scarf(shape: tuple[int, ...], rng: np.random.Generator, landmarks: Array) -> Array:
    """Return the mask of a scarf: everything below about the tip of the nose; the edge is curved or slanted."""
    nose = landmarks[2, 1]
    y, x = np.mgrid[0 : 1 : shape[0] * 1j, -1 : 1 : shape[1] * 1j]
    return y > nose + rng.uniform(-0.06, 0.1) + rng.uniform(-0.08, 0.08) * x**2 + rng.uniform(-0.03, 0.03) * x


def _mask(shape: tuple[int, ...], rng: np.random.Generator, landmarks: Array) -> Array:
    """Return the mask of a face mask: from the bridge of the nose downwards, narrower at the chin than at the cheeks."""
    eyes, nose = landmarks[:2, 1].mean(), landmarks[2, 1]
    y, x = (np.mgrid[: shape[0], : shape[1]] + 0.5) / shape[0] - np.array([0, shape[1] / (2 * shape[0])])[:, None, None]
    top = eyes + (nose - eyes) * rng.uniform(0.25, 0.75)
    edge = top + rng.uniform(0, 0.12) * np.clip(np.abs(x) / 0.33, 0, 1.2) ** rng.uniform(1, 2) + rng.uniform(-0.05, 0.05) * x
    half = np.interp(y, [0.5, 0.75, 1.0], [rng.uniform(0.34, 0.42), rng.uniform(0.31, 0.38), rng.uniform(0.2, 0.3)])
    return (y > edge) & (np.abs(x) < half)


def _block(shape: tuple[int, ...], rng: np.random.Generator, landmarks: Array) -> Array:
    """Return the mask of a rectangle anywhere, over an eighth to a third of the crop."""
    share, stretch = rng.uniform(0.12, 0.35), np.exp(rng.uniform(-0.7, 0.7))
    sides = np.sqrt(share * np.array([stretch, 1 / stretch]))
    size = np.minimum(sides * np.sqrt(shape[0] * shape[1]), shape).astype(int)
    top, left = rng.integers(np.array(shape) - size + 1)
    mask = np.zeros(shape, bool)
    mask[top : top + size[0], left : left + size[1]] = True
    return mask


def _lenses(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return (H, W, channels): a dark colour with noise."""
    return rng.uniform(0, 50, shape[2]) + rng.uniform(0, 6) * rng.standard_normal(shape[:2])[..., None]


def _mask_cloth(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return (H, W, channels): white, pale blue, dark or coloured cloth with soft light and, every second time, pleats."""
    height, width, channels = shape
    paint = MASK_COLOURS[rng.integers(len(MASK_COLOURS))] if rng.random() < 0.8 else rng.uniform(30, 220, 3)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle = rng.uniform(0, 2 * np.pi)
    light = 1 + rng.uniform(0, 0.35) * (np.cos(angle) * x + np.sin(angle) * y)
    if rng.random() < 0.5:
        light *= 1 + rng.uniform(0.02, 0.08) * np.sin(y * rng.uniform(20, 45) + rng.uniform(0, 6) + x**2)
    blotches = cv2.GaussianBlur(rng.standard_normal((height, width)), (0, 0), rng.uniform(0.02, 0.09) * width)
    light *= 1 + rng.uniform(0, 0.08) * blotches / max(blotches.std(), 1e-6)
    return rng.uniform(0.7, 1.1) * light[..., None] * (paint if channels == 3 else paint.mean(keepdims=True))


def _cloth(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return a cloth pattern (H, W, channels): coarse or fine blotches, about every second time with stripes, of a colour."""
    blotches = cv2.GaussianBlur(rng.standard_normal(shape[:2]), (0, 0), rng.uniform(0.3, 0.15 * shape[1]))
    pattern = blotches / max(blotches.std(), 1e-6)
    if rng.random() < 0.5:
        angle, stripes = rng.uniform(0, np.pi), rng.uniform(10, 60)
        y, x = np.mgrid[: shape[0], : shape[1]] / shape[1]
        pattern = pattern / 2 + np.sign(np.sin(stripes * (np.cos(angle) * x + np.sin(angle) * y)))
    return rng.uniform(20, 220, shape[2]) + rng.uniform(2, 40) * pattern[..., None]


MASK_COLOURS = np.array([[230, 220, 205], [230, 220, 205], [205, 175, 130], [45, 45, 45]])  # BGR: white, pale blue, black
COVERS = (None, _glasses, None, _scarf, None, _block, None, None)  # of the copies, in turn
