"""Pages of people: the grid, one person with photos and what is wrong with them, uploads, and changes."""

import logging
import re
import secrets
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from edge.camera.photo import PhotoError
from edge.enrol.storage import check_name
from edge.errors import EdgeError, UsageError
from edge.files import open_atomically, read_bytes
from edge.vision.quality import REASONS
from trainer.console import capture
from trainer.console.call import TEMPLATES, Call, Page
from trainer.data.gallery import NO_FACE
from trainer.site import alike, contents, jobs, people, person_export
from trainer.site.alike import Alike, find_alike
from trainer.site.folder import Site
from trainer.site.photo_index import checked, folder_of, near_duplicates, owner_of, photo_file, stored, stored_crop
from trainer.site.photos import MAX_PHOTO, SEVERAL_FACES, Box, CheckedPhoto, checker, view

MAX_UPLOAD = MAX_PHOTO + (64 << 10)
MAX_ZIP = 2 << 30
UPLOAD = ".upload"
"""First letters of an uploaded ZIP file in the site's folder, until its import ends."""
FACE_SIDE = 192
SUGGESTED = 500
"""Names that a field for a name suggests."""
CHUNK = 1 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A photo on the page of a person."""

    file: str
    photo: CheckedPhoto | None
    """None if it was not checked yet."""
    duplicates: tuple[str, ...] = ()
    alike: tuple[Alike, ...] = ()
    owner: tuple[str, str] | None = None
    """Person and file of the same photo under another name."""

    @property
    def faces(self) -> list[tuple[int, Box]]:
        """The faces from left to right, with their indices in the check."""
        return [] if self.photo is None else [(face, self.photo.faces[face]) for face in self.photo.from_left]

    @property
    def state(self) -> str:
        """One of "unchecked", "problem", "warning" and "good"."""
        if self.photo is None:
            return "unchecked"
        if self.photo.problem is not None or self.owner is not None:
            return "problem"
        return "warning" if self.photo.warnings or self.duplicates or self.alike else "good"


def show_all(call: Call) -> Response:
    """The grid of people, with search."""
    _warm_up(call.site)
    ignored = people.sync(call.site, call.database)
    only = call.query("only")
    if only not in people.ONLY:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such page.")
    found = people.search(call.database, call.query("q")[:200], call.number("page", 1), only=only)
    return call.render("people.html", found=found, q=call.query("q"), only=only, choices=list(people.ONLY), ignored=ignored)


@cache
def _warm_up(site: Site) -> None:
    """Load the detector, the network and all vectors, while the first page is looked at. Once in a process."""

    def load() -> None:
        try:
            alike.load(site)
            checker()
        except EdgeError as error:
            log.warning("%s", error)  # an upload will say it, too

    threading.Thread(target=load, name="people", daemon=True).start()


def open_new(call: Call) -> Response:
    """Go to the page of a person, who may be new."""
    return call.redirect(path_of(check_name(call.value("name").strip())))


def path_of(name: str, *more: str) -> str:
    """Return the path of a person's page, or of a page below it."""
    return "/".join(["/people", *(quote(part, safe="") for part in (name, *more))])


def show_one(call: Call) -> Response:
    """One person."""
    name, folder = _folder(call)
    people.sync_person(call.site, call.database, name)
    person = people.get(call.database, name)
    cards = _cards(call, name)
    holding = [one.path.name for one in (*contents.models(call.site), *contents.kits(call.site)) if name in one.labels]
    return call.render(
        "person.html",
        person=person or people.Person(name=name),
        is_new=not folder.is_dir() and person is None,
        cards=cards,
        counts={state: sum(card.state == state for card in cards) for state in ("problem", "warning", "good", "unchecked")},
        holding=holding,
        others=[other for other in people.names(call.database) if other != name][:SUGGESTED],
        **_words(call),
    )


def _folder(call: Call) -> tuple[str, Any]:
    folder = folder_of(call.site, call.request.path_params["name"])
    return folder.name, folder


def _cards(call: Call, name: str, file: str | None = None) -> list[Card]:
    """Return the cards of a person's photos, or of one of them."""
    known = stored(call.database, folder_of(call.site, name))
    photos = [photo for photo in known.values() if photo is not None]
    doubles = near_duplicates(photos)
    shown = [photo for photo in photos if file in (None, photo.file)]
    like = dict(zip((photo.file for photo in shown), find_alike(call.site, call.database, shown, name), strict=True))
    return [
        Card(
            file=own,
            photo=photo,
            duplicates=doubles.get(own, ()),
            alike=like.get(own, ()),
            owner=None if photo is None else owner_of(call.database, photo.digest, besides=name),
        )
        for own, photo in known.items()
        if file in (None, own)
    ]


