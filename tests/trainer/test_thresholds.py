"""The threshold against strangers: its rates are those that were counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from edge.errors import ParameterError
from edge.vision.confidence import score_confidence
from tests.fixtures.data import SPEC, small_gallery
from trainer.method.estimator import LCLRRDL
from trainer.model import Model
from trainer.thresholds import StrangerCalibration, smoothed_quantile, stranger_confidences, stricter_threshold, threshold
from trainer.training import fit

pytestmark = pytest.mark.slow

confidences = st.lists(st.floats(-0.2, 1.0), min_size=1, max_size=400).map(np.array)


@given(confidences, st.floats(1e-4, 0.5))
def test_threshold_passes_at_most_the_wanted_share(strangers: np.ndarray, fpir: float) -> None:
    found = threshold(strangers, fpir)
    assert found.passed == np.sum(strangers >= found.confidence) <= fpir * len(strangers)
    lower = found.confidence - 2e-4
    too_many = np.sum(strangers >= lower) > fpir * len(strangers)
    assert too_many or lower < smoothed_quantile(strangers, fpir), "the lowest confidence"
    assert found.target == fpir
    assert found.stated_rate == max(fpir, 3 / len(strangers))


@given(confidences, st.floats(1e-4, 0.5))
def test_smoothed_share_exceeds_the_quantile(strangers: np.ndarray, share: float) -> None:
    found = smoothed_quantile(strangers, share)
    assert smoothed_quantile(strangers, share / 2) >= found
    assert smoothed_quantile(strangers + 0.25, share) == pytest.approx(found + 0.25, abs=1e-6)
    if np.std(strangers) > 1e-3:
        width = np.cbrt(4 / len(strangers)) * np.std(strangers)
        assert np.mean(norm.sf(found, strangers, width)) == pytest.approx(share, rel=1e-3)


def test_threshold_of_few_strangers_holds_for_others() -> None:
    """The count alone lets 1.6 % of others pass on average, if it is set on 60."""
    rng = np.random.default_rng(0)
    rates = [norm.sf(threshold(rng.normal(0.35, 0.05, 60)).confidence, 0.35, 0.05) for _ in range(200)]
    assert 0.005 < np.mean(rates) < 0.0125


def test_smoothing_alone_gives_no_threshold_that_nobody_reaches() -> None:
    """The confidence is at most 1. With few people that of strangers is high and spread widely."""
    strangers = np.linspace(0.5, 0.96, 30)
    assert smoothed_quantile(strangers, 0.01) > 1
    assert threshold(strangers).confidence == pytest.approx(0.98, abs=2e-4)
    assert threshold(np.append(strangers, 1.0)).confidence > 1


def test_threshold_of_many_strangers_is_that_of_the_count() -> None:
    strangers = np.random.default_rng(0).normal(0.35, 0.05, 20_000)
    assert threshold(strangers).confidence == pytest.approx(np.quantile(strangers, 0.99), abs=0.003)


@pytest.mark.parametrize(("passed", "trials"), [(0, 50), (1, 180), (9, 180), (50, 50)])
def test_interval_is_exact(passed: int, trials: int) -> None:
    """At the ends of the interval, the count has a binomial probability of 2.5 %."""
    found = StrangerCalibration(confidence=0.5, target=0.01, passed=passed, trials=trials)
    low, high = found.interval
    assert low <= passed / trials <= high
    if passed:
        assert binom.sf(passed - 1, trials, low) == pytest.approx(0.025)
    if passed < trials:
        assert binom.cdf(passed, trials, high) == pytest.approx(0.025)


def test_rate_outside_0_and_1_is_rejected() -> None:
    for fpir in (0, 1, -0.1, float("nan")):
        with pytest.raises(ParameterError):
            threshold(np.array([0.5]), fpir)


def test_stranger_is_scored_by_a_model_trained_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    faces = small_gallery(people=tuple("abcdef"))
    seen: list[set[str]] = []
    scored: list[int] = []
    usual_fit, usual_scores = LCLRRDL.fit, LCLRRDL.decision_function

    def watched_fit(self: LCLRRDL, X: np.ndarray, y: np.ndarray) -> LCLRRDL:
        seen.append(set(y))
        return usual_fit(self, X, y)

    def watched_scores(self: LCLRRDL, X: np.ndarray) -> np.ndarray:
        for crop in X:
            (at,) = np.flatnonzero((faces.images == crop).all(axis=(1, 2)))
            assert faces.labels[at] not in seen[-1]
            scored.append(int(at))
        return usual_scores(self, X)

    monkeypatch.setattr(LCLRRDL, "fit", watched_fit)
    monkeypatch.setattr(LCLRRDL, "decision_function", watched_scores)
    folds: list[tuple[int, int]] = []
    found = stranger_confidences(faces, SPEC, {}, folds=2, progress=lambda done, all_: folds.append((done, all_)))
    assert sorted(scored) == list(range(len(faces.labels)))
    assert folds == [(0, 2), (1, 2)]
    assert found.shape == faces.labels.shape
    assert np.isfinite(found).all()


def test_few_people_give_no_threshold() -> None:
    assert fit(small_gallery(), SPEC, {"atoms_per_class": 3}, fpir=0.1).calibration is None


# --- Given strangers ---


@given(confidences, confidences, st.floats(1e-4, 0.5))
def test_rate_holds_for_each_kind_of_strangers(left_out: np.ndarray, public: np.ndarray, fpir: float) -> None:
    found = stricter_threshold(left_out, public, fpir)
    assert found is not None
    decide, others = (public, left_out) if found.public else (left_out, public)
    alone = threshold(decide, fpir)
    assert (found.confidence, found.passed, found.trials) == (alone.confidence, alone.passed, len(decide))
    assert found.stated_rate == alone.stated_rate >= 3 / len(decide)
    assert found.others_passed == np.sum(others >= found.confidence) <= fpir * len(others) == fpir * found.others_trials


@given(confidences, st.integers(1, 5000))
def test_easy_photos_do_not_change_the_threshold(left_out: np.ndarray, easy: int) -> None:
    found = stricter_threshold(left_out, np.full(easy, left_out.min() - 1))
    alone = threshold(left_out)
    assert found is not None
    assert (found.confidence, found.interval, found.stated_rate) == (alone.confidence, alone.interval, alone.stated_rate)


def test_one_kind_of_strangers_is_enough() -> None:
    one, none = np.array([0.3, 0.5]), np.zeros(0)
    assert stricter_threshold(one, none, 0.1) == threshold(one, 0.1)
    public = stricter_threshold(none, one, 0.1)
    assert public is not None
    assert (public.public, public.confidence, public.trials) == (True, threshold(one, 0.1).confidence, 2)
    assert stricter_threshold(none, none, 0.1) is None


@pytest.mark.parametrize("people", [("anna", "ben"), tuple("abcdef")])
def test_given_strangers_are_scored_by_the_model_itself(people: tuple[str, ...], tmp_path: Path) -> None:
    known, strangers = small_gallery(people=people), small_gallery(seed=7, people=("yves", "zoe"))
    model = fit(known, SPEC, {"atoms_per_class": 3}, fpir=0.1, strangers=strangers)
    found = model.calibration
    assert found is not None
    scored = score_confidence(model.scores(strangers.images))
    trials = {True: len(strangers.images), False: len(known.images) if len(people) > 5 else 0}
    assert (found.trials, found.others_trials) == (trials[found.public], trials[not found.public])
    assert (found.passed if found.public else found.others_passed) == np.sum(scored >= found.confidence) <= 1
    model.save(tmp_path / "door.npz")
    assert Model.load(tmp_path / "door.npz").calibration == found


def test_summary_says_if_no_face_can_reach_the_threshold() -> None:
    calibration = StrangerCalibration(confidence=1.0001, target=0.01, passed=0, trials=400)
    assert "No face can reach" in calibration.summary()
    assert "No face can reach" not in replace(calibration, confidence=0.7).summary()
