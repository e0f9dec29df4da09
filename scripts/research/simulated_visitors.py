"""Frames of simulated visitors: heads that follow the prompts of a challenge, and pictures of heads on paper and screens."""

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
Depth = Callable[[Array, Array], Array]  # height of a surface above x and y, towards the camera; lengths are in eye distances

HEIGHT, WIDTH = 480, 640
PIVOT = np.array([0.0, 0.5, -0.8])[:, None, None]  # the centre of rotation of a head
RETRY_SECONDS = 3.0  # a visitor who sees no reaction moves again
DIRECTIONS = {"left": (1, 0), "right": (-1, 0), "down": (0, 1)}  # of yaw and pitch, by prompt


# Shapes


def head(nose_height: float) -> Depth:
    """A dome with a nose. Its tip is half an eye distance in front of eyes and mouth, as edge.vision.quality assumes."""

    def depth(x: Array, y: Array) -> Array:
        dome = 1.2 * np.exp(-((x / 1.6) ** 2) - ((y - 0.5) / 2.2) ** 2)
        return dome + 0.35 * np.exp(-((x / 0.2) ** 2) - ((y - nose_height) / 0.3) ** 2)

    return depth


def flat(x: Array, y: Array) -> Array:
    return np.zeros_like(x)


def bent(radius: float) -> Depth:
    """Paper bent around a vertical cylinder."""
    return lambda x, y: radius * (np.cos(np.clip(x / radius, -1.5, 1.5)) - 1)


def folded(degrees: float) -> Depth:
    """Paper with a fold along the nose."""
    return lambda x, y: -np.abs(x) * math.tan(math.radians(degrees))


# Pictures


@dataclass(frozen=True, kw_only=True)
class Texture:
    """An image on a surface."""

    image: Array
    """Grey levels."""
    mask: Array
    """1 where the image covers the wall, 0 elsewhere."""
    origin: tuple[float, float]
    """The point between the eyes: x, y."""
    unit: float
    """Pixels per eye distance."""
    grid: float = 0.0
    """Distance between the pixels of a screen."""
    ripple: float = 0.0
    """Share of the light that varies with the grid, as the camera sees it."""


@dataclass(frozen=True, kw_only=True)
class Pose:
    """Position of a surface in front of the camera. Angles are in degrees."""

    yaw: float = 0.0
    pitch: float = 0.0
    roll: float = 0.0
    centre: tuple[float, float] = (320.0, 200.0)
    scale: float = 85.0
    """Pixels per eye distance."""
    distance: float = 9.5
    """Distance from the camera."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """The wall, the light, and the noise of the camera."""

    wall: Array
    light: float
    noise: Array

    @classmethod
    def random(cls, rng: np.random.Generator) -> Room:
        stand = orl.Stand.anywhere(rng)
        wall = stand.wall + 110
        if rng.random() < 0.5:  # a door frame behind the visitor
            left, right, top = int(rng.integers(60, 170)), int(rng.integers(470, 580)), int(rng.integers(10, 40))
            cv2.rectangle(wall, (left, top), (right, HEIGHT + 9), 60.0, int(rng.integers(4, 14)))
        noise = cv2.GaussianBlur(rng.standard_normal((2 * HEIGHT, 2 * WIDTH, 3), np.float32), (0, 0), 0.6)
        return cls(wall=wall, light=stand.light, noise=noise)

    def photograph(self, picture: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
        y, x = int(rng.integers(HEIGHT)), int(rng.integers(WIDTH))
        colour = picture[..., None] * self.light * np.array([0.94, 0.98, 1.06], np.float32)
        return np.clip(np.rint(colour + 4 * self.noise[y : y + HEIGHT, x : x + WIDTH]), 0, 255).astype(np.uint8)


def render(texture: Texture, depth: Depth, pose: Pose, room: Room, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a frame, BGR."""
    x, y = _surface_points(depth, pose)
    columns, rows = (part * texture.unit + start - 0.5 for part, start in zip((x, y), texture.origin, strict=True))
    image: Array = cv2.remap(texture.image, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    mask: Array = cv2.remap(texture.mask, columns, rows, cv2.INTER_LINEAR, borderValue=0.0)
    if texture.ripple:
        cycles = 2 * np.pi / texture.grid
        image = image * (1 + texture.ripple * (np.cos(cycles * x) + np.cos(cycles * y)))
    return room.photograph(mask * image + (1 - mask) * room.wall, rng)


def _surface_points(depth: Depth, pose: Pose, step: int = 8) -> tuple[Array, Array]:
    """Return the point (x, y) of the surface that each pixel shows: the projection, inverted on a coarse grid."""
    across, down = np.meshgrid(np.arange(0, WIDTH + step, step) + 0.5, np.arange(0, HEIGHT + step, step) + 0.5)
    roll = np.exp(-1j * np.deg2rad(pose.roll))
    aim = ((across - pose.centre[0]) + 1j * (down - pose.centre[1])) * roll / pose.scale
    x, y = aim.real.copy(), aim.imag.copy()
    turn = rotation(pose.yaw, pose.pitch)
    for _ in range(14):
        point = np.tensordot(turn, np.stack([x, y, depth(x, y)]) - PIVOT, 1) + PIVOT
        magnification = pose.distance / (pose.distance - point[2])
        x += 0.7 * (aim.real - magnification * point[0])
        y += 0.7 * (aim.imag - magnification * point[1])
    fine = np.meshgrid(np.arange(WIDTH, dtype=np.float32) / step, np.arange(HEIGHT, dtype=np.float32) / step)
    return tuple(cv2.remap(part.astype(np.float32), *fine, cv2.INTER_LINEAR) for part in (x, y))  # type: ignore[return-value]


def rotation(yaw: float, pitch: float) -> Array:
    """Return the rotation matrix of a head, given angles in degrees."""
    a, b = np.deg2rad([yaw, pitch])
    about_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), np.sin(b)], [0, -np.sin(b), np.cos(b)]])
    return about_x @ about_y


