"""Pages of visits: search, one visit with its picture, the second look at it, imports, and how long visits are kept.

A sealed picture is opened for operators only, and only if the console was started with the private key. Viewers see the facts
of visits and that there is a picture: a frame can show people who only walked past the door.
"""

import base64
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from edge.errors import EdgeError, UsageError
from edge.text import printable
from trainer.console import people as people_pages
from trainer.console import visit_events
from trainer.console.call import Call, Page
from trainer.console.people import SUGGESTED
from trainer.console.text import ENGLISH, Language, language
from trainer.console.train import number
from trainer.site import doors, people, pictures, visit_import, visit_retention, visits
from trainer.site.folder import Site
from trainer.site.photos import VIEW_SIDE, CheckedPhoto, check, checker
from trainer.site.users import Role
from trainer.site.visits import OUTCOMES, Search, Visit

ROLE: Role = "operator"
"""Who may see opened pictures and judge visits."""
SMALL_SIDE = 160  # pixels of a picture in the list
UPLOAD = ".visits-"
"""First letters of the folder with an uploaded file in the site's folder, until its import ends."""
CHUNK = 1 << 20
MAX_UPLOAD = visit_import.MAX_FILE + (64 << 10)
FACTS = (
    "margin", "frames", "looks", "visit", "seconds_from_first_sight", "seconds_from_capture", "camera", "kit", "sequence",
    "event_id", "head",
)  # fmt: skip
"""Fields of an event that the page of a visit lists, beside those that it shows anyway."""
STRANGER, IS = "stranger", "is"
"""Values of the form's field `verdict`."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The picture of a visit, as a page shows it."""

    state: str
    """none, sealed, failed or open."""
    problem: str = ""
    """If it failed: why, and what to do."""
    frame: CheckedPhoto | None = None
    """If it is open: its size and faces."""


def show_all(call: Call) -> Response:
    """Search the visits of all doors."""
    visit_retention.prune_in_passing(call.database, datetime.now(UTC))
    fields, wanted = _search(call)
    found = visits.search(call.database, wanted, older_than=call.query("older"), newer_than=call.query("newer"))
    total = visits.count(call.database, wanted)
    own_doors, doors_problem = _doors(call.site)
    return call.render(
        "visits.html",
        found=found,
        total=f"{visits.COUNTED}+" if total > visits.COUNTED else total,
        fields=fields,
        known_doors=sorted({*visits.doors(call.database), *([wanted.door] if wanted.door else [])}),
        own_doors=own_doors,
        doors_problem=doors_problem,
        outcomes=OUTCOMES,
        names=_names(call),
        days=visit_retention.keep_days(call.database),
        max_days=visit_retention.MAX_DAYS,
        **_helpers(call),
    )


def _search(call: Call) -> tuple[dict[str, str], Search]:
    """Return the fields of the search form that are filled in, and the search."""
    names = ("person", "unknown", "door", "outcome", "from", "from_time", "until", "until_time")
    fields = {name: value for name in names if (value := call.query(name)[: visits.MAX_TEXT])}
    if fields.get("outcome", OUTCOMES[0]) not in OUTCOMES:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such outcome.")
    return fields, Search(
        person=fields.get("person", ""),
        unknown="unknown" in fields,
        door=fields.get("door", ""),
        outcome=fields.get("outcome", ""),
        since=visits.utc_bound(_moment(call, fields, "from")),
        until=visits.utc_bound(_moment(call, fields, "until"), is_end=True),
    )


def _moment(call: Call, fields: Mapping[str, str], name: str) -> str:
    """Return the day of a field with the time of day beside it, if there is one."""
    day, time = fields.get(name, ""), fields.get(f"{name}_time", "")
    if time and not day:
        raise UsageError(call.text("visits.no_day"), call.text("visits.no_day_hint"))
    return f"{day} {time}".strip()


def _names(call: Call) -> list[str]:
    """Return names of people for suggestions: not all of thousands, because each page has them."""
    return people.names(call.database)[:SUGGESTED]


def _doors(site: Site) -> tuple[list[str], str]:
    """Return the names of the site's doors, or why they cannot be read: the visits are shown all the same."""
    try:
        return [door.name for door in doors.load(site)], ""
    except EdgeError as error:
        return [], str(error)


