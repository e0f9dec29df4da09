"""Capture times: a stamp that stands still gets old, and a suspend counts."""

from __future__ import annotations

import math

import pytest

from edge.camera.stamps import NEVER, CaptureTimes
from edge.errors import CameraError

IMPLAUSIBLE = (0.0, -5.0, math.nan, math.inf, 1.8e9)


class Device:
    """The two clocks of a device."""

    def __init__(self) -> None:
        self.boottime, self.monotonic = 5000.0, 4000.0  # it was suspended before

    def run(self, seconds: float) -> None:
        self.boottime += seconds
        self.monotonic += seconds

    def suspend(self, seconds: float) -> None:
        self.boottime += seconds

    def times(self, *, is_monotonic: bool = False) -> CaptureTimes:
        return CaptureTimes(is_monotonic=is_monotonic, now=lambda: self.boottime, monotonic=lambda: self.monotonic)


def test_stamp_that_stands_still_gets_old() -> None:
    device = Device()
    times = device.times()
    for _ in range(100):
        assert times.captured(4999.9) == 4999.9
        device.run(1.0)


@pytest.mark.parametrize("stamp", IMPLAUSIBLE)
def test_implausible_stamp_is_stale_if_the_source_had_valid_ones(stamp: float) -> None:
    device = Device()
    times = device.times()
    assert times.captured(stamp) == device.boottime, "a source without stamps"
    assert times.captured(4999.5) == 4999.5
    times.connected()
    for _ in range(3):
        assert times.captured(stamp) == NEVER
    device.run(1.0)
    assert times.captured(5000.9) == 5000.9


def test_monotonic_stamp_is_converted() -> None:
    device = Device()
    times = device.times(is_monotonic=True)
    assert times.captured(3999.9) == pytest.approx(4999.9)
    assert times.captured(4000.0) == 5000.0
    assert times.captured(4000.1) == NEVER, "the future"


def test_frame_from_before_a_suspend_is_as_old_as_the_suspend() -> None:
    device = Device()
    times = device.times(is_monotonic=True)
    device.run(0.1)
    device.suspend(3600)
    assert device.boottime - times.captured(4000.05) == pytest.approx(3600.05)
    device.run(0.1)
    assert device.boottime - times.captured(4000.15) == pytest.approx(0.05), "the next frame is new"


def test_frame_without_a_stamp_is_not_read_after_a_suspend() -> None:
    device = Device()
    for is_monotonic in (False, True):
        times = device.times(is_monotonic=is_monotonic)
        assert times.arrived() == times.captured(0.0) == device.boottime
        for read in (times.arrived, lambda times=times: times.captured(0.0)):
            device.suspend(3600)
            with pytest.raises(CameraError, match="suspended"):
                read()
            assert read() == device.boottime
        device.suspend(3600)
        times.connected()
        assert times.arrived() == device.boottime, "a new connection has no old images"