def portrait(photo: Array, landmarks: Array) -> tuple[Texture, float]:
    """Return the texture of a photo that fades into the wall at its edges, and the height of its nose."""
    larger = 3
    image: Array = cv2.resize(photo, None, fx=larger, fy=larger, interpolation=cv2.INTER_CUBIC).astype(np.float32)
    points = landmarks.astype(float) * larger
    eyes, unit = points[:2].mean(axis=0), float(np.hypot(*(points[1] - points[0])))
    mask = orl._faded(image.shape)
    nose_height = float(points[2, 1] - eyes[1]) / unit
    return Texture(image=image, mask=mask, origin=(float(eyes[0]), float(eyes[1])), unit=unit), nose_height


def printed(texture: Texture) -> Texture:
    """The texture on paper with a white margin."""
    margin = round(0.3 * texture.unit)
    image = np.pad(texture.image, margin, constant_values=225.0)
    return Texture(
        image=image,
        mask=np.ones(image.shape, np.float32),
        origin=(texture.origin[0] + margin, texture.origin[1] + margin),
        unit=texture.unit,
    )


def on_screen(image: Array, origin: tuple[float, float], unit: float, rng: np.random.Generator) -> Texture:
    """The image on a phone or tablet with a black edge. The camera sees the grid of its pixels weakly, or not at all."""
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


# Visitors

