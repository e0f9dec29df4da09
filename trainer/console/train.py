"""Pages of training: one button, the result of a model, what to do about suspected photos, and the history of models."""

import os
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, get_args
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from edge.errors import UsageError
from trainer.console.call import Call, Page
from trainer.console.text import Language
from trainer.presets import Preset
from trainer.site import jobs, models, people, training
from trainer.site.folder import Site
from trainer.site.models import Comparison, ModelInfo
from trainer.site.photo_index import folder_of, is_photo_name, photo_files

PRESETS: tuple[Preset, ...] = ("network", "tiny", "minimal")
"""What the page offers. `paper` is for research."""
HISTORY = 50  # models that the page lists
NAMES = 12  # people that a comparison names
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
"""A report has its own style and pictures inside, and no script."""
KEEP, MOVE, DELETE = ACTIONS = ("keep", "move", "delete")


def percent(text: Language, share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage in the notation of a language."""
    if share is None:
        return "-"
    shown = f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"
    return shown.replace(".", ",") if text.code == "de" else shown


def number(text: Language, value: float, digits: int) -> str:
    """Return a number in the notation of a language."""
    shown = f"{value:.{digits}f}"
    return shown.replace(".", ",") if text.code == "de" else shown


def local_time(utc: str) -> str:
    """Return a time of console.db as the clock on the wall shows it."""
    return datetime.fromisoformat(utc).astimezone().strftime("%Y-%m-%d %H:%M")


def show(call: Call) -> Response:
    """The button, the newest result in short, and all models."""
    found = models.list_models(call.site, HISTORY)
    folders = _folders(call.site)
    newest = found[0] if found else None
    return call.render(
        "train.html",
        models=found,
        people=len(folders),
        changed=newest is not None and any(changed > newest.path.stat().st_mtime for changed in folders.values()),
        presets=PRESETS,
        failed=_failed_job(call, newest),
        **_helpers(call.text),
    )


def _helpers(text: Language) -> dict[str, Any]:
    """Return what the templates of this topic call."""

    def interval(share: Mapping[str, Any], digits: int = 1) -> dict[str, Any]:
        ends = {name: percent(text, share[name], digits) for name in ("share", "low", "high")}
        return ends | {"count": share["count"], "of": share["of"]}

    return {
        "interval": interval,
        "percent": lambda share, digits=1: percent(text, share, digits),
        "number": lambda value, digits=4: number(text, value, digits),
        "local_time": local_time,
    }


def _folders(site: Site) -> dict[str, float]:
    """Return when the folder of each person was changed: photos added, moved or deleted."""
    with os.scandir(site.photos) as entries:
        return {entry.name: entry.stat().st_mtime for entry in entries if entry.is_dir() and not entry.name.startswith(".")}


def _failed_job(call: Call, newest: ModelInfo | None) -> jobs.JobState | None:
    """Return the last training if it failed, and no model is newer."""
    last = next(iter(jobs.latest(call.database, kind="train", most=1)), None)
    if last is None or last.state != jobs.FAILED or (newest is not None and newest.created >= last.started):
        return None
    return last


def start(call: Call) -> Response:
    """Start a training, and show its job."""
    preset = call.value("preset")
    if preset and preset not in get_args(Preset):
        raise UsageError("There is no such preset.", "Choose one of the list.")
    options = ["--preset", preset] if preset else []
    words = ["site", "train", str(call.site.path), "--who", call.session.user, *options]
    return call.redirect(f"/jobs/{jobs.start(call.site, 'trainer', words)}")


def show_model(call: Call) -> Response:
    """The result of a training."""
    model = _model(call)
    suspected = _open_questions(call, model)
    return call.render(
        "train_result.html",
        model=model,
        result=model.result,
        comparison=_comparison(call, model),
        others=[other.name for other in models.list_models(call.site, HISTORY) if other.name != model.name],
        suspected=suspected,
        covers=_covers(call, suspected),
        there=_folders(call.site).keys(),
        names=NAMES,
        **_helpers(call.text),
    )


def _model(call: Call) -> ModelInfo:
    try:
        return models.get_model(call.site, call.request.path_params["model"])
    except UsageError as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from None


def _comparison(call: Call, model: ModelInfo) -> Comparison | None:
    """Compare with the model that the page asks for, else with the one before."""
    against = call.query("against")
    if against:
        return models.compare(models.get_model(call.site, against), model)
    listed = models.list_models(call.site, HISTORY)
    before = [other for other in listed if other.created <= model.created and other.name < model.name and not other.problem]
    return models.compare(before[0], model) if before else None


def _open_questions(call: Call, model: ModelInfo) -> list[dict[str, Any]]:
    """Return the suspected photos of a result that are still in their place, and that were not confirmed."""
    kept = {(row["sha256"], row["person"]) for row in call.database.execute("SELECT sha256, person FROM kept_photos")}
    listed = (model.result or {}).get("suspected", ())
    return [
        photo
        for photo in listed
        if (photo["sha256"], photo["person"]) not in kept
        and is_photo_name(photo["file"])
        and (call.site.photos / photo["person"] / photo["file"]).is_file()
    ]


def _covers(call: Call, suspected: list[dict[str, Any]]) -> dict[str, str]:
    """Return a photo file of each person that a suspected photo looks like; empty if there is none."""
    found = {photo["looks_like"]: "" for photo in suspected}
    for name in found:
        files = photo_files(call.site.photos / name)
        found[name] = files[0].name if files else ""
    return found


def settle(call: Call) -> Response:
    """Keep, move or delete a suspected photo."""
    model = _model(call)
    person, file, action = call.value("person"), call.value("file"), call.value("action")
    who = call.session.user
    if action == KEEP:
        training.keep_photo(call.site, call.database, person, file, who=who)
        notice = call.text("train.kept", person=person)
    elif action == MOVE:
        to = call.value("to")
        if not folder_of(call.site, to).is_dir():  # renamed or deleted since the training
            raise UsageError(call.text("train.gone"), call.text("train.gone_hint"))
        people.move_photo(call.site, call.database, person, file, to, who=who)
        notice = call.text("train.moved", person=to)
    elif action == DELETE:
        people.delete_photo(call.site, call.database, person, file, who=who)
        notice = call.text("train.photo_deleted", person=person)
    else:
        raise UsageError("There is no such action.", f"Choose one of {', '.join(ACTIONS)}.")
    return call.redirect(path_of(model) + "#suspected", notice)


def report(call: Call) -> Response:
    """The page of the evaluation, as `trainer evaluate --report` writes it."""
    path = _model(call).report
    if path is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "This model has no report.")
    return FileResponse(path, media_type="text/html", headers=REPORT_HEADERS)


def delete(call: Call) -> Response:
    """Delete a model."""
    name = _model(call).name
    models.delete_model(call.site, name, who=call.session.user)
    return call.redirect("/train", call.text("train.model_deleted", name=name))


def path_of(model: ModelInfo) -> str:
    """Return the path of a model's page."""
    return f"/train/{quote(model.name, safe='')}"


PAGES = (
    Page("/train", show),
    Page("/train", start, "operator", "POST"),
    Page("/train/{model}", show_model),
    Page("/train/{model}/report", report),
    Page("/train/{model}/photos", settle, "operator", "POST"),
    Page("/train/{model}/delete", delete, "operator", "POST"),
)
