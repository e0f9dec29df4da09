"""Builds in these tests do not wait for precise timings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from export import measure


@pytest.fixture(scope="session", autouse=True)
def short_timings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure, "TIMING_SECONDS", 0.0)
        yield
