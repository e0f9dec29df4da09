"""Simulated visitors: heads that turn when asked to, and pictures of them on paper and on screens, as a camera sees them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from scripts.research import orl

Array = NDArray[Any]
Depth = Callable[[Array, Array], Array]  # how far towards the camera, over x and y; all lengths in eye distances

HEIGHT, WIDTH = 480, 640
PIVOT = np.array([0.0, 0.5, -0.8])[:, None, None]  # what a head turns about
AGAIN_SECONDS = 3.0  # who was asked, and hears nothing, tries again
WAYS = {"left": (1, 0), "right": (-1, 0), "down": (0, 1)}


# Shapes


def head(nose_at: float) -> Depth:
    """A dome with a nose, whose tip stands half an eye distance before eyes and mouth: edge.vision.quality knows the same."""

    def depth(x: Array, y: Array) -> Array:
        dome = 1.2 * np.exp(-((x / 1.6) ** 2) - ((y - 0.5) / 2.2) ** 2)
        return dome + 0.35 * np.exp(-((x / 0.2) ** 2) - ((y - nose_at) / 0.3) ** 2)

    return depth


def flat(x: Array, y: Array) -> Array:
    return np.zeros_like(x)


def bent(radius: float) -> Depth:
    """Paper around an upright cylinder."""
    return lambda x, y: radius * (np.cos(np.clip(x / radius, -1.5, 1.5)) - 1)


def folded(degrees: float) -> Depth:
    """Paper with a fold along the nose."""
    return lambda x, y: -np.abs(x) * math.tan(math.radians(degrees))


# Pictures


@dataclass(frozen=True, kw_only=True)
class Texture:
    """A picture that covers a shape."""

    image: Array
    """Grey."""
    mask: Array
    """1 where the picture is, 0 where the wall is seen."""
    origin: tuple[float, float]
    """Between the eyes, x and y."""
    unit: float
    """Pixels of an eye distance."""
    grid: float = 0.0
    """Eye distances from pixel to pixel, of a screen."""
    ripple: float = 0.0
    """Part of the light that comes and goes with its grid, as far as the camera resolves it."""


@dataclass(frozen=True, kw_only=True)
class Pose:
    """How a shape is held before the camera."""

    yaw: float = 0.0
    pitch: float = 0.0
    roll: float = 0.0
    centre: tuple[float, float] = (320.0, 200.0)
    scale: float = 85.0
    """Pixels of an eye distance."""
    distance: float = 9.5
    """Of the camera, in eye distances."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """The wall behind, the light, and the camera's noise."""

    wall: Array
    light: float
    noise: Array

    @classmethod
    def any(cls, rng: np.random.Generator) -> Room:
        stand = orl.Stand.anywhere(rng)
        wall = stand.wall + 110
        if rng.random() < 0.5:  # a door frame behind the visitor
            left, right, top = int(rng.integers(60, 170)), int(rng.integers(470, 580)), int(rng.integers(10, 40))
            cv2.rectangle(wall, (left, top), (right, HEIGHT + 9), 60.0, int(rng.integers(4, 14)))
        noise = cv2.GaussianBlur(rng.standard_normal((2 * HEIGHT, 2 * WIDTH, 3), np.float32), (0, 0), 0.6)
        return cls(wall=wall, light=stand.light, noise=noise)

    def photographed(self, picture: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
        y, x = int(rng.integers(HEIGHT)), int(rng.integers(WIDTH))
        colour = picture[..., None] * self.light * np.array([0.94, 0.98, 1.06], np.float32)
        return np.clip(np.rint(colour + 4 * self.noise[y : y + HEIGHT, x : x + WIDTH]), 0, 255).astype(np.uint8)


def seen(texture: Texture, depth: Depth, at: Pose, room: Room, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A frame, BGR."""
    x, y = _under_each_pixel(depth, at)
    columns, rows = (part * texture.unit + start - 0.5 for part, start in zip((x, y), texture.origin, strict=True))
    image: Array = cv2.remap(texture.image, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    mask: Array = cv2.remap(texture.mask, columns, rows, cv2.INTER_LINEAR, borderValue=0.0)
    if texture.ripple:
        cycles = 2 * np.pi / texture.grid
        image = image * (1 + texture.ripple * (np.cos(cycles * x) + np.cos(cycles * y)))
    return room.photographed(mask * image + (1 - mask) * room.wall, rng)


def _under_each_pixel(depth: Depth, at: Pose, step: int = 8) -> tuple[Array, Array]:
    """Which place of a shape each pixel of the frame shows, x and y: the projection, inverted on a coarse grid."""
    across, down = np.meshgrid(np.arange(0, WIDTH + step, step) + 0.5, np.arange(0, HEIGHT + step, step) + 0.5)
    roll = np.exp(-1j * np.deg2rad(at.roll))
    aim = ((across - at.centre[0]) + 1j * (down - at.centre[1])) * roll / at.scale
    x, y = aim.real.copy(), aim.imag.copy()
    turn = _rotation(at.yaw, at.pitch)
    for _ in range(14):
        place = np.tensordot(turn, np.stack([x, y, depth(x, y)]) - PIVOT, 1) + PIVOT
        nearer = at.distance / (at.distance - place[2])
        x += 0.7 * (aim.real - nearer * place[0])
        y += 0.7 * (aim.imag - nearer * place[1])
    fine = np.meshgrid(np.arange(WIDTH, dtype=np.float32) / step, np.arange(HEIGHT, dtype=np.float32) / step)
    return tuple(cv2.remap(part.astype(np.float32), *fine, cv2.INTER_LINEAR) for part in (x, y))  # type: ignore[return-value]


def _rotation(yaw: float, pitch: float) -> Array:
    a, b = np.deg2rad([yaw, pitch])
    about_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), np.sin(b)], [0, -np.sin(b), np.cos(b)]])
    return about_x @ about_y


def portrait(photo: Array, landmarks: Array) -> tuple[Texture, float]:
    """A photo that fades into the wall at its edges, and where its nose is."""
    larger = 3
    image: Array = cv2.resize(photo, None, fx=larger, fy=larger, interpolation=cv2.INTER_CUBIC).astype(np.float32)
    points = landmarks.astype(float) * larger
    eyes, unit = points[:2].mean(axis=0), float(np.hypot(*(points[1] - points[0])))
    mask = orl._faded(image.shape)
    return Texture(image=image, mask=mask, origin=(float(eyes[0]), float(eyes[1])), unit=unit), float(
        points[2, 1] - eyes[1]
    ) / unit


def printed(texture: Texture) -> Texture:
    """On paper with a white margin."""
    margin = round(0.3 * texture.unit)
    image = np.pad(texture.image, margin, constant_values=225.0)
    return Texture(
        image=image,
        mask=np.ones(image.shape, np.float32),
        origin=(texture.origin[0] + margin, texture.origin[1] + margin),
        unit=texture.unit,
    )


def on_screen(image: Array, origin: tuple[float, float], unit: float, rng: np.random.Generator) -> Texture:
    """On a phone or a tablet with a black edge, whose pixels the camera resolves a little, or not."""
    edge = round(rng.uniform(0.1, 0.3) * unit)
    whole = np.pad(image.astype(np.float32), edge, constant_values=12.0)
    grid, ripple = rng.uniform(0.002, 0.006), rng.choice([0.0, rng.uniform(0.02, 0.1)])
    return Texture(
        image=whole,
        mask=np.ones(whole.shape, np.float32),
        origin=(origin[0] + edge, origin[1] + edge),
        unit=unit,
        grid=grid,
        ripple=ripple,
    )


# Who stands there

Asked = list[tuple[float, str]]  # when, and what


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How somebody does what is asked for."""

    degrees: float
    delay: float
    """Seconds, as the others."""
    out: float
    hold: float
    back: float

    @classmethod
    def any(cls, rng: np.random.Generator, degrees: tuple[float, float]) -> Turn:
        return cls(
            degrees=rng.uniform(*degrees),
            delay=rng.uniform(0.4, 1.2),
            out=rng.uniform(0.3, 0.8),
            hold=rng.uniform(0.3, 0.8),
            back=rng.uniform(0.3, 0.8),
        )

    def at(self, seconds: float) -> float:
        """Degrees, so long after it was asked for."""
        begun = seconds - self.delay
        part = min(begun / self.out, 1 + self.hold / self.back - (begun - self.out) / self.back, 1)
        part = min(max(part, 0), 1)
        return self.degrees * (1 - math.cos(math.pi * part)) / 2


def turned(turns: list[Turn], asked: Asked, now: float) -> tuple[float, float]:
    """Yaw and pitch."""
    yaw = pitch = 0.0
    for turn, (when, prompt) in zip(turns, asked, strict=False):
        degrees = turn.at(now - when)
        if (when, prompt) == asked[-1]:  # nothing happened: once more, and further
            degrees += min(1.4 * turn.at(now - when - AGAIN_SECONDS), 60.0)
        yaw, pitch = yaw + WAYS[prompt][0] * degrees, pitch + WAYS[prompt][1] * degrees
    return yaw, pitch


@dataclass(kw_only=True)
class Actor:
    """Somebody before the camera, or somebody's picture. One visit."""

    photo: Array
    landmarks: Array
    rng: np.random.Generator

    def __post_init__(self) -> None:
        rng = self.rng
        self.room, self.elsewhere = Room.any(rng), Room.any(rng)
        self.texture, self.nose_at = portrait(self.photo, self.landmarks)
        self.head = head(self.nose_at)
        self.centre = np.array([320, 200]) + rng.uniform(-1, 1, 2) * (80, 15)
        self.scale, self.distance = rng.uniform(65, 95), rng.uniform(7, 13)
        self.phases, self.sways = rng.uniform(0, 6.3, (5, 2)), rng.uniform(0.5, 1.5, 5)
        self.turns = [Turn.any(rng, (22, 40)) for _ in range(20)]
        self.tilts = [Turn.any(rng, (20, 55)) for _ in range(20)]

    def sway(self, now: float, yaw: float = 0.0, pitch: float = 0.0) -> Pose:
        """Nobody holds quite still, nor what is in the hand."""
        slow = np.sin(self.phases[:, 0] + 1.1 * now) + 0.5 * np.sin(self.phases[:, 1] + 3.1 * now)
        a, b, c, x, y = self.sways * slow
        centre = self.centre + 3 * np.array([x, y]) + 0.4 * self.rng.standard_normal(2)
        return Pose(
            yaw=yaw + 1.5 * a,
            pitch=pitch + 1.2 * b,
            roll=1.5 * c,
            centre=(float(centre[0]), float(centre[1])),
            scale=self.scale,
            distance=self.distance,
        )

    def shows(self, texture: Texture, depth: Depth, at: Pose) -> NDArray[np.uint8]:
        return seen(texture, depth, at, self.room, self.rng)

    def recorded(self, asked: Asked, now: float, turns: list[Turn] | None = None) -> Texture:
        """What a screen shows that plays a video of the head."""
        yaw, pitch = turned(turns or self.turns, asked, now)
        at = Pose(yaw=yaw, pitch=pitch)
        video = seen(self.texture, self.head, at, self.elsewhere, self.rng).mean(axis=2)
        return on_screen(video[20:460, 140:500], (180.0, 180.0), 85.0, np.random.default_rng(int(self.scale * 1e6)))


def a_head(actor: Actor, now: float, asked: Asked) -> Array:
    return actor.shows(actor.texture, actor.head, actor.sway(now, *turned(actor.turns, asked, now)))


def on_a_stand(actor: Actor, now: float, asked: Asked) -> Array:
    return actor.shows(printed(actor.texture), flat, Pose(centre=tuple(actor.centre), scale=actor.scale))


def paper(depth: Callable[[Actor], Depth]) -> Callable[[Actor, float, Asked], Array]:
    """A photo, turned by hand as was asked for."""
    return lambda actor, now, asked: actor.shows(
        printed(actor.texture), depth(actor), actor.sway(now, *turned(actor.tilts, asked, now))
    )


def phone(actor: Actor, now: float, asked: Asked) -> Array:
    """A photo on a screen, turned by hand as was asked for."""
    return actor.shows(actor.recorded([], now), flat, actor.sway(now, *turned(actor.tilts, asked, now)))


def blind_video(actor: Actor, now: float, asked: Asked) -> Array:
    """A head that turns and nods by itself, as in a recorded talk, at random and every three seconds."""
    rng = np.random.default_rng(int(actor.scale * 1e6))
    own = [(2.0 + 3 * i, str(rng.choice(list(WAYS)))) for i in range(10)]
    return actor.shows(actor.recorded(own, now), flat, actor.sway(now))


def matching_video(actor: Actor, now: float, asked: Asked) -> Array:
    """One video for each thing that may be asked for, and a quick thumb."""
    return actor.shows(actor.recorded(asked, now), flat, actor.sway(now))


def stills(actor: Actor, now: float, asked: Asked) -> Array:
    """A photo of each pose on a screen, and a quick thumb."""
    sudden = [Turn(degrees=turn.degrees, delay=turn.delay, out=1e-3, hold=1.0, back=1e-3) for turn in actor.turns]
    return actor.shows(actor.recorded(asked, now, sudden), flat, actor.sway(now))


def bent_at_random(actor: Actor) -> Depth:
    return bent(1.2 + 2 * (actor.scale - 65) / 30)


def folded_at_random(actor: Actor) -> Depth:
    return folded(15 + 25 * (actor.scale - 65) / 30)


HEAD = "a head that does what is asked"
CASES: dict[str, Callable[[Actor, float, Asked], Array]] = {
    HEAD: a_head,
    "a photo on a stand": on_a_stand,
    "a flat photo, turned as asked": paper(lambda actor: flat),
    "a photo on a phone, turned as asked": phone,
    "a bent photo, turned as asked": paper(bent_at_random),
    "a folded photo, turned as asked": paper(folded_at_random),
    "a video, not knowing what is asked": blind_video,
    "photos of each pose, swapped as asked": stills,
    "videos of each movement, played as asked": matching_video,
}
SCREEN = (
    HEAD,
    "a photo on a stand",
    "a flat photo, turned as asked",
    "a bent photo, turned as asked",
    "a photo on a phone, turned as asked",
    "a video, not knowing what is asked",
)
"""Those that look different when nobody asks for anything."""
