"""Every measure against plain loops, on random trials."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.vision.confidence import score_confidence
from trainer.data.gallery import RejectedPhoto
from trainer.evaluation.evaluate import SHOWN, Evaluation, measure
from trainer.evaluation.measures import DET_POINTS, FPIRS, Share, det
from trainer.evaluation.trials import NOT_NAMED, EvaluatedSystem, Trials

pytestmark = pytest.mark.slow

PEOPLE = ("anna", "ben", "çelik", "dora")


def system(threshold: float | None = 0.6) -> EvaluatedSystem:
    return EvaluatedSystem(
        kind="model",
        file="door.npz",
        labels=PEOPLE,
        crop_shape=(2, 2),
        alignment="none",
        threshold=threshold,
        provisional=False,
        features="pixels",
        coding="l1",
        photos="",
        score=lambda crops: (crops, crops),
    )


@st.composite
def some_trials(draw: st.DrawFn) -> Trials:
    """Integer scores, so that some tie; with or without strangers; at least one photo of an enrolled person."""
    truth = np.array([draw(st.integers(0, 3)), *draw(st.lists(st.integers(-1, 3), max_size=40))])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(-2, 6, (len(truth), len(PEOPLE))).astype(float)
    return Trials(
        labels=PEOPLE,
        scores=scores,
        confidence=np.where(rng.random(len(truth)) < 0.1, NOT_NAMED, score_confidence(scores)),
        truth=truth,
        people=np.array([PEOPLE[person] if person >= 0 else f"stranger {rng.integers(3)}" for person in truth]),
        conditions=rng.choice(["clean", "scarf"], len(truth)),
        sources=tuple(f"{i}.png" for i in range(len(truth))),
        crops=np.zeros((len(truth), 2, 2), np.uint8),
        not_acquired=tuple(
            RejectedPhoto(person="anna", source=f"bad {i}.png", condition="scarf", reason="no face found")
            for i in range(rng.integers(3))
        ),
    )


def missed(trials: Trials, i: Any, threshold: float) -> bool:
    """The definition, word by word."""
    own = trials.scores[i, trials.truth[i]]
    first = all(own > score for j, score in enumerate(trials.scores[i]) if j != trials.truth[i])
    return not (first and trials.confidence[i] >= threshold)


@given(some_trials(), st.one_of(st.none(), st.floats(-0.5, 1.1), st.integers(0, 40)))
def test_rates_equal_plain_counts(trials: Trials, threshold: Any) -> None:
    if isinstance(threshold, int):  # exactly the confidence of a photo, which is enough
        threshold = max(float(trials.confidence[threshold % len(trials.truth)]), -1.0)
    found = measure(system(threshold), trials)
    enrolled = [i for i, person in enumerate(trials.truth) if person >= 0]
    strangers = [i for i, person in enumerate(trials.truth) if person < 0]
    assert (found.own is None) == (threshold is None)
    for point in (*found.at, *([found.own] if found.own else [])):
        assert point.fnir == Share(sum(missed(trials, i, point.threshold) for i in enrolled), len(enrolled))
        assert point.fpir == Share(sum(trials.confidence[i] >= point.threshold for i in strangers), len(strangers))
        wrong = sum(trials.confidence[i] >= point.threshold and missed(trials, i, NOT_NAMED - 1) for i in enrolled)
        assert point.wrong == wrong
    if found.own is not None and strangers:
        named = {trials.people[i] for i in strangers if trials.confidence[i] >= found.own.threshold}
        assert found.strangers_named == Share(len(named), len({trials.people[i] for i in strangers}))
    assert len(found.at) == (len(FPIRS) if strangers else 0)
    for point, rate in zip(found.at, FPIRS, strict=False):
        assert point.target == rate
        assert point.fpir.count <= rate * len(strangers)
        assert point.shown == (3 / len(strangers) <= rate)
    assert found.failed == Share(len(trials.not_acquired), len(trials.not_acquired) + len(trials.truth))
    check_cmc(found)
    check_det(found)


def check_cmc(found: Evaluation) -> None:
    trials = found.trials
    own = trials.scores[np.arange(len(trials.truth)), trials.truth]
    ranks = [sum(score >= own[i] for score in trials.scores[i]) for i in np.flatnonzero(trials.truth >= 0)]
    assert found.cmc == tuple(np.mean([rank <= r for rank in ranks]) for r in range(1, len(PEOPLE) + 1))
    assert list(found.cmc) == sorted(found.cmc)
    assert found.cmc[-1] == 1
    assert found.cmc[0] == found.rank1.value


def check_det(found: Evaluation) -> None:
    trials, curve = found.trials, found.det
    enrolled, strangers = np.flatnonzero(trials.truth >= 0), trials.confidence[trials.truth < 0]
    assert bool(curve) == (len(strangers) > 0)
    for threshold, fpir, fnir in curve:
        assert fpir == np.mean(strangers >= threshold)
        assert fnir == np.mean([missed(trials, i, threshold) for i in enrolled])
    for one, other in pairwise(curve):
        assert one[0] >= other[0]
        assert one[1] <= other[1]
        assert one[2] >= other[2]
    if curve:
        assert curve[0][1] == 0
        assert curve[-1][1] == np.mean(strangers > NOT_NAMED)


def test_det_of_many_strangers_stays_short() -> None:
    rng = np.random.default_rng(0)
    genuine, strangers = rng.random(300), rng.random(20_000)
    curve = det(genuine, strangers)
    assert 100 < len(curve) <= DET_POINTS + 1
    assert all(fnir == np.mean(genuine < threshold) for threshold, _, fnir in curve)


@given(some_trials())
def test_splits_add_up_and_the_worst_photos_are_listed(trials: Trials) -> None:
    found = measure(system(), trials)
    assert found.own is not None
    for splits in (found.conditions, found.each):
        sums: list[tuple[Share, Sequence[Share | None]]] = [
            (found.rank1, [split.rank1 for split in splits]),
            (found.own.fnir, [split.fnir for split in splits]),
            *((point.fnir, [split.fnir_at[k] for split in splits]) for k, point in enumerate(found.at)),
        ]
        for whole, parts in sums:
            assert whole.count == sum(part.count for part in parts if part)
            assert whole.of == sum(part.of for part in parts if part)
    assert found.own.fpir.count == sum(split.fpir.count for split in found.conditions if split.fpir)
    assert found.failed.count == sum(split.failed.count for split in found.conditions) == sum(found.reasons.values())
    rates = [split.fnir.value or 0 for split in found.each if split.fnir]
    assert rates == sorted(rates, reverse=True)
    check_listed(found)
    facts = json.loads(json.dumps(found.facts(), allow_nan=False))
    assert facts["rank1"]["low"] <= facts["rank1"]["share"] == found.rank1.value <= facts["rank1"]["high"]
    assert [point["fnir"]["count"] for point in facts["at"]] == [point.fnir.count for point in found.at]
    keys = {"schema", "kind", "file", "threshold", "own", "cmc", "det", "conditions", "each", "confusions", "misses"}
    keys |= {"intruders", "failed", "reasons", "unlike", "own_atoms", "alike", "examples", "part_splits", "residuals"}
    assert keys <= set(facts)
    assert not {"system", "trials", "model", "codes", "inside"} & set(facts)


def check_listed(found: Evaluation) -> None:
    trials = found.trials
    lost = {(PEOPLE[trials.truth[i]], PEOPLE[trials.nearest[i]]) for i in np.flatnonzero(trials.rank > 1)}
    shown = {(pair.person, pair.taken_for) for pair in found.confusions}
    assert shown == {pair for pair in lost if pair[0] != pair[1]} or len(shown) == SHOWN
    assert all(pair.surest.nearest == pair.taken_for and pair.surest.person == pair.person for pair in found.confusions)
    for photo in found.misses:
        assert missed(trials, photo.index, 0.6)
        assert photo.named == (trials.confidence[photo.index] >= 0.6)
    named = [photo.named for photo in found.misses]
    assert named == sorted(named, reverse=True), "a wrong name is worse than none"
    if found.intruders:
        strangers = trials.confidence[trials.truth < 0]
        assert found.intruders[0].surest.confidence == (strangers.max() if strangers.max() > NOT_NAMED else None)
