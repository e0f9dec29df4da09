"""The live status of doors, from the preview of each terminal (health.json and events.json).

A terminal is another machine: its answers are bounded in time and size, and only values of the expected type are used.
"""

import hashlib
import http.client
import json
import logging
import math
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from edge.errors import UsageError
from edge.kit.format import kit_id
from edge.sinks.timed_connection import timed_connection
from edge.text import printable
from trainer.site import doors
from trainer.site.doors import Door
from trainer.site.folder import Site, utc_now

DOOR_SECONDS = 2.0
"""Time of a terminal to answer one request."""
ROUND_SECONDS = 3.0
IDLE_SECONDS = 30.0
"""If no page shows them for so long, the doors are not asked any more."""
WORKERS = 64
MAX_BYTES = 1 << 18
MAX_TEXT, MAX_FAILING = 200, 20
MAX_NUMBER = 1e6

log = logging.getLogger(__name__)
State = Literal["no address", "waiting", "online", "offline"]


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is known about a door. None and "": not known."""

    door: str
    state: State
    problem: str = ""
    """Why the door is offline, or what is wrong with its camera."""
    asked: str = ""
    """UTC of the last answer, or of the last attempt."""
    kit: str = ""
    """Id of the kit: the first digits of its SHA-256."""
    kit_name: str = ""
    """Name of the site's kit with that id."""
    camera: Literal["", "up", "frozen", "lost"] = ""
    frames_per_second: float | None = None
    temperature_celsius: float | None = None
    failing: tuple[str, ...] = ()
    """Parts of the terminal that do not work."""
    decided: str = ""
    """UTC of the last decision."""
    outcome: str = ""
    label: str = ""
    reason: str = ""


class AnswerError(Exception):
    """A terminal did not answer as expected. Its text is for people."""


def ask(door: Door, *, seconds: float = DOOR_SECONDS) -> Status:
    """Ask a terminal for its status. It takes at most twice `seconds`, and the time to look up a name."""
    if not door.status_url:
        return Status(door=door.name, state="no address")
    try:
        health = _get(f"{door.status_url}/health.json", seconds)
        events = _get(f"{door.status_url}/events.json", seconds).get("events")
    except AnswerError as error:
        return Status(door=door.name, state="offline", problem=str(error), asked=utc_now())
    status = _from_health(door, health)
    for event in events if isinstance(events, list) else ():  # newest first
        if isinstance(event, dict) and event.get("kind") == "decision":
            outcome, label, reason = (_text(event.get(name)) for name in ("outcome", "label", "reason"))
            return replace(status, decided=_time(event.get("utc")), outcome=outcome, label=label, reason=reason)
    return status


def ask_all(found: Sequence[Door], answer: Callable[[Status], None] = lambda _: None) -> list[Status]:
    """Ask many terminals at the same time. `answer` is called with each status as soon as it is known."""

    def ask_one(door: Door) -> Status:
        status = ask(door)
        answer(status)
        return status

    with ThreadPoolExecutor(min(WORKERS, max(1, len(found))), thread_name_prefix="door status") as pool:
        return list(pool.map(ask_one, found))


class Watch:
    """Asks the doors of a site in a background thread while a page shows them, and keeps the last answers."""

    def __init__(self, site: Site, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._site, self._clock = site, clock
        self._known: dict[tuple[str, str], Status] = {}  # by name and address; replaced and read without a lock
        self._looked = -math.inf
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def statuses(self) -> list[Status]:
        """Return the last known status of each door, at once. The doors are asked from now on."""
        self._looked = self._clock()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="door status", daemon=True)
                self._thread.start()
        return [self._known.get(_key(door)) or _unknown(door) for door in doors.load(self._site)]

    def _run(self) -> None:
        while self._clock() - self._looked < IDLE_SECONDS:
            begun = self._clock()
            try:
                self.ask_once()
            except UsageError as error:  # the page shows the same
                log.warning("the doors cannot be asked: %s", error)
            time.sleep(max(0.0, ROUND_SECONDS - (self._clock() - begun)))

    def ask_once(self) -> None:
        """Ask all doors."""
        found = doors.load(self._site)
        keys = {door.name: _key(door) for door in found}

        def keep(status: Status) -> None:
            self._known[keys[status.door]] = status

        ask_all(found, keep)
        self._known = {key: self._known[key] for key in keys.values()}


