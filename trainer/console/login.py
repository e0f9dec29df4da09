"""Log in: by password, or with the one-time link that `trainer console` prints for a site without users."""

import logging
from functools import partial
from http import HTTPStatus

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from edge.text import printable
from trainer.console.attempts import Attempts
from trainer.console.call import Call, Page, render, set_notice
from trainer.console.guard import LimitedBody
from trainer.console.sessions import MAX_SECONDS, SessionStore
from trainer.console.text import language_of
from trainer.site import users
from trainer.site.folder import Site
from trainer.site.users import User

MAX_BYTES = 4096  # of the login form
WAITING = 16  # requests that wait until their password is checked

log = logging.getLogger(__name__)


def logout(call: Call) -> Response:
    call.sessions.end(call.request.cookies[call.sessions.cookie])
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    response.delete_cookie(call.sessions.cookie, secure=call.sessions.https, httponly=True, samesite="strict")
    return response


PAGES = (Page("/logout", logout, method="POST"),)


def open_routes(site: Site, sessions: SessionStore, *, https: bool) -> list[Route]:
    """The paths that need no session."""
    gate = LoginGate(site, sessions)
    return [
        Route("/login", gate.show, methods=["GET"]),
        Route("/login", gate.log_in, methods=["POST"]),
        Route("/token", gate.use_link, methods=["GET"]),
    ]


class LoginGate:
    """The login page. Wrong passwords cost time, for the address and for the user; checks at once are limited."""

    def __init__(self, site: Site, sessions: SessionStore) -> None:
        self._site, self._sessions = site, sessions
        self._attempts = Attempts()
        self._limiter: CapacityLimiter | None = None

    async def show(self, request: Request) -> Response:
        return await run_in_threadpool(self._page, request)

    def _page(self, request: Request, *, status: int = 200, problem: str = "", user: str = "", **fields: object) -> Response:
        text = language_of(request)
        return render(
            request,
            text,
            "login.html",
            status=status,
            problem=text(problem, **fields) if problem else "",
            user=user,
            session=None,
            needs_login=self._sessions.needs_login(),
        )

    async def log_in(self, request: Request) -> Response:
        body = LimitedBody(request.receive, request.headers, MAX_BYTES)
        async with Request(request.scope, body.receive).form(max_files=0, max_fields=10, max_part_size=MAX_BYTES) as form:
            name, password = (value if isinstance(value := form.get(key), str) else "" for key in ("user", "password"))
        address = request.client.host if request.client else ""
        with self._attempts.begin(address, name) as attempt:
            if attempt.wait > 0:
                return await run_in_threadpool(
                    partial(self._page, request, status=429, problem="login.wait", user=name, seconds=round(attempt.wait + 1))
                )
            user = await self._verify(name, password)
            attempt.succeeded = user is not None
        if user is None:
            log.warning("a login as %s from %s failed", printable(name[:64]), address)
            return await run_in_threadpool(partial(self._page, request, status=403, problem="login.wrong", user=name))
        cookie = await run_in_threadpool(self._sessions.begin, user.name, user.role)
        return self._enter(RedirectResponse("/people", HTTPStatus.SEE_OTHER), cookie)

    async def _verify(self, name: str, password: str) -> User | None:
        if self._limiter is None:  # it belongs to the running loop
            self._limiter = CapacityLimiter(users.AT_ONCE)
        if self._limiter.statistics().tasks_waiting >= WAITING:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "Too many people log in. Try again in a minute.")

        def verify() -> User | None:
            with self._site.database() as database:
                return users.verify(database, name, password)

        return await to_thread.run_sync(verify, limiter=self._limiter)

    async def use_link(self, request: Request) -> Response:
        """The one-time link. Only a person who opens it uses it up, not a browser that loads it in advance."""
        if request.method != "GET" or "prefetch" in request.headers.get("sec-purpose", ""):
            raise HTTPException(HTTPStatus.FORBIDDEN, "Open this link in a browser.")
        cookie = await run_in_threadpool(self._sessions.redeem, request.query_params.get("token", ""))
        if cookie is None:
            response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
            set_notice(response, language_of(request)("login.old_link"))
            return response
        # Not a redirect: a browser that came from elsewhere would not send the new cookie with it.
        return self._enter(render(request, language_of(request), "enter.html", session=None), cookie)

    def _enter(self, response: Response, cookie: str) -> Response:
        response.set_cookie(
            self._sessions.cookie,
            cookie,
            max_age=int(MAX_SECONDS),
            secure=self._sessions.https,
            httponly=True,
            samesite="strict",
        )
        return response
