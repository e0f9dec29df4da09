"""The age of the data: neither restarts nor a wrong clock make them younger."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.fleet.freshness import FIRST_TIME, RESTART_SECONDS, TOLERANCE_SECONDS, Freshness, Times, boot_id
from edge.fleet.memory import NAME, Memory

NOW = 1_800_000_000.0
FRESH = Freshness(utc=NOW, timestamp=7, running=100.0, boot="a")


def test_data_that_were_never_verified_are_infinitely_old() -> None:
    assert Freshness().age(Times(NOW, 0.0, "a")) == math.inf


@given(utc=st.floats(0, 4e9), seconds=st.floats(0, 1e8))
def test_running_time_counts_whatever_the_clock_says(utc: float, seconds: float) -> None:
    assert FRESH.age(Times(utc, 100.0 + seconds, "a")) >= seconds - 1e-3


@given(steps=st.lists(st.tuples(st.floats(0, 1e5), st.booleans(), st.floats(0, 4e9)), max_size=30))
def test_age_never_decreases_without_a_refresh_while_the_clock_stands_or_goes(
    steps: list[tuple[float, bool, float]],
) -> None:
    """Each step runs for some seconds, and may then restart. The clock of the day is always before the refresh."""
    freshness, running, boot, age = FRESH, 100.0, 0, 0.0
    for seconds, restarts, utc in steps:
        if restarts:
            running, boot = 0.0, boot + 1
        running += seconds
        now = Times(min(utc, NOW), running, f"a{boot}" if boot else "a")
        freshness = freshness.resumed(now)
        assert freshness.age(now) >= age - 1e-6
        age = freshness.age(now)


def test_time_that_the_device_was_off_counts_if_the_clock_is_right() -> None:
    assert FRESH.resumed(Times(NOW + 5000, 3.0, "b")).age(Times(NOW + 5000, 3.0, "b")) == 5000


def test_restart_with_an_unknown_time_off_counts() -> None:
    now = Times(0.0, 3.0, "b")
    assert FRESH.resumed(now).age(now) == 3.0 + RESTART_SECONDS


@pytest.mark.parametrize(
    ("utc", "plausible"),
    [(NOW + 50, True), (NOW + 50 - TOLERANCE_SECONDS, True), (NOW - 1000, False), (0.0, False), (NOW * 2, True)],
)
def test_clock_before_the_last_refresh_is_not_plausible(utc: float, plausible: bool) -> None:
    assert FRESH.is_plausible(Times(utc, 150.0, "a")) is plausible


def test_clock_before_this_software_is_not_plausible() -> None:
    assert not Freshness().is_plausible(Times(FIRST_TIME - 1000, 1.0, "a"))
    assert Freshness().is_plausible(Times(FIRST_TIME, 1.0, "a"))


def test_metadata_are_never_judged_at_an_impossible_time() -> None:
    assert FRESH.reference(Times(0.0, 160.0, "a")).timestamp() == NOW + 60
    assert FRESH.reference(Times(NOW + 500, 160.0, "a")).timestamp() == NOW + 500


def test_same_timestamp_does_not_make_data_fresh_without_a_clock() -> None:
    now = Times(0.0, 200.0, "a")
    assert FRESH.after(now, 7).age(now) == 100.0
    assert FRESH.after(now, 8).age(now) == 0.0
    right = Times(NOW + 100, 200.0, "a")
    assert FRESH.after(right, 7).age(right) == 0.0


def test_first_timestamp_proves_nothing_without_a_clock() -> None:
    now = Times(0.0, 5.0, "a")
    first = Freshness().after(now, 3)
    assert first.age(now) == math.inf
    assert first.after(now, 3).age(now) == math.inf
    assert first.after(now, 4).age(now) == 0.0


def test_start_of_the_device_has_an_id_that_stays(tmp_path: Path) -> None:
    assert Times.now().boot == boot_id() != ""
    assert boot_id(tmp_path / "none") != boot_id(tmp_path / "none"), "unknown: always another start"


def test_memory_is_what_was_saved(tmp_path: Path) -> None:
    memory = Memory(freshness=FRESH, problem="frozen").with_offered("a" * 64)
    memory.save(tmp_path)
    assert Memory.load(tmp_path) == memory


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"schema": 2, "freshness": {}, "offered": [], "problem": ""}',
        b'{"schema": 1, "freshness": {"utc": NaN}, "offered": [], "problem": ""}',
        b'{"schema": 1, "freshness": {"utc": "now"}, "offered": [], "problem": ""}',
        b'{"schema": 1, "freshness": {"ran": -1}, "offered": [], "problem": ""}',
        b'{"schema": 1, "freshness": {"other": 1}, "offered": [], "problem": ""}',
        b'{"schema": 1, "freshness": {}, "offered": [1], "problem": ""}',
    ],
)
def test_damaged_memory_means_that_nothing_was_verified(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NAME).write_bytes(data)
    assert Memory.load(tmp_path) == Memory()


def test_memory_of_offered_kits_is_bounded(tmp_path: Path) -> None:
    memory = Memory()
    for number in range(100):
        memory = memory.with_offered(f"{number:064x}")
    memory.save(tmp_path)
    assert Memory.load(tmp_path).offered[-1] == f"{99:064x}"
    assert len(Memory.load(tmp_path).offered) < 100
