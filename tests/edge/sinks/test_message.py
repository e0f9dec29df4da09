"""The message to remote receivers."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from edge.sinks.message import message
from tests.fixtures.events import make_event


@given(age=st.floats(0, 100), seconds=st.floats(0.1, 60), names=st.booleans(), granted=st.booleans())
def test_only_a_grant_in_time_has_a_nonce(age: float, seconds: float, names: bool, granted: bool) -> None:
    event = make_event(outcome="granted" if granted else "denied")
    fields = message(event, age_seconds=age, grant_seconds=seconds, names=names)
    is_valid = granted and age < seconds
    assert (fields["outcome"] == "granted") == is_valid
    assert fields["nonce"] == (event.event_id if is_valid else None)
    assert fields["label"] == ("anna" if names else None)
    assert (fields["expires"] is None) == (not granted)
    if granted:
        lifetime = datetime.fromisoformat(fields["expires"]) - datetime.fromisoformat(event.utc)
        assert abs(lifetime.total_seconds() - seconds) < 0.002
