"""The console as a web application: paths, the checks that every request passes, and errors as sentences."""

import hmac
import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from edge.errors import EdgeError
from trainer.console import doors, fleet, jobs, kits, login, people, settings, train, visits
from trainer.console.call import Call, Page, wants_json
from trainer.console.guard import SAFE, Guard, LimitedBody
from trainer.console.sessions import Session, SessionStore
from trainer.console.text import language_of
from trainer.site.folder import Site, unusable_file

MAX_FILES, MAX_FIELDS, MAX_FIELD_BYTES = 200, 5000, 1 << 20  # of one form
PAGES: tuple[Page, ...] = (
    *people.PAGES,
    *train.PAGES,
    *kits.PAGES,
    *doors.PAGES,
    *fleet.PAGES,
    *visits.PAGES,
    *jobs.PAGES,
    *settings.PAGES,
    *login.PAGES,
)

log = logging.getLogger(__name__)


def make_app(
    site: Site,
    sessions: SessionStore,
    *,
    hosts: Collection[str] = (),
    is_local: bool = True,
    picture_key: bytes | None = None,
    https: bool = False,
) -> Starlette:
    """Return the application. It serves numeric addresses, the names of this machine and `hosts`; see `is_own_host`."""
    routes: list[Any] = [
        Route(page.path, _endpoint(page, site, sessions, picture_key), methods=[page.method]) for page in PAGES
    ]
    routes += login.open_routes(site, sessions, https=https)
    routes += visits.open_routes(site)
    routes.append(Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))))
    routes.append(Route("/", lambda request: RedirectResponse("/people", HTTPStatus.SEE_OTHER)))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, is_local=is_local, names=frozenset(hosts), https=https)],
        exception_handlers={HTTPException: _http_problem, EdgeError: _without_database, Exception: _unexpected},
    )


def _endpoint(
    page: Page, site: Site, sessions: SessionStore, picture_key: bytes | None
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        session = await run_in_threadpool(sessions.find, request.cookies.get(sessions.cookie, ""))
        if session is None:
            return _to_login(request)
        form, problem = FormData(), None
        try:
            if not session.may(page.role):
                text = language_of(request)
                raise HTTPException(HTTPStatus.FORBIDDEN, text("base.needs_role", role=text(f"users.{page.role}")))
            if page.method == "POST":
                form = await _checked_form(request, session, page.max_bytes)
        except HTTPException as error:
            problem = error

        def show() -> Response:
            with site.database() as database:
                call = Call(
                    request=request,
                    site=site,
                    database=database,
                    session=session,
                    sessions=sessions,
                    text=language_of(request),
                    form=form,
                    picture_key=picture_key,
                )
                return _show(page, call, problem)

        try:
            return await run_in_threadpool(show)
        finally:
            await form.close()

    return answer


async def _checked_form(request: Request, session: Session, most: int) -> FormData:
    """Return the form of a POST request if it has the right CSRF value."""
    sent = request.headers.get("x-csrf")
    if sent is not None:  # before anything is read
        _check_csrf(sent, session)
    body = LimitedBody(request.receive, request.headers, most)
    form = await Request(request.scope, body.receive).form(
        max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    if sent is None:
        try:
            _check_csrf(form.get("csrf"), session)
        except HTTPException:
            await form.close()
            raise
    return form


def _check_csrf(sent: object, session: Session) -> None:
    if not isinstance(sent, str) or not hmac.compare_digest(sent.encode(), session.csrf.encode()):
        raise HTTPException(HTTPStatus.FORBIDDEN, "This form is out of date. Load the page again and repeat the change.")


def _show(page: Page, call: Call, problem: HTTPException | None) -> Response:
    """Return the page, or what is wrong as a page or as JSON."""
    try:
        if problem is not None:
            raise problem
        return page.show(call)
    except HTTPException as error:
        status, message, hint = error.status_code, error.detail, ""
    except EdgeError as error:
        status, message, hint = HTTPStatus.BAD_REQUEST, error.message, error.hint
    except OSError as error:
        log.error("a request to %s failed", call.request.url.path, exc_info=error)
        found = unusable_file(error)
        status, message, hint = HTTPStatus.INTERNAL_SERVER_ERROR, found.message, found.hint
    message, hint = call.text.said(message), call.text.said(hint)
    if call.wants_json:
        return JSONResponse({"problem": message, "hint": hint}, status)
    return call.render("error.html", status=status, problem=message, hint=hint, back=_page_before(call.request))


def _page_before(request: Request) -> str:
    """Return the path of the page that the request came from, if it is one of ours."""
    try:
        before = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return "/"
    is_ours = before.netloc == request.headers["host"] and before.path.startswith("/") and not before.path.startswith("//")
    return f"{before.path}?{before.query}" if is_ours and before.query else before.path if is_ours else "/"


def _to_login(request: Request) -> Response:
    if wants_json(request) or request.method not in SAFE:
        said = language_of(request).said
        answer = {"problem": said("You are not logged in."), "hint": said("Load the page again.")}
        return JSONResponse(answer, HTTPStatus.UNAUTHORIZED)
    return RedirectResponse("/login", HTTPStatus.SEE_OTHER)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = language_of(request).said(error.detail)
    if wants_json(request):
        return JSONResponse({"problem": problem, "hint": ""}, error.status_code, error.headers)
    return PlainTextResponse(f"{problem}\n", error.status_code, error.headers)


async def _without_database(request: Request, error: Exception) -> Response:
    """The database is damaged, full or locked: without it, there is no page that could say so."""
    assert isinstance(error, EdgeError)
    log.error("a request to %s failed: %s", request.url.path, error.message)
    problem, hint = (language_of(request).said(text) for text in (error.message, error.hint))
    if wants_json(request):
        return JSONResponse({"problem": problem, "hint": hint}, HTTPStatus.SERVICE_UNAVAILABLE)
    return PlainTextResponse(f"{problem} {hint}\n", HTTPStatus.SERVICE_UNAVAILABLE)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("a request to %s failed", request.url.path, exc_info=error)
    problem = language_of(request).said("The console failed. Its log has the reason.")
    if wants_json(request):
        return JSONResponse({"problem": problem, "hint": ""}, HTTPStatus.INTERNAL_SERVER_ERROR)
    return PlainTextResponse(f"{problem}\n", HTTPStatus.INTERNAL_SERVER_ERROR)
