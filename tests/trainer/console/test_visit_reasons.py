"""The reasons of decisions in plain words, in every language."""

from __future__ import annotations

import re

import pytest

from edge.audit import gate
from edge.decision import reasons
from edge.events.event import message
from edge.vision.quality import REASONS
from tests.fixtures.events import make_event
from trainer.console.text import language, languages
from trainer.console.visits import reason_text


def own_reasons() -> list[str]:
    """All reasons that a terminal gives."""
    details = {
        reasons.LOW_QUALITY: REASONS,
        reasons.CHALLENGE_FAILED: (
            reasons.TIMEOUT,
            reasons.WRONG_MOVEMENT,
            reasons.FACE_LOST,
            reasons.NOT_ALONE,
            reasons.ANOTHER_PERSON,
        ),
    }
    inner = {detail for found in details.values() for detail in found}
    plain = {value for name, value in vars(reasons).items() if name.isupper() and value not in (*details, *inner)}
    late = message(make_event(), age_seconds=60, grant_seconds=5, names=True)["reason"]
    combined = [f"{kind}: {detail}" for kind, found in details.items() for detail in found]
    return [*sorted(plain), *combined, gate.NOT_WRITTEN, gate.TOO_LATE, late]


@pytest.mark.parametrize("code", languages())
@pytest.mark.parametrize("reason", own_reasons())
def test_every_reason_of_a_terminal_has_plain_words(reason: str, code: str) -> None:
    text = language(code)
    kind, _, detail = reason.partition(": ")
    words = [text.messages[f"visits.reason_{re.sub('[^a-z]+', '_', kind)}"]]
    words += [text.messages[f"visits.detail_{detail.replace(' ', '_')}"]] if detail else []
    assert reason_text(text, reason) == ": ".join(words)


@pytest.mark.parametrize("reason", ["of a later version", "low image quality: of a later version", "a\u202eb", ""])
def test_reason_without_a_message_keeps_its_words(reason: str) -> None:
    assert reason_text(language("de"), reason) == reason.replace("\u202e", "?")
    assert reason_text(language("de"), None) == ""
