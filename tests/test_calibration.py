"""scripts/research/calibration: the verdict on a threshold, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edge.errors import UsageError
from scripts.research.calibration import table, verdict
from scripts.research.wild import Trials
from trainer.thresholds import StrangerCalibration

# 12 of 100 test photos are below 0.5 or have a wrong name.
TESTS = Trials(right=np.arange(100) >= 2, confidence=np.concatenate([np.full(2, 0.9), np.full(10, 0.45), np.full(88, 0.8)]))


def strangers(passed: int, trials: int = 1000) -> np.ndarray:
    """Confidences, `passed` of which exceed 0.5, with different values from 0.2."""
    return np.concatenate([np.linspace(0.6, 0.7, passed), np.linspace(0.2, 0.4, trials - passed)])


@pytest.mark.parametrize(
    ("passed", "expected"), [(0, "overlap"), (3, "yes"), (10, "yes"), (15, "yes"), (22, "overlap"), (200, "high")]
)
def test_share_of_strangers_is_compared_with_the_stated_interval(passed: int, expected: str) -> None:
    calibration = StrangerCalibration(confidence=0.5, target=0.01, passed=5, trials=500)  # 0.3 to 2.3 %
    cells = verdict(calibration, TESTS, strangers(passed, 800))
    assert cells["FPIR holds"] == expected
    assert cells["FPIR"].startswith(f"{passed / 8:.2f} ")


def test_too_strict_threshold_is_told_apart() -> None:
    calibration = StrangerCalibration(confidence=0.5, target=0.01, passed=100, trials=10_000)
    assert verdict(calibration, TESTS, strangers(0, 10_000))["FPIR holds"] == "low"


def test_missed_photos_are_compared_with_the_exact_threshold() -> None:
    calibration = StrangerCalibration(confidence=0.5, target=0.01, passed=1, trials=100)
    strict = verdict(calibration, TESTS, strangers(0))  # the exact threshold is below 0.45
    assert (strict["FNIR"], strict["exact"], strict["difference"], strict["FNIR holds"]) == ("12.00", "2.00", "+10.00", "no")
    exact = verdict(calibration, TESTS, strangers(20))  # the exact threshold is above 0.6
    assert (exact["FNIR"], exact["exact"], exact["FNIR holds"]) == ("12.00", "12.00", "yes")


def test_stated_rate_is_in_the_stated_interval() -> None:
    calibration = StrangerCalibration(confidence=0.5, target=0.01, passed=0, trials=150)
    cells = verdict(calibration, TESTS, strangers(20))
    assert cells["stated"] == "2.00 (0.00 to 2.43)"
    assert cells["FPIR holds"] == "yes"


def test_threshold_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(UsageError, match="not measured"):
        verdict(None, TESTS, strangers(1))


def test_table_has_a_row_for_each_case() -> None:
    calibration = StrangerCalibration(confidence=0.5, target=0.01, passed=1, trials=100)
    lines = table({name: verdict(calibration, TESTS, strangers(10)) for name in ("a", "b")}).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
