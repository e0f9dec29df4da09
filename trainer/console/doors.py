"""Pages of doors: the live status of all, and of each its settings, its webhook and its door list."""

from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from edge.addresses import is_loopback
from edge.credentials import read_secret
from edge.errors import EdgeError
from trainer.console import door_list
from trainer.console.call import Call, Page
from trainer.console.door_list import find, path_of
from trainer.console.text import Language
from trainer.console.train import local_time, number
from trainer.console.visits import reason_text
from trainer.site import door_status, doors, fleet
from trainer.site.door_status import Status
from trainer.site.doors import Door

UNKNOWN = "-"


@dataclass(frozen=True, kw_only=True)
class Typed:
    """The fields of a door as a person typed them."""

    name: str = ""
    status_url: str = ""
    drop: str = ""

    @classmethod
    def of(cls, call: Call) -> "Typed":
        return cls(**{field: call.value(field).strip() for field in ("name", "status_url", "drop")})

    def door(self) -> Door:
        return Door(name=self.name, status_url=self.status_url, drop=Path(self.drop) if self.drop else None)


def show(call: Call) -> Response:
    """All doors, with their live status; as JSON for the page's script."""
    return _answer(call) if call.wants_json else _all(call)


def _all(call: Call, typed: Typed | None = None, problem: EdgeError | None = None) -> Response:
    facts, status = _facts(call), HTTPStatus.OK if problem is None else HTTPStatus.BAD_REQUEST
    values = {
        "facts": facts,
        "summary": _summary(call.text, facts),
        "typed": typed or Typed(),
        "has_fleet": fleet.exists(call.site),
    }
    return call.render("doors.html", status=status, problem=problem, **values)


def _answer(call: Call, only: str = "") -> Response:
    facts = _facts(call, only)
    return JSONResponse({"doors": facts, "summary": _summary(call.text, facts)})


def _facts(call: Call, only: str = "") -> list[dict[str, str]]:
    """Return what the page shows of each door, or of one, in words."""
    known = door_status.watch(call.site.path).statuses()
    shown = [status for status in known if not only or status.door == only]
    if only and not shown:  # another person removed it just now
        raise HTTPException(HTTPStatus.NOT_FOUND, call.text("doors.no_such_door"))
    return [_words(call.text, status) for status in door_status.overview(call.site, call.database, shown)]


def _words(text: Language, status: Status) -> dict[str, str]:
    measured = {
        "temperature": (status.temperature_celsius, "doors.celsius"),
        "frames": (status.frames_per_second, "doors.per_second"),
    }
    return {
        "door": status.door,
        "state": status.state.replace(" ", "_"),
        "state_text": text(f"doors.state_{status.state.replace(' ', '_')}"),
        "asked": local_time(status.asked) if status.asked else UNKNOWN,
        "camera": status.camera,
        "camera_text": text(f"doors.camera_{status.camera}") if status.camera else UNKNOWN,
        "decision": _decision(text, status),
        "kit": status.kit_name or (text("doors.foreign_kit", kit=status.kit) if status.kit else UNKNOWN),
        "problems": " · ".join(map(text.said, filter(None, (status.problem, *status.failing)))) or UNKNOWN,
        "failing": "yes" if status.problem or status.failing else "",
    } | {
        name: UNKNOWN if value is None else text(key, number=number(text, value, 1)) for name, (value, key) in measured.items()
    }


def _decision(text: Language, status: Status) -> str:
    """Return the last decision in words."""
    if not status.decided:
        return UNKNOWN
    known = ("granted", "denied", "expired")
    outcome = text(f"visits.outcome_{status.outcome}") if status.outcome in known else status.outcome
    details = status.label or ("" if status.outcome == "granted" else reason_text(text, status.reason))
    return " · ".join(filter(None, (outcome, details, local_time(status.decided))))


def _summary(text: Language, facts: list[dict[str, str]]) -> str:
    """Return how many doors are in each state."""
    counts = {state: sum(fact["state"] == state for fact in facts) for state in ("online", "offline", "waiting", "no_address")}
    return " · ".join(f"{text(f'doors.state_{state}')}: {count}" for state, count in counts.items() if count)


def add(call: Call) -> Response:
    """Add a door, and show its page."""
    typed = Typed.of(call)
    try:
        door = typed.door()
        doors.add(call.site, door, call.session.user)
    except EdgeError as error:
        return _all(call, typed, error)
    return call.redirect(path_of(door), call.text("doors.added", name=door.name))


def show_one(call: Call) -> Response:
    """One door."""
    door = find(call)
    return _answer(call, door.name) if call.wants_json else _one(call, door)


def _one(
    call: Call, door: Door, *, typed: Typed | None = None, problem: EdgeError | None = None, secret: str = ""
) -> Response:
    url = doors.events_url(f"{call.request.url.scheme}://{call.request.headers['host']}", door.name)
    stored = Typed(name=door.name, status_url=door.status_url, drop=str(door.drop or ""))
    values: dict[str, Any] = {
        "fact": _facts(call, door.name)[0],
        "typed": typed or stored,
        "url": url,
        "is_near": is_loopback(urlsplit(url).hostname or ""),
        "lines": doors.webhook_settings(url),
        "secret": secret,
        "has_list": doors.list_file(call.site, door).exists(),
    }
    status = HTTPStatus.OK if problem is None else HTTPStatus.BAD_REQUEST
    return call.render("door.html", status=status, door=door, problem=problem, **values)


def change(call: Call) -> Response:
    """Change the name, the address or the place for kits."""
    door, typed = find(call), Typed.of(call)
    try:
        new = typed.door()
        doors.change(call.site, door.name, new, call.session.user)
    except EdgeError as error:
        return _one(call, door, typed=typed, problem=error)
    renamed = call.text("doors.renamed", name=new.name)
    return call.redirect(path_of(new), call.text("doors.saved") if new.name == door.name else renamed)


def remove(call: Call) -> Response:
    door = find(call)
    doors.remove(call.site, door.name, call.session.user)
    return call.redirect("/doors", call.text("doors.removed", name=door.name))


def make_secret(call: Call) -> Response:
    """Make a new secret, and show it this once."""
    file = doors.make_secret(call.site, find(call).name, call.session.user)
    return _one(call, find(call), secret=read_secret("webhook", file, None) or "")


PAGES = (
    Page("/doors", show),
    Page("/doors", add, "operator", "POST"),
    Page("/doors/{door}", show_one),
    Page("/doors/{door}/change", change, "operator", "POST"),
    Page("/doors/{door}/remove", remove, "operator", "POST"),
    Page("/doors/{door}/secret", make_secret, "operator", "POST"),
    *door_list.PAGES,
)
