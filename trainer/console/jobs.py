"""Pages of jobs: progress, log, cancel. Every browser sees the same."""

import re
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from trainer.console.call import Call, Page
from trainer.console.text import ENGLISH, Language, language
from trainer.console.train import local_time
from trainer.site import jobs
from trainer.site.jobs import DONE, JobState
from trainer.site.kits import AGAIN_STAGES, BUILD_STAGES, PUBLISHING
from trainer.site.training import STAGES

NEXT = {"train": "/train", "build": "/kits", "again": "/kits", "import": "/people", "forget": "/people", "fleet": "/fleet"}
"""The page that shows the result of a job, by its kind."""
MINUTE = 60


def show(call: Call) -> Response:
    """The progress of one job, as a page, or as JSON for the page's script."""
    job = jobs.get(call.database, int(call.request.path_params["number"]))
    if job is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such job.")
    facts = facts_of(call.text, job) | {"lines": _lines(call, job, call.number("lines", 0))}
    return JSONResponse(facts) if call.wants_json else call.render("job.html", job=job, facts=facts)


def facts_of(text: Language, job: JobState) -> dict[str, Any]:
    """Return what the page shows of a job, in words."""
    steps = _steps(job)
    return {
        "id": job.id,
        "kind": job.kind,
        "started": local_time(job.started),
        "state": job.state,
        "state_text": text(f"jobs.state_{job.state}"),
        "stage": stage_text(text, job.stage) if job.is_running and job.stage else "",
        "step": steps.index(job.stage) if job.stage in steps else -1,
        "steps": [stage_text(text, step) for step in steps],
        "done": job.done,
        "total": job.total,
        "count": text("jobs.count", done=job.done, total=job.total) if job.total else "",
        "seconds_left": job.seconds_left,
        "left": left_text(text, job.seconds_left) if job.is_running else "",
        "message": text.said(job.message),
        "next": next_page(job),
        "has_result": job.state == DONE and next_page(job) != NEXT.get(job.kind, "/"),
        "cancel_question": text(f"jobs.cancel_question{'_partly' if job.kind in jobs.PARTLY else ''}"),
    }


def _steps(job: JobState) -> list[str]:
    """Return the stages of a job in their order; none if they depend on the work."""
    known = {"train": STAGES, "build": BUILD_STAGES, "again": AGAIN_STAGES}.get(job.kind, ())
    return [*known, *([PUBLISHING] if job.options.get("publish") else [])]


def next_page(job: JobState) -> str:
    """Return the page with the result of a job."""
    model = job.result.get("model")
    if job.kind == "train" and job.state == DONE and isinstance(model, str):
        return f"/train/{quote(model, safe='')}"
    kit = job.result.get("kit")
    if job.state == DONE and isinstance(kit, str):
        return f"/kits/{quote(kit, safe='')}"
    return NEXT.get(job.kind, "/")


def stage_text(text: Language, stage: str) -> str:
    """Return a stage or a line of the log in a language, as far as it is known there."""
    key = f"jobs.stage_{re.sub('[^a-z0-9]+', '_', stage.lower())}"
    return text(key) if key in language(ENGLISH).messages else text.said(stage)


def left_text(text: Language, seconds: float | None) -> str:
    """Return an estimate in words; empty if there is none."""
    if seconds is None:
        return ""
    if seconds < MINUTE:
        return text("jobs.seconds_left", seconds=max(5, 5 * round(seconds / 5)))
    minutes = round(seconds / MINUTE)
    return text("jobs.minute_left") if minutes == 1 else text("jobs.minutes_left", minutes=minutes)


def _lines(call: Call, job: JobState, first: int) -> list[dict[str, str]]:
    """Return the lines of the log from one on; names of stages in the language of the page."""
    return [
        {"time": f"{datetime.fromisoformat(utc).astimezone():%H:%M:%S}", "text": stage_text(call.text, line)}
        for utc, line in jobs.lines(call.database, job.id)[first:]
    ]


def cancel(call: Call) -> Response:
    """Ask a job to stop."""
    number = int(call.request.path_params["number"])
    jobs.cancel(call.site, number, who=call.session.user)
    return call.redirect(f"/jobs/{number}")


PAGES = (Page("/jobs/{number:int}", show), Page("/jobs/{number:int}/cancel", cancel, "operator", "POST"))
