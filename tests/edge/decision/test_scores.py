"""Scores are arrays, and decisions are those of the plain rule, written out person by person."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random

import numpy as np
import pytest

from edge.decision.door import Decision, Door
from edge.decision.visit import Sighting, Visit, VisitRules
from edge.kit.manifest import ABSOLUTE, CONFIDENCES, RELATIVE
from edge.vision.confidence import score_margin

WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
THRESHOLD = 0.8
Result = tuple[str, str | None, float, float, float]  # outcome, label, when, confidence, margin


def is_valid(sighting: Sighting, labels: tuple[str, ...]) -> bool:
    scores = () if sighting.scores is None else tuple(sighting.scores.tolist())
    if len(scores) != len(labels) or not math.isclose(math.hypot(*scores), 1, abs_tol=1e-3):
        return False
    if not (math.isfinite(sighting.confidence) and math.isfinite(sighting.margin) and 0 < sighting.score_length < math.inf):
        return False
    top = max(scores)
    best = [label for label, score in zip(labels, scores, strict=True) if score == top]
    return sighting.label is None or (sighting.label in best and sighting.confidence >= THRESHOLD)


def plain_rule(sightings: list[Sighting], labels: tuple[str, ...], kind: str) -> Result | None:
    """Decide one visit with loops over people and without NumPy: the rule before scores were arrays."""
    rules, recent, weight, evidence = VisitRules(), list[Sighting](), 0.0, [0.0] * len(labels)
    usable, since = 0, math.inf
    confidence = margin = 0.0
    for sighting in sightings:
        if is_valid(sighting, labels):
            assert sighting.scores is not None
            share = max(sighting.confidence, 0.0)
            for person, score in enumerate(sighting.scores.tolist()):
                evidence[person] += share * sighting.score_length * score
            weight, usable, since = weight + share, usable + 1, min(since, sighting.captured)
            recent = [*recent, sighting][-rules.window :]
            size = max(math.hypot(*evidence), 1e-6) if kind == RELATIVE else weight or 1.0
            second, top = sorted(evidence)[-2:]
            confidence, margin = min(top / size, 1.0), (top - second) / size
            named = [one.label for one in recent if one.label is not None]
            is_agreed = len(named) >= rules.needed and set(named) == {sighting.label}
            if sighting.label and is_agreed and evidence[labels.index(sighting.label)] == top and confidence >= THRESHOLD:
                return "granted", sighting.label, sighting.captured, confidence, margin
        if usable >= rules.window and sighting.captured - since >= rules.patience_seconds:
            return "denied", None, sighting.captured, confidence, margin
    return None


def random_sightings(rng: Random, labels: tuple[str, ...], kind: str) -> list[Sighting]:
    """Frames of one person among noise, with ties, with other people, and with numbers that are not valid."""
    noise, who = np.random.default_rng(rng.getrandbits(32)), rng.randrange(len(labels))
    clear = rng.choice((0.1, 0.6, 1.0, 3.0))
    found = []
    for i in range(40):
        scores = noise.standard_normal(len(labels)) * 0.5 / math.sqrt(len(labels))
        person = who if rng.random() < 0.9 else rng.randrange(len(labels))
        scores[person] += clear * rng.uniform(0.5, 1.5)
        if rng.random() < 0.1:
            scores[(person + 1) % len(labels)] = scores[person]  # a tie
        length = float(np.linalg.norm(scores))
        scores /= length
        score_length = 1.0 if kind == RELATIVE else length
        confidence = min(float(scores.max()) * score_length, 1.0)
        label = labels[person] if confidence >= THRESHOLD and scores[person] == scores.max() else None
        damage = rng.random()
        if damage < 0.03:
            scores = scores[:-1]
        elif damage < 0.06:
            scores[rng.randrange(len(labels))] = rng.choice((math.nan, math.inf))
        elif damage < 0.09:
            label = rng.choice(labels)
        elif damage < 0.12:
            scores = scores * rng.choice((0.9, 1.1))
        sighting = Sighting(
            captured=i / 5, label=label, confidence=confidence, margin=0.1, scores=scores, score_length=score_length
        )
        found.append(sighting)
    return found


@pytest.mark.parametrize("kind", CONFIDENCES)
@pytest.mark.parametrize(("people", "sequences"), [(2, 60), (7, 60), (3000, 6)])
def test_decisions_are_those_of_the_plain_rule(people: int, sequences: int, kind: str) -> None:
    labels, outcomes = tuple(f"p{i}" for i in range(people)), set()
    for seed in range(sequences):
        sightings = random_sightings(Random(seed), labels, kind)
        door, found = Door(labels, THRESHOLD, kind), list[Decision]()
        for sighting in sightings:
            found += door.step(now=sighting.captured, when=WHEN, seen={1: sighting}).decisions
        expected = plain_rule(sightings, labels, kind)
        assert [(d.outcome, d.label, d.captured) for d in found] == ([] if expected is None else [expected[:3]])
        for decision in found:
            assert expected is not None
            assert (decision.confidence, decision.margin) == pytest.approx(expected[3:], abs=1e-12)
        outcomes |= {decision.outcome for decision in found}
    assert outcomes == {"granted", "denied"}


def test_margin_of_many_people_is_the_lead_over_the_second() -> None:
    scores = np.random.default_rng(0).standard_normal((5, 1000))
    ordered = np.sort(scores, axis=1)
    np.testing.assert_array_equal(score_margin(scores, ABSOLUTE), ordered[:, -1] - ordered[:, -2])


def test_visit_keeps_one_array_and_nobody_can_change_it() -> None:
    """The frames of the window keep no scores: with 10,000 people they would be most of the memory."""
    visit = Visit(number=1, first_seen=0.0, last_seen=0.0)
    scores = np.array([0.6, 0.8, 0.0])
    for i in range(8):
        visit = visit.after(Sighting(captured=float(i), confidence=0.8, scores=scores), None, VisitRules())
    assert all(sighting.scores is None for sighting in visit.recent)
    assert visit.evidence is not None
    assert not visit.evidence.flags.writeable
    np.testing.assert_allclose(visit.evidence, 8 * 0.8 * scores)
    assert scores.flags.writeable, "the caller's array is as before"