Prompts = list[tuple[float, str]]  # time and direction


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How a visitor follows a prompt. Times are in seconds."""

    degrees: float
    delay: float
    out: float
    hold: float
    back: float

    @classmethod
    def random(cls, rng: np.random.Generator, degrees: tuple[float, float]) -> Movement:
        return cls(
            degrees=rng.uniform(*degrees),
            delay=rng.uniform(0.4, 1.2),
            out=rng.uniform(0.3, 0.8),
            hold=rng.uniform(0.3, 0.8),
            back=rng.uniform(0.3, 0.8),
        )

    def angle(self, seconds: float) -> float:
        """Return the angle in degrees, `seconds` after the prompt."""
        moving = seconds - self.delay
        part = min(moving / self.out, 1 + self.hold / self.back - (moving - self.out) / self.back, 1)
        part = min(max(part, 0), 1)
        return self.degrees * (1 - math.cos(math.pi * part)) / 2


def angles(movements: list[Movement], prompts: Prompts, now: float) -> tuple[float, float]:
    """Return yaw and pitch of a visitor who follows the prompts."""
    yaw = pitch = 0.0
    for movement, (when, prompt) in zip(movements, prompts, strict=False):
        degrees = movement.angle(now - when)
        if (when, prompt) == prompts[-1]:  # no reaction: move again, and further
            degrees += min(1.4 * movement.angle(now - when - RETRY_SECONDS), 60.0)
        yaw, pitch = yaw + DIRECTIONS[prompt][0] * degrees, pitch + DIRECTIONS[prompt][1] * degrees
    return yaw, pitch


@dataclass(kw_only=True)
class Visitor:
    """A person in front of the camera, or a picture of a person, during one visit."""

    photo: Array
    landmarks: Array
    rng: np.random.Generator

    def __post_init__(self) -> None:
        rng = self.rng
        self.room, self.video_room = Room.random(rng), Room.random(rng)
        self.texture, nose_height = portrait(self.photo, self.landmarks)
        self.head = head(nose_height)
        self.centre = np.array([320, 200]) + rng.uniform(-1, 1, 2) * (80, 15)
        self.scale, self.distance = rng.uniform(65, 95), rng.uniform(7, 13)
        self.phases, self.sways = rng.uniform(0, 6.3, (5, 2)), rng.uniform(0.5, 1.5, 5)
        self.movements = [Movement.random(rng, (22, 40)) for _ in range(20)]
        self.tilts = [Movement.random(rng, (20, 55)) for _ in range(20)]

    def sway(self, now: float, yaw: float = 0.0, pitch: float = 0.0) -> Pose:
        """Return the pose with small random movements: heads and hands never hold still."""
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

    def show(self, texture: Texture, depth: Depth, pose: Pose) -> NDArray[np.uint8]:
        return render(texture, depth, pose, self.room, self.rng)

    def video(self, prompts: Prompts, now: float, movements: list[Movement] | None = None) -> Texture:
        """Return a screen that plays a video of the head."""
        yaw, pitch = angles(movements or self.movements, prompts, now)
        video = render(self.texture, self.head, Pose(yaw=yaw, pitch=pitch), self.video_room, self.rng).mean(axis=2)
        return on_screen(video[20:460, 140:500], (180.0, 180.0), 85.0, np.random.default_rng(int(self.scale * 1e6)))


def show_head(visitor: Visitor, now: float, prompts: Prompts) -> Array:
    return visitor.show(visitor.texture, visitor.head, visitor.sway(now, *angles(visitor.movements, prompts, now)))


def show_photo_on_stand(visitor: Visitor, now: float, prompts: Prompts) -> Array:
    return visitor.show(printed(visitor.texture), flat, Pose(centre=tuple(visitor.centre), scale=visitor.scale))


def show_paper(depth: Callable[[Visitor], Depth]) -> Callable[[Visitor, float, Prompts], Array]:
    """A printed photo that a hand turns as prompted."""
    return lambda visitor, now, prompts: visitor.show(
        printed(visitor.texture), depth(visitor), visitor.sway(now, *angles(visitor.tilts, prompts, now))
    )


def show_phone(visitor: Visitor, now: float, prompts: Prompts) -> Array:
    """A photo on a screen that a hand turns as prompted."""
    return visitor.show(visitor.video([], now), flat, visitor.sway(now, *angles(visitor.tilts, prompts, now)))


def show_unrelated_video(visitor: Visitor, now: float, prompts: Prompts) -> Array:
    """A video of a head with a random movement every three seconds, as in a recorded talk."""
    rng = np.random.default_rng(int(visitor.scale * 1e6))
    own = [(2.0 + 3 * i, str(rng.choice(list(DIRECTIONS)))) for i in range(10)]
    return visitor.show(visitor.video(own, now), flat, visitor.sway(now))


def show_matching_video(visitor: Visitor, now: float, prompts: Prompts) -> Array:
    """One video for each possible prompt, started as prompted."""
    return visitor.show(visitor.video(prompts, now), flat, visitor.sway(now))


def show_stills(visitor: Visitor, now: float, prompts: Prompts) -> Array:
    """A photo of each pose on a screen, changed as prompted."""
    sudden = [Movement(degrees=own.degrees, delay=own.delay, out=1e-3, hold=1.0, back=1e-3) for own in visitor.movements]
    return visitor.show(visitor.video(prompts, now, sudden), flat, visitor.sway(now))


def random_bend(visitor: Visitor) -> Depth:
    return bent(1.2 + 2 * (visitor.scale - 65) / 30)


def random_fold(visitor: Visitor) -> Depth:
    return folded(15 + 25 * (visitor.scale - 65) / 30)


HEAD = "a head that follows the prompts"
# The order matters: the random numbers of a visit depend on the position of its case.
CASES: dict[str, Callable[[Visitor, float, Prompts], Array]] = {
    HEAD: show_head,
    "a photo on a stand": show_photo_on_stand,
    "a flat photo, turned as prompted": show_paper(lambda visitor: flat),
    "a photo on a phone, turned as prompted": show_phone,
    "a bent photo, turned as prompted": show_paper(random_bend),
    "a folded photo, turned as prompted": show_paper(random_fold),
    "a video that ignores the prompts": show_unrelated_video,
    "photos of each pose, changed as prompted": show_stills,
    "videos of each movement, played as prompted": show_matching_video,
}
