"""Limits how often passwords can be tried: for an address, and for a user, each failure costs more time than the last."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FREE = 5
"""Failures in a row that cost nothing: people mistype."""
MOST_SECONDS = {"address": 900.0, "user": 60.0}
"""Longest wait. It is short for a user, because others can cause it."""
FORGET_SECONDS = 3600.0
MAX_ENTRIES = 10_000


@dataclass
class Attempt:
    """A login that is being checked."""

    wait: float
    """Seconds until the password may be tried; 0: now."""
    succeeded: bool = False


@dataclass
class _Failures:
    number: int
    until: float
    last: float


class Attempts:
    """The failed logins of the last hour. Used by one thread, the loop of the server."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    @contextmanager
    def begin(self, address: str, user: str) -> Iterator[Attempt]:
        """Count an attempt as failed, unless it says that it succeeded: many at the same time gain nothing."""
        keys = [("address", _network(address)), ("user", user[:64].lower())]
        now = self._clock()
        attempt = Attempt(max(self._wait(key, now) for key in keys))
        if attempt.wait > 0:
            yield attempt
            return
        for key in keys:
            self._add(key, now)
        yield attempt
        if attempt.succeeded:
            self._failures.pop(keys[1], None)
            if (found := self._failures.get(keys[0])) is not None:
                found.number, found.until = found.number - 1, 0.0

    def _wait(self, key: tuple[str, str], now: float) -> float:
        found = self._failures.get(key)
        return 0.0 if found is None else found.until - now

    def _add(self, key: tuple[str, str], now: float) -> None:
        found = self._failures.pop(key, None)
        number = 1 if found is None or now - found.last > FORGET_SECONDS else found.number + 1
        pause = 0.0 if number < FREE else min(2.0 ** min(number - FREE, 20), MOST_SECONDS[key[0]])
        self._failures[key] = _Failures(number, now + pause, now)
        while len(self._failures) > MAX_ENTRIES:
            self._failures.popitem(last=False)


def _network(address: str) -> str:
    """Return the address, or the /64 network of an IPv6 address, of which one computer has many addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    if found.version == 4 or mapped is not None:
        return str(mapped or found)
    return str(ipaddress.ip_network((found, 64), strict=False))