def _helpers(call: Call) -> dict[str, Any]:
    """Return what the templates of visits call."""
    return {
        "sees_pictures": call.session.may(ROLE) and call.picture_key is not None,
        "time": lambda visit: f"{visit.local:%Y-%m-%d %H:%M:%S}",
        "who": lambda visit: who_text(call.text, visit),
        "reason": lambda visit: reason_text(call.text, visit.reason),
        "confidence": lambda visit: confidence_text(call.text, visit),
        "width": lambda share: round(100 * min(max(share, 0.0), 1.0), 1),
        "path_of": people_pages.path_of,
    }


def who_text(text: Language, visit: Visit) -> str:
    """Return the name of the person that the terminal recognised, or what stands for it."""
    if visit.label:
        return printable(visit.label)
    return text("visits.unknown_person" if visit.is_unknown else "visits.no_name")


def reason_text(text: Language, reason: str | None) -> str:
    """Return the reason of a decision in plain words. A reason that has no message keeps its own words."""
    kind, _, detail = (reason or "").partition(": ")
    key, more = f"visits.reason_{_key(kind)}", f"visits.detail_{_key(detail)}"
    known = language(ENGLISH).messages
    if key not in known or (detail and more not in known):
        return printable(reason or "")
    return f"{text(key)}: {text(more)}" if detail else text(key)


def _key(words: str) -> str:
    return re.sub("[^a-z0-9]+", "_", words.lower())


def confidence_text(text: Language, visit: Visit) -> str:
    """Return the confidence and the threshold in words; empty if the visit has none."""
    if visit.confidence is None or visit.threshold is None:
        return ""
    return text("visits.needs", confidence=number(text, visit.confidence, 2), threshold=number(text, visit.threshold, 2))


def import_file(call: Call) -> Response:
    """Import the audit log of a terminal, or events as JSON lines."""
    sent = call.form.get("file")
    if not isinstance(sent, UploadFile) or not sent.filename:
        raise UsageError(call.text("visits.no_file"), call.text("visits.no_file_hint"))
    with tempfile.TemporaryDirectory(dir=call.site.path, prefix=UPLOAD) as folder:  # SQLite puts own files beside the log
        path = Path(folder) / "upload"
        with open(path, "wb") as file:
            shutil.copyfileobj(sent.file, file, CHUNK)
        found = visit_import.import_file(
            call.site, call.value("door"), path, who=call.session.user, now=datetime.now(UTC), name=sent.filename
        )
    notice = call.text("visits.imported", new=found.new, completed=found.completed, known=found.known)
    if found.unreadable:
        notice += " " + call.text("visits.imported_unreadable", number=found.unreadable)
    if found.deleted:
        notice += " " + call.text("visits.imported_old", number=found.deleted)
    return call.redirect("/visits", notice)


def keep(call: Call) -> Response:
    """Set how long visits are kept."""
    days = _days(call)
    deleted = visit_retention.set_keep_days(call.database, days, who=call.session.user, now=datetime.now(UTC))
    kept = call.text("visits.kept_days", days=days) if days else call.text("visits.kept_always")
    return call.redirect("/visits", f"{kept} {call.text('visits.deleted', number=deleted)}")


def prune(call: Call) -> Response:
    """Delete older visits now."""
    deleted = visit_retention.prune(call.database, _days(call), who=call.session.user, now=datetime.now(UTC))
    return call.redirect("/visits", call.text("visits.deleted", number=deleted))


def _days(call: Call) -> int:
    return _number(call.value("days"))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise UsageError(f"{text[:20]!r} is not a number.", "Write digits only.")
    return int(text)


def show_one(call: Call) -> Response:
    """All facts of a visit, and its picture."""
    visit = _visit(call)
    event = visits.event_of(call.database, visit.id)
    opened = _opened(call, visit)
    return call.render(
        "visit.html",
        visit=visit,
        facts=[(name, _fact(call.text, event[name])) for name in FACTS if event.get(name) not in (None, "")],
        event=json.dumps(event, indent=2, ensure_ascii=False),
        opened=opened,
        compare=[(name, pictures.photos_of(call.site, name)) for name in _compared(visit, opened)],
        names=_names(call),
        verdicts=(STRANGER, IS),
        **_helpers(call),
    )


