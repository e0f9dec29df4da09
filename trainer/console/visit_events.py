"""Receives the events that terminals post with a signature (edge/sinks/webhook.py), without a login.

The checks of Guard apply: the host must be one of the console, and no page of another site can post here. A terminal on
another machine reaches the console only if it serves TLS on an address of the network (`trainer console --address --cert
--key`). The url of the terminal then has a name or address of the certificate. If no public authority signed that, the
terminal also needs `ca_file`.

Events have no pictures: these come with the audit log (trainer.site.visit_import). An event that is sent again, by the
terminal or by a person who recorded it, is stored once. A signature is valid for MAX_AGE_SECONDS, so the terminal's clock
must be right.
"""

import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from edge.credentials import read_secret
from edge.errors import EdgeError, UsageError
from edge.sinks.webhook import MIN_SECRET
from edge.text import printable, same_spelling
from trainer.console.guard import LimitedBody
from trainer.site import doors, visit_retention, visits
from trainer.site.folder import Site

MAX_AGE_SECONDS = 300
HEADER = "X-Edge-Signature"

_SIGNATURE = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")

log = logging.getLogger(__name__)


def open_routes(site: Site, *, clock: Callable[[], float] = time.time) -> list[Route]:
    """The paths that need no session: their requests are signed."""
    return [Route(doors.EVENTS_PATH, _receiver(site, clock), methods=["POST"])]


def _receiver(site: Site, clock: Callable[[], float]) -> Callable[[Request], Awaitable[Response]]:
    async def receive(request: Request) -> Response:
        limited = LimitedBody(request.receive, request.headers, visits.MAX_EVENT)
        body = await Request(request.scope, limited.receive).body()
        name, signature = request.path_params["door"], request.headers.get(HEADER, "")
        try:
            status, problem = await run_in_threadpool(_store, site, name, signature, body, clock())
        except EdgeError as error:  # the database, or the file of a secret: the terminal tries again
            log.error("an event of the door %s was not stored: %s", printable(name[:60]), printable(error.message))
            status, problem = HTTPStatus.SERVICE_UNAVAILABLE, ""
        return Response(status_code=status) if not problem else PlainTextResponse(f"{problem}\n", status)

    return receive


def _store(site: Site, name: str, signature: str, body: bytes, now: float) -> tuple[HTTPStatus, str]:
    """Check the signature and store the visit. Return status and, for a terminal with the right secret, what is wrong."""
    door = next((door for door in doors.load(site) if door.name == same_spelling(name)), None)
    if door is None:
        return HTTPStatus.NOT_FOUND, ""
    secret = read_secret(f"door {door.name}", door.secret_file, None) or ""
    if len(secret) < MIN_SECRET or not is_signed(secret.encode(), signature, body, now):
        return HTTPStatus.UNAUTHORIZED, ""
    try:
        event = json.loads(body)
        if not isinstance(event, dict):
            raise UsageError("The body is not a JSON object.")
    except (ValueError, RecursionError):
        return HTTPStatus.BAD_REQUEST, "The body is not JSON."
    except UsageError as error:
        return HTTPStatus.BAD_REQUEST, error.message
    with site.database() as database:
        try:
            visits.store(database, door.name, event)
        except UsageError as error:
            return HTTPStatus.BAD_REQUEST, error.message
        visit_retention.prune_in_passing(database, datetime.fromtimestamp(now, UTC))
    return HTTPStatus.NO_CONTENT, ""


def is_signed(secret: bytes, signature: str, body: bytes, now: float) -> bool:
    """Whether the signature of time and body is right, and not older than MAX_AGE_SECONDS, nor from the future."""
    found = _SIGNATURE.fullmatch(signature)
    if found is None:
        return False
    wanted = hmac.new(secret, found[1].encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(found[2], wanted) and abs(now - int(found[1])) <= MAX_AGE_SECONDS
