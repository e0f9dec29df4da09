"""The HTTP connection to a network camera: login, redirections, and nothing sent to other hosts."""

import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import unquote, urlsplit

from edge.errors import CameraError

MAX_REDIRECTIONS = 3
REDIRECTED = "Write the address of the stream itself."


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirections inside the camera. A camera must not send the terminal to another machine."""

    max_redirections = MAX_REDIRECTIONS
    max_repeats = 1

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if _origin(newurl) != _origin(req.full_url):
            fp.close()
            raise CameraError("The camera redirects to another host, port or protocol.", REDIRECTED)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_stream(url: str, timeout: float) -> HTTPResponse:
    """Open `url`, with basic or digest login and without a proxy."""
    at = urlsplit(url)
    host = at.netloc.rpartition("@")[2]
    plain = at._replace(netloc=host).geturl()
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    if at.username is not None:
        passwords.add_password(None, f"{at.scheme}://{host}/", unquote(at.username), unquote(at.password or ""))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPBasicAuthHandler(passwords),
        urllib.request.HTTPDigestAuthHandler(passwords),
        _SameHost,
    )
    try:
        response: HTTPResponse = opener.open(plain, timeout=timeout)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if 300 <= error.code < 400:
            raise CameraError("The camera redirects too often, or to an invalid address.", REDIRECTED) from None
        hint = "Write the address as http://user:password@host/path." if error.code in (401, 403) else ""
        raise CameraError(f"The camera responds with HTTP error {error.code}.", hint) from None
    except (OSError, HTTPException, ValueError, LookupError) as error:  # the last two: an invalid login challenge
        raise CameraError(f"The camera cannot be reached: {reason(error)}.") from None


def reason(error: BaseException) -> str:
    """Why a connection failed, without the address, which may contain a password."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "timeout"
    return cause.strerror.lower() if isinstance(cause, OSError) and cause.strerror else type(cause).__name__


def _origin(url: str) -> tuple[str, str | None, int | None]:
    at = urlsplit(url)
    return at.scheme, at.hostname, at.port or {"http": 80, "https": 443}.get(at.scheme)