def _words(call: Call) -> dict[str, Any]:
    """Functions for the templates of photos."""
    return {
        "path_of": path_of,
        "problem": lambda text: problem_text(call, text),
        "warning": lambda text: warning_text(call, text),
    }


def problem_text(call: Call, problem: str) -> str:
    """Return why a training leaves a photo out, in the person's language."""
    several = re.match(r"(\d+) faces", problem)
    if several is not None:
        return call.text("people.problem_several_faces", number=several[1])
    return call.text(f"people.problem_{_key(problem) if problem in (*REASONS, NO_FACE) else 'unreadable'}")


def warning_text(call: Call, warning: str) -> str:
    return call.text(f"people.warning_{'other_faces' if warning == SEVERAL_FACES else _key(warning)}")


def _key(text: str) -> str:
    return text.replace(" ", "_")


def card_html(call: Call, name: str, file: str) -> tuple[str, str]:
    """Return the state of a photo and its card."""
    (card,) = _cards(call, name, file)
    template = TEMPLATES.get_template("person_photo.html")
    html = template.render(t=call.text, session=call.session, name=name, card=card, **_words(call))
    return card.state, html


def show_card(call: Call) -> Response:
    """One photo of a person, checked now if necessary, for the page's script."""
    name, _ = _folder(call)
    path = photo_file(call.site, name, call.request.path_params["file"])
    checked(call.database, path, checker())
    state, html = card_html(call, name, path.name)
    return JSONResponse({"state": state, "html": html})


def upload(call: Call) -> Response:
    """Add photos to a person. A script sends one at a time and gets its card."""
    name, _ = _folder(call)
    uploads = _uploads(call, "photos")
    if call.wants_json:
        if len(uploads) != 1:
            raise UsageError("Send one photo at a time.")
        photo = people.add_photo(call.site, call.database, name, uploads[0].file.read(), who=call.session.user)
        state, html = card_html(call, name, photo.file)
        return JSONResponse({"file": photo.file, "state": state, "html": html})
    refused = []
    for sent in uploads:
        try:
            people.add_photo(call.site, call.database, name, sent.file.read(), who=call.session.user)
        except EdgeError as error:
            refused.append(f"{sent.filename}: {call.text.said(error.message)}")
    added = call.text("people.added", number=len(uploads) - len(refused))
    return call.redirect(path_of(name), " ".join([added, *refused]))


def _uploads(call: Call, field: str) -> list[UploadFile]:
    found = [sent for sent in call.form.getlist(field) if isinstance(sent, UploadFile) and sent.filename]
    if not found:
        raise UsageError(call.text("people.no_file"), call.text("people.no_file_hint"))
    return found


def upload_zip(call: Call) -> Response:
    """Import a ZIP of many people, as a job."""
    (sent, *_) = _uploads(call, "zip")
    path = call.site.path / f"{UPLOAD}-{secrets.token_hex(8)}.zip"  # a second upload does not change the file of the first
    with open_atomically(path) as file:
        while part := sent.file.read(CHUNK):
            file.write(part)
    add = ["--add"] if call.value("add") else []
    options = ["--delete-source", "--who", call.session.user, *add]
    try:
        number = jobs.start(call.site, "trainer", ["site", "import", *options, "--", str(call.site.path), str(path)])
    except EdgeError:
        path.unlink(missing_ok=True)
        raise
    return call.redirect(f"/jobs/{number}")


def crop(call: Call) -> Response:
    """The face of a photo, as a small JPEG."""
    path = photo_file(call.site, call.request.path_params["name"], call.request.path_params["file"])
    data = stored_crop(call.database, path)
    if data is None:
        data = checked(call.database, path, checker()).crop
    return _jpeg(data)


def whole(call: Call) -> Response:
    """A photo, as a JPEG of bounded size; with ?face=N, only this face."""
    path = photo_file(call.site, call.request.path_params["name"], call.request.path_params["file"])
    try:
        if not call.query("face"):
            return _jpeg(view(read_bytes(path)))
        boxes, face = checked(call.database, path, checker()).faces, call.number("face", -1)
        if not 0 <= face < len(boxes):
            raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such face.")
        return _jpeg(view(read_bytes(path), FACE_SIDE, boxes[face]))
    except PhotoError:
        return _jpeg(b"")


