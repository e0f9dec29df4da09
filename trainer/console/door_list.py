"""Pages of a door list: the form with a week of hours per entry, the same as text, and a preview of what is saved."""

from dataclasses import dataclass
from datetime import date
from http import HTTPStatus
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response

from edge.errors import EdgeError
from edge.text import same_spelling
from trainer.console import door_form
from trainer.console.call import Call, Page
from trainer.console.door_form import Draft
from trainer.site import door_lists, doors, people
from trainer.site.door_lists import ChangedError, SavedList
from trainer.site.doors import Door

MAX_BYTES = 4 << 20  # a list of 1 MB, as a form is sent
SUGGESTIONS = 2000
SAVE, OVERWRITE, PREVIEW = "save", "overwrite", "preview"


@dataclass(frozen=True, kw_only=True)
class View:
    """What the page shows."""

    draft: Draft | None = None
    """The form. None: the list is edited as text."""
    text: str = ""
    before: str = ""
    """The version of the saved list from which the change is made."""
    preview: str | None = None
    """The text that would be saved."""
    problem: EdgeError | None = None
    theirs: SavedList | None = None
    """What another person saved meanwhile."""
    focus: str = ""
    is_changed: bool = True
    """Whether the page shows something that is not saved."""


def find(call: Call) -> Door:
    """Return the door of the path."""
    name = same_spelling(call.request.path_params["door"])
    found = next((door for door in doors.load(call.site) if door.name == name), None)
    if found is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, call.text("doors.no_such_door"))
    return found


def path_of(door: Door) -> str:
    return f"/doors/{quote(door.name, safe='')}"


def show(call: Call) -> Response:
    """The list as a form; with ?as=text, or if the form cannot show it, as text."""
    door = find(call)
    saved = door_lists.load(call.site, door.name)
    draft = None if saved.form is None or call.query("as") == "text" else door_form.from_form(saved.form)
    return _page(call, door, View(draft=draft, text=saved.text, before=saved.version, is_changed=False))


def _page(call: Call, door: Door, view: View) -> Response:
    saved = door_lists.load(call.site, door.name)
    people.sync(call.site, call.database)
    shown = saved.text if view.preview is None else view.preview
    is_valid = view.preview is not None or (bool(saved.text) and not saved.problem and not view.is_changed)
    return call.render(
        "door_list.html",
        status=HTTPStatus.OK if view.problem is None else HTTPStatus.BAD_REQUEST,
        door=door,
        path=path_of(door),
        view=view,
        saved=saved,
        names=people.names(call.database)[:SUGGESTIONS],
        doubts=door_lists.doubts(call.site, shown, date.today()) if is_valid else [],
        wrong=getattr(view.problem, "field", ""),
    )


def change(call: Call) -> Response:
    """Add or remove a row of the form, show what would be saved, or save it."""
    door, action = find(call), call.value("action")
    draft = door_form.from_fields(call.form)
    try:
        draft, focus = door_form.change(draft, action, call.text)
        if action not in (SAVE, OVERWRITE, PREVIEW):
            return _page(call, door, View(draft=draft, before=call.value("before"), focus=focus or "entries"))
        toml = door_lists.write_toml(door_form.to_form(draft, call.text))
        return _preview_or_save(call, door, toml, draft)
    except EdgeError as error:
        return _page(call, door, View(draft=draft, before=call.value("before"), problem=error))


def change_text(call: Call) -> Response:
    """The same for a list that is edited as text."""
    door, text = find(call), call.value("text").replace("\r\n", "\n")
    try:
        return _preview_or_save(call, door, text, None)
    except EdgeError as error:
        return _page(call, door, View(text=text, before=call.value("before"), problem=error))


def _preview_or_save(call: Call, door: Door, toml: str, draft: Draft | None) -> Response:
    """Save a valid list unless only a preview is asked for. If another person saved one meanwhile, show both."""
    action, before = call.value("action"), call.value("before")
    door_lists.check(toml)
    if action not in (SAVE, OVERWRITE):
        return _page(call, door, View(draft=draft, text=toml, before=before, preview=toml, focus="preview"))
    try:
        seen = call.value("theirs") if action == OVERWRITE else before
        door_lists.save(call.site, door.name, toml, call.session.user, before=seen)
    except ChangedError as error:
        theirs = door_lists.load(call.site, door.name)
        view = View(draft=draft, text=toml, before=before, preview=toml, problem=error, theirs=theirs)
        return _page(call, door, view)
    return call.redirect(f"{path_of(door)}/list", call.text("doors.list_saved"))


def remove(call: Call) -> Response:
    """Remove the list, if it is the one that the page showed."""
    door = find(call)
    door_lists.remove(call.site, door.name, call.session.user, before=call.value("before"))
    return call.redirect(f"{path_of(door)}/list", call.text("doors.list_removed"))


def download(call: Call) -> Response:
    """The file for the terminal."""
    saved = door_lists.load(call.site, find(call).name)
    if not saved.text:
        raise HTTPException(HTTPStatus.NOT_FOUND, call.text("doors.no_list"))
    door_lists.check(saved.text)
    headers = {"Content-Disposition": 'attachment; filename="list.toml"'}
    return Response(saved.text, media_type="application/toml", headers=headers)


PAGES = (
    Page("/doors/{door}/list", show),
    Page("/doors/{door}/list", change, "operator", "POST", MAX_BYTES),
    Page("/doors/{door}/list/text", change_text, "operator", "POST", MAX_BYTES),
    Page("/doors/{door}/list/remove", remove, "operator", "POST"),
    Page("/doors/{door}/list.toml", download),
)