def _visit(call: Call) -> Visit:
    found = visits.find(call.database, int(call.request.path_params["number"]))
    if found is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such visit. It may be deleted because of its age.")
    return found


def _fact(text: Language, value: Any) -> str:
    return number(text, value, 2) if isinstance(value, float) else printable(str(value))


def _opened(call: Call, visit: Visit) -> Opened:
    if not visit.has_picture:
        return Opened(state="none")
    if not call.session.may(ROLE) or call.picture_key is None:
        return Opened(state="sealed")
    try:
        frame = check(pictures.open_picture(call.database, visit.id, call.picture_key), checker())
    except EdgeError as error:
        return Opened(state="failed", problem=str(error))
    return Opened(state="open", frame=frame)


def _compared(visit: Visit, opened: Opened) -> list[str]:
    """Return the people whose photos are shown beside an opened picture."""
    names = [visit.label, visit.verdict_name] if opened.state == "open" else []
    return list(dict.fromkeys(name for name in names if name))


def show_picture(call: Call) -> Response:
    """The opened picture, as a JPEG of bounded size; with ?small=1, for a list."""
    visit = _visit(call)
    try:
        picture = pictures.open_picture(call.database, visit.id, call.picture_key)
        data = pictures.shown(picture, SMALL_SIDE if call.query("small") else VIEW_SIDE)
    except EdgeError as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from None
    return Response(data, media_type="image/jpeg")


def look(call: Call) -> Response:
    """The first step of a verdict: the face as it would be saved, its checks, and who it looks like."""
    verdict = _verdict(call, call.request.query_params)
    found = pictures.look(call.site, call.database, _visit(call).id, call.picture_key, **verdict)
    return call.render(
        "visit_judge.html",
        found=found,
        visit=found.visit,
        name=found.name,
        verdict=IS if found.name else STRANGER,
        photo=base64.b64encode(found.photo).decode(),
        warnings=[people_pages.warning_text(call, warning) for warning in found.check.warnings],
        compare=[(name, pictures.photos_of(call.site, name)) for name in [found.name or found.visit.label] if name],
        **_helpers(call),
    )


def _verdict(call: Call, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return name and face that a form asks for. A missing name never means a stranger."""
    verdict, name, face = (str(fields.get(field, "")).strip() for field in ("verdict", "name", "face"))
    if verdict not in (STRANGER, IS) or (verdict == IS and not name):
        raise UsageError(call.text("visits.no_verdict"), call.text("visits.no_verdict_hint"))
    return {"name": name if verdict == IS else "", "face": _number(face) if face else None}


def judge(call: Call) -> Response:
    """The second step: save the face that was shown."""
    visit, verdict = _visit(call), _verdict(call, call.form)
    pictures.judge(
        call.site, call.database, visit.id, call.picture_key, who=call.session.user, seen=call.value("seen"), **verdict
    )
    name = verdict["name"]
    saved = call.text("visits.saved_person", name=name) if name else call.text("visits.saved_stranger")
    return call.redirect(f"/visits/{visit.id}", saved)


def undo(call: Call) -> Response:
    """Take a verdict back."""
    visit = _visit(call)
    removed = pictures.undo(call.site, call.database, visit.id, who=call.session.user)
    return call.redirect(f"/visits/{visit.id}", call.text("visits.undone" if removed else "visits.undone_moved"))


PAGES = (
    Page("/visits", show_all),
    Page("/visits/import", import_file, ROLE, "POST", MAX_UPLOAD),
    Page("/visits/keep", keep, "administrator", "POST"),
    Page("/visits/prune", prune, "administrator", "POST"),
    Page("/visits/{number:int}", show_one),
    Page("/visits/{number:int}/picture.jpg", show_picture, ROLE),
    Page("/visits/{number:int}/judge", look, ROLE),
    Page("/visits/{number:int}/judge", judge, ROLE, "POST"),
    Page("/visits/{number:int}/undo", undo, ROLE, "POST"),
)


def open_routes(site: Site) -> list[Route]:
    """The paths that need no session: the receiver of signed events."""
    return visit_events.open_routes(site)
