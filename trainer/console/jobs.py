"""Pages of jobs: progress, log, cancel. Every browser sees the same."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from trainer.console.call import Call, Page
from trainer.site import jobs

NEXT = {"train": "/train", "build": "/kits", "import": "/people"}
"""The page that shows the result of a job, by its kind."""


def show(call: Call) -> Response:
    """The progress of one job, as a page, or as JSON for the page's script."""
    job = jobs.get(call.database, int(call.request.path_params["number"]))
    if job is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such job.")
    lines = jobs.lines(call.database, job.id)
    if call.wants_json:
        names = ("id", "kind", "state", "stage", "done", "total", "seconds_left", "message")
        return JSONResponse({name: getattr(job, name) for name in names} | {"lines": lines, "next": NEXT[job.kind]})
    return call.render("job.html", job=job, lines=lines, next=NEXT[job.kind])


def cancel(call: Call) -> Response:
    number = int(call.request.path_params["number"])
    jobs.cancel(call.site, number)
    call.record("cancel job", str(number))
    return call.redirect(f"/jobs/{number}")


PAGES = (Page("/jobs/{number:int}", show), Page("/jobs/{number:int}/cancel", cancel, "operator", "POST"))
