"""Sinks that reach beyond the terminal: a broker (mqtt.py), a web server (webhook.py), a relay (gpio.py).

Each has a frozen settings class and `open_sink(settings)`. None delays a frame, raises into the loop or grows without bound;
each counts what was `delivered`, `failed` and `dropped`, and closes within a bounded time. docs/guide/sinks.md shows what they send.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from edge.events.event import Event, utc_text

EXPIRED = "expired"
"""What a grant becomes that did not get out in time: a receiver that only looks for `granted` opens nothing either."""


def message(event: Event, *, age_seconds: float, grant_seconds: float, names: bool) -> dict[str, Any]:
    """What a receiver is told at `age_seconds` after the event: its fields, and of a grant the nonce and when it expires."""
    facts = asdict(event) | {"nonce": None, "expires": None}
    if not names:
        facts["label"] = None
    if event.grants:
        facts["expires"] = utc_text(datetime.fromisoformat(event.utc) + timedelta(seconds=grant_seconds))
        if age_seconds < grant_seconds:
            facts["nonce"] = event.event_id
        else:
            facts |= {"outcome": EXPIRED, "reason": "granted, but not delivered in time"}
    return facts
