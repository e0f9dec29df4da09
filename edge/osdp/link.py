"""Is the controller there? No clock and no hardware."""

import math

from edge.events.event import News

START_SECONDS = 15.0
"""Time for a controller to connect after the start."""
LOST_SECONDS = 3.0
"""A link that is down for so long is reported. A controller may restart its Secure Channel in less."""
LOST, BACK = "lost", "back"
PORT = "the serial port cannot be used"
SILENT = "no messages from the controller"
NO_CHANNEL = "the controller has no Secure Channel with the key of this terminal"


class Link:
    """The link to the controller, from the start of the terminal. Times never decrease."""

    def __init__(self, now: float) -> None:
        self._deadline = now + START_SECONDS
        self._is_lost = False
        self.problem: str | None = SILENT
        """Why the link is down; None while it is up."""

    def step(self, problem: str | None, now: float) -> News | None:
        """Take the state of this moment, and return what is new about it."""
        if problem is None:
            self._deadline = math.inf
        elif self.problem is None:
            self._deadline = now + LOST_SECONDS
        self.problem = problem
        if problem is None and self._is_lost:
            self._is_lost = False
            return News(kind="controller", outcome=BACK)
        if problem is not None and not self._is_lost and now >= self._deadline:
            self._is_lost = True
            return News(kind="controller", outcome=LOST, reason=problem)
        return None
