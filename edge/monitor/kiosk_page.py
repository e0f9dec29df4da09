"""The page for an attached display: what it gets from the terminal. Its files are in the folder kiosk.

A grant is shown only after its event arrived, as at the other sinks: the audit log may have withheld it.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from edge.errors import require
from edge.events.event import Event
from edge.events.view import WELCOME_SECONDS, Guidance, View
from edge.text import printable, strict_json

LANGUAGES = ("en", "de")
OUT_OF_ORDER = "out_of_order"
"""Shown instead of a guidance: the camera or the terminal does not work."""
PROMPTS = (Guidance.LEFT, Guidance.RIGHT, Guidance.DOWN)
DECISIONS = 50
MAX_HELP = 80  # characters, so that the sentence fits on a small display

FILES = {"/kiosk": ("index.html", "html"), "/kiosk/app.js": ("app.js", "javascript"), "/kiosk/style.css": ("style.css", "css")}


@dataclass(frozen=True, kw_only=True)
class KioskSettings:
    """A full-screen page for visitors at /kiosk of the preview. See docs/guide/kiosk.md."""

    language: str = "en"
    """Language of the page: en or de."""
    names: bool = False
    """Whether the page greets people by name: their label in the kit."""
    sound: bool = False
    """Whether the page plays tones."""
    help: str | None = None
    """Sentence to show with no access and out of order, e.g. Please ring the bell. (not set: ask at the reception)."""

    def __post_init__(self) -> None:
        require(self.language in LANGUAGES, f"language must be {' or '.join(LANGUAGES)}, not {self.language!r}")
        fits = self.help is None or (0 < len(self.help) <= MAX_HELP and self.help.isprintable())
        require(fits, f"help must be one line of 1 to {MAX_HELP} characters")


class Kiosk:
    """The files of the page, and its state. It keeps the last decisions, because a view does not have their events."""

    def __init__(self, settings: KioskSettings, *, mirror: bool = True) -> None:
        """`mirror`: whether the page must mirror the picture, because the camera does not."""
        self._settings, self._mirror = settings, mirror
        self._decisions: tuple[Event, ...] = ()
        folder = files("edge.monitor").joinpath("kiosk")
        self.files = {
            path: (folder.joinpath(name).read_bytes(), f"text/{kind}; charset=utf-8") for path, (name, kind) in FILES.items()
        }
        texts = {code: tomllib.loads(folder.joinpath("messages", f"{code}.toml").read_text("utf-8")) for code in LANGUAGES}
        self.files["/kiosk/messages.json"] = (strict_json(texts).encode(), "application/json")
        self._version = version("lclrr-edge")

    def handle(self, event: Event) -> None:
        """Keep the event of a decision."""
        if event.kind == "decision":
            self._decisions = (event, *self._decisions[: DECISIONS - 1])  # a new tuple: readers need no lock

    def state(self, view: View | None) -> dict[str, Any]:
        """Return the body of /kiosk/state.json. `view` is the newest one, or None if the terminal does not work."""
        shown, label = (OUT_OF_ORDER, None) if view is None else choose(view, self._decisions)
        settings = self._settings
        return {
            "state": shown,
            "name": printable(label) if settings.names and label is not None else None,
            "language": settings.language,
            "sound": settings.sound,
            "help": settings.help,
            "mirror": self._mirror,
            "version": self._version,
        }


def choose(view: View, decisions: Sequence[Event]) -> tuple[Guidance, str | None]:
    """Return what the page shows for a view and the last decisions, newest first, and the person who is welcomed.

    A prompt comes first, because it has a time limit, then a new grant, even if the person already turns to the door. Else the
    nearest face counts.
    """
    for mark in view.marks:
        if mark.guidance in PROMPTS:
            return mark.guidance, None
    if decisions and decisions[0].grants and _is_new(decisions[0], view):
        return Guidance.GRANTED, decisions[0].label
    if not view.marks:
        return Guidance.LOOK, None
    nearest = view.marks[0]
    if nearest.guidance not in (Guidance.GRANTED, Guidance.AGAIN):
        return nearest.guidance, None
    event = next((event for event in decisions if event.visit == nearest.visit), None)
    if event is not None and not event.grants:
        return Guidance.DENIED, None
    if nearest.guidance is Guidance.AGAIN:
        return Guidance.AGAIN, None
    return (Guidance.WAIT, None) if event is None else (Guidance.GRANTED, event.label)


def _is_new(event: Event, view: View) -> bool:
    return event.monotonic is not None and abs(view.frame.captured - event.monotonic) <= WELCOME_SECONDS