@cache
def watch(path: Path) -> Watch:
    """Return the watch of a site, the same for all browsers."""
    return Watch(Site(path))


def overview(site: Site, database: sqlite3.Connection, found: Iterable[Status]) -> list[Status]:
    """Add what the site knows: the name of each kit, and the last visit at doors that did not report one."""
    names = _kit_names(site)
    return [replace(_with_visit(database, status), kit_name=names.get(status.kit, "")) for status in found]


def _with_visit(database: sqlite3.Connection, status: Status) -> Status:
    if status.decided:
        return status
    row = database.execute(
        "SELECT utc, outcome, label, reason FROM visits WHERE door = ? ORDER BY utc DESC LIMIT 1", (status.door,)
    ).fetchone()
    if row is None:
        return status
    return replace(status, decided=row["utc"], outcome=row["outcome"], label=row["label"] or "", reason=row["reason"] or "")


def _kit_names(site: Site) -> dict[str, str]:
    """Return the name of each kit of the site by its id."""
    files = [(file, file.stat()) for file in site.kits.glob("*.kit")]
    return {_id_of(file, found.st_mtime_ns, found.st_size): file.stem for file, found in files}


@lru_cache(maxsize=256)
def _id_of(file: Path, _mtime_ns: int, _size: int) -> str:
    """Return the id of a kit. It is computed again if the file changes."""
    with file.open("rb") as opened:
        return kit_id(hashlib.file_digest(opened, "sha256").hexdigest())


def _key(door: Door) -> tuple[str, str]:
    return door.name, door.status_url


def _unknown(door: Door) -> Status:
    return Status(door=door.name, state="waiting" if door.status_url else "no address")


def _get(url: str, seconds: float) -> dict[str, Any]:
    """Return the JSON object at an address. Redirections are not followed."""
    parts = urlsplit(url)
    tls = _tls() if parts.scheme == "https" else None
    try:
        with closing(timed_connection(parts, tls, seconds, time.monotonic)) as connection:
            connection.request("GET", parts.path, headers={"User-Agent": "lclrr-edge", "Accept": "application/json"})
            response = connection.getresponse()
            data = response.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
        raise AnswerError(f"The terminal does not answer ({printable(why or type(error).__name__)}).") from None
    if response.status == HTTPStatus.FORBIDDEN:
        raise AnswerError("The terminal refuses this name. Use its numeric address.")
    if response.status != HTTPStatus.OK or len(data) > MAX_BYTES:
        raise AnswerError(f"This is not the preview of a terminal (answer {response.status}, {len(data)} bytes).")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise AnswerError("This is not the preview of a terminal (no JSON object).")
    return found


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _from_health(door: Door, health: Mapping[str, Any]) -> Status:
    failing = health.get("failing")
    camera: Literal["up", "frozen", "lost"] = "up" if health.get("camera_up") is True else "lost"
    if health.get("camera_frozen") is True:
        camera = "frozen"
    return Status(
        door=door.name,
        state="online",
        problem=_text(health.get("error")),
        asked=utc_now(),
        kit=_text(health.get("kit")),
        camera=camera,
        frames_per_second=_number(health.get("fps")),
        temperature_celsius=_number(health.get("temperature_celsius")),
        failing=tuple(filter(None, map(_text, failing[:MAX_FAILING]))) if isinstance(failing, list) else (),
    )


def _text(value: Any) -> str:
    return printable(value)[:MAX_TEXT] if isinstance(value, str) else ""


def _time(value: Any) -> str:
    """Return a UTC time as it is, if it is one."""
    try:
        return value if isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None else ""
    except ValueError:
        return ""


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    return round(float(value), 1) if is_number else None
