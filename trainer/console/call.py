"""One request to the console: who asks, the site, the form, and the ways to answer.

A page is a plain function `show(call) -> Response` that is listed with its path and the role that it needs. It runs in a
thread, with a database connection of its own. An EdgeError becomes a sentence for the person.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import jinja2
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from trainer.console.sessions import Session, SessionStore
from trainer.console.text import Language, languages
from trainer.site import jobs, trail
from trainer.site.folder import Site
from trainer.site.users import Role

NOTICE = "notice"  # cookie with a message for the next page
NOTICE_LETTERS = 300
MAX_DIGITS = 18  # of a number in an address: SQLite has no larger ones

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["path"] = lambda text: quote(str(text), safe="")


@dataclass(kw_only=True)
class Call:
    """A request and what is needed to answer it."""

    request: Request
    site: Site
    database: sqlite3.Connection
    session: Session
    sessions: SessionStore
    text: Language
    form: FormData = field(default_factory=FormData)
    """Fields and files of a POST request."""
    picture_key: bytes | None = None
    """The private key of sealed pictures, if the console was started with it."""

    @property
    def wants_json(self) -> bool:
        return wants_json(self.request)

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int) -> int:
        """Return a number of the query, or `default` if it is not one."""
        found = self.query(name)
        return int(found) if found.isascii() and found.isdigit() and len(found) <= MAX_DIGITS else default

    def value(self, name: str, default: str = "") -> str:
        """Return a text field of the form."""
        found = self.form.get(name, default)
        return found if isinstance(found, str) else default

    def record(self, action: str, subject: str, details: str = "") -> None:
        """Write to the trail."""
        trail.record(self.database, self.session.user, action, subject, details)

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page made from a template, which knows `call`, `t` (messages), `session`, and the running job."""
        known = {"call": self, "session": self.session, "running": jobs.running(self.database)}
        return render(self.request, self.text, template, status=status, **known, **values)

    def redirect(self, path: str, notice: str = "") -> Response:
        """Go to another page of the console; it shows the notice once."""
        if self.wants_json:
            return JSONResponse({"go": path, "notice": notice})
        response = RedirectResponse(path, status_code=303)
        if notice:
            set_notice(response, notice)
        return response


def wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "")


def render(request: Request, text: Language, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page made from a template, with the notice that is waiting for it."""
    notice = unquote(request.cookies.get(NOTICE, ""))[:NOTICE_LETTERS]
    page = TEMPLATES.get_template(template).render(t=text, languages=languages(), notice=notice, **values)
    response = HTMLResponse(page, status_code=status)
    if NOTICE in request.cookies:
        response.delete_cookie(NOTICE)
    return response


def set_notice(response: Response, notice: str) -> None:
    """Give the next page a message. It is cut to fit into a cookie."""
    response.set_cookie(NOTICE, quote(notice[:NOTICE_LETTERS]), max_age=60, httponly=True, samesite="strict")


Show = Callable[[Call], Response]


@dataclass(frozen=True)
class Page:
    """A path of the console. POST requests need a valid CSRF value; both need the role."""

    path: str
    show: Show
    role: Role = "viewer"
    method: Literal["GET", "POST"] = "GET"
    max_bytes: int = 1 << 20
    """Largest body of a POST request."""
