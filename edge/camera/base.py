"""Frames, and the contract of everything that provides them."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeGuard
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

STALL_SECONDS = 2.0
"""A live camera without a frame for this long is opened again, by default."""
FROZEN_SECONDS = 5.0
"""A live camera whose frames do not change for this long is frozen, by default."""
OPEN_SECONDS = 10.0
"""Time limit for the first frame of a live source: a network camera waits for its next key frame."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """One image from a camera."""

    image: NDArray[np.uint8]
    """(H, W, 3), BGR."""
    captured: float
    """Capture time in seconds of the camera's clock, never in the future; compare with Camera.now(). -inf: the frame is not
    used."""
    number: int
    """Counts from 1. Numbers are missing where frames were dropped."""


@dataclass(frozen=True, kw_only=True)
class CameraHealth:
    """The state of a camera at one moment."""

    up: bool
    """Whether frames arrive."""
    frames: int
    """Frames captured."""
    dropped: int
    """Frames that a newer frame replaced before they were read."""
    broken: int
    """Frames that could not be decoded."""
    reconnects: int
    """How often the camera was lost and came back."""
    error: str
    """Why the camera is not up, or empty."""


class Camera(ABC):
    """A source of frames. Thread-safe. A context manager that closes the camera."""

    live: ClassVar[bool]
    """Whether frames arrive at their own pace, and are lost if they are not read in time."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The source as the user gave it, without passwords."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no more frames will come: after the last frame of a recording, or after close()."""

    @property
    @abstractmethod
    def health(self) -> CameraHealth:
        """Counts since the camera was opened, and its state."""

    @abstractmethod
    def now(self) -> float:
        """The time on the clock of `Frame.captured`."""

    @abstractmethod
    def frame(self, timeout: float) -> Frame | None:
        """Return a frame that was not returned before, or None if none comes within `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close within a second, even if a driver hangs. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Source(Protocol):
    """One connection to a live camera."""

    def read(self) -> tuple[NDArray[Any] | None, float, int]:
        """Return an image (None if broken), its capture time, and how many were skipped. CameraError: the camera is lost."""

    def interrupt(self) -> None:
        """Make a waiting read() return, if possible. Any thread may call this."""
        return None  # OpenCV and picamera2 cannot be interrupted

    def close(self) -> None: ...


def is_bgr(image: NDArray[Any] | None) -> TypeGuard[NDArray[np.uint8]]:
    """Whether `image` is BGR: uint8 (H, W, 3), not empty."""
    return image is not None and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size > 0


def display_name(source: str) -> str:
    """Return the device for an index, and an address without any part that may be a password."""
    if re.fullmatch(r"[0-9]{1,3}", source):
        return f"/dev/video{int(source)}"
    if "://" not in source:
        return source
    at = urlsplit(source)
    host = at.netloc.rpartition("@")[2]
    login = "***@" if "@" in at.netloc else ""
    path = "/***" if set(at.path) & set("=@:") else at.path  # some cameras expect their password there
    return f"{at.scheme}://{login}{host}{path}{'?***' if at.query else ''}"
