"""Fixtures: the `trainer` command, and a Dask cluster of two processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import LocalCluster

from tests.fixtures.trainer_command import TrainerCommand


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> TrainerCommand:
    return TrainerCommand(monkeypatch, capsys)


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Return the address of the scheduler."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local:
        yield local.scheduler_address
