"""Addresses of web servers."""

import ipaddress
from urllib.parse import SplitResult, urlsplit

from edge.errors import require


def web_address(url: str) -> SplitResult:
    """Return the parts of an http or https address. ParameterError if it is not valid or contains a password."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        valid = valid and url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        valid = False
    require(valid, "url must be an address such as https://example.org/door")
    require(parts.username is parts.password is None, "url must not contain a user or password")
    return parts


def require_private(url: str, *, allow_http: bool) -> None:
    """Raise ParameterError if others on the network could read or change what is sent. The device itself may use http."""
    parts = web_address(url)
    is_private = parts.scheme == "https" or allow_http or is_loopback(parts.hostname or "")
    require(is_private, "url must begin with https://, or allow_http must be true")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
