"""The message that remote receivers get: an event's fields, and for a grant a nonce that expires."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from edge.events.event import Event, utc_text

EXPIRED = "expired"
"""Outcome of a grant that was sent too late: a receiver that looks for `granted` opens nothing."""


def message(event: Event, *, age_seconds: float, grant_seconds: float, names: bool) -> dict[str, Any]:
    """Return the fields to send `age_seconds` after the event. `names` keeps the label."""
    fields = asdict(event) | {"nonce": None, "expires": None}
    if not names:
        fields["label"] = None
    if event.grants:
        fields["expires"] = utc_text(datetime.fromisoformat(event.utc) + timedelta(seconds=grant_seconds))
        if age_seconds < grant_seconds:
            fields["nonce"] = event.event_id
        else:
            fields |= {"outcome": EXPIRED, "reason": "granted, but not delivered in time"}
    return fields
