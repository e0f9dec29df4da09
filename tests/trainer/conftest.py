"""Fixtures: the `trainer` command, and a Dask cluster of two processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import LocalCluster

from trainer.cli import main as cli


class Call:
    """Run the command in this process: trainer(arguments...) returns exit code, stdout, stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["trainer", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        assert isinstance(leaving.value.code, int)
        return leaving.value.code, *self.capsys.readouterr()


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(monkeypatch, capsys)


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Return the address of the scheduler."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local:
        yield local.scheduler_address
