"""Why a pull failed."""

from typing import Literal

from edge.errors import FleetError

Cause = Literal["network", "expired", "untrusted", "invalid", "device"]
HINTS: dict[Cause, str] = {
    "network": "Check the network, the address in [fleet] url, and the server.",
    "expired": "The publisher runs `edge-export fleet refresh`, and copies the result to the server. Check the clock here.",
    "untrusted": "Do not trust this server before the publisher has checked it.",
    "invalid": "Ask the person who publishes it.",
    "device": "Check free space, and the owner of the folder.",
}


class PullError(FleetError):
    """A pull failed. The data before stay in use. The message contains no names of people."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message, HINTS[cause])
        self.cause = cause


class PullPausedError(FleetError):
    """A part of a kit arrived. The next pull continues."""

    def __init__(self, received: int, length: int) -> None:
        super().__init__(f"{received} of {length} bytes of the kit have arrived.", "The next pull continues.")
