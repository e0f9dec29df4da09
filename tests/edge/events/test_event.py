"""Events: their fields and their JSON."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.decision import reasons
from edge.events.event import ALARMS, EVENT_SCHEMA, Event, message, notice
from tests.fixtures.data import ROOT
from tests.fixtures.events import DECISION, NOON, make_event


def test_json_of_a_decision_has_all_fields_in_a_stable_order() -> None:
    found = json.loads(make_event().to_json())
    assert len(found.pop("event_id")) == 32
    wanted = {
        "schema": EVENT_SCHEMA,
        "kind": "decision",
        **{
            name: DECISION[name]
            for name in ("outcome", "reason", "label", "confidence", "threshold", "margin", "frames", "looks")
        },
        "visit": 1,
        "utc": "2025-03-01T12:03:07.250Z",
        "monotonic": 10.4,
        "seconds_from_first_sight": 0.4,
        "seconds_from_capture": 0.1,
        "camera": "front",
        "kit": "0123456789ab",
        "sequence": None,
        "head": None,
        "head_mac": None,
    }
    assert list(found.items()) == list(wanted.items())


def test_notice_has_the_same_fields_and_grants_nothing() -> None:
    lost = notice("camera", outcome="lost", reason="unplugged", now=3.0, utc=NOON)
    assert list(json.loads(lost.to_json())) == [field.name for field in fields(Event)]
    assert (lost.outcome, lost.label, lost.grants) == ("lost", None, False)
    assert not notice("start", outcome="granted", now=1, utc=NOON).grants


def test_time_is_utc_and_needs_a_time_zone() -> None:
    assert make_event(utc=NOON.astimezone(timezone(timedelta(hours=5)))).utc == "2025-03-01T12:03:07.250Z"
    with pytest.raises(ValueError, match="zone"):
        make_event(utc=NOON.replace(tzinfo=None))


def test_event_ids_are_unique() -> None:
    assert len({make_event().event_id for _ in range(100)}) == 100


@given(
    label=st.none() | st.text(st.characters()),
    reason=st.text(st.characters()),
    numbers=st.tuples(*[st.floats()] * 3, *[st.floats(-1e9, 1e9)] * 2),
)
def test_json_is_one_strict_line_for_any_content(
    label: str | None, reason: str, numbers: tuple[float, float, float, float, float]
) -> None:
    confidence, threshold, margin, first_seen, now = numbers
    decided: dict[str, Any] = {
        "confidence": np.float64(confidence),
        "threshold": threshold,
        "margin": margin,
        "first_seen": first_seen,
    }
    line = make_event(label=label, reason=reason, now=now, **decided).to_json()
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    line.encode("utf-8")

    def reject(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(line, parse_constant=reject)
    assert found["label"] == (None if label is None else label.encode("utf-8", "replace").decode())


@given(st.floats(0, 1), st.floats(0, 1))
def test_rounding_keeps_the_order_of_confidence_and_threshold(one: float, other: float) -> None:
    low, high = sorted((one, other))
    event = make_event(confidence=high, threshold=low)
    assert (event.confidence or 0) >= (event.threshold or 0)


PAGE = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")


def test_page_has_the_schema_and_all_reasons_and_alarms() -> None:
    assert f'{{"schema": {EVENT_SCHEMA}, ' in PAGE
    assert f"version of these fields: {EVENT_SCHEMA} " in PAGE
    words = {value for name, value in vars(reasons).items() if name.isupper()}
    assert len(words) > 15
    assert not [word for word in words if f"`{word}" not in PAGE and f": {word}`" not in PAGE]
    bold = {
        (kind, outcome)
        for kind, outcomes in re.findall(r"^\| `(\w+)` \|(.*?)\|", PAGE, re.MULTILINE)
        for outcome in re.findall(r"\*\*`([\w ]+)`\*\*", outcomes)
    }
    assert bold == ALARMS


def test_alarm_is_an_event_of_the_table() -> None:
    assert notice("input", outcome="forced open", now=1, utc=NOON).is_alarm
    assert not notice("list", outcome="forced open", now=1, utc=NOON).is_alarm
    assert not make_event().is_alarm


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
