"""Health of a terminal: the counters and keys that the loop fills, and that metrics and preview read. No names of people."""

from enum import StrEnum
from typing import Any, NotRequired, TypedDict


class Count(StrEnum):
    """Names of the counters."""

    FRAMES = "frames"
    FACES = "faces"
    LOOKS = "looks"
    FAILURES = "failures"
    GRANTED = "granted"
    DENIED = "denied"
    ATTACKS = "presentation attacks"
    UNDELIVERED = "undelivered"
    CHALLENGES_MET = "challenges met"
    CHALLENGES_NOT_MET = "challenges not met"
    CAMERA_DROPPED = "dropped"
    CAMERA_BROKEN = "broken"
    CAMERA_RECONNECTS = "reconnects"
    CAMERA_REPEATED = "repeated"
    CAMERA_FROZEN = "frozen"
    LOGGED = "logged"
    NOT_LOGGED = "not logged"
    WITHHELD = "withheld"


class Health(TypedDict):
    """State of a terminal at one moment."""

    camera: str
    camera_up: bool
    """Whether new frames arrive."""
    camera_frozen: bool
    """Whether frames arrive that do not change."""
    frame_age_seconds: float | None
    """Age of the newest processed frame, without repeated ones; None before the first."""
    error: str
    kit: str
    thresholds: str
    """How the kit's thresholds were found, in one sentence."""
    temperature_celsius: float | None
    """Of the hottest sensor of the device; None if it reports none."""
    counters: dict[str, int]
    sinks: dict[str, dict[str, int]]
    """Lost events by sink and cause (failed, dropped)."""
    alarms: dict[str, int]
    """Number of alarms by kind and outcome, e.g. `input forced open`."""
    fleet: NotRequired[dict[str, Any]]
    """What the door has from its fleet; missing without a fleet."""
    controller_up: NotRequired[bool]
    """Whether there is a Secure Channel to the door controller; missing without OSDP."""
    failing: list[str]
    """Parts of the terminal that do not work now."""
