"""Take photos of a person with the browser's camera, guided like `edge capture`.

The page sends frames, and the server says what to do. A session is in the memory of the console only. Its photos are written
when it ends, all or none.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, Response

from edge.camera.base import Frame
from edge.camera.photo import PhotoError, decode_bytes, measure, to_8_bit
from edge.enrol.session import ADVICE, MIN_PHOTOS, CaptureSession, Identify
from edge.errors import AlreadyEnrolledError, UsageError
from edge.vision.detect import Face
from trainer.console.call import Call, Page
from trainer.site import people
from trainer.site.alike import label_of
from trainer.site.photo_index import folder_of, stored
from trainer.site.photos import Checker, checker

MAX_SESSIONS = 8
IDLE_SECONDS, MAX_SECONDS = 60.0, 600.0
MAX_FRAME, MAX_PIXELS = 2 << 20, 4_000_000


@dataclass(kw_only=True, eq=False)
class _Running:
    """A capture session and who uses it."""

    session: CaptureSession
    owner: str
    allow_alike: bool
    began: float
    used: float
    frames: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """The capture sessions of this process: few, and each for a short time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()

    def begin(self, session: CaptureSession, owner: str, *, allow_alike: bool) -> str:
        """Start a session and return its token. An earlier one of the same owner ends."""
        now, token = self.clock(), secrets.token_urlsafe(16)
        session.begin(now, guided=True)
        with self._lock:
            self._running = {
                key: one
                for key, one in self._running.items()
                if one.owner != owner and now - one.used < IDLE_SECONDS and now - one.began < MAX_SECONDS
            }
            if len(self._running) >= MAX_SESSIONS:
                raise UsageError("Too many people take photos at the same time.", "Try again in a minute.")
            self._running[token] = _Running(session=session, owner=owner, allow_alike=allow_alike, began=now, used=now)
        return token

    def get(self, token: str, owner: str, name: str) -> _Running:
        """Return a session. UsageError if it ended, or belongs to another person or owner."""
        now = self.clock()
        with self._lock:
            one = self._running.get(token)
            if one is None or one.owner != owner or one.session.name != name or now - one.began > MAX_SECONDS:
                raise UsageError("This session has ended.", "Start again.")
            one.used = now
            return one

    def end(self, token: str) -> None:
        with self._lock:
            self._running.pop(token, None)


SESSIONS = Sessions()


def show(call: Call) -> Response:
    """The page with the camera."""
    name = folder_of(call.site, call.request.path_params["name"]).name
    return call.render("capture.html", name=name)


def begin(call: Call) -> Response:
    """Start a session."""
    folder = folder_of(call.site, call.request.path_params["name"])
    photos = [photo for photo in stored(call.database, folder).values() if photo is not None]
    session = CaptureSession(
        detector=checker().detector,
        name=folder.name,
        own_photos=[photo.likeness for photo in photos if photo.likeness is not None],
    )
    token = SESSIONS.begin(session, call.session.csrf, allow_alike=bool(call.value("alike")))
    return JSONResponse({"token": token, **_state(call, session)})


def frame(call: Call) -> Response:
    """Judge a frame. The answer says what to do next."""
    name, token = folder_of(call.site, call.request.path_params["name"]).name, call.value("token")
    running = SESSIONS.get(token, call.session.csrf, name)
    sent = call.form.get("frame")
    if not isinstance(sent, UploadFile):
        raise UsageError("There is no frame.")
    with running.lock:
        session = running.session
        if session.done:
            raise UsageError("This session has ended.", "Start again.")
        image = _decoded(sent.file.read())
        running.frames += 1
        session.identify = None if running.allow_alike else _identify(call, name, checker())
        try:
            session.process(Frame(image=image, captured=SESSIONS.clock(), number=running.frames))
        except AlreadyEnrolledError:
            SESSIONS.end(token)
            return JSONResponse(_alike(call, session))
        return _answer(call, session, token)


def _answer(call: Call, session: CaptureSession, token: str) -> Response:
    if not session.done:
        return JSONResponse(_state(call, session))
    SESSIONS.end(token)
    return _finish(call, session)


def _decoded(data: bytes) -> NDArray[np.uint8]:
    if len(data) > MAX_FRAME or measure(data)[0] > MAX_PIXELS:
        raise UsageError("The frame is too large.")
    try:
        return to_8_bit(decode_bytes(data, colour=True))
    except PhotoError as error:
        raise UsageError(f"The frame cannot be used: {error}.") from None


def _identify(call: Call, name: str, using: Checker) -> Identify | None:
    """Return a function that finds the other person that a face looks like; None without a network."""
    if using.network is None:
        return None

    def identify(image: NDArray[np.uint8], face: Face) -> str | None:
        vector = using.vector(image, face)
        return None if vector is None else label_of(call.site, call.database, vector, name)

    return identify


def _state(call: Call, session: CaptureSession) -> dict[str, object]:
    """What the person should do now."""
    request = call.text(f"people.pose_{session.pose.name}")
    advice = ""
    if session.advised:
        known = session.advised in ADVICE
        advice = call.text(f"people.advice_{session.advised.replace(' ', '_')}") if known else request
    number = call.text("people.capture_number", number=session.requested, total=session.wanted)
    return {"request": request, "advice": advice, "number": number, "taken": len(session.photos), "wanted": session.wanted}


def _alike(call: Call, session: CaptureSession) -> dict[str, object]:
    ((label, _), *_) = session.alike.most_common(1)
    person = people.get(call.database, label)
    path = f"/people/{quote(label, safe='')}"
    cover = None if person is None or person.cover is None else f"{path}/photos/{quote(person.cover, safe='')}/crop.jpg"
    return {"alike": call.text("people.capture_alike", name=label), "name": label, "page": path, "picture": cover}


def _finish(call: Call, session: CaptureSession) -> Response:
    if len(session.photos) < MIN_PHOTOS:
        reason = next((reason for reason, _ in session.rejected.most_common() if reason in ADVICE), "no face")
        raise UsageError(
            call.text("people.capture_few", number=len(session.photos), least=MIN_PHOTOS),
            call.text(f"people.advice_{reason.replace(' ', '_')}"),
        )
    images = [photo.image for photo in session.photos]
    people.add_captured(call.site, call.database, session.name, images, who=call.session.user, when=datetime.now())
    notice = call.text("people.added", number=len(images))
    return call.redirect(f"/people/{quote(session.name, safe='')}", notice)


PAGES = (
    Page("/people/{name}/capture", show, "operator"),
    Page("/people/{name}/capture/begin", begin, "operator", "POST"),
    Page("/people/{name}/capture/frame", frame, "operator", "POST", MAX_FRAME + (64 << 10)),
)
