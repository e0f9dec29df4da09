"""Pulls from time to time, on a thread of its own: never in the loop."""

import logging
import random
from collections.abc import Callable

from edge.events.worker import Worker
from edge.fleet.fleet import Fleet
from edge.fleet.problems import PullError, PullPausedError

FIRST_SECONDS = 5.0  # the doors of a city start at the same time after a power failure
RETRY_SECONDS = 5.0
PART_SECONDS = 1.0  # between two parts of a kit

log = logging.getLogger(__name__)


class Poller:
    """Pulls for a running terminal while its `with` block runs."""

    def __init__(self, fleet: Fleet, *, jitter: Callable[[], float] = random.random) -> None:
        """`jitter` returns numbers from 0 to 1."""
        self._fleet, self._jitter = fleet, jitter
        self._failures = 0  # since the last success
        self._has_begun = False
        self._worker: Worker[None] | None = None

    def __enter__(self) -> "Poller":
        try:
            self._fleet.save()
        except PullError as error:
            log.warning("%s", error)
        self._worker = Worker(lambda _: None, name="the fleet", idle=self._next, finish=self._fleet.close)
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()

    def _next(self) -> float:
        """Pull, except at the first call. Return the seconds until the next one."""
        if not self._has_begun:
            self._has_begun = True
            return min(self._fleet.settings.seconds, FIRST_SECONDS) * self._jitter()
        try:
            self._fleet.pull()
        except PullPausedError as news:
            log.info("%s", news)
            self._failures = 0
            return PART_SECONDS
        except PullError as problem:
            log.warning("the fleet: %s", problem.message)
            self._failures += problem.cause == "network"
        except Exception:
            log.exception("the fleet cannot be asked")
        else:
            self._failures = 0
        return pause_seconds(self._fleet.settings.seconds, self._failures, self._jitter())


def pause_seconds(seconds: float, failures: int, jitter: float) -> float:
    """Return the pause before the next pull: at most `seconds`, and after failures of the network first shorter.

    It never gets longer: a revocation must not wait because the network was away. The random part keeps the doors from asking
    at the same time.
    """
    longest = seconds
    if failures:
        longest = min(RETRY_SECONDS * 2.0 ** min(failures - 1, 30), max(RETRY_SECONDS, seconds))
    return longest * (0.5 + 0.5 * jitter)