def _jpeg(data: bytes) -> Response:
    if not data:
        raise HTTPException(HTTPStatus.NOT_FOUND, "The photo cannot be shown.")
    return Response(data, media_type="image/jpeg")


def delete_photo(call: Call) -> Response:
    name, _ = _folder(call)
    people.delete_photo(call.site, call.database, name, call.request.path_params["file"], who=call.session.user)
    return call.redirect(path_of(name), call.text("people.photo_deleted"))


def move_photo(call: Call) -> Response:
    name, _ = _folder(call)
    to = check_name(call.value("to").strip())
    people.move_photo(call.site, call.database, name, call.request.path_params["file"], to, who=call.session.user)
    return call.redirect(path_of(name), call.text("people.photo_moved", name=to))


def choose_face(call: Call) -> Response:
    name, _ = _folder(call)
    face = call.value("face")
    if not (face.isascii() and face.isdigit()):
        raise UsageError("No face was chosen.")
    people.choose_face(call.site, call.database, name, call.request.path_params["file"], int(face[:3]), who=call.session.user)
    return call.redirect(path_of(name), call.text("people.face_chosen"))


def rename(call: Call) -> Response:
    name, _ = _folder(call)
    new = people.rename(call.site, call.database, name, call.value("new").strip(), who=call.session.user)
    return call.redirect(path_of(new), call.text("people.renamed", name=name))


def merge(call: Call) -> Response:
    name, _ = _folder(call)
    into = check_name(call.value("into").strip())
    moved = people.merge(call.site, call.database, name, into, who=call.session.user)
    return call.redirect(path_of(into), call.text("people.merged", number=moved, name=name))


def consent(call: Call) -> Response:
    name, _ = _folder(call)
    people.set_consent(call.site, call.database, name, call.value("date"), call.value("note"), who=call.session.user)
    return call.redirect(path_of(name), call.text("people.saved"))


def delete(call: Call) -> Response:
    """Delete a person, as a job."""
    name, _ = _folder(call)
    older = ["--delete-older"] if call.value("older") else []
    options = ["--who", call.session.user, *older]
    number = jobs.start(call.site, "trainer", ["site", "forget", *options, "--", str(call.site.path), name])
    return call.redirect(f"/jobs/{number}")


def export(call: Call) -> Response:
    """All that is held about a person, as a ZIP."""
    name, _ = _folder(call)
    file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it was sent)
    try:
        who, key = call.session.user, call.picture_key
        person_export.export_person(call.site, call.database, name, file, who=who, picture_key=key)
    except BaseException:
        file.close()
        raise
    headers = {"Content-Disposition": f"attachment; filename=\"person.zip\"; filename*=UTF-8''{quote(name, safe='')}.zip"}
    return StreamingResponse(
        _parts(file), media_type="application/zip", headers=headers, background=BackgroundTask(file.close)
    )


def _parts(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while part := file.read(CHUNK):
        yield part


PAGES = (
    Page("/people", show_all),
    Page("/people", open_new, "operator", "POST"),
    Page("/people-import", upload_zip, "operator", "POST", MAX_ZIP),
    *capture.PAGES,
    Page("/people/{name}", show_one),
    Page("/people/{name}/photos", upload, "operator", "POST", MAX_UPLOAD),
    Page("/people/{name}/photos/{file}/card", show_card),
    Page("/people/{name}/photos/{file}/crop.jpg", crop),
    Page("/people/{name}/photos/{file}/photo.jpg", whole),
    Page("/people/{name}/photos/{file}/delete", delete_photo, "operator", "POST"),
    Page("/people/{name}/photos/{file}/move", move_photo, "operator", "POST"),
    Page("/people/{name}/photos/{file}/face", choose_face, "operator", "POST"),
    Page("/people/{name}/rename", rename, "operator", "POST"),
    Page("/people/{name}/merge", merge, "operator", "POST"),
    Page("/people/{name}/consent", consent, "operator", "POST"),
    Page("/people/{name}/delete", delete, "operator", "POST"),
    Page("/people/{name}/export", export, "operator", "POST"),
)
