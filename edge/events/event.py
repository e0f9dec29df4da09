"""The event: the one record of what happened at a door, and how it is made."""

import math
import uuid
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from edge.decision.door import Decision
from edge.text import strict_json

EVENT_SCHEMA = 3
FROM_LOG = ("head", "head_mac")
"""Fields that an event gets when it is in the audit log."""
ALARMS = frozenset(
    {
        *(("camera", "lost"), ("camera", "frozen"), ("kit", "rejected"), ("kit", "rolled back"), ("list", "rejected")),
        *(("input", "forced open"), ("input", "held open"), ("input", "tamper"), ("input", "failed")),
        *(("fleet", "stale"), ("fleet", "failed"), ("controller", "lost")),
    }
)
"""Kind and outcome of the events that a person should look at now."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened. All kinds have the same fields; a field without meaning for a kind is None."""

    schema: int = EVENT_SCHEMA
    """Version of these fields."""
    event_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Unique. A receiver must not act twice on the same id."""
    kind: str
    """start, camera, kit, list, challenge, decision, input, controller, fleet or stop."""
    outcome: str | None = None
    """decision: granted or denied. camera: lost, frozen or back. kit: installed, rejected or rolled back. list: installed or
    rejected. challenge: the movement that the visitor must make (left, right or down). controller: lost or back.
    input, fleet: see docs/reference/events.md."""
    reason: str | None = None
    """Why, in a few words. challenge: the sentence to say or show."""
    label: str | None = None
    """The enrolled person, or None if no person was recognised."""
    confidence: float | None = None
    """Confidence of the recognition, at most 1."""
    threshold: float | None = None
    """The confidence that a label needs."""
    margin: float | None = None
    """Lead over the second person."""
    frames: int | None = None
    """Number of frames of the visit."""
    looks: int | None = None
    """Number of these frames in which the face was recognised."""
    visit: int | None = None
    """Number of the visit since the start."""
    utc: str
    """Time of the event, ISO 8601 with milliseconds and Z."""
    monotonic: float | None = None
    """Time of the event in seconds of the camera's clock, which is never set back."""
    seconds_from_first_sight: float | None = None
    """Seconds from the visit's first frame to the event."""
    seconds_from_capture: float | None = None
    """Seconds from the deciding frame to the event."""
    camera: str = ""
    """Name of the camera."""
    kit: str = ""
    """Id of the kit: the first digits of its SHA-256."""
    sequence: int | None = None
    """Counts the events of this terminal, so that a receiver sees what it did not get."""
    head: str | None = None
    """Number and hash of this event's entry in the audit log; None if it is not in a log."""
    head_mac: str | None = None
    """HMAC-SHA256 of the head, if the terminal has a key for it."""

    @property
    def grants(self) -> bool:
        """Whether this event lets a person in: a decision with the outcome granted."""
        return self.kind == "decision" and self.outcome == "granted"

    @property
    def is_alarm(self) -> bool:
        """Whether a person should look at it now."""
        return (self.kind, self.outcome) in ALARMS

    def to_json(self) -> str:
        """Return one line of strict JSON."""
        return strict_json(asdict(self))


@dataclass(frozen=True, kw_only=True)
class News:
    """What another thread of the terminal reports. The loop makes it an event between two frames."""

    kind: str
    outcome: str
    reason: str | None = None


def notice(
    kind: str, *, now: float, utc: datetime, outcome: str | None = None, reason: str | None = None, visit: int | None = None
) -> Event:
    """Return an event without a person. `now` is on the camera's clock, `utc` the time of day."""
    return Event(kind=kind, outcome=outcome, reason=reason, visit=visit, utc=utc_text(utc), monotonic=_number(now))


def decision_event(decision: Decision, *, now: float, utc: datetime) -> Event:
    """Return the event of a decision."""
    return replace(
        notice("decision", now=now, utc=utc, outcome=decision.outcome, reason=decision.reason, visit=decision.visit),
        label=decision.label,
        confidence=_number(decision.confidence),
        threshold=_number(decision.threshold),
        margin=_number(decision.margin),
        frames=decision.frames,
        looks=decision.looks,
        seconds_from_first_sight=_number(now - decision.first_seen),
        seconds_from_capture=_number(now - decision.captured),
    )


def message(event: Event, *, age_seconds: float, grant_seconds: float, names: bool) -> dict[str, Any]:
    """Return the fields for a remote receiver, `age_seconds` after the event. `names` keeps the label."""
    fields = asdict(event) | {"nonce": None, "expires": None}
    if not names:
        fields["label"] = None
    if event.grants:
        fields["expires"] = utc_text(datetime.fromisoformat(event.utc) + timedelta(seconds=grant_seconds))
        if age_seconds < grant_seconds:
            fields["nonce"] = event.event_id
        else:  # a receiver that looks for `granted` opens nothing
            fields |= {"outcome": "expired", "reason": "granted, but not delivered in time"}
    return fields


def logged_fields(event: Event) -> dict[str, Any]:
    """Return the fields for the audit log: all except those that the log itself gives to the event."""
    return {name: value for name, value in asdict(event).items() if name not in FROM_LOG}


def utc_text(when: datetime) -> str:
    """Return ISO 8601 with milliseconds and Z, so that text order is time order."""
    if when.tzinfo is None:
        raise ValueError("utc must have a time zone")
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: float) -> float | None:
    """JSON has no NaN or infinity. Rounding keeps the order, so a grant never shows less than its threshold."""
    return round(float(value), 6) if math.isfinite(value) else None
